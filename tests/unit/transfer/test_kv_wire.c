/* tests/unit/transfer/test_kv_wire.c - headers and identities: what is packed comes back, and nothing else is
 * believed. */
#include "common/transfer/kv_wire.h"

#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct sl_kv_header full_header(void)
{
    struct sl_kv_header h = {.type = SL_KV_COMMIT,
                             .flags = SL_KV_FLAG_LAST | SL_KV_FLAG_FIRST | SL_KV_FLAG_ENDED,
                             .key = {.request = "r1-0000000000000042", .epoch = 0xfedcba98},
                             .index = 65000,
                             .count = 536,
                             .n_tokens = 0x87654321,
                             .deadline_ms = 0xffffffff,
                             .token = -2,
                             .value = 0x1122334455667788};
    return h;
}

static void header_packed_comes_back(void **state)
{
    (void)state;
    for (int type = SL_KV_HELLO; type < SL_KV_N_TYPES; type++) {
        unsigned char bytes[SL_KV_HEADER_BYTES];
        struct sl_kv_header h = full_header(), back;
        h.type = (uint8_t)type;
        sl_kv_header_pack(&h, bytes);
        assert_int_equal(sl_kv_header_unpack(bytes, sizeof bytes, &back), SL_OK);
        assert_int_equal(back.type, h.type);
        assert_int_equal(back.flags, h.flags);
        assert_memory_equal(&back.key, &h.key, sizeof h.key);
        assert_int_equal(back.index, h.index);
        assert_int_equal(back.count, h.count);
        assert_int_equal(back.n_tokens, h.n_tokens);
        assert_int_equal(back.deadline_ms, h.deadline_ms);
        assert_int_equal(back.token, h.token);
        assert_true(back.value == h.value);
    }
}

static void header_bytes_are_little_endian_at_fixed_places(void **state)
{
    unsigned char b[SL_KV_HEADER_BYTES];
    struct sl_kv_header h = full_header();
    (void)state;
    sl_kv_header_pack(&h, b);
    assert_int_equal(b[0], SL_KV_COMMIT);
    assert_int_equal(b[1], 7);
    assert_int_equal(b[4], 0x98);
    assert_int_equal(b[7], 0xfe);
    assert_memory_equal(b + 8, "r1-0000000000000042", 20);
    assert_int_equal(b[72], 65000 & 0xff);
    assert_int_equal(b[92], 0x88);
    assert_int_equal(b[99], 0x11);
}

static void expect_refused(const unsigned char *bytes, size_t n)
{
    struct sl_kv_header h;
    assert_int_equal(sl_kv_header_unpack(bytes, n, &h), SL_EPROTO);
}

static void header_hostile_bytes_are_refused(void **state)
{
    unsigned char b[SL_KV_HEADER_BYTES + 1];
    struct sl_kv_header h = full_header();
    (void)state;
    for (size_t n = 0; n < sizeof b;
         n++) { /* any other length; exact allocation, so that a sanitizer sees overreads */
        if (n == SL_KV_HEADER_BYTES)
            continue;
        unsigned char *cut = sl_xcalloc(1, n + 1);
        expect_refused(cut, n);
        sl_free(cut);
    }
    sl_kv_header_pack(&h, b);
    b[0] = 0;
    expect_refused(b, SL_KV_HEADER_BYTES);
    b[0] = SL_KV_N_TYPES;
    expect_refused(b, SL_KV_HEADER_BYTES);

    sl_kv_header_pack(&h, b);
    memset(b + 8, 'a', SL_XFER_MAX_ID); /* no terminator */
    expect_refused(b, SL_KV_HEADER_BYTES);
    b[8] = 0; /* no id */
    expect_refused(b, SL_KV_HEADER_BYTES);
    b[0] = SL_KV_PING; /* which a ping does not need */
    struct sl_kv_header back;
    assert_int_equal(sl_kv_header_unpack(b, SL_KV_HEADER_BYTES, &back), SL_OK);

    sl_kv_header_pack(&h, b);
    b[10] = '\n'; /* an id goes into log lines */
    expect_refused(b, SL_KV_HEADER_BYTES);
    b[10] = 0xc3;
    expect_refused(b, SL_KV_HEADER_BYTES);

    static const struct {
        uint32_t index, count;
        bool good;
    } cases[] = {{0, 0, true},
                 {SL_KV_MAX_PAGES, 0, true},
                 {SL_KV_MAX_PAGES, 1, false},
                 {SL_KV_MAX_PAGES - 1, 1, true},
                 {0xffffffff, 1, false},
                 {1, 0xffffffff, false},
                 {0, SL_KV_MAX_COMMIT, true},
                 {0, SL_KV_MAX_COMMIT + 1, false}};
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        h.index = cases[i].index;
        h.count = cases[i].count;
        sl_kv_header_pack(&h, b);
        assert_int_equal(sl_kv_header_unpack(b, SL_KV_HEADER_BYTES, &back),
                         cases[i].good ? SL_OK : SL_EPROTO);
    }
}

static void header_one_key_has_one_spelling(void **state)
{
    unsigned char b[SL_KV_HEADER_BYTES];
    struct sl_kv_header h = full_header(), back;
    (void)state;
    sl_kv_header_pack(&h, b);
    memset(b + 8 + 30, 0xee, 20); /* behind the terminator */
    assert_int_equal(sl_kv_header_unpack(b, sizeof b, &back), SL_OK);
    assert_memory_equal(&back.key, &h.key, sizeof h.key);
}

/* Bytes that were accepted mean the same when they are packed again. */
static void header_random_bytes_are_refused_or_canonical(void **state)
{
    unsigned long long seed = 42;
    unsigned accepted = 0;
    (void)state;
    for (int i = 0; i < 200000; i++) {
        unsigned char b[SL_KV_HEADER_BYTES], again[SL_KV_HEADER_BYTES];
        struct sl_kv_header h, back;
        for (size_t j = 0; j < sizeof b; j++)
            b[j] = (unsigned char)sl_test_random(&seed);
        if (i % 2) { /* near a good one */
            h = full_header();
            sl_kv_header_pack(&h, b);
            for (int flips = 0; flips < 3; flips++)
                b[sl_test_random(&seed) % sizeof b] ^= (unsigned char)(1u << (sl_test_random(&seed) % 8));
        }
        if (sl_kv_header_unpack(b, sizeof b, &h) != SL_OK)
            continue;
        accepted++;
        assert_true(strnlen(h.key.request, sizeof h.key.request) < SL_XFER_MAX_ID);
        assert_true(h.index + h.count <= SL_KV_MAX_PAGES);
        sl_kv_header_pack(&h, again);
        assert_int_equal(sl_kv_header_unpack(again, sizeof again, &back), SL_OK);
        assert_memory_equal(&h.key, &back.key, sizeof h.key);
        assert_true(h.index == back.index && h.count == back.count && h.value == back.value);
    }
    assert_true(accepted > 1000);
}

static struct sl_kv_hello full_hello(void)
{
    struct sl_kv_hello h = {.protocol = SL_KV_PROTOCOL,
                            .id = {.name = "prefill-0",
                                   .boot_id = 0xabcdef0123456789,
                                   .model_digest = {0x1111111111111111, 0x2222222222222222},
                                   .geometry = {30, 3, 32, 64, SL_BF16},
                                   .numerics_id = 0x3333333333333333,
                                   .tensor_parallel = 2,
                                   .exact = true,
                                   .transport = "ucx"}};
    return h;
}

static void hello_packed_comes_back(void **state)
{
    unsigned char b[SL_KV_IDENTITY_BYTES];
    struct sl_kv_hello h = full_hello(), back;
    struct sl_why why = {0};
    (void)state;
    sl_kv_hello_pack(&h, b);
    assert_int_equal(sl_kv_hello_unpack(b, sizeof b, &back), SL_OK);
    assert_string_equal(back.id.name, h.id.name);
    assert_true(back.id.boot_id == h.id.boot_id);
    assert_int_equal(back.id.geometry.head_dim, 64);
    assert_int_equal(back.id.geometry.page_tokens, 32);
    assert_true(back.id.exact);
    assert_string_equal(back.id.transport, "ucx");
    assert_int_equal(sl_kv_identity_match(&h, &back, &why), SL_OK);
    memset(h.id.transport, 0,
           sizeof h.id.transport); /* a release that had one transport and did not say it */
    sl_kv_hello_pack(&h, b);
    assert_int_equal(sl_kv_hello_unpack(b, sizeof b, &back), SL_OK);
    assert_string_equal(back.id.transport, "ucx");
}

static void hello_hostile_bytes_are_refused(void **state)
{
    unsigned char b[SL_KV_IDENTITY_BYTES];
    struct sl_kv_hello h = full_hello(), back;
    (void)state;
    for (size_t n = 0; n < sizeof b; n++) {
        unsigned char *cut = sl_xcalloc(1, n + 1);
        assert_int_equal(sl_kv_hello_unpack(cut, n, &back), SL_EPROTO);
        sl_free(cut);
    }
    sl_kv_hello_pack(&h, b);
    memset(b + 4, 'n', 64); /* no terminator */
    assert_int_equal(sl_kv_hello_unpack(b, sizeof b, &back), SL_EPROTO);
    b[4] = 0;
    assert_int_equal(sl_kv_hello_unpack(b, sizeof b, &back), SL_EPROTO);
    sl_kv_hello_pack(&h, b);
    b[5] = 0x1b; /* a name goes into log lines */
    assert_int_equal(sl_kv_hello_unpack(b, sizeof b, &back), SL_EPROTO);
}

static void identity_every_field_that_differs_is_named_with_both_values(void **state)
{
    struct sl_kv_hello mine = full_hello(), theirs[11];
    static const char *const words[11] = {
        "protocol version differs: 1 at prefill-0, 9 at other",
        "page_tokens differs: 32 at prefill-0, 16 at other",
        "number of layers differs: 30 at prefill-0, 31 at other",
        "number of KV heads differs: 3 at prefill-0, 4 at other",
        "head size differs: 64 at prefill-0, 128 at other",
        "tensor-parallel degree differs: 2 at prefill-0, 1 at other",
        "model digest differs: 2222222222222222 at prefill-0, 2222222222222223 at other",
        "model digest differs: 1111111111111111 at prefill-0, 0000000000000000 at other",
        "KV data type differs: BF16 at prefill-0, F32 at other",
        "numerics id differs: 3333333333333333 at prefill-0, 0000000000000004 at other",
        "transfer_transport differs: ucx at prefill-0, nccl at other",
    };
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(theirs); i++) {
        theirs[i] = full_hello();
        snprintf(theirs[i].id.name, sizeof theirs[i].id.name, "other");
    }
    theirs[0].protocol = 9;
    theirs[1].id.geometry.page_tokens = 16;
    theirs[2].id.geometry.n_layers = 31;
    theirs[3].id.geometry.n_kv_heads = 4;
    theirs[4].id.geometry.head_dim = 128;
    theirs[5].id.tensor_parallel = 1;
    theirs[6].id.model_digest.hi++;
    theirs[7].id.model_digest.lo = 0;
    theirs[8].id.geometry.dtype = SL_F32;
    theirs[9].id.numerics_id = 4;
    snprintf(theirs[10].id.transport, sizeof theirs[10].id.transport, "nccl");
    for (size_t i = 0; i < SL_COUNTOF(theirs); i++) {
        struct sl_why why = {0};
        assert_int_equal(sl_kv_identity_match(&mine, &theirs[i], &why), SL_EMISMATCH);
        assert_string_equal(why.text, words[i]);
        assert_true(strlen(why.text) < SL_KV_MAX_WHY);
    }
    /* a swap of both halves of a digest is another model */
    theirs[0] = full_hello();
    theirs[0].id.model_digest.lo = mine.id.model_digest.hi;
    theirs[0].id.model_digest.hi = mine.id.model_digest.lo;
    assert_int_equal(sl_kv_identity_match(&mine, &theirs[0], NULL), SL_EMISMATCH);
}

static void identity_other_numerics_pair_only_when_nobody_asks_for_exactness(void **state)
{
    struct sl_kv_hello a = full_hello(), b = full_hello();
    (void)state;
    b.id.numerics_id++;
    a.id.exact = b.id.exact = false;
    assert_int_equal(sl_kv_identity_match(&a, &b, NULL), SL_OK);
    b.id.exact = true;
    assert_int_equal(sl_kv_identity_match(&a, &b, NULL), SL_EMISMATCH);
    assert_int_equal(sl_kv_identity_match(&b, &a, NULL), SL_EMISMATCH);
}

static void identity_longest_names_keep_both_values_in_the_sentence(void **state)
{
    struct sl_kv_hello a = full_hello(), b = full_hello();
    struct sl_why why = {0};
    char text[SL_KV_MAX_WHY];
    (void)state;
    memset(a.id.name, 'a', sizeof a.id.name - 1);
    memset(b.id.name, 'b', sizeof b.id.name - 1);
    b.id.model_digest.lo = 5;
    assert_int_equal(sl_kv_identity_match(&a, &b, &why), SL_EMISMATCH);
    sl_kv_text(text, sizeof text, why.text, strlen(why.text));
    assert_non_null(strstr(text, "1111111111111111 at aaa"));
    assert_non_null(strstr(text, "0000000000000005 at bbb"));
}

static void probs_packed_come_back_and_other_lengths_are_refused(void **state)
{
    (void)state;
    unsigned char bytes[SL_KV_PROBS_MAX_BYTES];
    struct sl_xfer_first t = {.logprob = -1.5f, .n_top = SL_PICK_MAX_TOP}, u;
    for (uint32_t i = 0; i < t.n_top; i++) {
        t.top_token[i] = -(int32_t)i;
        t.top_logprob[i] = -(float)i / 3;
    }
    for (t.n_top = 0; t.n_top <= SL_PICK_MAX_TOP; t.n_top++) {
        size_t n = sl_kv_probs_pack(&t, bytes);
        memset(&u, 0, sizeof u);
        assert_int_equal(sl_kv_probs_unpack(bytes, n, &u), SL_OK);
        assert_true(u.has_logprobs && u.logprob == t.logprob && u.n_top == t.n_top);
        assert_memory_equal(u.top_token, t.top_token, t.n_top * sizeof t.top_token[0]);
        assert_memory_equal(u.top_logprob, t.top_logprob, t.n_top * sizeof t.top_logprob[0]);
        for (size_t other = 0; other <= sizeof bytes; other++)
            if (other != n)
                assert_int_equal(sl_kv_probs_unpack(bytes, other, &u), SL_EPROTO);
    }
    unsigned char more[SL_KV_PROBS_MAX_BYTES + 8] = {[4] = SL_PICK_MAX_TOP + 1};
    for (size_t n = SL_KV_PROBS_MAX_BYTES; n <= sizeof more; n += 8) { /* one too many, in bytes for it too */
        assert_int_equal(sl_kv_probs_unpack(more, n, &u), SL_EPROTO);
        assert_int_equal(u.n_top, 0);
    }
}

static void text_of_a_peer_is_cut_and_printable(void **state)
{
    char out[8];
    (void)state;
    sl_kv_text(out, sizeof out, "a\n\x1b[\xc3\xa4z", 7);
    assert_string_equal(out, "a??[??z");
    sl_kv_text(out, sizeof out, "0123456789", 10);
    assert_string_equal(out, "0123456");
    sl_kv_text(out, sizeof out, "ab\0cd", 5);
    assert_string_equal(out, "ab");
    sl_kv_text(out, sizeof out, NULL, 0);
    assert_string_equal(out, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_packed_comes_back),
        cmocka_unit_test(header_bytes_are_little_endian_at_fixed_places),
        cmocka_unit_test(header_hostile_bytes_are_refused),
        cmocka_unit_test(header_one_key_has_one_spelling),
        cmocka_unit_test(header_random_bytes_are_refused_or_canonical),
        cmocka_unit_test(hello_packed_comes_back),
        cmocka_unit_test(hello_hostile_bytes_are_refused),
        cmocka_unit_test(identity_every_field_that_differs_is_named_with_both_values),
        cmocka_unit_test(identity_other_numerics_pair_only_when_nobody_asks_for_exactness),
        cmocka_unit_test(identity_longest_names_keep_both_values_in_the_sentence),
        cmocka_unit_test(probs_packed_come_back_and_other_lengths_are_refused),
        cmocka_unit_test(text_of_a_peer_is_cut_and_printable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
