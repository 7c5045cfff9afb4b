/* tests/support/make_model/make_model.c - the tensors of a random model and the file around them.
 *
 * Scales (standard deviations, x = residual stream): a normed row has size 1 per element, so a matrix of
 * deviation g / sqrt(K) gives outputs of deviation g. Scores q k / sqrt(head_dim) get deviation 2.6, so that
 * a row attends to few tokens: a mean over many is the same for all rows, and adding it with a larger gain
 * than the feed-forward part makes every token predict the same. An embedding row is small beside what the
 * layers add, so that the tied head does not echo the last token; output_norm sets the spread of the logits
 * to about 3 nats. Seen with these: greedy text has 60 to 100 different tokens in 100.
 */
#include "tests/support/make_model/make_model.h"

#include "common/base/mem.h"
#include "common/base/philox.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ALIGNMENT   32
#define MAX_TENSORS 4096
#define WEAK        0.05f /* factor for rows of tokens that free-running text should avoid */
#define EMBED_STD   0.15f
#define LOGIT_STD   3.0f

struct tensor {
    char name[64];
    enum sl_dtype type;
    uint32_t n_dims;
    uint64_t n_rows, n_cols;
    float mean, std;
    const bool *weak_rows; /* [n_rows] or NULL */
    uint64_t offset;
};

struct writer {
    const struct sl_make_model *m;
    struct tensor tensors[MAX_TENSORS];
    size_t n;
    uint64_t next_offset;
};

bool sl_make_model_preset(const char *preset, struct sl_make_model *out)
{
    struct sl_make_model m = {.arch = "llama",
                              .tied = true,
                              .type = SL_Q4_1,
                              .embed_type = SL_Q8_0,
                              .context_length = 8192,
                              .seed = 1};
    if (strcmp(preset, "tiny") == 0) {
        m.name = "Random tiny";
        m.n_layers = 3, m.d_model = 64, m.n_heads = 4, m.n_kv_heads = 2, m.head_dim = 16, m.d_ff = 192;
        m.n_vocab = 512, m.rope_theta = 10000;
    } else if (strcmp(preset, "smollm2") == 0) {
        m.name = "Random 135M";
        m.n_layers = 30, m.d_model = 576, m.n_heads = 9, m.n_kv_heads = 3, m.head_dim = 64, m.d_ff = 1536;
        m.n_vocab = 49152, m.rope_theta = 100000;
    } else if (strcmp(preset, "1b") == 0) {
        m.name = "Random 1B";
        m.n_layers = 16, m.d_model = 2048, m.n_heads = 32, m.n_kv_heads = 8, m.head_dim = 64, m.d_ff = 8192;
        m.n_vocab = 32000, m.rope_theta = 500000;
    } else {
        return false;
    }
    *out = m;
    return true;
}

/* Square root by Newton's iteration in double: the same bits everywhere is all that is asked. */
static float root(double x)
{
    double r = x > 1 ? x : 1;
    for (int i = 0; i < 60; i++)
        r = 0.5 * (r + x / r);
    return (float)r;
}

static void tensor_add(struct writer *w, const char *name, enum sl_dtype type, uint64_t n_rows,
                       uint64_t n_cols, float mean, float std)
{
    SL_ASSERT(w->n < MAX_TENSORS);
    struct tensor *t = &w->tensors[w->n++];
    snprintf(t->name, sizeof t->name, "%s", name);
    t->type = type;
    for (size_t i = 0; i < w->m->n_overrides; i++) {
        size_t n = strlen(w->m->overrides[i].suffix), len = strlen(name);
        if (len >= n && strcmp(name + len - n, w->m->overrides[i].suffix) == 0)
            t->type = w->m->overrides[i].type;
    }
    t->n_dims = n_rows == 1 ? 1 : 2;
    t->n_rows = n_rows;
    t->n_cols = n_cols;
    t->mean = mean;
    t->std = std;
    t->offset = w->next_offset;
    uint64_t bytes = n_rows * sl_quantise_row_bytes(t->type, n_cols);
    w->next_offset += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void matrix_add(struct writer *w, const char *name, enum sl_dtype type, uint64_t n_rows,
                       uint64_t n_cols, float gain)
{
    tensor_add(w, name, type, n_rows, n_cols, 0, gain / root((double)n_cols));
}

static void layer_add(struct writer *w, uint32_t layer)
{
    const struct sl_make_model *m = w->m;
    uint64_t n_q = (uint64_t)m->n_heads * m->head_dim, n_kv = (uint64_t)m->n_kv_heads * m->head_dim;
    char name[64];
#define NAME(part) (snprintf(name, sizeof name, "blk.%u." part, layer), name)
    bool gemma3 = strcmp(m->arch, "gemma3") == 0;
    tensor_add(w, NAME("attn_norm.weight"), SL_F32, 1, m->d_model, 1, 0.1f);
    matrix_add(w, NAME("attn_q.weight"), m->type, n_q, m->d_model, 1.6f);
    matrix_add(w, NAME("attn_k.weight"), m->type, n_kv, m->d_model, 1.6f);
    matrix_add(w, NAME("attn_v.weight"), m->type, n_kv, m->d_model, 1);
    if (gemma3 || strcmp(m->arch, "qwen3") == 0) {
        tensor_add(w, NAME("attn_q_norm.weight"), SL_F32, 1, m->head_dim, 1.6f, 0.2f);
        tensor_add(w, NAME("attn_k_norm.weight"), SL_F32, 1, m->head_dim, 1.6f, 0.2f);
    }
    if (strcmp(m->arch, "qwen2") == 0) {
        tensor_add(w, NAME("attn_q.bias"), SL_F32, 1, n_q, 0, 0.3f);
        tensor_add(w, NAME("attn_k.bias"), SL_F32, 1, n_kv, 0, 0.3f);
        tensor_add(w, NAME("attn_v.bias"), SL_F32, 1, n_kv, 0, 0.3f);
    }
    matrix_add(w, NAME("attn_output.weight"), m->type, m->d_model, n_q, 1);
    tensor_add(w, NAME("ffn_norm.weight"), SL_F32, 1, m->d_model, 1, 0.1f);
    matrix_add(w, NAME("ffn_gate.weight"), m->type, m->d_ff, m->d_model, 1);
    matrix_add(w, NAME("ffn_up.weight"), m->type, m->d_ff, m->d_model, 1);
    matrix_add(w, NAME("ffn_down.weight"), m->type, m->d_model, m->d_ff, 1.5f);
    if (gemma3) { /* over the size of a token's row, which is EMBED_STD * sqrt(d_model) */
        tensor_add(w, NAME("post_attention_norm.weight"), SL_F32, 1, m->d_model, 1.5f, 0.2f);
        tensor_add(w, NAME("post_ffw_norm.weight"), SL_F32, 1, m->d_model, 1.5f, 0.2f);
    }
#undef NAME
}

static void tensors_add(struct writer *w, const bool *weak)
{
    const struct sl_make_model *m = w->m;
    tensor_add(w, "token_embd.weight", m->embed_type, m->n_vocab, m->d_model, 0, EMBED_STD);
    w->tensors[0].weak_rows = weak;
    for (uint32_t i = 0; i < m->n_layers; i++)
        layer_add(w, i);
    /* Logit deviation = gain of the norm * sqrt(d) * deviation of the head's rows. */
    float norm = LOGIT_STD / (EMBED_STD * root((double)m->d_model));
    tensor_add(w, "output_norm.weight", SL_F32, 1, m->d_model, norm, 0.1f * norm);
    if (m->rope_factors)
        tensor_add(w, "rope_freqs.weight", SL_F32, 1, m->head_dim / 2, 3, 0.8f);
    if (!m->tied) {
        tensor_add(w, "output.weight", m->type, m->n_vocab, m->d_model, 0, EMBED_STD);
        w->tensors[w->n - 1].weak_rows = weak;
    }
}

/* Two values per Philox block, each the sum of four 16-bit uniforms scaled to deviation 1: near enough to a
 * Gaussian, and the arithmetic is exact. */
static void row_fill(uint64_t seed, uint32_t tensor, uint32_t row, float mean, float std, float *out,
                     uint64_t n)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const float to_unit = 1.7320508f / 65536.0f;
    for (uint64_t i = 0; i < n; i += 2) {
        const uint32_t counter[4] = {(uint32_t)(i / 2), row, tensor, 0};
        uint32_t r[4];
        sl_philox4x32(counter, key, r);
        for (uint64_t j = 0; j < 2 && i + j < n; j++) {
            uint32_t a = r[2 * j], b = r[2 * j + 1];
            int32_t sum = (int32_t)((a & 0xffffu) + (a >> 16) + (b & 0xffffu) + (b >> 16)) - 2 * 65535;
            out[i + j] = mean + std * ((float)sum * to_unit);
        }
    }
}

static bool tensor_write(const struct writer *w, size_t index, FILE *f)
{
    const struct tensor *t = &w->tensors[index];
    size_t row_bytes = sl_quantise_row_bytes(t->type, t->n_cols);
    float *row = sl_xalloc(t->n_cols * sizeof *row);
    void *packed = sl_xalloc(row_bytes);
    bool ok = true;
    for (uint64_t r = 0; ok && r < t->n_rows; r++) {
        float factor = t->weak_rows != NULL && t->weak_rows[r] ? WEAK : 1;
        row_fill(w->m->seed, (uint32_t)index, (uint32_t)r, t->mean, t->std * factor, row, t->n_cols);
        sl_quantise_row(t->type, row, t->n_cols, packed);
        ok = fwrite(packed, row_bytes, 1, f) == 1;
    }
    static const uint8_t zeros[ALIGNMENT];
    size_t pad = (ALIGNMENT - t->n_rows * row_bytes % ALIGNMENT) % ALIGNMENT;
    ok = ok && fwrite(zeros, 1, pad, f) == pad;
    sl_free(row);
    sl_free(packed);
    return ok;
}

static void arch_kv(struct sl_buf *kv, uint64_t *n, const struct sl_make_model *m)
{
    struct {
        const char *key;
        uint32_t value;
    } numbers[] = {{"block_count", m->n_layers},          {"context_length", m->context_length},
                   {"embedding_length", m->d_model},      {"feed_forward_length", m->d_ff},
                   {"attention.head_count", m->n_heads},  {"attention.head_count_kv", m->n_kv_heads},
                   {"attention.key_length", m->head_dim}, {"attention.value_length", m->head_dim},
                   {"rope.dimension_count", m->head_dim}, {"vocab_size", m->n_vocab}};
    char key[96];
    sl_make_kv_str(kv, "general.architecture", m->arch);
    sl_make_kv_str(kv, "general.type", "model");
    sl_make_kv_str(kv, "general.name", m->name);
    for (size_t i = 0; i < SL_COUNTOF(numbers); i++) {
        snprintf(key, sizeof key, "%s.%s", m->arch, numbers[i].key);
        sl_make_kv_u32(kv, key, numbers[i].value);
    }
    snprintf(key, sizeof key, "%s.rope.freq_base", m->arch);
    sl_make_kv_f32(kv, key, m->rope_theta);
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", m->arch);
    sl_make_kv_f32(kv, key, 1e-5f);
    *n += 3 + SL_COUNTOF(numbers) + 2;
    if (m->sliding_window > 0) {
        snprintf(key, sizeof key, "%s.attention.sliding_window", m->arch);
        sl_make_kv_u32(kv, key, m->sliding_window);
        ++*n;
    }
    if (m->window_pattern > 0) {
        snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", m->arch);
        sl_make_kv_u32(kv, key, m->window_pattern);
        ++*n;
    }
    if (m->rope_scaling == NULL)
        return;
    snprintf(key, sizeof key, "%s.rope.scaling.type", m->arch);
    sl_make_kv_str(kv, key, m->rope_scaling);
    snprintf(key, sizeof key, "%s.rope.scaling.factor", m->arch);
    sl_make_kv_f32(kv, key, m->rope_scaling_factor);
    *n += 2;
}

static enum sl_err shape_check(const struct sl_make_model *m, struct sl_why *why)
{
    static const char *const archs[] = {"llama", "qwen2", "qwen3", "gemma3"};
    bool known = false;
    for (size_t i = 0; i < SL_COUNTOF(archs); i++)
        known = known || strcmp(m->arch, archs[i]) == 0;
    if (!known)
        return sl_why_set(why, SL_EINVAL,
                          "architecture %s is not known here; take llama, qwen2, qwen3 or gemma3", m->arch);
    if (!sl_make_vocab_ok(m->n_vocab, m->tools))
        return sl_why_set(why, SL_EINVAL,
                          "a vocabulary of %u tokens cannot be made; take 259, with tools 260, to 400000",
                          m->n_vocab);
    if (m->n_layers == 0 || m->n_layers > 400 || m->n_heads == 0 || m->n_kv_heads == 0 ||
        m->n_heads % m->n_kv_heads != 0 || m->head_dim == 0 || m->head_dim % 2 != 0)
        return sl_why_set(why, SL_EINVAL,
                          "layers must be 1 to 400, head_dim even, heads a multiple of kv-heads");
    if (m->d_model == 0 || m->d_ff == 0 || m->d_model % 32 != 0 || m->d_ff % 32 != 0 ||
        m->n_heads * m->head_dim % 32 != 0)
        return sl_why_set(why, SL_EINVAL,
                          "d-model, ff and heads * head-dim must be multiples of 32, a quantised block");
    return SL_OK;
}

static enum sl_err types_check(const struct writer *w, struct sl_why *why)
{
    for (size_t i = 0; i < w->n; i++) {
        const struct tensor *t = &w->tensors[i];
        if (sl_quantise_row_bytes(t->type, t->n_cols) == 0)
            return sl_why_set(why, SL_EINVAL, "%s has rows of %llu, no whole number of its type's blocks",
                              t->name, (unsigned long long)t->n_cols);
    }
    return SL_OK;
}

enum sl_err sl_make_model_write(const struct sl_make_model *m, const char *path, struct sl_why *why)
{
    enum sl_err e = shape_check(m, why);
    if (e != SL_OK)
        return e;
    struct writer *w = sl_xcalloc(1, sizeof *w);
    bool *weak = sl_xcalloc(m->n_vocab, sizeof *weak);
    char *tmp = sl_xasprintf("%s.%ld.tmp", path, (long)getpid());
    struct sl_buf kv, head;
    sl_buf_init(&kv, 256u << 20);
    sl_buf_init(&head, 256u << 20);
    w->m = m;

    uint64_t n_kv = 0;
    arch_kv(&kv, &n_kv, m);
    n_kv += sl_make_vocab(&kv, m->n_vocab, m->tools, weak);
    sl_make_kv_u32(&kv, "general.alignment", ALIGNMENT);
    n_kv++;
    tensors_add(w, weak);
    e = types_check(w, why);
    if (e != SL_OK)
        goto done;

    sl_buf_append(&head, "GGUF", 4);
    sl_make_u32(&head, 3);
    sl_make_u64(&head, w->n);
    sl_make_u64(&head, n_kv);
    sl_buf_append(&head, kv.data, kv.len);
    for (size_t i = 0; i < w->n; i++) {
        const struct tensor *t = &w->tensors[i];
        sl_make_str(&head, t->name, strlen(t->name));
        sl_make_u32(&head, t->n_dims);
        sl_make_u64(&head, t->n_cols);
        if (t->n_dims == 2)
            sl_make_u64(&head, t->n_rows);
        sl_make_u32(&head, (uint32_t)t->type);
        sl_make_u64(&head, t->offset);
    }
    while (head.len % ALIGNMENT != 0)
        sl_buf_putc(&head, 0);
    SL_ASSERT(!sl_buf_failed(&head));

    FILE *f = fopen(tmp, "wb");
    bool ok = f != NULL && fwrite(head.data, head.len, 1, f) == 1;
    for (size_t i = 0; ok && i < w->n; i++)
        ok = tensor_write(w, i, f);
    if (f != NULL && fclose(f) != 0)
        ok = false;
    if (ok && rename(tmp, path) != 0)
        ok = false;
    if (!ok) {
        unlink(tmp);
        e = sl_why_set(why, SL_EIO, "cannot write %s; check that its folder exists and has room", path);
    }

done:
    sl_buf_fini(&kv);
    sl_buf_fini(&head);
    sl_free(tmp);
    sl_free(weak);
    sl_free(w);
    return e;
}
