/* common/engine/engine.h - the narrow door of the engine: sequences over paged KV, one asynchronous step at a
 * time.
 *
 * An engine is a loaded model, a device with its compute threads, a page pool with its prefix cache, and the
 * sequences in it. It serves both duties with the same code: a sequence computes KV for a range of its
 * tokens, may wait for pages that come from another node, and may then decode. It knows tokens, never text,
 * requests or peers.
 *
 * Threads: everything here is called from the one engine thread of the node. A step runs on the device
 * thread; sl_engine_fd() becomes readable when it ended. Pages of open sequences are written by the device
 * during a step and by arriving transfers into pages the device does not touch in that step.
 *
 * The law of exactness: what a sequence samples depends on its tokens and parameters only. */
#ifndef SLUICE_COMMON_ENGINE_ENGINE_H
#define SLUICE_COMMON_ENGINE_ENGINE_H

#include "common/model/model.h"
#include "common/model/sampler.h"
#include "common/sched/speculate.h" /* SL_SPEC_* */
#include "common/sched/step_plan.h" /* SL_CHUNK_* */
#include "kernels/rank_group.h"

struct sl_constraint;

struct sl_engine; /* opaque */
struct sl_seq;    /* opaque: one sequence; the opener holds it until sl_engine_seq_close() */

struct sl_engine_conf {
    const char *model_path;
    const char *backend;               /* sl_backend_find() */
    const char *cache_dir;             /* for what a later start need not compute again; NULL = no cache */
    uint32_t n_threads;                /* of all ranks together */
    uint32_t tensor_parallel;          /* devices that share each layer, 0 = 1; see model.h */
    uint32_t device;                   /* the first of them, where the backend has several */
    sl_rank_group_open_fn *open_group; /* for ranks with memory of their own; NULL = there can be none */
    bool no_graphs;                    /* keep no passes as graphs */
    const int *cpus;                   /* per thread, NULL = not pinned */
    size_t n_cpus;
    enum sl_dtype kv_dtype;
    uint32_t page_tokens;
    uint64_t kv_memory_bytes;  /* pool size; rounded down to whole pages */
    uint32_t max_batch_tokens; /* rows of one step: the activation cap */
    uint32_t max_sequences;    /* admitted at once */
    uint32_t max_waiting;      /* queued for admission; more are SL_EAGAIN */
    int32_t chunk_tokens;      /* SL_CHUNK_AUTO, SL_CHUNK_WHOLE, or N */
    double tpot_target_ms;     /* decode time target of a mixed step; 0 = stretch the decode-only step by
                                  chunk_stretch */
    double chunk_stretch;      /* see step_plan.h; 0 = SL_PLAN_STRETCH */
    int32_t speculation;       /* SL_SPEC_OFF, SL_SPEC_AUTO, or N drafts wherever a guess is found */
    uint32_t ungranted_pages;  /* most pages that sequences without a grant may hold (prefill duty) */
    uint64_t (*clock_us)(
        void);         /* of times in views, ageing and measured steps; NULL = sl_now_us(). Any thread */
    bool skip_profile; /* start from a rough cost model: for tests and sanitizers */
    const struct sl_cost_model *pace; /* a step takes as long as this predicts, or longer; until opened. NULL
                                         = as fast as it goes */
    uint32_t fault_wedge_step;        /* for tests: the N-th step never ends; 0 = none */
    void (*progress)(void *arg, unsigned percent); /* of loading; may be NULL */
    void *progress_arg;
};

/* Loads, packs, allocates and touches the pool, profiles the cost model. why names sizes found and wanted
 * when it does not fit. */
SL_MUST_CHECK enum sl_err sl_engine_open(const struct sl_engine_conf *conf, struct sl_engine **out,
                                         struct sl_why *why);
void sl_engine_close(struct sl_engine *e); /* takes NULL; ends the step in flight, then all sequences */

const struct sl_model_conf *sl_engine_model(const struct sl_engine *e);
struct sl_kv_geometry sl_engine_geometry(const struct sl_engine *e);
uint64_t sl_engine_numerics_id(const struct sl_engine *e);
uint32_t sl_engine_n_pages(const struct sl_engine *e);
void *sl_engine_page_base(struct sl_engine *e); /* host address of page 0, or NULL (pages on a device) */
struct sl_kv_on_device sl_engine_kv_on_device(struct sl_engine *e); /* of use where page_base is NULL */
const char *sl_engine_backend(const struct sl_engine *e);
const struct sl_cost_model *sl_engine_cost(const struct sl_engine *e);
/* What bounds its steps: sl_engine_conf with defaults filled in. */
struct sl_engine_limits {
    uint32_t max_batch_tokens, max_sequences, ungranted_pages;
    int32_t chunk_tokens;
    double tpot_target_ms, chunk_stretch;
};
struct sl_engine_limits sl_engine_limits(const struct sl_engine *e);
/* The same fields of sl_engine_conf, of sequences opened and steps planned from now on. */
void sl_engine_set_pace(struct sl_engine *e, int32_t chunk_tokens, int32_t speculation, double tpot_target_ms,
                        double chunk_stretch);
uint64_t sl_engine_progress(const struct sl_engine *e); /* layers computed; any thread */

struct sl_seq_spec {
    void *owner;           /* returned in events */
    const int32_t *tokens; /* copied */
    uint32_t n_tokens;     /* prompt, plus what was generated before a migration */
    uint32_t n_prompt;     /* what the client sent */
    uint32_t max_tokens;   /* generated tokens at the end of the request, counted from n_prompt */
    const struct sl_sampling *sampling; /* copied, with its bias */
    struct sl_constraint
        *constraint;        /* what is generated has to fit; the sequence's once it is open. NULL = none */
    const char *cache_salt; /* NULL = shared */
    bool use_prefix_cache;
    uint32_t remote_to;  /* s: KV of [hit, s) arrives by sl_engine_seq_ready(); 0 = none. A page multiple, or
                            n_tokens */
    uint32_t compute_to; /* KV is wanted for [0, compute_to): n_tokens for the decode duty, s for the prefill
                            duty */
    bool sample;         /* sample a token when compute_to == n_tokens is reached */
    bool decode;         /* and go on until it ends */
    bool granted;        /* prefill duty: false until the decode node's grant came */
    bool want_digest;
    int32_t chunk_tokens; /* SL_CHUNK_* or N */
    int32_t speculation;  /* SL_SPEC_* or N: drafts while it decodes; changes no token */
    int32_t priority;     /* lower runs earlier */
    uint64_t
        first_token_us; /* when its first token is wanted, sl_now_us() clock; 0 = no wish. Orders prompts */
    double
        tpot_ms; /* wanted between tokens, 0 = no wish: while it decodes no step is planned to take longer */
    uint32_t
        expected_tokens;  /* of its output, as far as the owner knows; 0 = as this engine's outputs so far */
    uint64_t deadline_us; /* of the engine's clock; 0 = none. The owner ends it; here it only orders */
};

/* Queues a sequence for admission. SL_EAGAIN (max_waiting), SL_EINVAL (token out of vocabulary, too long for
 * the context), SL_ETOOBIG (can never fit the pool); why says numbers. */
SL_MUST_CHECK enum sl_err sl_engine_seq_open(struct sl_engine *e, const struct sl_seq_spec *spec,
                                             struct sl_seq **out, struct sl_why *why);
/* Ends it. Its references go, full pages stay in the prefix cache. If the step in flight uses it, the pages
 * go when that step ends. The caller must have closed transfers into or out of its pages before. */
void sl_engine_seq_close(struct sl_engine *e, struct sl_seq *s);

/* KV of [0, n_tokens) is in place (pages that arrived were committed). Once it reaches remote_to the rest is
 * computed here. */
void sl_engine_seq_ready(struct sl_engine *e, struct sl_seq *s, uint32_t n_tokens);
/* The prefill node sampled the token at position n_tokens: append it and decode on. Call after
 * sl_engine_seq_ready(s, n_tokens). May end the sequence at once (SL_SEQ_FINISHED follows). */
void sl_engine_seq_first_token(struct sl_engine *e, struct sl_seq *s, const struct sl_sampled *t);
/* P is lost: what is ready stays, the rest of [ready, n_tokens) is computed here. */
void sl_engine_seq_go_local(struct sl_engine *e, struct sl_seq *s);
void sl_engine_seq_grant(struct sl_engine *e, struct sl_seq *s);
/* While pinned a sequence is never preempted (a transfer of its pages is open). */
void sl_engine_seq_pin(struct sl_engine *e, struct sl_seq *s, bool pinned);

/* State names are the same in logs, stats and proto. */
enum sl_seq_state { SL_SEQ_WAITING, SL_SEQ_REMOTE, SL_SEQ_PREFILL, SL_SEQ_DECODE, SL_SEQ_IDLE, SL_SEQ_ENDED };
const char *sl_seq_state_name(enum sl_seq_state s);

struct sl_seq_view {
    void *owner;
    enum sl_seq_state state;
    const int32_t *tokens; /* valid until the next call on this sequence or step */
    uint32_t n_tokens, n_prompt;
    uint32_t computed_tokens; /* KV in place for [0, computed) */
    uint32_t hit_tokens;      /* of them from the prefix cache at admission */
    const uint32_t *pages;    /* page ids, in order */
    uint32_t n_pages;
    uint32_t chunks, largest_chunk, prompt_tokens_computed, preemptions;
    uint32_t drafted, accepted; /* tokens guessed and verified in steps; of them those that came true */
    uint64_t opened_us, admitted_us, prefilled_us;
};
void sl_seq_view(const struct sl_seq *s, struct sl_seq_view *out);

enum sl_engine_event_kind {
    SL_EV_ADMITTED, /* pages of [0, n_tokens) reserved; view has hit_tokens and pages. After a preemption
                       again */
    SL_EV_COMPUTED, /* computed_tokens grew: a prompt chunk, or pages of the prefix cache */
    SL_EV_TOKEN,    /* sampled is valid; position = n_tokens - 1 after appending. With drafts several of a
                       sequence in one step, in order */
    SL_EV_FINISHED, /* reason; nothing more comes. sl_engine_seq_close() is still the owner's */
    SL_EV_PREEMPTED /* pages given back; it will be admitted again and computed here. Without a grant also
                       after SL_FINISH_COMPUTED, which then comes again (no token does) */
};
enum sl_finish { SL_FINISH_STOP, SL_FINISH_LENGTH, SL_FINISH_COMPUTED /* prefill duty done */ };

struct sl_engine_event {
    enum sl_engine_event_kind kind;
    struct sl_seq *seq;
    void *owner;
    uint32_t computed_tokens;
    double step_ms; /* SL_EV_COMPUTED: of the step that computed them; 0 = they were in the cache */
    struct sl_sampled sampled;
    uint32_t token_index; /* generated tokens before it: n_tokens - n_prompt - 1 */
    enum sl_finish reason;
};

/* Admits, plans and starts a step unless one is in flight. True when one is in flight after the call.
 * Admission events are ready at once for sl_engine_poll(). */
bool sl_engine_step(struct sl_engine *e, uint64_t now_us);
/* A step was started and sl_engine_poll() has not collected it. */
bool sl_engine_in_flight(const struct sl_engine *e);
/* Readable when a step has ended or events wait; sl_engine_poll() clears it. */
int sl_engine_fd(const struct sl_engine *e);
/* Collects a finished step (never blocks) and moves up to max events into out; returns their number. Call
 * until it returns 0. */
size_t sl_engine_poll(struct sl_engine *e, struct sl_engine_event *out, size_t max);
/* Waits for the step in flight. False: its device hangs, no layer was computed for stuck_ms, or end_fd (-1: none) is
 * readable: nobody wants to wait any longer. Any thread. */
bool sl_engine_settles(const struct sl_engine *e, uint32_t stuck_ms, int end_fd);
/* Waits for the step in flight; for benches and tests. */
void sl_engine_wait(struct sl_engine *e);

struct sl_engine_stats {
    uint32_t free_pages, evictable_pages, cached_pages, total_pages;
    uint32_t waiting, running, decode_rows;
    uint64_t queued_prompt_tokens, decode_context_tokens;
    double tpot_wish_ms; /* the tightest of what decodes, 0 = none */
    uint32_t rows_without_wish;
    uint64_t steps, prompt_tokens, decode_tokens, sampled_tokens, preemptions;
    uint64_t prefix_queries_tokens, prefix_hits_tokens;
    uint64_t drafted_tokens, accepted_tokens; /* see struct sl_seq_view */
    double busy_ms, predicted_ms, actual_ms;  /* sums over steps: the prediction error */
    double step_error_p50, step_error_p90; /* of |predicted - actual| / actual of all steps; 0 before any */
};
/* A step as it ran, for people who watch; the last SL_STEP_RECORDS are kept. */
#define SL_STEP_RECORDS 2048u
struct sl_step_record {
    uint64_t seq;      /* of all steps, from 1 */
    uint64_t ended_us; /* of sl_engine_uptime_us() */
    uint32_t took_us, predicted_us;
    uint32_t decode_rows, draft_rows, prompt_rows;
    uint32_t n_prompts; /* that the prompt rows belong to */
};
/* Copies at most max records after number `after`, oldest first; returns how many. */
size_t sl_engine_step_records(const struct sl_engine *e, uint64_t after, struct sl_step_record *out,
                              size_t max);
uint64_t sl_engine_uptime_us(const struct sl_engine *e);
/* Memory that was taken at open, in bytes. */
struct sl_engine_memory {
    uint64_t weights, kv;
    uint64_t scratch; /* activations, logits, what ops need */
};
const struct sl_engine_memory *sl_engine_memory(const struct sl_engine *e);
void sl_engine_stats(const struct sl_engine *e, struct sl_engine_stats *out);
/* Two nodes that prefill for each other can each hold the pages the other's work waits for. Where nothing can
 * run here, all that runs waits for a prefill node, and granted work for a decode node waits for pages: the
 * youngest that may give up waiting (compute the rest here). NULL when it is not so. */
struct sl_seq *sl_engine_blocking(const struct sl_engine *e);
/* The n newest chain hashes of the prefix cache, newest first; returns how many. */
size_t sl_engine_prefix_hashes(const struct sl_engine *e, uint64_t *out, size_t n);
/* Panics in words when pages are lost: free + referenced != total. For tests and the drain report. */
SL_MUST_CHECK enum sl_err sl_engine_check_pages(const struct sl_engine *e, struct sl_why *why);

#endif
