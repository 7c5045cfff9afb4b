/* kernels/cuda/cu_sample.cu - a row of logits to a token, a block per row: what common/model/sampler.c does, bit
 * for bit. Compiled without contraction of a product and a sum into one operation.
 *
 * Why the bits are the same though a thousand threads add:
 *   - The weights of a bin lie within a factor of e^(1/64), so they have the same exponent or its neighbour, and
 *     24 bits: a double holds the sum of 2^27 of them without rounding, in any order.
 *   - Only the last bin is wider. Its weights, below 1e-21 all together, are added to a sum that is 1 at least
 *     (the best candidate's) and do not change it. Here they are taken as 0.
 *   - Sums over bins are rounded: one thread makes them in the order of bins, once; `upto` keeps them all.
 *   - The candidates of the one bin that is cut or drawn from are sorted, and added in that order.
 *   - A float lane of the sum over the raw row is one thread's; one thread adds the lanes in their order.
 * A bin of more than MAX_SORTED members that must be sorted leaves the row to the host: a row so flat has no room
 * here. */
#include <math.h>
#include "common/base/exact_math.h"
#include "kernels/cuda/cu_block.h"

#define THREADS    512
#define N_BINS     SL_ROW_BINS
#define LAST_BIN   (N_BINS - 1)
#define MAX_SORTED 768u /* with the bins within the 99 KiB that a block has on the smaller cards */
#define NO_BIN     N_BINS
#define NOTHING    0xffffffffffffffffu
#define MAX_LANES  ((SL_PICK_MAX_VOCAB / SL_ROW_FLOAT_SUM + 1) * SL_ROW_LANES)

struct bins {
    double weight[N_BINS], upto[N_BINS]; /* upto[b]: of bins 0 .. b */
    uint32_t count[N_BINS];
    uint64_t keys[MAX_SORTED], sorted[MAX_SORTED];
    float sorted_weight[MAX_SORTED];
};

union row_shared {
    struct bins bins;
    float lanes[MAX_LANES];
};

struct sample_shared {
    union row_shared u;
    float scratch[CU_MAX_WARPS];
    uint64_t least;
    double sum;
    uint32_t n, bin;
};

/* What the kernel knows of its row; the same in all threads. */
struct row {
    const float *x;
    uint32_t n;
    float max, inv_temperature;
    uint32_t sorted_bin; /* which is in sorted, or NO_BIN */
    int left;            /* a bin was too large: nothing of the result counts */
};

/* Where the kept candidates end: all of the bins before `bin`, and n_in_bin of its members. */
struct cut {
    uint32_t bin, n_in_bin;
    double weight_in_bin;
};

CU_FN uint64_t block_least(struct sample_shared *sh, uint64_t x)
{
    if (threadIdx.x == 0)
        sh->least = NOTHING;
    cu_sync_block();
    x = cu_warp_min64(x);
    if (threadIdx.x % CU_WARP == 0)
        cu_atomic_min64(&sh->least, x);
    cu_sync_block();
    x = sh->least;
    cu_sync_block();
    return x;
}

CU_FN float row_max(struct sample_shared *sh, const float *x, uint32_t n)
{
    float max = -INFINITY; /* what is not a number never wins */
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        max = x[i] > max ? x[i] : max;
    max = cu_block_max(max, sh->scratch, THREADS);
    cu_sync_block();
    return max;
}

/* A key in the order of candidates: logit, highest first (-0 and 0 are one value), then id. */
CU_FN uint64_t key_of(float logit, uint32_t id)
{
    uint32_t u = cu_float_bits(logit + 0.0f);
    u = u & 0x80000000u ? u : ~(u | 0x80000000u);
    return (uint64_t)u << 32 | id;
}

CU_FN float key_logit(uint64_t key)
{
    uint32_t u = (uint32_t)(key >> 32);
    return cu_bits_float(u & 0x80000000u ? u : ~u & 0x7fffffffu);
}

/* ---- the raw row ---- */

CU_FN void raw_top(struct sample_shared *sh, const struct cu_sample_row *r, uint32_t n, struct sl_picked *out)
{
    uint64_t last = 0;
    uint32_t found = 0;
    for (; found < r->pick.n_top; found++) {
        uint64_t best = NOTHING;
        for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
            if (!(r->raw[i] > -INFINITY))
                continue;
            uint64_t key = key_of(r->raw[i], i);
            if ((found == 0 || key > last) && key < best)
                best = key;
        }
        last = block_least(sh, best);
        if (last == NOTHING)
            break;
        if (threadIdx.x == 0) {
            out->top_token[found] = (int32_t)(uint32_t)last;
            out->top_logit[found] = r->raw[(uint32_t)last];
        }
    }
    if (threadIdx.x == 0)
        out->n_top = found;
}

/* Lane l of piece p of the row: entries l, l + SL_ROW_LANES .. of the piece; what is behind the last whole group
 * goes to lane 0. */
CU_FN float lane_sum(const float *x, uint32_t n, float max, uint32_t piece, uint32_t lane)
{
    uint32_t first = piece * SL_ROW_FLOAT_SUM,
             end = n - first < SL_ROW_FLOAT_SUM ? n : first + SL_ROW_FLOAT_SUM;
    uint32_t whole = first + (end - first) / SL_ROW_LANES * SL_ROW_LANES;
    float sum = 0.0f;
    for (uint32_t i = first; i < whole; i += SL_ROW_LANES)
        sum += sl_exact_exp(x[i + lane] - max);
    for (uint32_t i = whole; lane == 0 && i < end; i++)
        sum += sl_exact_exp(x[i] - max);
    return sum;
}

CU_FN void raw_sum(struct sample_shared *sh, const float *x, uint32_t n, struct sl_picked *out)
{
    float max = row_max(sh, x, n);
    if (threadIdx.x == 0)
        out->max = max;
    if (!(max > -INFINITY && max < INFINITY))
        return;
    uint32_t n_lanes = (n + SL_ROW_FLOAT_SUM - 1) / SL_ROW_FLOAT_SUM * SL_ROW_LANES;
    for (uint32_t i = threadIdx.x; i < n_lanes; i += THREADS)
        sh->u.lanes[i] = lane_sum(x, n, max, i / SL_ROW_LANES, i % SL_ROW_LANES);
    cu_sync_block();
    if (threadIdx.x == 0) {
        double sum = 0;
        for (uint32_t i = 0; i < n_lanes; i++)
            sum += (double)sh->u.lanes[i];
        out->sum_exp = sum;
    }
    cu_sync_block(); /* the lanes' room is used again */
}

/* ---- edits ---- */

CU_FN float edit(float x, const struct sl_logit_edit *e)
{
    switch (e->kind) {
    case SL_EDIT_ADD:
        return x + e->value;
    case SL_EDIT_REPEAT:
        return x > 0 ? x / e->value : x * e->value;
    default:
        return -INFINITY;
    }
}

/* A thread has the same entries in both loops, so that a token's edits are done in their order. */
CU_FN void edit_row(const struct cu_sample_row *r, uint32_t n)
{
    const uint64_t *allowed = r->pick.allowed;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        r->edited[i] = !allowed || (allowed[i / 64] >> i % 64 & 1) ? r->raw[i] : -INFINITY;
    for (uint32_t i = 0; i < r->pick.n_edits; i++) {
        const struct sl_logit_edit *e = &r->pick.edits[i];
        if (e->token % THREADS == threadIdx.x)
            r->edited[e->token] = edit(r->edited[e->token], e);
    }
}

/* ---- candidates ---- */

CU_FN uint32_t bin_of(const struct row *r, float logit, float *x)
{
    *x = (logit - r->max) * r->inv_temperature;
    float depth = *x * -(float)SL_BINS_PER_NAT;
    depth = depth < (float)LAST_BIN ? depth : (float)LAST_BIN;
    return logit > -INFINITY ? (uint32_t)depth : NO_BIN;
}

CU_FN void bins_fill(struct sample_shared *sh, const struct row *r)
{
    struct bins *b = &sh->u.bins;
    for (uint32_t i = threadIdx.x; i < N_BINS; i += THREADS) {
        b->weight[i] = 0;
        b->count[i] = 0;
    }
    cu_sync_block();
    uint32_t in_last = 0;
    for (uint32_t i = threadIdx.x; i < r->n; i += THREADS) {
        float x;
        uint32_t bin = bin_of(r, r->x[i], &x);
        in_last += bin == LAST_BIN;
        if (bin >= LAST_BIN)
            continue;
        cu_atomic_add_double(&b->weight[bin], (double)sl_exact_exp(x));
        cu_atomic_add32(&b->count[bin], 1);
    }
    cu_atomic_add32(&b->count[LAST_BIN], in_last);
    cu_sync_block();
    if (threadIdx.x == 0) {
        double sum = 0;
        for (uint32_t i = 0; i < N_BINS; i++) {
            sum += b->weight[i];
            b->upto[i] = sum;
        }
    }
    cu_sync_block();
}

CU_FN double weight_before(const struct bins *b, uint32_t bin)
{
    return bin ? b->upto[bin - 1] : 0;
}

CU_FN uint32_t bin_kept(const struct bins *b, const struct cut *c, uint32_t bin)
{
    return bin == c->bin ? c->n_in_bin : b->count[bin];
}

/* Of bins 0 .. bin. */
CU_FN double kept_upto(const struct bins *b, const struct cut *c, uint32_t bin)
{
    return bin == c->bin ? weight_before(b, bin) + c->weight_in_bin : b->upto[bin];
}

/* The members of a bin in the order of candidates. */
CU_FN void bin_sort(struct sample_shared *sh, struct row *r, uint32_t bin)
{
    struct bins *b = &sh->u.bins;
    uint32_t n = b->count[bin];
    if (r->sorted_bin == bin)
        return;
    r->left |= n > MAX_SORTED;
    if (r->left)
        return;
    r->sorted_bin = bin;
    if (threadIdx.x == 0)
        sh->n = 0;
    cu_sync_block();
    for (uint32_t i = threadIdx.x; i < r->n; i += THREADS) {
        float x;
        if (bin_of(r, r->x[i], &x) == bin)
            b->keys[cu_atomic_add32(&sh->n, 1)] = key_of(r->x[i], i);
    }
    cu_sync_block();
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        uint64_t key = b->keys[i];
        uint32_t rank = 0;
        for (uint32_t j = 0; j < n; j++)
            rank += b->keys[j] < key;
        b->sorted[rank] = key;
        b->sorted_weight[rank] = sl_exact_exp((key_logit(key) - r->max) * r->inv_temperature);
    }
    cu_sync_block();
}

CU_FN void cut_to(struct sample_shared *sh, struct row *r, struct cut *c, uint32_t bin, uint32_t n_in_bin)
{
    const struct bins *b = &sh->u.bins;
    c->bin = bin;
    c->n_in_bin = n_in_bin;
    c->weight_in_bin = b->weight[bin];
    if (n_in_bin == b->count[bin] || bin == LAST_BIN)
        return;
    bin_sort(sh, r, bin);
    c->weight_in_bin = 0;
    for (uint32_t i = 0; !r->left && i < n_in_bin; i++)
        c->weight_in_bin += (double)b->sorted_weight[i];
}

CU_FN void top_k_cut(struct sample_shared *sh, struct row *r, struct cut *c, uint32_t k)
{
    if (threadIdx.x == 0) {
        uint32_t n = 0, bin = 0;
        while (bin <= LAST_BIN && n + sh->u.bins.count[bin] < k)
            n += sh->u.bins.count[bin++];
        sh->n = k - n;
        sh->bin = bin;
    }
    cu_sync_block();
    uint32_t bin = sh->bin, n = sh->n;
    cu_sync_block();
    if (bin <= LAST_BIN) /* else there are not k of them */
        cut_to(sh, r, c, bin, n);
}

/* The first bin with a kept member up to which the kept weight reaches the goal, or exceeds it; NO_BIN = none. */
CU_FN uint32_t first_bin(struct sample_shared *sh, const struct cut *c, double goal, int exceed)
{
    uint64_t found = NOTHING;
    for (uint32_t bin = threadIdx.x; bin <= c->bin && found == NOTHING; bin += THREADS) {
        double sum = kept_upto(&sh->u.bins, c, bin);
        if (bin_kept(&sh->u.bins, c, bin) > 0 && (exceed ? sum > goal : !(sum < goal)))
            found = bin;
    }
    found = block_least(sh, found);
    return found == NOTHING ? NO_BIN : (uint32_t)found;
}

/* The shortest run of candidates whose weight reaches the share, at least one. */
CU_FN void top_p_cut(struct sample_shared *sh, struct row *r, struct cut *c, float share)
{
    const struct bins *b = &sh->u.bins;
    double goal = (double)share * kept_upto(b, c, c->bin);
    uint32_t bin = first_bin(sh, c, goal, 0);
    if (bin == NO_BIN)
        return;
    bin_sort(sh, r, bin);
    if (r->left)
        return;
    double sum = weight_before(b, bin);
    uint32_t n = 0, kept = bin_kept(b, c, bin);
    do {
        sum += (double)b->sorted_weight[n++];
    } while (sum < goal && n < kept);
    cut_to(sh, r, c, bin, n);
}

/* Keeps what is at least min_p times as likely as the best. */
CU_FN void min_p_cut(struct sample_shared *sh, struct row *r, struct cut *c, float lowest_x)
{
    const struct bins *b = &sh->u.bins;
    float depth = lowest_x * -(float)SL_BINS_PER_NAT;
    if (depth >= (float)LAST_BIN || (uint32_t)depth > c->bin)
        return;
    uint32_t bin = (uint32_t)depth;
    bin_sort(sh, r, bin);
    if (r->left)
        return;
    uint32_t n = 0, kept = bin_kept(b, c, bin);
    while (n < kept && (key_logit(b->sorted[n]) - r->max) * r->inv_temperature >= lowest_x)
        n++;
    cut_to(sh, r, c, bin, n);
}

/* The last bin with a kept member. */
CU_FN uint32_t last_bin(struct sample_shared *sh, const struct cut *c)
{
    uint64_t found = NOTHING;
    for (uint32_t bin = threadIdx.x; bin <= c->bin; bin += THREADS)
        if (bin_kept(&sh->u.bins, c, bin) > 0)
            found = N_BINS - bin;
    return N_BINS - (uint32_t)block_least(sh, found); /* there is one: the best candidate's */
}

CU_FN int32_t draw(struct sample_shared *sh, struct row *r, const struct cut *c, float uniform)
{
    const struct bins *b = &sh->u.bins;
    double kept = kept_upto(b, c, c->bin), goal = (double)uniform * kept;
    uint32_t bin = first_bin(sh, c, goal, 1);
    double sum = bin == NO_BIN ? kept : weight_before(b, bin);
    if (bin == NO_BIN)
        bin = last_bin(sh, c);
    bin_sort(sh, r, bin);
    if (r->left)
        return SL_PICK_LEFT;
    uint32_t n = bin_kept(b, c, bin), i = 0;
    for (; i + 1 < n; i++) {
        sum += (double)b->sorted_weight[i];
        if (sum > goal)
            break;
    }
    return (int32_t)(uint32_t)b->sorted[i];
}

/* The lowest id that has the greatest value; 0 when there is nothing but NaN. */
CU_FN int32_t find_max(struct sample_shared *sh, const struct row *r)
{
    uint64_t id = NOTHING;
    for (uint32_t i = threadIdx.x; i < r->n && id == NOTHING; i += THREADS)
        if (r->x[i] == r->max)
            id = i;
    id = block_least(sh, id);
    return id == NOTHING ? 0 : (int32_t)id;
}

CU_FN int32_t choose(struct sample_shared *sh, const struct sl_pick *p, const float *x, uint32_t n)
{
    struct row r = {x, n, row_max(sh, x, n), p->inv_temperature, NO_BIN, 0};
    if (p->inv_temperature == 0 || !(r.max > -INFINITY && r.max < INFINITY))
        return find_max(sh, &r);
    bins_fill(sh, &r);
    struct cut c = {LAST_BIN, sh->u.bins.count[LAST_BIN], 0};
    if (p->top_k > 0)
        top_k_cut(sh, &r, &c, p->top_k);
    if (p->top_p < 1 && !r.left)
        top_p_cut(sh, &r, &c, p->top_p);
    if (p->lowest_x > -INFINITY && !r.left)
        min_p_cut(sh, &r, &c, p->lowest_x);
    return r.left ? SL_PICK_LEFT : draw(sh, &r, &c, p->uniform);
}

CU_KERNEL(sample_kernel, struct cu_sample_args, THREADS, 1)
{
    struct sample_shared *sh = CU_SHARED(struct sample_shared);
    const struct cu_sample_row r = a->rows[blockIdx.x];
    struct sl_picked *out = &a->out[blockIdx.x];
    raw_top(sh, &r, a->n_vocab, out);
    if (r.pick.want_sum)
        raw_sum(sh, r.raw, a->n_vocab, out);
    if (r.edited)
        edit_row(&r, a->n_vocab);
    int32_t token = choose(sh, &r.pick, r.edited ? r.edited : r.raw, a->n_vocab);
    if (threadIdx.x == 0) {
        out->token = token;
        out->logit = token >= 0 ? r.raw[token] : 0.0f;
    }
}

void cu_sample(struct cu_stream *s, uint32_t n_rows, const struct cu_sample_args *a)
{
    struct cu_launch l = {"sample", (const void *)sample_kernel,  n_rows, 1,
                          THREADS,  sizeof(struct sample_shared), a,      sizeof *a};
    cu_launch(s, &l);
}
