/* common/text/detok.c - a UTF-8 repairing stream: whole characters pass, a beginning of one waits. */
#include "common/text/detok.h"

#include <string.h>

#include "common/text/utf8.h"

void sl_detok_init(struct sl_detok *d, const struct sl_tokenizer *tok, bool specials)
{
    *d = (struct sl_detok){.tok = tok, .specials = specials};
}

bool sl_detok_push_bytes(struct sl_detok *d, const char *p, size_t n, struct sl_buf *out)
{
    bool ok = true;
    while (n && ok) {
        uint32_t cp = 0;
        size_t used = 0;
        if (d->n_held == 0) { /* the usual case: everything up to the first odd byte at once */
            size_t good = sl_utf8_valid_prefix(p, n);
            ok = good == 0 || sl_buf_append(out, p, good);
            p += good;
            n -= good;
            if (n == 0)
                break;
        }
        /* Byte by byte until the character in held is decided; it then takes all of held, or all but its last
         * byte. */
        d->held[d->n_held++] = *p++;
        n--;
        enum sl_utf8_state state = sl_utf8_next(d->held, d->n_held, &cp, &used);
        if (state == SL_UTF8_INCOMPLETE)
            continue;
        ok = ok && (state == SL_UTF8_VALID ? sl_buf_append(out, d->held, used)
                                           : sl_buf_puts(out, SL_UTF8_REPLACEMENT_STR));
        if (used < d->n_held) { /* the byte that broke it may begin the next one */
            p--;
            n++;
        }
        d->n_held = 0;
    }
    return ok;
}

bool sl_detok_push(struct sl_detok *d, uint32_t id, struct sl_buf *out)
{
    size_t n = 0;
    const char *p = sl_tokenizer_piece(d->tok, id, d->specials, &n);
    return sl_detok_push_bytes(d, p, n, out);
}

bool sl_detok_end(struct sl_detok *d, struct sl_buf *out)
{
    bool ok = d->n_held == 0 || sl_buf_puts(out, SL_UTF8_REPLACEMENT_STR);
    d->n_held = 0;
    return ok;
}
