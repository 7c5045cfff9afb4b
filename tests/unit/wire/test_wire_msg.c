/* Envelopes to bytes and back, and everything that must not get through. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "common/wire/wire_msg.h"
#include "tests/support/support.h"

static Sluice__Envelope *pack_unpack(Sluice__Envelope *e, enum sl_err *err, struct sl_why *why)
{
    struct sl_buf b;
    sl_buf_init(&b, SL_WIRE_MAX_BYTES);
    assert_int_equal(sl_wire_pack(e, &b), SL_OK);
    Sluice__Envelope *back = NULL;
    *err = sl_wire_unpack(b.data, b.len, &back, why);
    sl_buf_fini(&b);
    return back;
}

static Sluice__Envelope cancel_of(Sluice__Cancel *c, const char *id)
{
    sluice__cancel__init(c);
    c->request_id = (char *)(uintptr_t)id;
    c->attempt = 3;
    c->tombstone_ms = 500;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    e.body_case = SLUICE__ENVELOPE__BODY_CANCEL;
    e.cancel = c;
    return e;
}

static void message_packed_and_unpacked_is_the_same(void **state)
{
    (void)state;
    Sluice__Sampling sampling = SLUICE__SAMPLING__INIT;
    Sluice__Submit submit = SLUICE__SUBMIT__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    int32_t tokens[] = {1, 2, 300, 49151};
    sampling.seed = UINT64_MAX;
    submit.request_id = (char *)"chatcmpl-1-2";
    submit.attempt = 7;
    submit.router_boot_id = 0x1122334455667788u;
    submit.tokens = tokens;
    submit.n_tokens = 4;
    submit.n_prompt = 4;
    submit.sampling = &sampling;
    e.body_case = SLUICE__ENVELOPE__BODY_SUBMIT;
    e.submit = &submit;
    enum sl_err err;
    struct sl_why why = {{0}};
    Sluice__Envelope *back = pack_unpack(&e, &err, &why);
    assert_int_equal(err, SL_OK);
    assert_int_equal(back->version, SL_PROTOCOL_VERSION);
    assert_int_equal(back->body_case, SLUICE__ENVELOPE__BODY_SUBMIT);
    assert_string_equal(back->submit->request_id, "chatcmpl-1-2");
    assert_int_equal(back->submit->n_tokens, 4);
    assert_memory_equal(back->submit->tokens, tokens, sizeof tokens);
    assert_true(back->submit->sampling->seed == UINT64_MAX);
    sl_wire_free(back);
    sl_wire_free(NULL);
}

static void message_of_another_version_is_refused_with_both_named(void **state)
{
    (void)state;
    const uint8_t bytes[] = {0x08, 0x63}; /* version = 99, whatever follows */
    Sluice__Envelope *e = NULL;
    struct sl_why why = {{0}};
    assert_int_equal(sl_wire_unpack(bytes, sizeof bytes, &e, &why), SL_EMISMATCH);
    assert_non_null(strstr(why.text, "99"));
    assert_non_null(strstr(why.text, "version 1"));
    assert_null(e);
}

static void message_empty_or_junk_is_refused(void **state)
{
    (void)state;
    Sluice__Envelope *e = NULL;
    struct sl_why why = {{0}};
    assert_int_equal(sl_wire_unpack("", 0, &e, &why), SL_EPROTO);
    assert_int_equal(sl_wire_unpack("GET / HTTP/1.1\r\n\r\n", 18, &e, &why), SL_EPROTO);
    const uint8_t only_version[] = {0x08, SL_PROTOCOL_VERSION};
    assert_int_equal(sl_wire_unpack(only_version, sizeof only_version, &e, &why), SL_EPROTO);
    const uint8_t unknown_body[] = {0x08, SL_PROTOCOL_VERSION, 0xfa, 0x06, 0x00}; /* field 111, empty */
    assert_int_equal(sl_wire_unpack(unknown_body, sizeof unknown_body, &e, &why), SL_EUNSUPPORTED);
    assert_non_null(strstr(why.text, "111"));
    const uint8_t cut[] = {0x08, SL_PROTOCOL_VERSION, 0xb2, 0x01, 0x7f, 0x0a};
    assert_int_equal(sl_wire_unpack(cut, sizeof cut, &e, &why), SL_EPROTO);
    assert_null(e);
}

static void message_random_bytes_never_crash(void **state)
{
    (void)state;
    unsigned long long seed = 1;
    struct sl_buf b;
    sl_buf_init(&b, SL_WIRE_MAX_BYTES);
    Sluice__Cancel c;
    Sluice__Envelope e = cancel_of(&c, "request-1");
    assert_int_equal(sl_wire_pack(&e, &b), SL_OK);
    for (int i = 0; i < 20000; i++) {
        uint8_t bytes[256];
        size_t n = sl_test_random(&seed) % sizeof bytes;
        for (size_t k = 0; k < n; k++)
            bytes[k] =
                k < b.len && sl_test_random(&seed) % 8 ? (uint8_t)b.data[k] : (uint8_t)sl_test_random(&seed);
        Sluice__Envelope *out = NULL;
        if (sl_wire_unpack(bytes, n, &out, NULL) == SL_OK)
            sl_wire_free(out);
    }
    sl_buf_fini(&b);
}

static void string_with_invalid_utf8_is_refused(void **state)
{
    (void)state;
    const char *bad[] = {"\xff", "a\xc3", "\xed\xa0\x80", "\xc0\xaf", "\xf4\x90\x80\x80", "\xe2\x82"};
    for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
        Sluice__Cancel c;
        Sluice__Envelope e = cancel_of(&c, bad[i]);
        enum sl_err err;
        struct sl_why why = {{0}};
        assert_null(pack_unpack(&e, &err, &why));
        assert_int_equal(err, SL_EPROTO);
        assert_non_null(strstr(why.text, "UTF-8"));
    }
    Sluice__Cancel c;
    Sluice__Envelope e = cancel_of(&c, "id-\xc3\xa9-\xe2\x82\xac-\xf0\x9f\x99\x82");
    enum sl_err err;
    sl_wire_free(pack_unpack(&e, &err, NULL));
    assert_int_equal(err, SL_OK);
}

static void request_id_empty_or_too_long_is_refused(void **state)
{
    (void)state;
    char id[SL_WIRE_MAX_ID + 1];
    memset(id, 'x', sizeof id);
    id[SL_WIRE_MAX_ID] = '\0';
    enum sl_err err;
    struct sl_why why = {{0}};
    Sluice__Cancel c;
    Sluice__Envelope e = cancel_of(&c, id);
    assert_null(pack_unpack(&e, &err, &why));
    assert_int_equal(err, SL_ETOOBIG);
    id[SL_WIRE_MAX_ID - 1] = '\0';
    sl_wire_free(pack_unpack(&e, &err, &why));
    assert_int_equal(err, SL_OK);
    e = cancel_of(&c, "");
    assert_null(pack_unpack(&e, &err, &why));
    assert_int_equal(err, SL_EPROTO);
}

static void enum_value_unknown_is_refused(void **state)
{
    (void)state;
    Sluice__DoneEvent done = SLUICE__DONE_EVENT__INIT, *dones[] = {&done};
    Sluice__EventBatch batch = SLUICE__EVENT_BATCH__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    done.request_id = (char *)"r";
    done.duty = SLUICE__ROLE__ROLE_DECODE;
    done.reason = (Sluice__DoneReason)77;
    batch.node = (char *)"d0";
    batch.done = dones;
    batch.n_done = 1;
    e.body_case = SLUICE__ENVELOPE__BODY_EVENTS;
    e.events = &batch;
    enum sl_err err;
    struct sl_why why = {{0}};
    assert_null(pack_unpack(&e, &err, &why));
    assert_int_equal(err, SL_EPROTO);
    assert_non_null(strstr(why.text, "77"));
}

static void counts_beyond_their_limit_are_refused(void **state)
{
    (void)state;
    Sluice__Heartbeat beat = SLUICE__HEARTBEAT__INIT;
    Sluice__NodeLoad load = SLUICE__NODE_LOAD__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    beat.node = (char *)"p0";
    beat.load = &load;
    beat.n_prefix_hashes = SL_WIRE_MAX_PREFIX_HASHES + 1;
    beat.prefix_hashes = sl_xcalloc(beat.n_prefix_hashes, sizeof *beat.prefix_hashes);
    e.body_case = SLUICE__ENVELOPE__BODY_HEARTBEAT;
    e.heartbeat = &beat;
    enum sl_err err;
    struct sl_why why = {{0}};
    assert_null(pack_unpack(&e, &err, &why));
    assert_int_equal(err, SL_ETOOBIG);
    beat.n_prefix_hashes--;
    sl_wire_free(pack_unpack(&e, &err, &why));
    assert_int_equal(err, SL_OK);
    sl_free(beat.prefix_hashes);
}

static void many_empty_submessages_do_not_take_the_memory(void **state)
{
    (void)state;
    /* events (field 40) with a million empty leg events (field 7): each fails for its missing fields, and
     * none may cost more than the message allows */
    const size_t n_legs = 1000000;
    struct sl_buf b;
    sl_buf_init(&b, SL_WIRE_MAX_BYTES);
    sl_buf_append(&b, "\x08\x01\xc2\x02", 4);
    size_t body = 2 * n_legs;
    for (size_t v = body; v; v >>= 7)
        sl_buf_putc(&b, (char)((v & 0x7f) | (v >> 7 ? 0x80 : 0)));
    for (size_t i = 0; i < n_legs; i++)
        sl_buf_append(&b, "\x3a\x00", 2);
    Sluice__Envelope *e = NULL;
    struct sl_why why = {{0}};
    assert_int_not_equal(sl_wire_unpack(b.data, b.len, &e, &why), SL_OK);
    assert_null(e);
    sl_buf_fini(&b);
}

static void message_too_large_is_not_packed(void **state)
{
    (void)state;
    Sluice__Submit submit = SLUICE__SUBMIT__INIT;
    Sluice__Sampling sampling = SLUICE__SAMPLING__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    submit.request_id = (char *)"r";
    submit.sampling = &sampling;
    submit.n_tokens = SL_WIRE_MAX_BYTES / 4;
    submit.tokens = sl_xalloc(submit.n_tokens * sizeof *submit.tokens);
    memset(submit.tokens, 0xff, submit.n_tokens * sizeof *submit.tokens); /* -1 takes ten bytes each */
    e.body_case = SLUICE__ENVELOPE__BODY_SUBMIT;
    e.submit = &submit;
    struct sl_buf b;
    sl_buf_init(&b, SL_WIRE_MAX_BYTES);
    assert_int_equal(sl_wire_pack(&e, &b), SL_ETOOBIG);
    sl_buf_fini(&b);
    sl_free(submit.tokens);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(message_packed_and_unpacked_is_the_same),
        cmocka_unit_test(message_of_another_version_is_refused_with_both_named),
        cmocka_unit_test(message_empty_or_junk_is_refused),
        cmocka_unit_test(message_random_bytes_never_crash),
        cmocka_unit_test(string_with_invalid_utf8_is_refused),
        cmocka_unit_test(request_id_empty_or_too_long_is_refused),
        cmocka_unit_test(enum_value_unknown_is_refused),
        cmocka_unit_test(counts_beyond_their_limit_are_refused),
        cmocka_unit_test(many_empty_submessages_do_not_take_the_memory),
        cmocka_unit_test(message_too_large_is_not_packed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
