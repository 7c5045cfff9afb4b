/* common/engine/pages, and who is admitted: whose pages change hands, and who waits for them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/unit/engine/engine_rig.h"

/* A transfer reads its pages: none is changed for another that holds the same. */
static void pinned_sequence_keeps_its_own_pages(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = spec_of(100, 2);
    struct sl_seq *a = open_seq(&f, &spec), *b = open_seq(&f, &spec);
    sl_engine_seq_pin(f.e, b, true);
    run(&f);
    assert_int_equal(view(b).prompt_tokens_computed, 100);
    assert_int_equal(view(b).hit_tokens, 0);
    assert_int_not_equal(view(a).pages[0], view(b).pages[0]);
    sl_engine_seq_pin(f.e, b, false);
    close_engine(&f);
}

/* Its last row may have to be computed here, into a page that nobody else reads by then. */
static void page_of_the_last_token_is_shared_when_the_next_token_is_known(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = spec_of(48, 3);
    uint64_t names[8];
    spec.remote_to = 48;
    struct sl_seq *s = open_seq(&f, &spec);
    run(&f);
    fill(&f, s, 0, 48);
    sl_engine_seq_ready(f.e, s, 48);
    assert_int_equal(sl_engine_prefix_hashes(f.e, names, 8), 2);
    sl_engine_seq_first_token(f.e, s, &(struct sl_sampled){.token = 3});
    assert_int_equal(sl_engine_prefix_hashes(f.e, names, 8), 3);
    close_engine(&f);
}

static void granted_work_goes_before_ungranted_that_came_first(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(64);
    c.max_sequences = 1;
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = prefill_spec(64, 64);
    struct sl_seq *a = open_seq(&f, &spec);
    step(&f);
    spec.granted = false;
    struct sl_seq *ungranted = open_seq(&f, &spec);
    spec.granted = true;
    struct sl_seq *granted = open_seq(&f, &spec);
    run(&f);
    assert_true(view(a).admitted_us < view(granted).admitted_us);
    assert_true(view(granted).admitted_us < view(ungranted).admitted_us);
    close_engine(&f);
}

/* Both prompts fit, their answers do not: the second waits until most of the first is there. */
static void request_waits_where_answers_would_not_fit(void **state)
{
    (void)state;
    struct sl_engine_conf c = conf_of(12);
    struct fixture f = open_engine(&c);
    struct sl_seq_spec spec = spec_of(32, 100);
    spec.expected_tokens = 100;
    spec.use_prefix_cache = false;
    struct sl_seq *a = open_seq(&f, &spec), *b = open_seq(&f, &spec);
    while (step(&f) && view(a).n_tokens < 32 + 64)
        assert_int_equal(view(b).state, SL_SEQ_WAITING);
    while (step(&f) && view(a).state != SL_SEQ_ENDED)
        ;
    sl_engine_seq_close(f.e, a);
    run(&f);
    assert_int_equal(view(b).state, SL_SEQ_ENDED);
    close_engine(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pinned_sequence_keeps_its_own_pages),
        cmocka_unit_test(page_of_the_last_token_is_shared_when_the_next_token_is_known),
        cmocka_unit_test(granted_work_goes_before_ungranted_that_came_first),
        cmocka_unit_test(request_waits_where_answers_would_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
