/* tests/unit/transfer/xfer_cases.h - what any transport must do; run over "loop", "ucx" and "nccl". */
#ifndef SLUICE_TESTS_UNIT_TRANSFER_XFER_CASES_H
#define SLUICE_TESTS_UNIT_TRANSFER_XFER_CASES_H

#include "tests/unit/transfer/xfer_rig.h"

/* A pair with links up, and one request of n_tokens from P's pages [0, n) to D's pages [to, to + n). */
struct xfer_pair {
    struct rig_node p, d;
};
void pair_open(struct xfer_pair *t, const char *transport, const struct rig_opts *p,
               const struct rig_opts *d);
void pair_close(struct xfer_pair *t);
/* Opens both sides of request k: s = n_tokens. */
void pair_begin(struct xfer_pair *t, const struct sl_xfer_key *k, uint32_t n_tokens, const uint32_t *d_pages,
                uint32_t have_pages);
void pair_fill(struct xfer_pair *t, uint32_t seed, const uint32_t *pages, uint32_t n);
void pair_check(struct xfer_pair *t, uint32_t seed, const uint32_t *pages, uint32_t from, uint32_t to);
/* A whole transfer that must succeed: the proof that pair and links are in order. */
void pair_transfer(struct xfer_pair *t, const char *request, uint32_t seed);

#define XFER_EACH_CASE(X)                                                                                    \
    X(whole_prompt_arrives_with_its_first_token)                                                             \
    X(hybrid_split_arrives_without_a_token)                                                                  \
    X(chunks_are_ready_one_by_one)                                                                           \
    X(prefix_hit_is_not_sent)                                                                                \
    X(full_prefix_hit_still_brings_the_token)                                                                \
    X(full_prefix_hit_needs_no_pages_of_the_sender)                                                          \
    X(either_side_may_come_first)                                                                            \
    X(scattered_pages_land_where_the_receiver_says)                                                          \
    X(sender_aborts_at_every_stage)                                                                          \
    X(receiver_cancels_at_every_stage)                                                                       \
    X(abort_before_open_leaves_word)                                                                         \
    X(peer_closes_in_the_middle)                                                                             \
    X(deadline_ends_both_sides)                                                                              \
    X(mismatch_is_refused_in_words)                                                                          \
    X(cluster_secret_is_proven_both_ways)                                                                    \
    X(new_boot_id_fences_the_old)                                                                            \
    X(decode_node_started_again_is_one_link)                                                                 \
    X(unreachable_peer_ends_the_session)                                                                     \
    X(many_sessions_share_the_link)                                                                          \
    X(link_is_measured)                                                                                      \
    X(idle_transfer_takes_no_cpu)
/* What a transport of one process cannot do, or need not. */
#define XFER_EACH_LARGE_CASE(X)                                                                              \
    X(thousands_of_pages_arrive_as_sent)                                                                     \
    X(a_prompt_larger_than_the_window_arrives)                                                               \
    X(large_pages_either_side_gives_up_in_the_middle)                                                        \
    X(large_pages_a_node_closes_in_the_middle_and_comes_back)

#define XFER_CASE(name) void case_##name(const char *transport);
XFER_EACH_CASE(XFER_CASE)
XFER_EACH_LARGE_CASE(XFER_CASE)
#undef XFER_CASE

/* head size that makes pages of 737,280 bytes, SmolLM2's at 32 tokens: rendezvous on tcp */
#define XFER_BIG_PAGE 23040u
#define XFER_N_BIG    10u
/* Starts a transfer of XFER_N_BIG large pages between nodes of so many, and returns when it is under way. */
void case_large_begin(struct xfer_pair *t, const struct sl_xfer_key *k, uint32_t pages[XFER_N_BIG]);

#endif
