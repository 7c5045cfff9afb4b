/* common/grammar/number_bound.c - two numbers without exponents compare as texts do: by how many digits are in front of the
 * point, then digit by digit. Signs turn sides round. */
#include "common/grammar/number_bound.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANY_PART "(?:\\.\\d+)?"

/* A bound without its sign: no zeros in front (but "0") or at the end of the part. */
struct decimal {
    char whole[SL_NUMBER_WHOLE_DIGITS + 2], part[SL_NUMBER_BOUND_DIGITS + 2];
    bool negative, huge; /* huge: no number of 16 digits is as far from zero */
};

/* One alternative more, which begins with n digits of the whole. */
static void begin(struct sl_buf *out, size_t start, const struct decimal *d, size_t n)
{
    if (out->len > start)
        sl_buf_puts(out, "|");
    sl_buf_append(out, d->whole, n);
}

static void more_than(struct sl_buf *out, const struct decimal *d, bool or_equal)
{
    size_t start = out->len, n = strlen(d->whole), n_part = strlen(d->part);
    begin(out, start, d, 0);
    sl_buf_printf(out, "[1-9]\\d{%zu,}" ANY_PART, n);
    for (size_t i = 0; i < n; i++)
        if (d->whole[i] < '9') {
            begin(out, start, d, i);
            sl_buf_printf(out, "[%c-9]\\d{%zu}" ANY_PART, d->whole[i] + 1, n - i - 1);
        }
    for (size_t i = 0; i < n_part; i++)
        if (d->part[i] < '9') {
            begin(out, start, d, n);
            sl_buf_printf(out, "\\.%.*s[%c-9]\\d*", (int)i, d->part, d->part[i] + 1);
        }
    begin(out, start, d, n);
    if (n_part || !or_equal)
        sl_buf_printf(out, "\\.%s%s", d->part, or_equal ? "\\d*" : "\\d*[1-9]\\d*");
    else
        sl_buf_puts(out, ANY_PART);
}

/* Adds nothing when nothing is less. */
static void less_than(struct sl_buf *out, const struct decimal *d, bool or_equal)
{
    size_t start = out->len, n = strlen(d->whole), n_part = strlen(d->part);
    if (n > 1)
        sl_buf_printf(out, "(?:0|[1-9]\\d{0,%zu})" ANY_PART, n - 2);
    for (size_t i = 0; i < n; i++) {
        char lo = i == 0 && n > 1 ? '1' : '0';
        if (d->whole[i] > lo) {
            begin(out, start, d, i);
            sl_buf_printf(out, "[%c-%c]\\d{%zu}" ANY_PART, lo, d->whole[i] - 1, n - i - 1);
        }
    }
    for (size_t i = 0; i < n_part; i++) {
        if (d->part[i] > '0') {
            begin(out, start, d, n);
            sl_buf_printf(out, "\\.%.*s[0-%c]\\d*", (int)i, d->part, d->part[i] - 1);
        }
        begin(out, start, d, n); /* the same digits, but fewer */
        if (i)
            sl_buf_printf(out, "\\.%.*s", (int)i, d->part);
    }
    if (!or_equal)
        return;
    begin(out, start, d, n);
    if (n_part)
        sl_buf_printf(out, "\\.%s0*", d->part);
    else
        sl_buf_puts(out, "(?:\\.0+)?");
}

/* The digits of a double in the shortest form that reads as the same one. */
static enum sl_err decimal_of_real(double value, struct decimal *out, struct sl_why *why)
{
    char text[40], digits[20];
    int precision = 0, n = 0, exponent;
    do
        snprintf(text, sizeof text, "%.*e", precision, value);
    while (strtod(text, NULL) != value && ++precision < 17);
    for (const char *t = text; *t && *t != 'e'; t++)
        if (*t >= '0' && *t <= '9')
            digits[n++] = *t;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    if (digits[0] == '0') { /* zero */
        out->whole[0] = '0';
        return SL_OK;
    }
    out->huge = exponent >= SL_NUMBER_WHOLE_DIGITS;
    if (out->huge)
        return SL_OK;
    if (n - 1 - exponent > SL_NUMBER_BOUND_DIGITS)
        return sl_why_set(why, SL_EUNSUPPORTED, "more than %d digits behind the point are not kept to here",
                          SL_NUMBER_BOUND_DIGITS);
    for (int i = 0; i <= exponent; i++)
        out->whole[i] = i < n ? digits[i] : '0';
    if (exponent < 0)
        out->whole[0] = '0';
    for (int i = exponent + 1, k = 0; i < n; i++)
        out->part[k++] = i < 0 ? '0' : digits[i];
    return SL_OK;
}

static enum sl_err decimal_of(const json_t *bound, struct decimal *out, struct sl_why *why)
{
    *out = (struct decimal){0};
    if (json_is_integer(bound)) {
        long long v = json_integer_value(bound);
        char text[24];
        snprintf(text, sizeof text, "%llu", v < 0 ? 0 - (unsigned long long)v : (unsigned long long)v);
        out->negative = v < 0;
        out->huge = strlen(text) > SL_NUMBER_WHOLE_DIGITS;
        if (!out->huge)
            memcpy(out->whole, text, strlen(text) + 1);
        return SL_OK;
    }
    if (!json_is_real(bound))
        return sl_why_set(why, SL_EINVAL, "expected a number");
    double v = json_real_value(bound);
    out->negative = v < 0;
    return decimal_of_real(fabs(v), out, why);
}

enum sl_err sl_number_bound(const json_t *bound, enum sl_bound side, struct sl_buf *out, struct sl_why *why)
{
    struct decimal d;
    enum sl_err err = decimal_of(bound, &d, why);
    bool above = side == SL_AT_LEAST || side == SL_MORE_THAN,
         or_equal = side == SL_AT_LEAST || side == SL_AT_MOST;
    if (err != SL_OK)
        return err;
    if (d.huge)
        return d.negative == above ? SL_OK
                                   : sl_why_set(why, SL_EINVAL, "no number of up to %d digits is there",
                                                SL_NUMBER_WHOLE_DIGITS);
    bool zero = d.whole[0] == '0' && !d.part[0], minus = d.negative || (zero && side == SL_LESS_THAN);
    sl_buf_puts(out, minus ? (above ? "(?:\\d[\\d.]*" : "(?:-(?:") : above ? "(?:(?:" : "(?:-[\\d.]+");
    if (above != minus) { /* as far from zero as the bound, or further */
        more_than(out, &d, or_equal);
        sl_buf_puts(out, zero && or_equal ? ")|-0(?:\\.0+)?)" : "))");
    } else { /* the other sign, or as near */
        sl_buf_puts(out, minus ? "|-(?:" : "|(?:");
        less_than(out, &d, or_equal);
        sl_buf_puts(out, "))");
    }
    return SL_OK;
}
