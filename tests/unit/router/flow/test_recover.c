/* tests/unit/router/flow/test_recover.c - what to do about each trouble, as a table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "router/flow/recover.h"

#define D(w, e)                                                                                              \
    {                                                                                                        \
        .what = SL_TROUBLE_##w, .err = (e)                                                                   \
    }
#define P(w, e, yes)                                                                                         \
    {                                                                                                        \
        .what = SL_TROUBLE_##w, .leg_p = true, .err = (e), .leg_accepted = (yes)                             \
    }

static const struct {
    struct sl_trouble_in in;
    enum sl_recovery action;
    enum sl_err err;
} rows[] = {
    /* the decode leg */
    {D(NODE_DEAD, SL_EPEER), SL_RECOVERY_PLACE_AGAIN, SL_OK},
    {D(LOST, SL_ELOST), SL_RECOVERY_PLACE_AGAIN, SL_OK},
    {D(COMMAND, SL_EPEER), SL_RECOVERY_PLACE_AGAIN, SL_OK},
    {D(COMMAND, SL_EAGAIN), SL_RECOVERY_PLACE_AGAIN, SL_OK},
    {D(COMMAND, SL_ENOPAGES), SL_RECOVERY_PLACE_AGAIN, SL_OK},
    {D(COMMAND, SL_EDRAINING), SL_RECOVERY_PLACE_AGAIN, SL_OK},
    {D(COMMAND, SL_EINVAL), SL_RECOVERY_FAIL, SL_EINVAL},
    {D(COMMAND, SL_ETOOBIG), SL_RECOVERY_PLACE_AGAIN, SL_OK}, /* another pool may hold it */
    {D(COMMAND, SL_EUNSUPPORTED), SL_RECOVERY_PLACE_AGAIN, SL_OK},
    {D(COMMAND, SL_EPROTO), SL_RECOVERY_PLACE_AGAIN, SL_OK},
    {D(LEG_ERROR, SL_EDEVICE), SL_RECOVERY_PLACE_AGAIN, SL_OK},
    {D(LEG_ERROR, SL_EDIGEST), SL_RECOVERY_PLACE_AGAIN, SL_OK},
    {D(LEG_ERROR, SL_ECANCELED), SL_RECOVERY_PLACE_AGAIN, SL_OK}, /* not by us */
    {D(LEG_ERROR, SL_ELOST), SL_RECOVERY_PLACE_AGAIN, SL_OK},
    {D(LEG_ERROR, SL_EDEADLINE), SL_RECOVERY_FAIL, SL_EDEADLINE},
    {D(LEG_ERROR, SL_EINVAL), SL_RECOVERY_FAIL, SL_EINVAL},
    {D(DEADLINE, SL_OK), SL_RECOVERY_FAIL, SL_EDEADLINE},
    /* the prefill leg */
    {P(NODE_DEAD, SL_EPEER, true), SL_RECOVERY_RECORD, SL_OK},
    {P(NODE_DEAD, SL_EPEER, false), SL_RECOVERY_PLACE_AGAIN, SL_OK},
    {P(COMMAND, SL_EAGAIN, false), SL_RECOVERY_PLACE_AGAIN, SL_OK},
    {P(COMMAND, SL_EINVAL, false), SL_RECOVERY_PLACE_AGAIN,
     SL_OK}, /* if it is the request's fault D says so too */
    {P(LEG_ERROR, SL_EDIGEST, true), SL_RECOVERY_RECORD, SL_OK},
    {P(LEG_ERROR, SL_ENOPAGES, true), SL_RECOVERY_RECORD, SL_OK},
};

static void trouble_each_kind_has_its_action(void **s)
{
    (void)s;
    for (size_t i = 0; i < SL_COUNTOF(rows); i++) {
        struct sl_recovery_out out = sl_recover(&rows[i].in);
        if (out.action != rows[i].action || (out.action == SL_RECOVERY_FAIL && out.err != rows[i].err))
            fail_msg("row %zu: action %d err %s", i, out.action, sl_err_name(out.err));
        assert_true(out.because && out.because[0]);
    }
}

static void prefill_trouble_while_streaming_is_recorded(void **s)
{
    (void)s;
    struct sl_trouble_in t = P(COMMAND, SL_EPEER, false);
    t.streaming = true;
    assert_int_equal(sl_recover(&t).action, SL_RECOVERY_RECORD);
}

static void faults_are_bounded(void **s)
{
    (void)s;
    struct sl_trouble_in t = D(NODE_DEAD, SL_EPEER);
    t.n_faults = SL_MAX_FAULTS - 1;
    assert_int_equal(sl_recover(&t).action, SL_RECOVERY_PLACE_AGAIN);
    t.n_faults = SL_MAX_FAULTS;
    assert_int_equal(sl_recover(&t).action, SL_RECOVERY_FAIL);
}

static void no_place_says_what_happened_first(void **s)
{
    (void)s;
    static const struct {
        enum sl_err err, before;
        uint32_t n_received;
        bool left_out_lives;
        enum sl_recovery action;
        enum sl_err out;
    } cases[] = {
        {SL_ENOTREADY, SL_OK, 0, false, SL_RECOVERY_FAIL, SL_ENOTREADY},
        {SL_ETOOBIG, SL_OK, 0, false, SL_RECOVERY_FAIL, SL_ETOOBIG},
        {SL_EINVAL, SL_OK, 0, false, SL_RECOVERY_FAIL, SL_EINVAL},
        {SL_ENOTREADY, SL_EAGAIN, 0, true, SL_RECOVERY_FAIL, SL_EAGAIN}, /* the client may go elsewhere */
        {SL_ENOTREADY, SL_ENOPAGES, 5, true, SL_RECOVERY_WAIT, SL_OK},   /* its stream has begun */
        {SL_ENOTREADY, SL_ETOOBIG, 0, true, SL_RECOVERY_FAIL, SL_ETOOBIG},
        {SL_ENOTREADY, SL_EPEER, 5, false, SL_RECOVERY_FAIL, SL_EPEER},
        {SL_ENOTREADY, SL_EPEER, 5, true, SL_RECOVERY_WAIT, SL_OK},
        {SL_ENOTREADY, SL_EPEER, 0, true, SL_RECOVERY_FAIL, SL_EPEER},   /* it does not answer */
        {SL_ENOTREADY, SL_ECANCELED, 0, true, SL_RECOVERY_WAIT, SL_OK},  /* it only lost it */
        {SL_ENOTREADY, SL_EDEVICE, 5, true, SL_RECOVERY_FAIL, SL_EPEER}, /* it is broken */
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        struct sl_trouble_in t = D(NO_PLACE, cases[i].err);
        t.before = cases[i].before;
        t.n_received = cases[i].n_received;
        t.left_out_lives = cases[i].left_out_lives;
        struct sl_recovery_out out = sl_recover(&t);
        assert_int_equal(out.action, cases[i].action);
        assert_int_equal(out.err, cases[i].out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trouble_each_kind_has_its_action),
        cmocka_unit_test(prefill_trouble_while_streaming_is_recorded),
        cmocka_unit_test(faults_are_bounded),
        cmocka_unit_test(no_place_says_what_happened_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
