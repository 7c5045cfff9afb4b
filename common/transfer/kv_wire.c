/* common/transfer/kv_wire.c - see kv_wire.h. Integers are copied byte by byte, so that layout and alignment
 * of the host do not matter. */
#include "common/transfer/kv_wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static unsigned char *put_u32(unsigned char *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        *p++ = (unsigned char)(v >> (8 * i));
    return p;
}

static unsigned char *put_u64(unsigned char *p, uint64_t v)
{
    return put_u32(put_u32(p, (uint32_t)v), (uint32_t)(v >> 32));
}

static uint32_t get_u32(const unsigned char **p)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++)
        v |= (uint32_t)(*p)[i] << (8 * i);
    *p += 4;
    return v;
}

static uint64_t get_u64(const unsigned char **p)
{
    uint64_t lo = get_u32(p);
    return lo | (uint64_t)get_u32(p) << 32;
}

static bool printable(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] < 0x20 || text[i] > 0x7e)
            return false;
    return true;
}

void sl_kv_text(char *out, size_t n, const void *text, size_t len)
{
    const char *in = text;
    size_t i = 0;
    for (; i < len && i < n - 1 && in[i]; i++)
        out[i] = printable(in + i, 1) ? in[i] : '?';
    out[i] = 0;
}

void sl_kv_header_pack(const struct sl_kv_header *h, unsigned char out[SL_KV_HEADER_BYTES])
{
    unsigned char *p = out;
    memset(out, 0, SL_KV_HEADER_BYTES);
    *p++ = h->type;
    *p++ = h->flags;
    p += 2;
    p = put_u32(p, h->key.epoch);
    memcpy(p, h->key.request, SL_XFER_MAX_ID);
    p += SL_XFER_MAX_ID;
    p = put_u32(p, h->index);
    p = put_u32(p, h->count);
    p = put_u32(p, h->n_tokens);
    p = put_u32(p, h->deadline_ms);
    p = put_u32(p, (uint32_t)h->token);
    put_u64(p, h->value);
}

static bool has_key(uint8_t type)
{
    return (type >= SL_KV_ANNOUNCE && type <= SL_KV_ABORT) || type == SL_KV_PROBS;
}

enum sl_err sl_kv_header_unpack(const void *bytes, size_t n, struct sl_kv_header *out)
{
    const unsigned char *p = bytes;
    if (n != SL_KV_HEADER_BYTES || p[0] < SL_KV_HELLO || p[0] >= SL_KV_N_TYPES)
        return SL_EPROTO;
    memset(out, 0, sizeof *out);
    out->type = *p++;
    out->flags = *p++;
    p += 2;
    out->key.epoch = get_u32(&p);
    memcpy(out->key.request, p, SL_XFER_MAX_ID);
    p += SL_XFER_MAX_ID;
    out->index = get_u32(&p);
    out->count = get_u32(&p);
    out->n_tokens = get_u32(&p);
    out->deadline_ms = get_u32(&p);
    out->token = (int32_t)get_u32(&p);
    out->value = get_u64(&p);
    size_t id_len = strnlen(out->key.request, SL_XFER_MAX_ID);
    if (id_len == SL_XFER_MAX_ID || !printable(out->key.request, id_len) ||
        (has_key(out->type) && id_len == 0))
        return SL_EPROTO;
    /* One key has one spelling: what lies behind the terminator takes no part. */
    memset(out->key.request + id_len, 0, SL_XFER_MAX_ID - id_len);
    if (out->index > SL_KV_MAX_PAGES || out->count > SL_KV_MAX_PAGES ||
        out->index + out->count > SL_KV_MAX_PAGES)
        return SL_EPROTO;
    if (out->type == SL_KV_COMMIT && out->count > SL_KV_MAX_COMMIT)
        return SL_EPROTO;
    return SL_OK;
}

static unsigned char *put_f32(unsigned char *p, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return put_u32(p, bits);
}

static float get_f32(const unsigned char **p)
{
    uint32_t bits = get_u32(p);
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

size_t sl_kv_probs_pack(const struct sl_xfer_first *t, unsigned char out[SL_KV_PROBS_MAX_BYTES])
{
    SL_ASSERT(t->n_top <= SL_PICK_MAX_TOP);
    unsigned char *p = put_u32(put_f32(out, t->logprob), t->n_top);
    for (uint32_t i = 0; i < t->n_top; i++)
        p = put_f32(put_u32(p, (uint32_t)t->top_token[i]), t->top_logprob[i]);
    return (size_t)(p - out);
}

enum sl_err sl_kv_probs_unpack(const void *bytes, size_t n, struct sl_xfer_first *out)
{
    const unsigned char *p = bytes;
    if (n < 8)
        return SL_EPROTO;
    out->logprob = get_f32(&p);
    out->n_top = get_u32(&p);
    if (out->n_top > SL_PICK_MAX_TOP || n != 8 + 8 * (size_t)out->n_top) {
        out->n_top = 0;
        return SL_EPROTO;
    }
    for (uint32_t i = 0; i < out->n_top; i++) {
        out->top_token[i] = (int32_t)get_u32(&p);
        out->top_logprob[i] = get_f32(&p);
    }
    out->has_logprobs = true;
    return SL_OK;
}

void sl_kv_hello_pack(const struct sl_kv_hello *h, unsigned char out[SL_KV_IDENTITY_BYTES])
{
    const struct sl_xfer_identity *id = &h->id;
    unsigned char *p = out;
    memset(out, 0, SL_KV_IDENTITY_BYTES);
    p = put_u32(p, h->protocol);
    memcpy(p, id->name, sizeof id->name);
    p += sizeof id->name;
    p = put_u64(p, id->boot_id);
    p = put_u64(p, id->model_digest.lo);
    p = put_u64(p, id->model_digest.hi);
    p = put_u32(p, id->geometry.n_layers);
    p = put_u32(p, id->geometry.n_kv_heads);
    p = put_u32(p, id->geometry.page_tokens);
    p = put_u32(p, id->geometry.head_dim);
    p = put_u32(p, (uint32_t)id->geometry.dtype);
    p = put_u64(p, id->numerics_id);
    p = put_u32(p, id->tensor_parallel);
    p = put_u32(p, id->exact);
    memcpy(p, id->transport, sizeof id->transport);
}

enum sl_err sl_kv_hello_unpack(const void *bytes, size_t n, struct sl_kv_hello *out)
{
    const unsigned char *p = bytes;
    if (n < SL_KV_IDENTITY_BYTES)
        return SL_EPROTO;
    memset(out, 0, sizeof *out);
    struct sl_xfer_identity *id = &out->id;
    out->protocol = get_u32(&p);
    memcpy(id->name, p, sizeof id->name);
    p += sizeof id->name;
    id->boot_id = get_u64(&p);
    id->model_digest.lo = get_u64(&p);
    id->model_digest.hi = get_u64(&p);
    id->geometry.n_layers = get_u32(&p);
    id->geometry.n_kv_heads = get_u32(&p);
    id->geometry.page_tokens = get_u32(&p);
    id->geometry.head_dim = get_u32(&p);
    id->geometry.dtype = (enum sl_dtype)get_u32(&p);
    id->numerics_id = get_u64(&p);
    id->tensor_parallel = get_u32(&p);
    id->exact = get_u32(&p) != 0;
    /* releases that had one transport did not say it */
    sl_kv_text(id->transport, sizeof id->transport, *p ? (const char *)p : "ucx", sizeof id->transport);
    size_t name_len = strnlen(id->name, sizeof id->name);
    if (name_len == 0 || name_len == sizeof id->name || !printable(id->name, name_len))
        return SL_EPROTO;
    memset(id->name + name_len, 0, sizeof id->name - name_len);
    return SL_OK;
}

static enum sl_err differs(struct sl_why *why, const char *what, const char *a, const char *a_name,
                           const char *b, const char *b_name)
{
    /* names are cut, so that the sentence fits SL_KV_MAX_WHY with both values in it */
    return sl_why_set(why, SL_EMISMATCH, "%s differs: %s at %.32s, %s at %.32s", what, a, a_name, b, b_name);
}

static enum sl_err differs_hex(struct sl_why *why, const char *what, uint64_t a, const char *a_name,
                               uint64_t b, const char *b_name)
{
    char av[24], bv[24];
    snprintf(av, sizeof av, "%016" PRIx64, a);
    snprintf(bv, sizeof bv, "%016" PRIx64, b);
    return differs(why, what, av, a_name, bv, b_name);
}

enum sl_err sl_kv_identity_match(const struct sl_kv_hello *mine, const struct sl_kv_hello *theirs,
                                 struct sl_why *why)
{
    const struct sl_xfer_identity *a = &mine->id, *b = &theirs->id;
    const struct {
        const char *what;
        uint32_t a, b;
    } counts[] = {
        {"protocol version", mine->protocol, theirs->protocol},
        {"page_tokens", a->geometry.page_tokens, b->geometry.page_tokens},
        {"number of layers", a->geometry.n_layers, b->geometry.n_layers},
        {"number of KV heads", a->geometry.n_kv_heads, b->geometry.n_kv_heads},
        {"head size", a->geometry.head_dim, b->geometry.head_dim},
        {"tensor-parallel degree", a->tensor_parallel, b->tensor_parallel},
    };
    for (size_t i = 0; i < SL_COUNTOF(counts); i++) {
        char av[16], bv[16];
        if (counts[i].a == counts[i].b)
            continue;
        snprintf(av, sizeof av, "%" PRIu32, counts[i].a);
        snprintf(bv, sizeof bv, "%" PRIu32, counts[i].b);
        return differs(why, counts[i].what, av, a->name, bv, b->name);
    }
    if (strcmp(a->transport, b->transport) != 0)
        return differs(why, "transfer_transport", a->transport, a->name, b->transport, b->name);
    if (a->model_digest.hi != b->model_digest.hi)
        return differs_hex(why, "model digest", a->model_digest.hi, a->name, b->model_digest.hi, b->name);
    if (a->model_digest.lo != b->model_digest.lo)
        return differs_hex(why, "model digest", a->model_digest.lo, a->name, b->model_digest.lo, b->name);
    if (a->geometry.dtype != b->geometry.dtype)
        return differs(why, "KV data type", sl_dtype_name(a->geometry.dtype), a->name,
                       sl_dtype_name(b->geometry.dtype), b->name);
    if ((a->exact || b->exact) && a->numerics_id != b->numerics_id)
        return differs_hex(why, "numerics id", a->numerics_id, a->name, b->numerics_id, b->name);
    return SL_OK;
}
