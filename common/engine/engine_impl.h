/* common/engine/engine_impl.h - what the files of this folder share; nobody else includes it but its tests.
 *
 * engine.c     open, close, counts             sequence.c  a sequence's life, called by its owner
 * engine_step.c admit, plan, start, collect    pages.c     who holds which page; preemption
 * drafts.c     guesses, and what became of them
 * device.c     the device thread               profile.c   first measurement of the cost model
 * step_records.c what the last steps were like  cost_cache.c keeps it for the next start */
#ifndef SLUICE_COMMON_ENGINE_ENGINE_IMPL_H
#define SLUICE_COMMON_ENGINE_ENGINE_IMPL_H

#include <stdatomic.h>
#include "common/base/list.h"
#include "common/engine/engine.h"
#include "common/kv/kv_hash.h"
#include "common/kv/kv_prefix.h"
#include "common/model/sample_rows.h"
#include "common/sched/admission.h"
#include "common/sched/cost_learn.h"
#include "common/sched/preempt.h"
#include "common/sched/speculate.h"

struct sl_seq {
    struct sl_engine *e;
    void *owner;
    uint64_t order; /* of opening */
    enum sl_seq_state state;
    struct sl_list link; /* in e->waiting, e->running or e->done */
    bool in_step;        /* of the step in flight: tokens, pages and sampling are the device's to read */
    bool closing;        /* freed when that step ended */
    bool preempted_now;  /* in the plan being made: not admitted again in it */

    int32_t *tokens; /* [limit_tokens] */
    uint32_t n_tokens, n_prompt;
    uint32_t limit_tokens;            /* n_tokens at the end, at most */
    struct sl_sampling sampling;      /* owns bias; allowed is the constraint's */
    struct sl_constraint *constraint; /* stands behind the last token; NULL = none */
    uint64_t salt;
    bool use_prefix_cache, sample, decode, granted, pinned, want_digest;
    bool sampled; /* a token was appended by or for this node */
    uint32_t remote_to, compute_to;
    int32_t chunk_tokens, speculation, priority;
    uint64_t deadline_us, first_token_us;
    double tpot_ms;
    struct sl_output_mean outputs; /* of its class; n = 0: the engine's */

    uint32_t computed, hit; /* tokens */
    uint32_t pace_tokens; /* n_tokens in the last step without prompts, or when it began to decode; 0 = new */
    uint32_t *pages;      /* [pages of limit_tokens] */
    uint32_t n_pages;
    uint64_t *hashes; /* the same size; n_hashes are computed */
    uint32_t n_hashes;
    /* Drafts lie behind the tokens, in tokens[n_tokens..); of this plan or the step in flight. */
    uint32_t n_drafts;    /* with a row of their own */
    uint32_t draft_match; /* tokens that agreed (draft.h); 0 = no draft at hand */
    struct sl_spec_record record;
    uint32_t drafted, accepted;
    uint32_t chunks, largest_chunk, prompt_tokens_computed, preemptions;
    uint64_t opened_us, admitted_us, prefilled_us;
    uint64_t ready_us; /* since when nothing outside of the node keeps it from running */
};

#define SL_NO_OUT UINT32_MAX

/* One step, filled by the engine thread, run by the device thread, read again by the engine thread. Arrays
 * are sized at open. */
struct sl_step {
    struct sl_batch batch;
    int32_t *tokens;               /* [max_rows] */
    struct sl_batch_run *runs;     /* [max_sequences] */
    uint32_t *out_rows;            /* [max_outs] */
    struct sl_seq **seqs;          /* [n_runs] */
    uint32_t *outs;                /* [n_runs]: index into sampled of its first one, or SL_NO_OUT */
    struct sl_sample_row *samples; /* [n_out]; they point into the sequences */
    struct sl_sampled *sampled;
    struct sl_step_load load;
    uint32_t n_decode; /* the first runs are those of decoding sequences */
    uint64_t ready_us; /* since when one of its sequences could have run */
    double predicted_ms, actual_ms;
};

/* ---- device.c: the thread that owns backend, model and KV memory ---- */
struct sl_device; /* opaque */
/* Opens everything on the device thread and waits for it. fd becomes readable at the end of a step. The
 * device adopts nothing; conf is read during the call only. */
SL_MUST_CHECK enum sl_err sl_device_open(const struct sl_engine_conf *conf, uint32_t max_rows,
                                         uint32_t max_outs, int fd, struct sl_device **out,
                                         struct sl_why *why);
void sl_device_close(struct sl_device *d); /* takes NULL; ends the step in flight */
void sl_device_start(struct sl_device *d, struct sl_step *step);
bool sl_device_busy(const struct sl_device *d); /* false: the last step's results are visible */
void sl_device_wait(struct sl_device *d);
const struct sl_model_conf *sl_device_model(const struct sl_device *d);
struct sl_kv_geometry sl_device_geometry(const struct sl_device *d);
uint32_t sl_device_n_pages(const struct sl_device *d);
uint64_t sl_device_numerics_id(const struct sl_device *d);
void *sl_device_page_base(const struct sl_device *d);
struct sl_kv_on_device sl_device_kv(const struct sl_device *d);
const char *sl_device_backend(const struct sl_device *d);
const struct sl_engine_memory *sl_device_memory(const struct sl_device *d);
/* Measured or guessed at open, and the relative doubt in it. */
const struct sl_cost_model *sl_device_first_cost(const struct sl_device *d, double *doubt);
/* Keeps what was learnt for the next start, when there is a cache. */
void sl_device_keep_cost(const struct sl_device *d, const struct sl_cost_model *m);
uint64_t sl_device_progress(const struct sl_device *d);
/* When another machine would have begun a step that begins now here: as soon as it had work (ready_us) and was done
 * with the step before (due_us). That this computer woke late it makes up for, or a rehearsal beside other work
 * would be slower than what it rehearses. */
uint64_t sl_pace_start_us(uint64_t due_us, uint64_t ready_us, uint64_t now_us);

/* ---- profile.c ---- */
struct sl_profile_target {
    struct sl_model *model;
    struct sl_kv *kv;
    struct sl_samplers *samplers;
    float *logits; /* [max_out, n_vocab] */
    uint32_t n_pages, page_tokens, max_rows, max_out;
    atomic_uint_fast64_t *progress;
};
/* Runs steps of a few shapes over the pool's pages (their content is lost) for at most about a second, one
 * run of the slowest shape more at most. */
void sl_profile_run(const struct sl_profile_target *t, struct sl_cost_model *out);
/* Whether a model kept from a former start may be used: a few runs of one shape are not much faster than it
 * says. (Slower ones tell of the load now, which real steps correct.) */
bool sl_profile_fits(const struct sl_profile_target *t, const struct sl_cost_model *kept);
/* From the model's shape alone, for when nothing is measured. */
void sl_profile_guess(const struct sl_model_conf *m, struct sl_cost_model *out);

/* ---- cost_cache.c: the cost model from one start to the next ---- */
struct sl_cost_key {
    struct sl_digest128 model;
    const char *backend;
    uint32_t n_threads, tensor_parallel, max_rows;
    enum sl_dtype kv_dtype;
    bool no_graphs;
};
/* False when there is none, or it is not whole. */
bool sl_cost_cache_get(const char *dir, const struct sl_cost_key *key, struct sl_cost_model *out);
void sl_cost_cache_put(const char *dir, const struct sl_cost_key *key, const struct sl_cost_model *m);

#define SL_STEP_ERROR_MAX_PERCENT 200

struct sl_engine {
    struct sl_device *dev;
    uint64_t (*clock_us)(void);
    struct sl_kv_pool *pool;
    struct sl_kv_prefix *prefix;
    int fd;
    uint32_t page_tokens, n_vocab, context_length;
    uint32_t max_rows, max_sequences, max_waiting, ungranted_pages;
    uint32_t max_outs; /* rows of a step that are sampled */
    int32_t chunk_tokens, speculation;
    double tpot_target_ms, chunk_stretch;
    struct sl_digest128 model_digest;

    struct sl_list waiting; /* by order */
    struct sl_list running; /* by order of admission */
    struct sl_list done;    /* idle and ended ones, until closed */
    uint32_t n_waiting, n_running, n_open;
    uint64_t next_order;
    struct sl_output_mean outputs;
    struct sl_cost_model cost;
    struct sl_cost_learner learner; /* of cost */
    struct sl_plan_pace pace;       /* cost at the last step without prompts */
    uint32_t starved_steps;

    bool in_flight;
    struct sl_step step;
    struct sl_plan_prompt *prompts;    /* [max_sequences] */
    struct sl_plan_chunk *chunks;      /* [max_sequences] */
    struct sl_seq **prompt_seqs;       /* [max_sequences] */
    struct sl_seq **decode_seqs;       /* [max_sequences] */
    struct sl_spec_seq *spec_seqs;     /* [max_sequences] */
    uint32_t *n_drafts;                /* [max_sequences] */
    struct sl_admission_seq *expected; /* [max_sequences + 1] */
    struct sl_preempt_seq *victims;    /* [open_cap] */
    struct sl_seq **victim_seqs;       /* [open_cap] */
    uint32_t open_cap;
    uint32_t *scratch_pages; /* [pages of context_length] */

    struct sl_engine_event *events; /* [events_cap], from events_head on */
    size_t events_head, n_events, events_cap;

    struct sl_engine_stats total;                        /* the sums; counts are filled when asked */
    uint64_t step_errors[SL_STEP_ERROR_MAX_PERCENT + 1]; /* steps by |predicted - actual| / actual, whole %;
                                                            the last one has all beyond it */
    uint64_t opened_us;
    struct sl_step_record *records; /* [SL_STEP_RECORDS], by number modulo that */
};

/* ---- engine.c ---- */
void sl_engine_event_push(struct sl_engine *e, const struct sl_engine_event *ev);
/* Room for n more without allocation. */
void sl_engine_events_reserve(struct sl_engine *e, size_t n);
void sl_engine_events_drop(struct sl_engine *e, const struct sl_seq *s);

/* ---- sequence.c ---- */
void sl_seq_free(struct sl_seq *s);
/* Tokens whose KV its prompt phase is for. */
uint32_t sl_seq_goal(const struct sl_seq *s);
/* Whether the row at goal - 1 must be computed here, to sample the token after it. */
bool sl_seq_samples(const struct sl_seq *s);
void sl_seq_append(struct sl_seq *s, const struct sl_sampled *t, bool tell);
void sl_seq_finish(struct sl_seq *s, enum sl_finish reason);
/* The prompt phase is over: KV of [0, goal) is in place and nothing is to be sampled. */
void sl_seq_prompt_done(struct sl_seq *s);

/* ---- drafts.c ---- */
/* Gives each of the n decode rows in decode_seqs its drafts for the next step and adds them to the plan's
 * state. */
void sl_drafts_plan(struct sl_engine *e, uint32_t n, struct sl_plan_state *state);
/* Appends what the step in flight sampled at the 1 + n_drafts rows of s, up to the first draft that was not
 * sampled. */
void sl_drafts_collect(struct sl_seq *s, const struct sl_sampled *sampled);

/* ---- step_records.c ---- */
/* Takes down the step just counted. */
void sl_step_record_add(struct sl_engine *e);

/* ---- pages.c ---- */
uint32_t sl_pages_of(const struct sl_engine *e, uint32_t n_tokens);
/* The longest chain of s that may be hit. */
struct sl_kv_chain sl_seq_chain(struct sl_seq *s);
/* Offers s's final pages to the prefix cache. */
void sl_seq_share_pages(struct sl_seq *s);
void sl_seq_drop_pages(struct sl_seq *s);
/* Takes n pages for s, evicting cached ones; false when there are not enough. */
bool sl_seq_take_pages(struct sl_seq *s, uint32_t n);
uint32_t sl_engine_available_pages(const struct sl_engine *e);
/* Takes the pages of one victim; false when there is none. */
bool sl_engine_preempt_one(struct sl_engine *e, bool ungranted_only);
/* Pages that preempting all sequences without grant would bring. */
uint32_t sl_engine_ungranted_gain(struct sl_engine *e);
uint32_t sl_engine_ungranted_held(const struct sl_engine *e);
/* The cache may have learnt more of its prefix since s was admitted: takes it; true when it did. */
bool sl_seq_rematch(struct sl_seq *s);

#endif
