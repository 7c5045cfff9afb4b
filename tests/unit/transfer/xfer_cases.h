/* tests/unit/transfer/xfer_cases.h - what any transport must do; run over "loop" and over "ucx". */
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

void case_whole_prompt_arrives_with_its_first_token(const char *transport);
void case_hybrid_split_arrives_without_a_token(const char *transport);
void case_chunks_are_ready_one_by_one(const char *transport);
void case_prefix_hit_is_not_sent(const char *transport);
void case_full_prefix_hit_still_brings_the_token(const char *transport);
void case_full_prefix_hit_needs_no_pages_of_the_sender(const char *transport);
void case_either_side_may_come_first(const char *transport);
void case_scattered_pages_land_where_the_receiver_says(const char *transport);
void case_sender_aborts_at_every_stage(const char *transport);
void case_receiver_cancels_at_every_stage(const char *transport);
void case_abort_before_open_leaves_word(const char *transport);
void case_peer_closes_in_the_middle(const char *transport);
void case_deadline_ends_both_sides(const char *transport);
void case_mismatch_is_refused_in_words(const char *transport);
void case_cluster_secret_is_proven_both_ways(const char *transport);
void case_new_boot_id_fences_the_old(const char *transport);
void case_unreachable_peer_ends_the_session(const char *transport);
void case_many_sessions_share_the_link(const char *transport);
void case_link_is_measured(const char *transport);
void case_idle_transfer_takes_no_cpu(const char *transport);

#endif
