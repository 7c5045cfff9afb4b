/* tests/unit/node/fake_engine.c - see the header. */
#include "tests/unit/node/fake_engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/node/node_router.h"
#include "decode_node/decode_node.h"
#include "prefill_node/prefill_node.h"

#define N_PAGES 64u
#define PAGE    16u

struct fake fake;

static char calls[4096], shown[4096];

static void SL_PRINTF(1, 2) call(const char *fmt, ...)
{
    size_t n = strlen(calls);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(calls + n, sizeof calls - n, fmt, ap);
    va_end(ap);
}

const char *fake_calls(void)
{
    memcpy(shown, calls, sizeof shown);
    calls[0] = '\0';
    return shown;
}

/* ---- the engine ---- */

struct sl_engine {
    struct sl_queue *wake;
    struct sl_engine_event event;
    bool has_event, in_flight;
};
struct sl_seq {
    void *owner;
    uint32_t n_tokens, n_prompt;
};

static struct sl_engine engine;
static struct sl_model_conf model = {.name = "fake", .context_length = 4096, .n_vocab = 512};
static struct sl_cost_model cost = {.n_points = 1, .rows = {1}, .ms = {1}};
static uint32_t pages[N_PAGES];

enum sl_err sl_engine_open(const struct sl_engine_conf *conf, struct sl_engine **out, struct sl_why *why)
{
    (void)conf;
    (void)why;
    memset(&engine, 0, sizeof engine);
    engine.wake = sl_queue_new(1);
    *out = &engine;
    return SL_OK;
}
void sl_engine_close(struct sl_engine *e)
{
    if (e)
        sl_queue_free(e->wake);
}
const struct sl_model_conf *sl_engine_model(const struct sl_engine *e)
{
    (void)e;
    return &model;
}
struct sl_kv_geometry sl_engine_geometry(const struct sl_engine *e)
{
    (void)e;
    return (struct sl_kv_geometry){
        .n_layers = 1, .n_kv_heads = 1, .page_tokens = PAGE, .head_dim = 8, .dtype = SL_F16};
}
uint64_t sl_engine_numerics_id(const struct sl_engine *e)
{
    (void)e;
    return 1;
}
uint32_t sl_engine_n_pages(const struct sl_engine *e)
{
    (void)e;
    return N_PAGES;
}
struct sl_kv_on_device sl_engine_kv_on_device(struct sl_engine *e)
{
    (void)e;
    return (struct sl_kv_on_device){NULL, NULL, NULL};
}

void *sl_engine_page_base(struct sl_engine *e)
{
    (void)e;
    return NULL;
}
const char *sl_engine_backend(const struct sl_engine *e)
{
    (void)e;
    return "fake";
}
const struct sl_cost_model *sl_engine_cost(const struct sl_engine *e)
{
    (void)e;
    return &cost;
}
struct sl_engine_limits sl_engine_limits(const struct sl_engine *e)
{
    (void)e;
    return (struct sl_engine_limits){.max_sequences = 1};
}
void sl_engine_set_pace(struct sl_engine *e, int32_t chunk_tokens, int32_t speculation, double tpot_target_ms,
                        double chunk_stretch)
{
    (void)e;
    (void)speculation;
    (void)chunk_stretch;
    call("pace chunk=%d target=%.0f; ", chunk_tokens, tpot_target_ms);
}
uint64_t sl_engine_progress(const struct sl_engine *e)
{
    (void)e;
    return 0;
}
enum sl_err sl_engine_seq_open(struct sl_engine *e, const struct sl_seq_spec *spec, struct sl_seq **out,
                               struct sl_why *why)
{
    (void)e;
    if (fake.seq_open_err != SL_OK)
        return sl_why_set(why, fake.seq_open_err, "the fake engine says no");
    struct sl_seq *s = sl_xcalloc(1, sizeof *s);
    *s = (struct sl_seq){.owner = spec->owner, .n_tokens = spec->n_tokens, .n_prompt = spec->n_prompt};
    fake.n_open_seqs++;
    call("open remote=%u compute=%u sample=%d decode=%d granted=%d; ", spec->remote_to, spec->compute_to,
         spec->sample, spec->decode, spec->granted);
    *out = s;
    return SL_OK;
}
void sl_engine_seq_close(struct sl_engine *e, struct sl_seq *s)
{
    (void)e;
    call("close; ");
    fake.n_open_seqs--;
    sl_free(s);
}
void sl_engine_seq_ready(struct sl_engine *e, struct sl_seq *s, uint32_t n_tokens)
{
    (void)e;
    (void)s;
    call("ready %u; ", n_tokens);
}
void sl_engine_seq_first_token(struct sl_engine *e, struct sl_seq *s, const struct sl_sampled *t)
{
    (void)e;
    s->n_tokens++;
    call("first %d; ", t->token);
}
void sl_engine_seq_go_local(struct sl_engine *e, struct sl_seq *s)
{
    (void)e;
    (void)s;
    call("go_local; ");
}
void sl_engine_seq_grant(struct sl_engine *e, struct sl_seq *s)
{
    (void)e;
    (void)s;
    call("grant; ");
}
void sl_engine_seq_pin(struct sl_engine *e, struct sl_seq *s, bool pinned)
{
    (void)e;
    (void)s;
    call("pin %d; ", pinned);
}
const char *sl_seq_state_name(enum sl_seq_state s)
{
    (void)s;
    return "fake";
}
void sl_seq_view(const struct sl_seq *s, struct sl_seq_view *out)
{
    *out = (struct sl_seq_view){.owner = s->owner,
                                .state = fake.seq_state,
                                .n_tokens = s->n_tokens,
                                .n_prompt = s->n_prompt,
                                .hit_tokens = fake.hit_tokens,
                                .pages = pages,
                                .n_pages = (s->n_tokens + PAGE - 1) / PAGE};
}
/* Ends before it is looked at, and its wake-up is used up by that look: the fd is never seen readable. */
bool sl_engine_step(struct sl_engine *e, uint64_t now_us)
{
    (void)now_us;
    if (fake.n_quick_steps == 0)
        return false;
    fake.n_quick_steps--;
    e->in_flight = true;
    return true;
}
bool sl_engine_in_flight(const struct sl_engine *e)
{
    return e->in_flight || fake.stands_still;
}
int sl_engine_fd(const struct sl_engine *e)
{
    return sl_queue_fd(e->wake);
}
size_t sl_engine_poll(struct sl_engine *e, struct sl_engine_event *out, size_t max)
{
    e->in_flight = false;
    if (!e->has_event || max == 0)
        return 0;
    e->has_event = false;
    *out = e->event;
    return 1;
}
const struct sl_engine_memory *sl_engine_memory(const struct sl_engine *e)
{
    static const struct sl_engine_memory none;
    (void)e;
    return &none;
}

void sl_engine_stats(const struct sl_engine *e, struct sl_engine_stats *out)
{
    (void)e;
    memset(out, 0, sizeof *out);
    out->total_pages = out->free_pages = N_PAGES;
}
size_t sl_engine_step_records(const struct sl_engine *e, uint64_t after, struct sl_step_record *out,
                              size_t max)
{
    (void)e, (void)after, (void)out, (void)max;
    return 0;
}

uint64_t sl_engine_uptime_us(const struct sl_engine *e)
{
    (void)e;
    return 1;
}

struct sl_seq *sl_engine_blocking(const struct sl_engine *e)
{
    (void)e;
    fake.n_looks++;
    return fake.blocks ? fake.blocks->seq : NULL;
}

size_t sl_engine_prefix_hashes(const struct sl_engine *e, uint64_t *out, size_t n)
{
    (void)e;
    (void)out;
    (void)n;
    return 0;
}
enum sl_err sl_engine_check_pages(const struct sl_engine *e, struct sl_why *why)
{
    (void)e;
    (void)why;
    return SL_OK;
}

/* ---- the transfer ---- */

struct sl_xfer {
    int nothing;
};
static struct sl_xfer xfer;

enum sl_err sl_xfer_open(const struct sl_xfer_conf *conf, struct sl_xfer **out, struct sl_why *why)
{
    (void)conf;
    (void)why;
    *out = &xfer;
    return SL_OK;
}
void sl_xfer_progress(struct sl_xfer *x)
{
    (void)x;
    fake.n_progress++;
}
void sl_xfer_close(struct sl_xfer *x)
{
    (void)x;
}
const char *sl_xfer_address(const struct sl_xfer *x)
{
    (void)x;
    return "127.0.0.1:1";
}
enum sl_err sl_xfer_send_open(struct sl_xfer *x, const struct sl_xfer_key *k, const struct sl_xfer_peer *to,
                              uint32_t n_tokens, uint32_t deadline_ms)
{
    (void)x;
    (void)k;
    (void)to;
    (void)deadline_ms;
    call("send_open %u; ", n_tokens);
    return fake.send_open_err;
}
enum sl_err sl_xfer_send_ready(struct sl_xfer *x, const struct sl_xfer_key *k, const uint32_t *p,
                               uint32_t n_tokens)
{
    (void)x;
    (void)k;
    assert_true(p == pages || p == NULL);
    call("send_ready %u%s; ", n_tokens, p ? "" : " without pages");
    return SL_OK;
}
enum sl_err sl_xfer_send_first(struct sl_xfer *x, const struct sl_xfer_key *k, const struct sl_xfer_first *t)
{
    (void)x;
    (void)k;
    call("send_first %d ended=%d; ", t->token, t->ended);
    return SL_OK;
}
enum sl_err sl_xfer_send_abort(struct sl_xfer *x, const struct sl_xfer_key *k, const struct sl_xfer_peer *to,
                               const char *why)
{
    (void)x;
    (void)k;
    (void)to;
    (void)why;
    call("abort; ");
    return fake.cancel_err;
}
enum sl_err sl_xfer_recv_open(struct sl_xfer *x, const struct sl_xfer_key *k, const struct sl_xfer_peer *from,
                              const uint32_t *p, uint32_t n_tokens, uint32_t have_pages, uint32_t deadline_ms)
{
    (void)x;
    (void)k;
    (void)from;
    (void)deadline_ms;
    assert_ptr_equal(p, pages);
    call("recv_open %u have=%u; ", n_tokens, have_pages);
    return fake.recv_open_err;
}
enum sl_err sl_xfer_recv_cancel(struct sl_xfer *x, const struct sl_xfer_key *k)
{
    (void)x;
    (void)k;
    call("recv_cancel; ");
    return fake.cancel_err;
}
size_t sl_xfer_links(struct sl_xfer *x, struct sl_link_report *out, size_t max)
{
    (void)x;
    (void)out;
    (void)max;
    return 0;
}
enum sl_err sl_xfer_retest(struct sl_xfer *x)
{
    (void)x;
    return SL_OK;
}
uint32_t sl_xfer_open_sessions(struct sl_xfer *x)
{
    (void)x;
    return 0;
}

/* ---- what tests call ---- */

static void after_round(void *arg)
{
    sl_node_stop(arg);
}

void fake_round(void)
{
    sl_loop_once(fake.node->loop, 5);
    fake.node->stop = 0;
    sl_node_run(fake.node); /* after_round ends it at once */
    fake_router_pump(&fake.router, 0);
}

void fake_looks(uint32_t n)
{
    for (n += fake.n_looks; fake.n_looks < n;) {
        sl_timer_set(fake.node->look_timer, 0);
        fake_round();
    }
}

static const struct sl_duty_ops *const duties[] = {&sl_duty_prefill, &sl_duty_decode, NULL};

int fake_open(void **state)
{
    (void)state;
    memset(&fake, 0, sizeof fake);
    fake.seq_state = SL_SEQ_REMOTE;
    sl_log_set_level(SL_LOG_ERROR);
    fake_router_open(&fake.router);
    char routers[96];
    snprintf(routers, sizeof routers, "--routers=%s", fake_router_url(&fake.router));
    char *argv[] = {(char *)"test", routers, (char *)"--model=/dev/null", (char *)"--page-tokens=16",
                    (char *)"--log-level=error"};
    struct sl_why why = {{0}};
    assert_int_equal(sl_node_conf_load(SL_COUNTOF(argv), argv, SLUICE__ROLE__ROLE_DECODE, &fake.conf, &why),
                     SL_OK);
    assert_int_equal(sl_node_open(&fake.conf, duties, &fake.node, &why), SL_OK);
    fake.node->after_round = after_round;
    fake.node->after_round_arg = fake.node;
    while (!sl_node_router_registered(fake.node->routers[0]))
        fake_round();
    fake_calls();
    return 0;
}

int fake_close(void **state)
{
    (void)state;
    sl_node_close(fake.node);
    sl_node_conf_fini(&fake.conf);
    fake_router_close(&fake.router);
    assert_int_equal(fake.n_open_seqs, 0);
    return 0;
}

struct sl_leg *fake_place(const struct sl_duty_ops *duty, const char *id, uint32_t split,
                          enum sl_err expected)
{
    static int32_t tokens[100];
    static int32_t stop_id = 77;
    Sluice__Sampling sampling = SLUICE__SAMPLING__INIT;
    Sluice__PeerRef peer = SLUICE__PEER_REF__INIT;
    sampling.top_p = sampling.repetition_penalty = 1;
    sampling.max_tokens = 10;
    sampling.n_logprobs = -1;
    sampling.stop_ids = &stop_id;
    sampling.n_stop_ids = 1;
    sampling.json_schema = (char *)(uintptr_t)fake.json_schema;
    peer.name = (char *)"peer";
    peer.transfer_address = (char *)"127.0.0.1:9";
    struct sl_order o = {.request_id = id,
                         .attempt = 1,
                         .router_boot_id = fake.router.boot_id,
                         .tokens = tokens,
                         .n_tokens = SL_COUNTOF(tokens),
                         .n_prompt = SL_COUNTOF(tokens),
                         .sampling = &sampling,
                         .deadline_ms = fake.deadline_ms ? fake.deadline_ms : 60000,
                         .split_tokens = split,
                         .peer = split ? &peer : NULL,
                         .chunk_tokens = SL_CHUNK_DEFAULT};
    struct sl_why why = {{0}};
    assert_int_equal(sl_leg_place(fake.node, duty, &o, &why), expected);
    return sl_leg_find(fake.node, duty->role, id, 1);
}

void fake_engine_says(struct sl_leg *l, enum sl_engine_event_kind kind, uint32_t value)
{
    engine.event = (struct sl_engine_event){.kind = kind, .seq = l->seq, .owner = l};
    if (kind == SL_EV_COMPUTED)
        engine.event.computed_tokens = value;
    else if (kind == SL_EV_TOKEN)
        engine.event.sampled.token = (int32_t)value;
    else if (kind == SL_EV_FINISHED)
        engine.event.reason = (enum sl_finish)value;
    engine.event.token_index = l->first_index + l->n_token_log;
    engine.has_event = true;
    fake_round();
}

void fake_xfer_says(struct sl_leg *l, enum sl_xfer_event_kind kind, enum sl_err err, uint32_t n_tokens,
                    bool has_first)
{
    struct sl_xfer_event *ev = sl_xcalloc(1, sizeof *ev);
    *ev = (struct sl_xfer_event){.kind = kind,
                                 .key = l->key,
                                 .err = err,
                                 .n_tokens = n_tokens,
                                 .have_pages = fake.have_pages,
                                 .has_first = has_first,
                                 .first = {.token = 5,
                                           .has_logprobs = true,
                                           .logprob = -0.25f,
                                           .n_top = 1,
                                           .top_token = {7},
                                           .top_logprob = {-0.125f}}};
    assert_int_equal(sl_queue_push(fake.node->xfer_events, ev), SL_OK);
    fake_round();
}
