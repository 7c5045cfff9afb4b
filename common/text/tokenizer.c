/* common/text/tokenizer.c - ties special tokens, pre-tokeniser and BPE together.
 *
 * The file's byte-level tokens are written in GPT-2's alphabet (one printable character per byte value); they
 * are turned into bytes once, here, and BPE works on token ids from then on. Control and user-defined tokens
 * are literal text.
 *
 * Special tokens are searched from left to right, the longest at each place that is allowed there
 * (leftmost-longest, as the reference does). Allowed: user-defined ones everywhere; control ones only with
 * SL_TOK_PARSE_SPECIAL and when no byte of the match is untrusted, so "<|im_" from a template and "start|>"
 * from a user do not make one together. */
#include "common/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/hashmap.h"
#include "common/text/bpe.h"
#include "common/text/detok.h"
#include "common/text/pretoken.h"
#include "common/text/special_match.h"
#include "common/text/utf8.h"

struct sl_tokenizer {
    uint32_t n_vocab;
    char *blob;     /* the pieces' bytes, one after the other */
    size_t *at;     /* [n_vocab + 1] where each begins */
    uint8_t *types; /* [n_vocab] */
    size_t longest; /* bytes of the longest piece */
    bool add_bos, add_eos;
    uint32_t bos, eos;
    uint32_t *eog;
    size_t n_eog;
    struct sl_hashmap *by_text; /* the file's text -> id + 1 */
    struct sl_special *special;
    struct sl_pretoken *pretoken;
    struct sl_bpe *bpe;
};

/* Names under which models end a turn, whatever the file says about eos. */
static const char *const eog_names[] = {"<|im_end|>", "<|endoftext|>", "<|eot_id|>",      "<|eom_id|>",
                                        "<|end|>",    "<|return|>",    "<|end_of_text|>", "<end_of_turn>",
                                        "<EOT>",      "<eos>",         "<|endofturn|>"};

/* --- GPT-2's byte alphabet: printable bytes stand for themselves, the others for U+0100 onwards in order ---
 */

static bool byte_is_plain(unsigned b)
{
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
}

static uint32_t byte_to_char(unsigned b)
{
    if (byte_is_plain(b))
        return b;
    uint32_t n = 0;
    for (unsigned i = 0; i < b; i++)
        n += !byte_is_plain(i);
    return 256 + n;
}

struct alphabet {
    uint8_t byte_of[324]; /* character -> byte */
    bool known[324];
    char text[256][4]; /* byte -> UTF-8 */
    uint8_t len[256];
};

static void alphabet_init(struct alphabet *a)
{
    *a = (struct alphabet){0};
    for (unsigned b = 0; b < 256; b++) {
        uint32_t c = byte_to_char(b);
        a->byte_of[c] = (uint8_t)b;
        a->known[c] = true;
        a->len[b] = (uint8_t)sl_utf8_encode(c, a->text[b]);
    }
}

/* Writes the bytes a byte-level token stands for (never more than its text has); false when it is not in the
 * alphabet. */
static bool to_bytes(const struct alphabet *a, struct sl_vocab_str s, char *out, size_t *n)
{
    *n = 0;
    for (size_t i = 0; i < s.n;) {
        uint32_t cp = 0;
        size_t used = 0;
        if (sl_utf8_next(s.p + i, s.n - i, &cp, &used) != SL_UTF8_VALID || cp >= SL_COUNTOF(a->known) ||
            !a->known[cp])
            return false;
        out[(*n)++] = (char)a->byte_of[cp];
        i += used;
    }
    return true;
}

/* --- open --- */

static bool is_literal(unsigned type)
{
    return type == SL_TOKEN_CONTROL || type == SL_TOKEN_UNKNOWN || type == SL_TOKEN_USER_DEFINED;
}

static uint32_t find_text(const struct sl_tokenizer *t, const char *p, size_t n)
{
    uintptr_t v = (uintptr_t)sl_hashmap_get(t->by_text, p, n);
    return v ? (uint32_t)(v - 1) : SL_VOCAB_NO_ID;
}

static enum sl_err add_tokens(struct sl_tokenizer *t, const struct sl_vocab_src *src,
                              const struct alphabet *a, struct sl_why *why)
{
    size_t total = 0;
    for (uint32_t i = 0; i < src->n_tokens; i++)
        total += src->tokens[i].n;
    t->blob = sl_try_alloc(total + 1);
    if (!t->blob)
        return sl_why_set(why, SL_ENOMEM, "no memory for a vocabulary of %zu bytes", total);
    t->at = sl_xcalloc((size_t)src->n_tokens + 1, sizeof *t->at);
    t->types = sl_xcalloc((size_t)src->n_tokens + 1, 1);
    for (uint32_t i = 0; i < src->n_tokens; i++) {
        struct sl_vocab_str s = src->tokens[i];
        char *out = t->blob + t->at[i];
        size_t n = 0;
        t->types[i] = src->types ? src->types[i] : SL_TOKEN_NORMAL;
        if (is_literal(t->types[i]) || !to_bytes(a, s, out, &n)) {
            n = s.n;
            if (n)
                memcpy(out, s.p, n);
        }
        /* what is cut out of a text must leave whole characters on both sides */
        if (is_literal(t->types[i]) && s.n && sl_utf8_valid_prefix(s.p, s.n) == s.n)
            sl_special_add(t->special, s.p, s.n, i);
        if (s.n && !sl_hashmap_get(t->by_text, s.p, s.n))
            sl_hashmap_put(t->by_text, s.p, s.n, (void *)((uintptr_t)i + 1));
        t->at[i + 1] = t->at[i] + n;
        if (n > t->longest)
            t->longest = n;
    }
    t->n_vocab = src->n_tokens;
    return SL_OK;
}

static enum sl_err add_merges(struct sl_tokenizer *t, const struct sl_vocab_src *src,
                              const struct alphabet *a, struct sl_why *why)
{
    uint32_t byte_ids[256];
    for (unsigned b = 0; b < 256; b++)
        byte_ids[b] = find_text(t, a->text[b], a->len[b]);
    if (src->n_merges == 0)
        return sl_why_set(
            why, SL_EINVAL,
            "the vocabulary has no merges, which byte-level BPE needs; convert the model again");
    struct sl_bpe_merge *merges = sl_xcalloc(src->n_merges, sizeof *merges);
    char *joined = sl_xalloc(2 * SL_VOCAB_MAX_TOKEN_BYTES + 2);
    enum sl_err e = SL_OK;
    for (uint32_t i = 0; i < src->n_merges && !e; i++) {
        struct sl_vocab_str s = src->merges[i];
        const char *space =
            s.n > 2 && s.n <= 2 * SL_VOCAB_MAX_TOKEN_BYTES + 1 ? memchr(s.p + 1, ' ', s.n - 1) : NULL;
        struct sl_bpe_merge *m = &merges[i];
        *m = (struct sl_bpe_merge){SL_VOCAB_NO_ID, SL_VOCAB_NO_ID, SL_VOCAB_NO_ID};
        if (space) {
            size_t left = (size_t)(space - s.p), right = s.n - left - 1;
            memcpy(joined, s.p, left);
            memcpy(joined + left, space + 1, right);
            m->left = find_text(t, s.p, left);
            m->right = find_text(t, space + 1, right);
            m->merged = find_text(t, joined, left + right);
        }
        if (m->left == SL_VOCAB_NO_ID || m->right == SL_VOCAB_NO_ID || m->merged == SL_VOCAB_NO_ID)
            e = sl_why_set(
                why, SL_EINVAL,
                "merge %u is not two tokens of the vocabulary that make a third; convert the model again", i);
    }
    if (!e)
        t->bpe = sl_bpe_new(byte_ids, merges, src->n_merges);
    sl_free(joined);
    sl_free(merges);
    return e;
}

static int id_cmp(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void add_eog(struct sl_tokenizer *t, uint32_t id)
{
    if (id == SL_VOCAB_NO_ID || sl_tokenizer_is_eog(t, id))
        return;
    t->eog[t->n_eog++] = id;
    qsort(t->eog, t->n_eog, sizeof *t->eog, id_cmp);
}

static enum sl_err fill(struct sl_tokenizer *t, const struct sl_vocab_src *src, struct sl_why *why)
{
    if (!src->model || strcmp(src->model, "gpt2") != 0)
        return sl_why_set(
            why, SL_EUNSUPPORTED,
            "tokenizer model \"%.64s\" is not supported; expected gpt2 (byte-level BPE); use such a model",
            src->model ? src->model : "");
    if (src->n_tokens == 0 || src->n_tokens > SL_VOCAB_MAX_TOKENS)
        return sl_why_set(why, SL_EINVAL, "the vocabulary has %u tokens, expected 1 to %u", src->n_tokens,
                          SL_VOCAB_MAX_TOKENS);
    const uint32_t given[] = {src->bos_id, src->eos_id, src->eot_id, src->unk_id};
    for (size_t i = 0; i < SL_COUNTOF(given); i++)
        if (given[i] != SL_VOCAB_NO_ID && given[i] >= src->n_tokens)
            return sl_why_set(why, SL_EINVAL, "special token id %u, but there are only %u tokens", given[i],
                              src->n_tokens);
    enum sl_err e = sl_pretoken_open(src->pre, &t->pretoken, why);
    if (e)
        return e;
    struct alphabet a;
    alphabet_init(&a);
    t->by_text = sl_hashmap_new();
    t->special = sl_special_new();
    e = add_tokens(t, src, &a, why);
    if (!e)
        e = add_merges(t, src, &a, why);
    if (e)
        return e;
    t->bos = src->bos_id;
    t->eos = src->eos_id;
    t->add_bos = src->add_bos && src->bos_id != SL_VOCAB_NO_ID;
    t->add_eos = src->add_eos && src->eos_id != SL_VOCAB_NO_ID;
    t->eog = sl_xcalloc(SL_COUNTOF(eog_names) + 2, sizeof *t->eog);
    add_eog(t, src->eos_id);
    add_eog(t, src->eot_id);
    for (size_t i = 0; i < SL_COUNTOF(eog_names); i++) {
        uint32_t id = find_text(t, eog_names[i], strlen(eog_names[i]));
        if (id != SL_VOCAB_NO_ID && is_literal(t->types[id]))
            add_eog(t, id);
    }
    return SL_OK;
}

enum sl_err sl_tokenizer_open(const struct sl_vocab_src *src, struct sl_tokenizer **out, struct sl_why *why)
{
    struct sl_tokenizer *t = sl_xcalloc(1, sizeof *t);
    enum sl_err e = fill(t, src, why);
    if (e) {
        sl_tokenizer_close(t);
        return e;
    }
    *out = t;
    return SL_OK;
}

void sl_tokenizer_close(struct sl_tokenizer *t)
{
    if (!t)
        return;
    sl_bpe_free(t->bpe);
    sl_pretoken_close(t->pretoken);
    sl_special_free(t->special);
    sl_hashmap_free(t->by_text);
    sl_free(t->eog);
    sl_free(t->types);
    sl_free(t->at);
    sl_free(t->blob);
    sl_free(t);
}

/* --- encode --- */

struct encoding {
    const struct sl_tokenizer *t;
    struct sl_bpe_work work;
    struct sl_id_list out;
};

static enum sl_err encode_piece(void *arg, const char *piece, size_t n)
{
    struct encoding *e = arg;
    return sl_bpe_encode(e->t->bpe, &e->work, piece, n, &e->out);
}

/* Copies text with U+FFFD for what is not UTF-8, and the spans with it. */
static char *repair(const struct sl_encode_in *in, size_t *len, struct sl_spans *spans)
{
    struct sl_span *moved = in->n_untrusted ? sl_xcalloc(in->n_untrusted, sizeof *moved) : NULL;
    char *out = sl_try_alloc(3 * in->len + 1); /* each bad byte may become three */
    size_t n = 0, s = 0;
    for (size_t i = 0; i < in->len && out;) {
        uint32_t cp = 0;
        size_t used = 0;
        bool valid = sl_utf8_next(in->text + i, in->len - i, &cp, &used) == SL_UTF8_VALID;
        /* a span that begins or ends inside this character takes in all of it */
        while (s < in->n_untrusted && in->untrusted[s].end <= i)
            s++;
        for (size_t k = s; k < in->n_untrusted && in->untrusted[k].start < i + used; k++) {
            if (in->untrusted[k].start >= i)
                moved[k].start = n;
            moved[k].end = n + (valid ? used : 3);
        }
        memcpy(out + n, valid ? in->text + i : SL_UTF8_REPLACEMENT_STR, valid ? used : 3);
        n += valid ? used : 3;
        i += used;
    }
    for (size_t k = 0; k < in->n_untrusted && out; k++) {
        size_t floor = spans->n ? spans->items[spans->n - 1].end : 0;
        sl_spans_add(spans, moved[k].start > floor ? moved[k].start : floor, moved[k].end);
    }
    sl_free(moved);
    *len = n;
    return out;
}

/* The longest special token at text[at] that may be recognised there, or SL_VOCAB_NO_ID. *span is a cursor
 * into the untrusted spans. */
static uint32_t special_at(const struct sl_tokenizer *t, const struct sl_encode_in *in, size_t at,
                           size_t *span, size_t *n)
{
    uint32_t node = 0, id = 0, best = SL_VOCAB_NO_ID;
    size_t len = 0;
    while (*span < in->n_untrusted && in->untrusted[*span].end <= at)
        ++*span;
    size_t trusted_end = *span < in->n_untrusted ? in->untrusted[*span].start : in->len;
    while (sl_special_next(t->special, in->text + at, in->len - at, &node, &len, &id)) {
        if (t->types[id] != SL_TOKEN_USER_DEFINED &&
            (!(in->flags & SL_TOK_PARSE_SPECIAL) || at + len > trusted_end))
            continue;
        best = id;
        *n = len;
    }
    return best;
}

static enum sl_err encode_text(struct encoding *e, const struct sl_encode_in *in)
{
    const struct sl_tokenizer *t = e->t;
    size_t from = 0, span = 0, n = 0;
    enum sl_err err;
    for (size_t i = 0; i < in->len;) {
        uint32_t id = SL_VOCAB_NO_ID;
        if (sl_special_may_start(t->special, (uint8_t)in->text[i]))
            id = special_at(t, in, i, &span, &n);
        if (id == SL_VOCAB_NO_ID) {
            i++;
            continue;
        }
        err = sl_pretoken_split(t->pretoken, in->text + from, i - from, encode_piece, e);
        if (!err)
            err = sl_id_list_add(&e->out, id);
        if (err)
            return err;
        i += n;
        from = i;
    }
    return sl_pretoken_split(t->pretoken, in->text + from, in->len - from, encode_piece, e);
}

enum sl_err sl_tokenizer_encode(const struct sl_tokenizer *t, const struct sl_encode_in *in, uint32_t **ids,
                                size_t *n_ids, struct sl_why *why)
{
    struct encoding e = {.t = t, .out.max = in->max_tokens};
    struct sl_encode_in text = *in;
    if (text.len == 0)
        text.text = ""; /* may have been NULL */
    struct sl_spans spans = {0};
    char *repaired = NULL;
    enum sl_err err = SL_OK;
    if (!(in->flags & SL_TOK_PARSE_SPECIAL))
        text.n_untrusted = 0;
    /* no token is longer, so this many bytes cannot fit, however they are cut */
    if (in->max_tokens < SIZE_MAX / (t->longest + 1) && in->len > in->max_tokens * (t->longest + 1))
        err = SL_ETOOBIG;
    if (!err && sl_utf8_valid_prefix(text.text, text.len) != text.len) {
        repaired = repair(&text, &text.len, &spans);
        if (!repaired)
            err = SL_ENOMEM;
        text.text = repaired;
        text.untrusted = spans.items;
        text.n_untrusted = spans.n;
    }
    if (!err && (text.flags & SL_TOK_ADD_SPECIAL) && t->add_bos)
        err = sl_id_list_add(&e.out, t->bos);
    if (!err)
        err = encode_text(&e, &text);
    if (!err && (text.flags & SL_TOK_ADD_SPECIAL) && t->add_eos)
        err = sl_id_list_add(&e.out, t->eos);
    sl_bpe_work_fini(&e.work);
    sl_spans_fini(&spans);
    sl_free(repaired);
    if (err) {
        sl_free(e.out.ids);
        if (err == SL_ETOOBIG)
            sl_why_set(why, err, "the text has more than %zu tokens (%zu bytes); make it shorter",
                       in->max_tokens, in->len);
        else
            sl_why_set(why, err, "no memory to tokenise a text of %zu bytes", in->len);
        return err;
    }
    *ids = e.out.ids ? e.out.ids : sl_xalloc(sizeof **ids);
    *n_ids = e.out.n;
    return SL_OK;
}

/* --- questions --- */

uint32_t sl_tokenizer_n_vocab(const struct sl_tokenizer *t)
{
    return t->n_vocab;
}

uint32_t sl_tokenizer_bos(const struct sl_tokenizer *t)
{
    return t->bos;
}

uint32_t sl_tokenizer_eos(const struct sl_tokenizer *t)
{
    return t->eos;
}

bool sl_tokenizer_adds_bos(const struct sl_tokenizer *t)
{
    return t->add_bos;
}

const uint32_t *sl_tokenizer_eog(const struct sl_tokenizer *t, size_t *n)
{
    *n = t->n_eog;
    return t->eog;
}

bool sl_tokenizer_is_eog(const struct sl_tokenizer *t, uint32_t id)
{
    for (size_t i = 0; i < t->n_eog; i++)
        if (t->eog[i] == id)
            return true;
    return false;
}

bool sl_tokenizer_is_control(const struct sl_tokenizer *t, uint32_t id)
{
    return id < t->n_vocab && (t->types[id] == SL_TOKEN_CONTROL || t->types[id] == SL_TOKEN_UNKNOWN);
}

const char *sl_tokenizer_piece(const struct sl_tokenizer *t, uint32_t id, bool specials, size_t *n)
{
    *n = 0;
    if (id >= t->n_vocab || (!specials && sl_tokenizer_is_control(t, id)))
        return "";
    *n = t->at[id + 1] - t->at[id];
    return t->blob + t->at[id];
}

uint32_t sl_tokenizer_find(const struct sl_tokenizer *t, const char *bytes, size_t n)
{
    uint32_t id = find_text(t, bytes, n);
    if (id != SL_VOCAB_NO_ID && is_literal(t->types[id]))
        return id;
    if (n == 0 || n > t->longest)
        return SL_VOCAB_NO_ID;
    struct alphabet a;
    alphabet_init(&a);
    char *text = sl_xalloc(2 * n);
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t b = (uint8_t)bytes[i];
        memcpy(text + len, a.text[b], a.len[b]);
        len += a.len[b];
    }
    id = find_text(t, text, len);
    sl_free(text);
    return id;
}

bool sl_tokenizer_decode(const struct sl_tokenizer *t, const uint32_t *ids, size_t n, bool specials,
                         struct sl_buf *out)
{
    struct sl_detok d;
    sl_detok_init(&d, t, specials);
    for (size_t i = 0; i < n; i++)
        if (!sl_detok_push(&d, ids[i], out))
            return false;
    return sl_detok_end(&d, out);
}
