/* kernels/cpu/cpu_dev.h - what the CPU backends share: the device, packed matrices, page memory, and
 * the table of inner loops (struct sl_cpu_isa) in which "portable", "avx2" and "avx512" differ.
 *
 * All tables compute the same bits. What an inner loop must do, to the order of its operations, is written
 * beside its entry; the drivers (cpu_linear.c, cpu_rope.c, cpu_attention.c) only split work. The reference
 * (ref_*.c) uses the device, the pages and cpu_pack.c's element access, and its own loops. */
#ifndef SLUICE_KERNELS_CPU_CPU_DEV_H
#define SLUICE_KERNELS_CPU_CPU_DEV_H

#include <math.h>
#include <stdatomic.h>

#include "common/base/mem.h"
#include "common/base/thread.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_pool.h"

#define SL_PANEL      32u /* output columns of a packed panel */
#define SL_QBLOCK     32u /* elements of a quantisation block of weights */
#define SL_QPART      16u /* elements of activations with one scale: half a block */
#define SL_CHUNK_ROWS 64u /* most rows of activations multiplied together */
#define SL_ATTN_QROWS 96u /* most query rows (token x head of one KV head) of an attention tile */

/* Raise when a layout, or what a type is packed as, changes: images are kept on disk. */
#define SL_PACK_VERSION 3u

/* Rows [first_row, first_row + n_rows) of a packed matrix, all of one type, in panels of SL_PANEL rows
 * (the output columns of a product), zero rows behind the last.
 *
 * F32, F16  [panel][n_cols][32] elements
 * BF16      [panel][n_cols / 2 rounded up][32][2]
 * quantised [panel] blocks of SL_QBLOCK columns; a K type's in eights behind a head (struct sl_form).
 *           x = d * (code - zero) or x = d * code + m, codes unsigned. A block is its codes, then scales:
 *
 * Codes of 8 bits      [8][2][16][4]: byte (quad s, half h, c, j) is element 4 s + j of column 16 h + c
 * Codes of 4, 5, 6     [4][2][16][4]: the low nibble of byte (s, h, c, j) is of element 4 s + j, the high
 *                      one of 16 + 4 s + j; behind them
 *   the fifth bits     [2][16][4]: bit s of byte (h, c, j) is of element 4 s + j
 *   or fifth and sixth [2][2][16][4]: bits 2 s of byte (h, g, c, j) are of element 16 g + 4 s + j
 * Quads come before halves: one row reads both halves of a quad at a time, in rising addresses, which the
 * hardware's prefetching likes best.
 *
 * Scales  f16 d[32], then f16 m[32] where the type has it
 * Q4_K, Q5_K  uint8 sc[32], mn[32]; head: f16 d[32], dmin[32]. A block's d is d * sc, its m -(dmin * mn)
 * Q6_K        int8 sc[2][32] of elements 0 to 15 and 16 to 31; head: f16 d[32]. d is d * sc */
struct sl_segment {
    enum sl_dtype type;
    uint32_t first_row, n_rows, n_cols;
    uint32_t first_panel, n_panels; /* counted over the matrix */
    size_t panel_bytes;
    uint8_t *data; /* 64-byte aligned panels */
};

#define SL_MAX_SEGMENTS 8u /* of a matrix: stacks have up to three tensors */

struct sl_weight {
    uint32_t n_rows, n_cols, n_panels, n_segments;
    size_t bytes;
    uint8_t *data; /* huge pages: the segments' panels in order. The reference has one segment, of F32 */
    struct sl_segment segments[SL_MAX_SEGMENTS];
};

/* What a segment is made from. */
struct sl_rows_of {
    enum sl_dtype type;
    uint32_t n_rows;
};

/* Sizes in bytes of the parts of a quantised type's block, by the layout above. */
struct sl_form {
    uint32_t code_bits;
    uint32_t codes, scales; /* of a block */
    uint32_t n_blocks;      /* behind one head */
    uint32_t head;
    int has_min;
};

static inline struct sl_form sl_form_of(enum sl_dtype type)
{
    switch (type) {
    case SL_Q4_0:
        return (struct sl_form){4, 512, 64, 1, 0, 0};
    case SL_Q4_1:
        return (struct sl_form){4, 512, 128, 1, 0, 1};
    case SL_Q5_0:
        return (struct sl_form){5, 640, 64, 1, 0, 0};
    case SL_Q5_1:
        return (struct sl_form){5, 640, 128, 1, 0, 1};
    case SL_Q8_0:
        return (struct sl_form){8, 1024, 64, 1, 0, 0};
    case SL_Q4_K:
        return (struct sl_form){4, 512, 64, 8, 128, 1};
    case SL_Q5_K:
        return (struct sl_form){5, 640, 64, 8, 128, 1};
    case SL_Q6_K:
        return (struct sl_form){6, 768, 64, 8, 64, 0};
    default:
        return (struct sl_form){0, 0, 0, 0, 0, 0};
    }
}

/* Of a head and its blocks. */
static inline size_t sl_form_bytes(const struct sl_form *f)
{
    return f->head + (size_t)f->n_blocks * (f->codes + f->scales);
}

static inline int sl_is_quantised(enum sl_dtype type)
{
    return sl_form_of(type).code_bits != 0;
}

/* A block of a row of activations as int8 in two parts of SL_QPART elements, x = scale[part] * q: what any
 * quantised type multiplies with. Each part has its own scale because the largest of 16 elements is smaller
 * than that of 32: the error of whole models halves. One cache line. */
struct sl_qblock {
    int8_t q[SL_QBLOCK];
    float scale[2];
    float scaled_sum;                /* sum of scale * q: what a minimum is multiplied with */
    float zero_8, zero_16, zero_128; /* minus the zero point of Q4_0, Q5_0, Q8_0 times scaled_sum */
    int32_t start_32[2];             /* Q6_K: minus its zero point times the sum of q of a part */
};

/* Fills in what follows from the scales of the two parts and the sums of their q. */
static inline void sl_qblock_finish(struct sl_qblock *b, const float scale[2], const int32_t sum[2])
{
    b->scale[0] = scale[0];
    b->scale[1] = scale[1];
    b->scaled_sum = scale[0] * (float)sum[0] + scale[1] * (float)sum[1];
    b->zero_8 = b->scaled_sum * -8.0f;
    b->zero_16 = b->scaled_sum * -16.0f;
    b->zero_128 = b->scaled_sum * -128.0f;
    b->start_32[0] = sum[0] * -32;
    b->start_32[1] = sum[1] * -32;
}

/* Rows of activations in the forms the types of a matrix want. The members of a form not wanted are NULL. */
struct sl_acts {
    uint32_t n_rows, n_cols;
    /* float32: F32 and F16 weights */
    const float *f;
    size_t f_stride;
    /* bfloat16 pairs, an odd tail padded with zero: BF16 weights */
    uint16_t *bf;
    size_t bf_stride;
    /* quantised weights, in groups of rows that are multiplied together: sl_acts_block() */
    struct sl_qblock *q;
    uint32_t group; /* rows */
};

/* Block b of row r; block b of the row's neighbours in its group lies beside it, block b + 1 a group further.
 */
static inline struct sl_qblock *sl_acts_block(const struct sl_acts *x, uint32_t r, uint32_t b)
{
    size_t group = r / x->group, n_blocks = x->n_cols / SL_QBLOCK;
    return x->q + (group * n_blocks + b) * x->group + r % x->group;
}

/* Where the results of a segment go: column 0 is its first row. */
struct sl_store {
    float *y;
    size_t stride;
    const float *bias;
    int add;
};

/* Query rows of some KV heads over a stretch of positions of one sequence. Query row j of a KV head is token
 * j / group, head j % group of its group. */
struct sl_attn_tile {
    const struct sl_kv *kv;
    const struct sl_batch_run *run;
    const struct sl_attn_shape *shape;
    uint32_t layer, group;
    uint32_t kv_head, n_heads; /* KV heads [kv_head, kv_head + n_heads) */
    uint32_t j0, j1;           /* query rows [j0, j1) of the run */
    uint32_t seg0, seg1;       /* segments of SL_ATTN_SEG positions */
    const float *qkv;          /* of the batch */
    size_t qkv_stride;
    float *out; /* of the batch, written when partial is NULL */
    size_t out_stride;
    float *partial; /* [n_heads] of [j1 - j0][head_dim + 2]: acc, m, l of the one segment seg0; or NULL */
    size_t partial_stride; /* floats from one KV head to the next */
};

/* KV head i of a tile alone. */
static inline struct sl_attn_tile sl_attn_tile_of_head(const struct sl_attn_tile *t, uint32_t i)
{
    struct sl_attn_tile one = *t;
    one.kv_head += i;
    one.n_heads = 1;
    if (t->partial)
        one.partial += i * t->partial_stride;
    return one;
}

/* Scratch of one thread for attention tiles, all 64-byte aligned. width is head_dim rounded up to 16.
 * portable uses the shapes in front of the semicolon, float32 all; in avx512 a word is a float32 or two
 * bfloat16. */
struct sl_attn_scratch {
    float *k;     /* portable: [head_dim][SL_ATTN_BLOCK] */
    float *v;     /* [SL_ATTN_BLOCK][width]; words, of two positions for bfloat16 */
    float *rows;  /* avx512: K and V that cannot be used where they lie, [2][SL_ATTN_BLOCK][width] */
    float *q;     /* [SL_ATTN_QROWS][width], scaled; words */
    float *q_t;   /* avx512: [width][SL_ATTN_QROWS] words */
    float *s, *p; /* avx512: scores and their weights, SL_ATTN_BLOCK x SL_ATTN_QROWS */
    float *wide;  /* avx2: [SL_ATTN_BLOCK][2][width], rows of K and V, padded */
    float *acc;   /* [SL_ATTN_QROWS][width] of the segment */
    float *acc_t; /* avx512: [width][SL_ATTN_QROWS] */
    float *total; /* [SL_ATTN_QROWS][width] of the segments before */
    float *m, *l, *keep, *total_m, *total_l; /* [SL_ATTN_QROWS] */
    /* SL_Q8, whose words are integers: of the rows of q what an integer is worth and, avx512, what a score
     * starts from; of K and of V the scales of a block, gathered */
    float *q_scale;           /* [SL_ATTN_QROWS] */
    int32_t *q_start;         /* [SL_ATTN_QROWS] */
    float *k_scale, *v_scale; /* [SL_ATTN_BLOCK] */
};

/* How the work on one run of a batch is cut (cpu_attention.c). */
struct sl_attn_run {
    uint32_t first_item, tile_rows;
    float *partials; /* split by segments: [tile][segment][KV head][tile_rows][head_dim + 2]; or NULL */
};

/* The first position that a row at pos sees. */
static inline uint32_t sl_attn_first_seen(const struct sl_attn_shape *s, uint32_t pos)
{
    return s->window > 0 && pos >= s->window ? pos - s->window + 1 : 0;
}

/* What scores are multiplied with, base e. */
static inline float sl_attn_score_scale(const struct sl_attn_shape *s)
{
    return s->score_scale > 0.0f ? s->score_scale : 1.0f / sqrtf((float)s->head_dim);
}

static inline uint32_t sl_attn_width(uint32_t head_dim)
{
    return (head_dim + 15) / 16 * 16;
}

struct sl_cpu_isa {
    /* y = x * (1 / sqrt(sum(x^2) / n + eps)) * w. The sum: 16 lanes, lane i takes x[i], x[i + 16], .. by FMA
     * from 0; lanes are added i + (i + 8), then + 4, + 2, + 1. */
    void (*rmsnorm_row)(const float *x, const float *w, float eps, uint32_t n, float *y);
    /* x = x + (y * (1 / sqrt(sum(y^2) / n + eps))) * w, the sum as in rmsnorm_row */
    void (*norm_add_row)(const float *y, const float *w, float eps, uint32_t n, float *x);
    /* y = act(x[0..n)) * x[n..2n) */
    void (*swiglu_row)(const float *x, uint32_t n, float *y);
    void (*geglu_row)(const float *x, uint32_t n, float *y);
    /* Per part of a block: scale = max|x| / 127, q = round to even(x * (127 / max|x|)); a part below 2^-100
     * is zero. Block b goes to to[b * stride]. */
    void (*quant_row)(const float *x, uint32_t n, struct sl_qblock *to, size_t stride);
    void (*bf16_row)(const float *x, uint32_t n, uint16_t *y);
    /* Rows [r0, r1) of x, within one group, times panel p of the segment: y[r][n] = v or y + v, v = sum (+
     * bias). Orders of the sum:
     * - quantised, over blocks, t0 and t1 of the parts: t = float(sum code q) (exact);
     *   with a zero point: acc = fma(d, fma(scale1, t1, fma(scale0, t0, zero)), acc)
     *   with a minimum:    acc = fma(d, fma(scale1, t1, scale0 * t0), acc), acc = fma(scaled_sum, m, acc)
     * - Q6_K: t = float(start + sum code q), acc = fma(scale1 * d1, t1, fma(scale0 * d0, t0, acc))
     * - F32, F16, over k: acc = fma(x, w, acc)
     * - BF16, over pairs: acc = fma(x1, w1, acc), then acc = fma(x0, w0, acc) (vdpbf16ps) */
    void (*panel)(const struct sl_segment *w, uint32_t p, const struct sl_acts *x, uint32_t r0, uint32_t r1,
                  const struct sl_store *to);
    /* cos, sin of pos * freq[i] */
    void (*angles)(uint32_t pos, const float *freq, uint32_t n, float *cos_out, float *sin_out);
    /* (a, b) -> (fma(a, c, -(b * s)), fma(a, s, b * c)) over the pairs of the layout; n_pairs = rope_dim / 2
     */
    void (*rotate)(float *head, uint32_t n_pairs, enum sl_rope_layout layout, const float *cos_in,
                   const float *sin_in);
    void (*kv_store)(const float *x, uint32_t n, enum sl_dtype type, void *to);
    /* SL_Q8: as quant_row, with one scale for the row; the scale may have any alignment. SL_FP8: sl_fp8_row(). */
    void (*kv_quantise)(const float *x, uint32_t n, enum sl_dtype type, void *to, void *scale);
    /* The arithmetic of the three: cpu_attention.c. */
    void (*attn_tile)(const struct sl_attn_tile *t, const struct sl_attn_scratch *s);
    /* Adds a segment (acc, m, l) to the segments before it. */
    void (*attn_merge)(float *total, float *total_m, float *total_l, const float *acc, float m, float l,
                       uint32_t head_dim);
    void (*attn_finish)(const float *total, float total_l, uint32_t head_dim, float *out);
};

extern const struct sl_cpu_isa sl_cpu_isa_portable;
extern const struct sl_cpu_isa sl_cpu_isa_avx2;
extern const struct sl_cpu_isa sl_cpu_isa_avx512;

#define SL_ROPE_BASES 2u

struct sl_rope_base {
    float theta;
    uint32_t dim;
    float *freq; /* [SL_HEAD_DIM_MAX / 2] */
};

struct sl_dev {
    struct sl_cpu_pool *pool;
    unsigned n_threads;
    uint32_t max_rows;
    const struct sl_cpu_isa *isa; /* NULL: reference */
    /* activations of one linear(), sized by the packed matrix that wants most */
    uint8_t *acts;
    size_t acts_bytes;
    float *rows; /* [n_threads][widest + padding]: a row between prologue and quantisation */
    size_t rows_bytes;
    uint32_t widest;
    /* attention, sized by the largest head_dim of an open page pool */
    uint8_t *attn_mem;
    size_t attn_mem_bytes;
    uint32_t attn_head_dim;
    struct sl_attn_scratch *attn; /* [n_threads] */
    float *partials;
    size_t n_partials;             /* floats */
    struct sl_attn_run *attn_plan; /* [max_rows + 1] */
    /* rotation frequencies: of the last bases seen (a model may have one for local and one for global
     * attention), and of the shape in hand */
    struct sl_rope_base rope_bases[SL_ROPE_BASES];
    uint32_t rope_base_next;
    float *rope_freq;   /* [SL_HEAD_DIM_MAX / 2] */
    float *rope_angles; /* [n_threads][SL_HEAD_DIM_MAX] */
};

struct sl_kv {
    struct sl_kv_geometry g; /* of a part: with its heads */
    uint32_t n_pages;
    uint32_t page_heads;            /* KV heads of a page: of a part more than g has */
    size_t page_bytes, strip_bytes; /* strip: one layer, K or V, head */
    size_t token_bytes;             /* from one token's values to the next one's */
    size_t scale_bytes;             /* of its scale; 0 = the type has none */
    uint8_t *base;                  /* of a part: its first strip of page 0 */
    size_t bytes;                   /* of a part: 0, the memory is another's */
    struct sl_thread toucher;
    atomic_bool closing;
};

/* Start of the strip of (page, layer, K = 0 or V = 1, head): [page_tokens, head_dim], scales behind. */
static inline uint8_t *sl_kv_strip(const struct sl_kv *kv, uint32_t page, uint32_t layer, uint32_t which,
                                   uint32_t head)
{
    size_t strip = ((size_t)layer * 2 + which) * kv->page_heads + head;
    return kv->base + (size_t)page * kv->page_bytes + strip * kv->strip_bytes;
}

/* Where position pos of a run lies. */
static inline uint8_t *sl_kv_at(const struct sl_kv *kv, const struct sl_batch_run *run, uint32_t layer,
                                uint32_t which, uint32_t head, uint32_t pos)
{
    uint32_t page = run->pages[pos / kv->g.page_tokens];
    return sl_kv_strip(kv, page, layer, which, head) + (size_t)(pos % kv->g.page_tokens) * kv->token_bytes;
}

/* Where the scale of position pos lies, of any alignment; of types that have one. */
static inline uint8_t *sl_kv_scale_at(const struct sl_kv *kv, const struct sl_batch_run *run, uint32_t layer,
                                      uint32_t which, uint32_t head, uint32_t pos)
{
    uint32_t page = run->pages[pos / kv->g.page_tokens];
    return sl_kv_strip(kv, page, layer, which, head) + kv->g.page_tokens * kv->token_bytes +
           pos % kv->g.page_tokens * kv->scale_bytes;
}

/* What attention takes K and V as: SL_FP8 is read as the bfloat16 numbers it stands for. */
static inline enum sl_dtype sl_attn_type(const struct sl_kv *kv)
{
    return kv->g.dtype == SL_FP8 ? SL_BF16 : kv->g.dtype;
}

/* Columns of a row of x that the prologue makes k of. */
static inline size_t sl_linear_x_cols(enum sl_prologue prologue, uint32_t k)
{
    return prologue == SL_PRO_SWIGLU || prologue == SL_PRO_GEGLU ? 2 * (size_t)k : k;
}

/* Floats between two rows of width n: a cache line more than needed, so that rows of a power-of-two width do
 * not fall into one cache set. */
static inline size_t sl_cpu_row_floats(uint32_t n)
{
    return ((size_t)n + 15) / 16 * 16 + 16;
}

/* cpu_dev.c */
enum sl_err sl_cpu_open(const struct sl_dev_conf *conf, const struct sl_cpu_isa *isa, struct sl_dev **out,
                        struct sl_why *why);
void sl_cpu_close(struct sl_dev *d);
/* Huge memory whose pages are touched by all threads. */
void *sl_cpu_touched_alloc(struct sl_dev *d, size_t bytes);
void *sl_cpu_buf_alloc(struct sl_dev *d, size_t bytes);
void sl_cpu_buf_free(struct sl_dev *d, void *p, size_t bytes);
void sl_cpu_copy(struct sl_dev *d, void *dst, const void *src, size_t bytes);
void sl_cpu_copy_rows(struct sl_dev *d, void *dst, size_t dst_stride, const void *src, size_t src_stride,
                      size_t bytes, size_t n);
void sl_cpu_sync(struct sl_dev *d);
void sl_cpu_parallel(struct sl_dev *d, uint32_t n_items, sl_parallel_fn *fn, void *arg);
/* Makes room for max_rows rows of activations, row_bytes each, of n_cols columns. */
enum sl_err sl_cpu_fit_acts(struct sl_dev *d, uint32_t n_cols, size_t row_bytes);
enum sl_err sl_cpu_fit_attention(struct sl_dev *d, uint32_t head_dim);

/* cpu_kv.c */
enum sl_err sl_cpu_kv_open(struct sl_dev *d, const struct sl_kv_geometry *g, uint32_t n_pages,
                           struct sl_kv **out, struct sl_why *why);
enum sl_err sl_cpu_kv_part(struct sl_dev *d, struct sl_kv *kv, uint32_t first_head, uint32_t n_heads,
                           struct sl_kv **out, struct sl_why *why);
void sl_cpu_kv_close(struct sl_dev *d, struct sl_kv *kv);
void *sl_cpu_kv_host_base(struct sl_kv *kv);
void sl_cpu_kv_read(struct sl_dev *d, struct sl_kv *kv, uint32_t page, void *host);
void sl_cpu_kv_write(struct sl_dev *d, struct sl_kv *kv, uint32_t page, const void *host);

/* cpu_codes.c: block b of a row of the file into column col of a panel, and of a panel as float32. */
void sl_cpu_block_put(enum sl_dtype type, const uint8_t *row, uint32_t b, uint32_t col, uint8_t *panel);
void sl_cpu_block_take(enum sl_dtype type, const uint8_t *panel, uint32_t b, uint32_t col, float *out);

/* cpu_pack.c */
enum sl_err sl_cpu_weight_pack(struct sl_dev *d, const struct sl_tensor_view *views, size_t n,
                               struct sl_weight **out, struct sl_why *why);
/* With memory for its numbers, all zero, and room for its activations; NULL when there is none. */
struct sl_weight *sl_cpu_weight_new(struct sl_dev *d, const struct sl_rows_of *of, uint32_t n,
                                    uint32_t n_cols);
/* Whether a matrix of such segments can be. */
bool sl_cpu_rows_are_sane(const struct sl_rows_of *of, uint32_t n, uint64_t n_cols);
void sl_cpu_weight_free(struct sl_dev *d, struct sl_weight *w);
size_t sl_cpu_weight_bytes(const struct sl_weight *w);
/* Row r as float32: the bits of sl_dequant_row() of the file's row. */
void sl_cpu_weight_row(const struct sl_weight *w, uint32_t r, float *out);
void sl_cpu_embed(struct sl_dev *d, const struct sl_weight *w, const struct sl_batch *b, float scale,
                  float *x);

/* cpu_image.c */
void sl_cpu_weight_image(struct sl_weight *w, struct sl_weight_image *out);
enum sl_err sl_cpu_weight_restore(struct sl_dev *d, const void *head, size_t head_bytes, uint64_t n_rows,
                                  uint64_t n_cols, struct sl_weight **out, struct sl_why *why);

/* cpu_linear.c, cpu_rope.c, cpu_attention.c: all but the reference, which has sum_ranks too */
void sl_cpu_linear(struct sl_dev *d, const struct sl_linear *a);
/* Bytes of scratch that a row of activations of w takes, at most. */
size_t sl_cpu_acts_row_bytes(const struct sl_weight *w);
void sl_cpu_norm_add(struct sl_dev *d, const float *y, const float *norm_w, float eps, uint32_t n_rows,
                     uint32_t n, float *x);
void sl_cpu_sum_ranks(struct sl_dev *d, const float *parts, uint32_t n_parts, size_t n, int add, float *y);
void sl_cpu_rope_kv(struct sl_dev *d, struct sl_kv *kv, uint32_t layer, const struct sl_attn_shape *s,
                    const struct sl_batch *b, float *qkv);
/* Fills d->rope_freq for the shape. */
void sl_cpu_rope_frequencies(struct sl_dev *d, const struct sl_attn_shape *s);
void sl_cpu_attention(struct sl_dev *d, struct sl_kv *kv, uint32_t layer, const struct sl_attn_shape *s,
                      const struct sl_batch *b, const float *qkv, float *out);

/* ref_*.c */
void sl_ref_linear(struct sl_dev *d, const struct sl_linear *a);
void sl_ref_norm_add(struct sl_dev *d, const float *y, const float *norm_w, float eps, uint32_t n_rows,
                     uint32_t n, float *x);
void sl_ref_rope_kv(struct sl_dev *d, struct sl_kv *kv, uint32_t layer, const struct sl_attn_shape *s,
                    const struct sl_batch *b, float *qkv);
void sl_ref_attention(struct sl_dev *d, struct sl_kv *kv, uint32_t layer, const struct sl_attn_shape *s,
                      const struct sl_batch *b, const float *qkv, float *out);

#endif
