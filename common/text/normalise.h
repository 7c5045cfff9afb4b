/* common/text/normalise.h - the steps that make a text ready before it is cut: NFC, a space in front, spaces
 * written as another character.
 *
 * Threads: immutable after open; one struct sl_normal_work per thread. */
#ifndef SLUICE_COMMON_TEXT_NORMALISE_H
#define SLUICE_COMMON_TEXT_NORMALISE_H

#include "common/base/buf.h"
#include "common/text/vocab.h"

#define SL_NORMAL_MAX_STEPS  16
#define SL_NORMAL_MAX_BYTES  256 /* of from and to */
#define SL_NORMAL_MAX_GROWTH 64  /* times the text, all steps together */

struct sl_normal; /* opaque */

/* Copies. SL_EUNSUPPORTED, SL_ETOOBIG with a sentence. */
SL_MUST_CHECK enum sl_err sl_normal_open(const struct sl_vocab_norm *steps, size_t n, struct sl_normal **out,
                                         struct sl_why *why);
void sl_normal_close(struct sl_normal *s); /* takes NULL */

/* How many bytes of text may become one at most (at least 1); 0 when any number may. */
size_t sl_normal_shrink(const struct sl_normal *s);
/* A space, or what stands for one, is put in front of texts. */
bool sl_normal_leads(const struct sl_normal *s);

/* Scratch memory. Zero-initialise. */
struct sl_normal_work {
    struct sl_buf bufs[2];
};
void sl_normal_work_fini(struct sl_normal_work *w);

/* Appends text[0..n), valid UTF-8, made ready, to out. first: nothing stands in front of it. SL_ETOOBIG
 * (out's maximum), SL_ENOMEM. */
SL_MUST_CHECK enum sl_err sl_normal_append(const struct sl_normal *s, struct sl_normal_work *w,
                                           const char *text, size_t n, bool first, struct sl_buf *out);

#endif
