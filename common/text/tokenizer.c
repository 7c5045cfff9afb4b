/* common/text/tokenizer.c - encode: special tokens, normaliser, pre-tokeniser and BPE tied together; decode.
 *
 * Special tokens are searched from left to right, the longest at each place that is allowed there
 * (leftmost-longest, as the reference does). Allowed: user-defined ones everywhere; control ones only with
 * SL_TOK_PARSE_SPECIAL and when no byte of the match is untrusted, so "<|im_" from a template and "start|>"
 * from a user do not make one together.
 *
 * A text says the same words again and again. So in a text that is not short each piece is looked up among
 * the ones before it: a table remembers where a piece stood and which tokens came of it, and both are
 * compared and copied where they are, in the text and in the result. It lives for one call; nothing is shared
 * by threads. */
#include "common/text/tokenizer.h"

#include <string.h>

#include "common/text/detok.h"
#include "common/text/tokenizer_impl.h"
#include "common/text/utf8.h"

#define SEEN_MIN_BYTES 512        /* of text, below which remembering does not pay */
#define SEEN_MAX_SLOTS (1u << 13) /* 256 KiB: in the processor's second cache */

/* A piece that was encoded before. */
struct seen {
    uint64_t head, tail; /* its first and last 8 bytes: all of it, when it is not longer than 16 */
    uint32_t n;          /* bytes; 0 = empty slot */
    uint32_t at;         /* in encoding.base */
    uint32_t ids, n_ids; /* in encoding.out */
};

struct id_list {
    uint32_t *ids;
    size_t n, cap, max;
};

struct encoding {
    const struct sl_tokenizer *t;
    struct sl_bpe_work work;
    struct sl_normal_work normal_work;
    struct sl_buf normal; /* all stretches made ready, one after the other */
    const char *base;     /* the text that pieces lie in */
    struct id_list out;
    struct seen *seen; /* [seen_mask + 1]; NULL: nothing is remembered */
    uint32_t seen_mask;
};

static enum sl_err reserve(struct id_list *l, size_t n)
{
    if (n > l->max - l->n)
        return SL_ETOOBIG;
    if (n > l->cap - l->n) {
        l->cap = l->cap ? 2 * l->cap : 64;
        if (l->cap < l->n + n)
            l->cap = l->n + n;
        l->ids = sl_xrealloc_array(l->ids, l->cap, sizeof *l->ids);
    }
    return SL_OK;
}

static enum sl_err add_ids(struct id_list *l, const uint32_t *ids, size_t n)
{
    enum sl_err e = reserve(l, n);
    for (size_t i = 0; i < n && !e; i++)
        l->ids[l->n++] = ids[i];
    return e;
}

/* The n <= 8 bytes at p as a number. */
static uint64_t load(const char *p, size_t n)
{
    uint64_t v = 0;
    if (n == 8) {
        memcpy(&v, p, 8);
    } else if (n >= 4) { /* two loads that overlap, in place of a call of memcpy */
        uint32_t lo, hi;
        memcpy(&lo, p, 4);
        memcpy(&hi, p + n - 4, 4);
        v = lo | (uint64_t)hi << (8 * (n - 4));
    } else {
        for (size_t i = 0; i < n; i++)
            v |= (uint64_t)(uint8_t)p[i] << (8 * i);
    }
    return v;
}

/* Quick, for a table where a clash only costs time. */
static uint32_t hash_ends(uint64_t head, uint64_t tail, size_t n)
{
    uint64_t v = (head ^ n) * 0x9E3779B97F4A7C15u;
    v = (v ^ v >> 32 ^ tail) * 0xC2B2AE3D27D4EB4Fu; /* a prime of xxHash */
    return (uint32_t)(v >> 32);
}

/* Of each run of id from there on one stays. */
static void fuse(struct id_list *l, size_t from, uint32_t id)
{
    size_t n = from;
    for (size_t i = from; i < l->n; i++)
        if (i == from || l->ids[i] != id || l->ids[i - 1] != id)
            l->ids[n++] = l->ids[i];
    l->n = n;
}

static enum sl_err encode_new(struct encoding *e, const char *piece, size_t n)
{
    const struct sl_tokenizer *t = e->t;
    size_t from = e->out.n;
    if (t->ignore_merges) {
        uint32_t id = sl_token_by_text(t, piece, n);
        if (id != SL_VOCAB_NO_ID && !sl_token_is_control(t->types[id]))
            return add_ids(&e->out, &id, 1);
    }
    uint32_t *ids = sl_bpe_ids(&e->work, n);
    if (!ids)
        return SL_ENOMEM;
    size_t n_ids = sl_alphabet_symbols(t->alphabet, piece, n, ids);
    enum sl_err err = sl_bpe_merge(t->bpe, &e->work, ids, &n_ids);
    for (size_t i = 0, end; i < n_ids && !err; i = end) {
        for (end = i; end < n_ids && ids[end] < t->n_vocab; end++)
            ;
        err = add_ids(&e->out, ids + i, end - i);
        if (!err && end < n_ids) {
            uint32_t bytes[4];
            err = add_ids(&e->out, bytes, sl_alphabet_emit(t->alphabet, ids[end++], bytes));
        }
    }
    if (!err && t->fused != SL_VOCAB_NO_ID)
        fuse(&e->out, from, t->fused);
    return err;
}

/* What no merge can reach across from outside: a word, in most texts. */
static enum sl_err encode_part(struct encoding *e, const char *piece, size_t n)
{
    if (!e->seen)
        return encode_new(e, piece, n);
    size_t end = n < 8 ? n : 8;
    uint64_t head = load(piece, end), tail = load(piece + n - end, end);
    struct seen *s = &e->seen[hash_ends(head, tail, n) & e->seen_mask];
    if (s->n == n && s->head == head && s->tail == tail &&
        (n <= 16 || memcmp(e->base + s->at, piece, n) == 0)) {
        enum sl_err err = reserve(&e->out, s->n_ids);
        for (uint32_t i = 0; i < s->n_ids && !err; i++)
            e->out.ids[e->out.n++] = e->out.ids[s->ids + i];
        return err;
    }
    size_t from = e->out.n;
    enum sl_err err = encode_new(e, piece, n);
    if (!err)
        *s = (struct seen){head,           tail,
                           (uint32_t)n,    (uint32_t)(piece - e->base),
                           (uint32_t)from, (uint32_t)(e->out.n - from)};
    return err;
}

static enum sl_err encode_piece(void *arg, const char *piece, size_t n)
{
    struct encoding *e = arg;
    enum sl_err err = SL_OK;
    if (e->t->byte_level || e->t->ignore_merges || e->t->fused != SL_VOCAB_NO_ID)
        return encode_part(e, piece, n);
    while (n && !err) {
        size_t part = sl_alphabet_part(e->t->alphabet, piece, n);
        err = encode_part(e, piece, part);
        piece += part;
        n -= part;
    }
    return err;
}

/* Text between special tokens. first: it is the beginning of the whole text. */
static enum sl_err encode_stretch(struct encoding *e, const char *text, size_t n, bool first)
{
    const struct sl_tokenizer *t = e->t;
    if (n == 0)
        return SL_OK;
    if (t->normal) {
        size_t from = e->normal.len;
        enum sl_err err = sl_normal_append(t->normal, &e->normal_work, text, n, first, &e->normal);
        if (err)
            return err;
        e->base = e->normal.data;
        text = e->base + from;
        n = e->normal.len - from;
    }
    if (t->pretoken)
        return sl_pretoken_split(t->pretoken, text, n, encode_piece, e);
    return n ? encode_piece(e, text, n) : SL_OK;
}

static void remember(struct encoding *e, size_t text_bytes)
{
    if (text_bytes < SEEN_MIN_BYTES || text_bytes > UINT32_MAX / SL_NORMAL_MAX_GROWTH ||
        e->out.max > UINT32_MAX)
        return;
    uint32_t slots = 64;
    while (slots < SEEN_MAX_SLOTS && slots < text_bytes / 8)
        slots *= 2;
    e->seen = sl_xcalloc(slots, sizeof *e->seen);
    e->seen_mask = slots - 1;
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

static bool is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || cp == 0x20 || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F ||
           cp == 0x3000;
}

/* Where the spaces that end at `at` begin, not before floor. */
static size_t spaces_before(const char *text, size_t floor, size_t at)
{
    while (at > floor) {
        size_t start = at - 1, used = 0;
        uint32_t cp = 0;
        while (start > floor && ((uint8_t)text[start] & 0xC0) == 0x80)
            start--;
        sl_utf8_next(text + start, at - start, &cp, &used);
        if (!is_space(cp))
            break;
        at = start;
    }
    return at;
}

static size_t spaces_behind(const char *text, size_t len, size_t at)
{
    while (at < len) {
        size_t used = 0;
        uint32_t cp = 0;
        sl_utf8_next(text + at, len - at, &cp, &used);
        if (!is_space(cp))
            break;
        at += used;
    }
    return at;
}

static enum sl_err encode_text(struct encoding *e, const struct sl_encode_in *in)
{
    const struct sl_tokenizer *t = e->t;
    size_t from = 0, span = 0, n = 0;
    for (size_t i = sl_special_seek(t->special, in->text, in->len, 0); i < in->len;) {
        uint32_t id = special_at(t, in, i, &span, &n);
        if (id == SL_VOCAB_NO_ID) {
            i = sl_special_seek(t->special, in->text, in->len, i + 1);
            continue;
        }
        unsigned strip = t->strips ? t->strips[id] : 0;
        size_t to = strip & SL_STRIP_LEFT ? spaces_before(in->text, from, i) : i;
        enum sl_err err = encode_stretch(e, in->text + from, to - from, from == 0);
        if (!err)
            err = add_ids(&e->out, &id, 1);
        if (err)
            return err;
        i += n;
        if (strip & SL_STRIP_RIGHT)
            i = spaces_behind(in->text, in->len, i);
        from = i;
        i = sl_special_seek(t->special, in->text, in->len, i);
    }
    return encode_stretch(e, in->text + from, in->len - from, from == 0);
}

/* No token stands for more bytes, so this many cannot fit, however they are cut. */
static bool cannot_fit(const struct sl_tokenizer *t, const struct sl_encode_in *in)
{
    return t->reach && in->max_tokens < SIZE_MAX / (t->reach + 1) &&
           in->len > in->max_tokens * (t->reach + 1);
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
    enum sl_err err = cannot_fit(t, in) ? SL_ETOOBIG : SL_OK;
    if (!(in->flags & SL_TOK_PARSE_SPECIAL))
        text.n_untrusted = 0;
    if (!err && sl_utf8_valid_prefix(text.text, text.len) != text.len) {
        repaired = repair(&text, &text.len, &spans);
        if (!repaired)
            err = SL_ENOMEM;
        text.text = repaired;
        text.untrusted = spans.items;
        text.n_untrusted = spans.n;
    }
    if (!err) {
        e.base = text.text;
        sl_buf_init(&e.normal, text.len < SIZE_MAX / SL_NORMAL_MAX_GROWTH / 4
                                   ? (text.len + SL_NORMAL_MAX_BYTES) * SL_NORMAL_MAX_GROWTH
                                   : SIZE_MAX);
        remember(&e, text.len);
    }
    if (!err && (text.flags & SL_TOK_ADD_SPECIAL) && t->add_bos)
        err = add_ids(&e.out, &t->bos, 1);
    if (!err)
        err = encode_text(&e, &text);
    if (!err && (text.flags & SL_TOK_ADD_SPECIAL) && t->add_eos)
        err = add_ids(&e.out, &t->eos, 1);
    sl_free(e.seen);
    sl_buf_fini(&e.normal);
    sl_normal_work_fini(&e.normal_work);
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
    uint32_t id = sl_token_by_text(t, bytes, n);
    if (id != SL_VOCAB_NO_ID && (t->byte_level || sl_token_is_literal(t->types[id])))
        return id;
    if (t->byte_level || n == 0 || n > SL_VOCAB_MAX_TOKEN_BYTES)
        return SL_VOCAB_NO_ID;
    char text[3 * SL_VOCAB_MAX_TOKEN_BYTES];
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        memcpy(text + len, bytes[i] == ' ' ? SL_VOCAB_SPACE : bytes + i, bytes[i] == ' ' ? 3 : 1);
        len += bytes[i] == ' ' ? 3 : 1;
    }
    id = sl_token_by_text(t, text, len);
    if (id == SL_VOCAB_NO_ID && n == 1)
        id = sl_alphabet_byte(t->alphabet, (uint8_t)*bytes);
    return id;
}

bool sl_tokenizer_decode(const struct sl_tokenizer *t, const uint32_t *ids, size_t n, bool specials,
                         struct sl_buf *out)
{
    struct sl_detok d;
    bool begun = !t->leading_space; /* something of the text was seen */
    sl_detok_init(&d, t, specials);
    for (size_t i = 0; i < n; i++) {
        size_t len = 0;
        const char *p = sl_tokenizer_piece(t, ids[i], specials, &len);
        size_t skip = !begun && len && p[0] == ' ';
        begun = begun || len;
        if (!sl_detok_push_bytes(&d, p + skip, len - skip, out))
            return false;
    }
    return sl_detok_end(&d, out);
}
