/* common/grammar/text_format.c - each expression is within what its standard allows, and narrower where the standard is
 * wide: years from 0001, no leap seconds, letters T and Z; hosts of up to eight names of up to 30 letters, so that none is
 * longer than 253; mail without quotes and without Unicode; paths, queries and fragments of
 * URIs of up to 256, 50 and 25 characters. */
#include "common/grammar/text_format.h"

#include <stddef.h>
#include <string.h>

#include "common/base/err.h"

#define DATE                                                                                                 \
    "(?!0000)(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|"  \
    "02-(?:0[1-9]|1\\d|2[0-8]))|(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-" \
    "02-29)"
#define TIME  "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define N     "\\d{1,6}"
#define CLOCK "(?:" N "H(?:" N "M(?:" N "S)?)?|" N "M(?:" N "S)?|" N "S)"
#define DURATION                                                                                             \
    "P(?:(?:" N "Y(?:" N "M(?:" N "D)?)?|" N "M(?:" N "D)?|" N "D)(?:T" CLOCK ")?|T" CLOCK "|" N "W)"
#define BYTE "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4 BYTE "(?:\\." BYTE "){3}"
#define H    "[0-9a-fA-F]{1,4}"
#define IPV6                                                                                                 \
    "(?:(?:" H ":){7}" H "|(?:" H ":){1,7}:|(?:" H ":){1,6}:" H "|(?:" H ":){1,5}(?::" H "){1,2}|(?:" H      \
    ":){1,4}(?::" H "){1,3}|(?:" H ":){1,3}(?::" H "){1,4}|(?:" H ":){1,2}(?::" H "){1,5}|" H ":(?::" H      \
    "){1,6}|:(?:(?::" H "){1,7}|:))"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,28}[A-Za-z0-9])?"
#define HOST  LABEL "(?:\\." LABEL "){0,7}"
#define WORD  "[A-Za-z0-9_'+-]+"
#define EMAIL "(?=[^@]{1,64}@)" WORD "(?:\\." WORD ")*@(?:" LABEL "\\.){1,7}[A-Za-z]{2,30}"
#define PCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define URI                                                                                                  \
    "[A-Za-z][A-Za-z0-9+.-]{0,18}:(?://" LABEL "(?:\\." LABEL "){0,4}(?::[1-9]\\d{0,3})?(?:/(?:" PCHAR       \
    "|/){0,256})?|" PCHAR "(?:" PCHAR "|/){0,256})(?:\\?(?:" PCHAR "|[/?]){0,50})?(?:#(?:" PCHAR             \
    "|[/?]){0,25})?"

const struct sl_text_format *sl_text_format(const char *name)
{
    static const struct sl_text_format formats[] = {
        {"date", DATE, 10},
        {"time", TIME, 21},
        {"date-time", DATE "T" TIME, 32},
        {"duration", DURATION, 44},
        {"uuid", "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", 36},
        {"ipv4", IPV4, 15},
        {"ipv6", IPV6, 39},
        {"hostname", HOST, 247},
        {"email", EMAIL, 312},
        {"uri", URI, 1200},
    };
    for (size_t i = 0; i < SL_COUNTOF(formats); i++)
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    return NULL;
}
