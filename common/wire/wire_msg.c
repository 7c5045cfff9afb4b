/* common/wire/wire_msg.c - envelopes between structs and bytes; nothing from outside is believed before it
 * was checked here.
 *
 * The version is read by a scan of the outermost fields before anything is unpacked, so that a peer of
 * another version is refused in words whatever its messages look like. Unpacking takes its memory from an
 * arena whose limit follows the size of the message: a few bytes that claim a million empty sub-messages end
 * in SL_ETOOBIG, not in the memory of the process. Afterwards one walk over the descriptors checks every
 * string, count and enum value, so that a new field of the contract is covered without a line here. */
#include "common/wire/wire_msg.h"

#include <string.h>

#include "common/base/mem.h"

#define DIGEST_BYTES 16u

/* Unpacked structs are larger than their bytes: a token event of 30 bytes takes about 250, one scanned field
 * 40 for a while. */
#define MEMORY_PER_BYTE 32u
#define MEMORY_BASE     ((size_t)64 << 10)
#define MEMORY_MAX      ((size_t)256 << 20)

struct group {
    struct sl_arena *arena;
    uint64_t pad; /* keeps what follows 16-byte aligned */
};

struct group_alloc {
    struct sl_arena *arena;
    bool first;  /* the envelope itself comes next; its group stands in front of it */
    bool failed; /* the arena's limit was reached */
};

struct buf_sink {
    ProtobufCBuffer base;
    struct sl_buf *out;
};

static void append_to_buf(ProtobufCBuffer *b, size_t len, const uint8_t *data)
{
    struct buf_sink *sink = (struct buf_sink *)(void *)b;
    sl_buf_append(sink->out, data, len);
}

enum sl_err sl_wire_pack(Sluice__Envelope *e, struct sl_buf *out)
{
    e->version = SL_PROTOCOL_VERSION;
    if (sluice__envelope__get_packed_size(e) > SL_WIRE_MAX_BYTES)
        return SL_ETOOBIG;
    struct buf_sink sink = {.base = {.append = append_to_buf}, .out = out};
    sluice__envelope__pack_to_buffer(e, &sink.base);
    return sl_buf_failed(out) ? SL_ETOOBIG : SL_OK;
}

static void *group_take(void *data, size_t bytes)
{
    struct group_alloc *g = data;
    size_t head = g->first ? sizeof(struct group) : 0;
    char *p = bytes > SIZE_MAX - head ? NULL : sl_arena_alloc(g->arena, head + bytes);
    if (!p) {
        g->failed = true;
        return NULL;
    }
    if (g->first) {
        ((struct group *)(void *)p)->arena = g->arena;
        g->first = false;
    }
    return p + head;
}

static void group_give_back(void *data, void *p)
{
    (void)data; /* all of it goes with the arena */
    (void)p;
}

void sl_wire_free(Sluice__Envelope *e)
{
    if (e)
        sl_arena_free(((struct group *)(void *)e - 1)->arena);
}

/* ---- before unpacking ---- */

static bool read_varint(const uint8_t **at, const uint8_t *end, uint64_t *out)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (*at == end)
            return false;
        uint8_t b = *(*at)++;
        v |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80)) {
            *out = v;
            return true;
        }
    }
    return false;
}

/* The envelope's version, from its outermost fields alone; false when these bytes are no message. */
static bool find_version(const uint8_t *at, const uint8_t *end, uint64_t *version)
{
    bool found = false;
    while (at < end) {
        uint64_t key, n;
        if (!read_varint(&at, end, &key))
            return false;
        switch (key & 7) {
        case 0:
            if (!read_varint(&at, end, &n))
                return false;
            if (key >> 3 == 1) {
                *version = n;
                found = true;
            }
            continue;
        case 1:
            n = 8;
            break;
        case 2:
            if (!read_varint(&at, end, &n))
                return false;
            break;
        case 5:
            n = 4;
            break;
        default:
            return false;
        }
        if (n > (uint64_t)(end - at))
            return false;
        at += n;
    }
    return found;
}

/* ---- after unpacking ---- */

/* Strict UTF-8: no surrogates, no overlong forms, nothing over U+10FFFF. */
static bool utf8_valid(const char *text)
{
    const uint8_t *s = (const uint8_t *)text;
    while (*s) {
        uint8_t c = *s++;
        if (c < 0x80)
            continue;
        unsigned more = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : 1;
        uint8_t low = 0x80, high = 0xbf; /* of the next byte */
        if (c < 0xc2 || c > 0xf4)
            return false;
        if (c == 0xe0)
            low = 0xa0;
        else if (c == 0xed)
            high = 0x9f;
        else if (c == 0xf0)
            low = 0x90;
        else if (c == 0xf4)
            high = 0x8f;
        for (; more; more--, s++, low = 0x80, high = 0xbf) {
            if (*s < low || *s > high)
                return false;
        }
    }
    return true;
}

static bool is_one_of(const char *name, const char *const *list)
{
    for (; *list; list++) {
        if (strcmp(name, *list) == 0)
            return true;
    }
    return false;
}

static const char *const id_fields[] = {"request_id", NULL};
static const char *const name_fields[] = {"name", "node", "peer", NULL};

static enum sl_err check_string(const ProtobufCMessageDescriptor *d, const ProtobufCFieldDescriptor *f,
                                const char *s, struct sl_why *why)
{
    size_t max = SL_WIRE_MAX_STRING, len = strlen(s);
    bool needed = false;
    if (is_one_of(f->name, id_fields)) {
        max = SL_WIRE_MAX_ID - 1;
        needed = true;
    } else if (is_one_of(f->name, name_fields) && d != &sluice__model_info__descriptor &&
               d != &sluice__stat_value__descriptor) {
        max = SL_WIRE_MAX_NAME - 1;
        needed = true;
    }
    if (len > max || (needed && len == 0))
        return sl_why_set(why, len ? SL_ETOOBIG : SL_EPROTO,
                          "field %s of %s has %zu bytes; %s to %zu are allowed", f->name, d->short_name, len,
                          needed ? "1" : "0", max);
    if (!utf8_valid(s))
        return sl_why_set(why, SL_EPROTO, "field %s of %s is not valid UTF-8", f->name, d->short_name);
    return SL_OK;
}

static enum sl_err check_count(const ProtobufCMessageDescriptor *d, const ProtobufCFieldDescriptor *f,
                               size_t n, struct sl_why *why)
{
    size_t max = strcmp(f->name, "prefix_hashes") == 0 ? SL_WIRE_MAX_PREFIX_HASHES : SL_WIRE_MAX_TOKENS;
    if (n > max)
        return sl_why_set(why, SL_ETOOBIG, "field %s of %s has %zu entries; at most %zu are allowed", f->name,
                          d->short_name, n, max);
    return SL_OK;
}

static enum sl_err check_message(const ProtobufCMessage *m, struct sl_why *why);

static enum sl_err check_value(const ProtobufCMessageDescriptor *d, const ProtobufCFieldDescriptor *f,
                               const void *value, struct sl_why *why)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_STRING: {
        const char *s = *(const char *const *)value;
        return s ? check_string(d, f, s, why) : SL_OK;
    }
    case PROTOBUF_C_TYPE_BYTES: {
        const ProtobufCBinaryData *b = value;
        if (strcmp(f->name, "digest") == 0 && b->len != DIGEST_BYTES)
            return sl_why_set(why, SL_EPROTO, "field %s of %s has %zu bytes; %u are expected", f->name,
                              d->short_name, b->len, DIGEST_BYTES);
        return SL_OK;
    }
    case PROTOBUF_C_TYPE_ENUM: {
        int v = *(const int *)value;
        if (!protobuf_c_enum_descriptor_get_value(f->descriptor, v))
            return sl_why_set(why, SL_EPROTO, "field %s of %s has the unknown value %d", f->name,
                              d->short_name, v);
        return SL_OK;
    }
    case PROTOBUF_C_TYPE_MESSAGE: {
        const ProtobufCMessage *sub = *(const ProtobufCMessage *const *)value;
        return sub ? check_message(sub, why) : SL_OK;
    }
    default:
        return SL_OK;
    }
}

static bool is_present(const ProtobufCMessage *m, const ProtobufCFieldDescriptor *f)
{
    const char *base = (const char *)m;
    if (f->label == PROTOBUF_C_LABEL_REQUIRED)
        return true;
    if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF)
        return *(const uint32_t *)(const void *)(base + f->quantifier_offset) == f->id;
    if (f->type == PROTOBUF_C_TYPE_STRING || f->type == PROTOBUF_C_TYPE_MESSAGE)
        return true; /* a NULL pointer says it is not */
    return *(const protobuf_c_boolean *)(base + f->quantifier_offset);
}

static size_t value_bytes(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_MESSAGE:
    case PROTOBUF_C_TYPE_STRING:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_ENUM:
        return sizeof(int);
    default:
        return 0; /* nothing to look at in each */
    }
}

/* Bounded recursion: the contract has no recursive message. */
static enum sl_err check_message(const ProtobufCMessage *m, struct sl_why *why)
{
    const ProtobufCMessageDescriptor *d = m->descriptor;
    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        const char *at = (const char *)m + f->offset;
        enum sl_err err = SL_OK;
        if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            size_t n = *(const size_t *)(const void *)((const char *)m + f->quantifier_offset);
            err = check_count(d, f, n, why);
            size_t bytes = value_bytes(f->type);
            const char *item = *(const char *const *)(const void *)at;
            for (size_t k = 0; bytes && k < n && err == SL_OK; k++, item += bytes)
                err = check_value(d, f, item, why);
        } else if (is_present(m, f)) {
            err = check_value(d, f, at, why);
        }
        if (err != SL_OK)
            return err;
    }
    return SL_OK;
}

enum sl_err sl_wire_unpack(const void *bytes, size_t n, Sluice__Envelope **out, struct sl_why *why)
{
    if (n > SL_WIRE_MAX_BYTES)
        return sl_why_set(why, SL_ETOOBIG, "the message has %zu bytes; at most %u are allowed", n,
                          SL_WIRE_MAX_BYTES);
    uint64_t version;
    if (n == 0 || !find_version(bytes, (const uint8_t *)bytes + n, &version))
        return sl_why_set(why, SL_EPROTO, "these %zu bytes are not a message of this protocol", n);
    if (version != SL_PROTOCOL_VERSION)
        return sl_why_set(why, SL_EMISMATCH,
                          "the message speaks protocol version %llu and this program version %u; "
                          "run the same release of Sluice on both sides",
                          (unsigned long long)version, SL_PROTOCOL_VERSION);

    size_t limit =
        n > (MEMORY_MAX - MEMORY_BASE) / MEMORY_PER_BYTE ? MEMORY_MAX : MEMORY_BASE + n * MEMORY_PER_BYTE;
    struct group_alloc g = {.arena = sl_arena_new(limit), .first = true};
    ProtobufCAllocator alloc = {.alloc = group_take, .free = group_give_back, .allocator_data = &g};
    enum sl_err err;
    Sluice__Envelope *e = sluice__envelope__unpack(&alloc, n, bytes);
    if (!e) {
        err = g.failed
                  ? sl_why_set(why, SL_ETOOBIG, "the message of %zu bytes unpacks to more than %zu", n, limit)
                  : sl_why_set(why, SL_EPROTO, "the message of %zu bytes does not unpack", n);
    } else if (e->body_case == SLUICE__ENVELOPE__BODY__NOT_SET) {
        err = e->base.n_unknown_fields
                  ? sl_why_set(why, SL_EUNSUPPORTED, "this program does not know message number %u",
                               (unsigned)e->base.unknown_fields[0].tag)
                  : sl_why_set(why, SL_EPROTO, "the message is an empty envelope");
    } else {
        err = check_message(&e->base, why);
    }
    if (err != SL_OK) {
        sl_arena_free(g.arena);
        return err;
    }
    *out = e;
    return SL_OK;
}
