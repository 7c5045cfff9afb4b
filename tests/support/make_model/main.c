/* tests/support/make_model/main.c - sluice-make-model: the command line of make_model.h. */
#include "tests/support/make_model/make_model.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: sluice-make-model --out FILE [options]\n"
    "Writes a GGUF model with random weights; the same options give the same bytes everywhere.\n"
    "\n"
    "  --preset tiny|smollm2|1b  where the other options start (tiny); smollm2 has the shape of SmolLM2-135M "
    "(98 MB), 1b the layers of Llama-3.2-1B (650 MB)\n"
    "  --seed N                another set of weights (1)\n"
    "  --type T                of the matrices: f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 q4_k q5_k q6_k (q4_1)\n"
    "  --embed-type T          of the embedding table (q8_0)\n"
    "  --override SUFFIX=T     of tensors whose name ends with SUFFIX, as attn_v.weight=f16; may be "
    "repeated\n"
    "  --arch llama|qwen2|qwen3|gemma3\n"
    "                          all but llama rotate halves; qwen2 has biases on q, k, v, qwen3 norms on the "
    "heads of q and k;\n"
    "                          mistral is llama with --window (llama)\n"
    "  --window N              a row attends to the last N positions (no window)\n"
    "  --window-pattern N      gemma3: every Nth layer attends to all positions (6)\n"
    "  --untied                with an output matrix of its own\n"
    "  --tools                 with a chat template that names tools and Hermes' way to call them\n"
    "  --rope-factors          with rope_freqs.weight\n"
    "  --rope-theta X          base of the rotary frequencies\n"
    "  --rope-linear X         positions are divided by X\n"
    "  --name TEXT             general.name\n"
    "  --layers N --d-model N --heads N --kv-heads N --head-dim N --ff N --vocab N --context N\n";

static int usage_error(const char *what, const char *value)
{
    fprintf(stderr, "sluice-make-model: %s: %s; see --help\n", what, value);
    return 64;
}

static bool parse_u64(const char *s, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(s, &end, 10);
    if (*s < '0' || *s > '9' || *end != 0 || errno != 0)
        return false;
    *out = v;
    return true;
}

static bool parse_override(char *arg, struct sl_make_model *m)
{
    char *eq = strchr(arg, '=');
    if (eq == NULL || m->n_overrides == SL_MAKE_MAX_OVERRIDES)
        return false;
    struct sl_make_override *o = &m->overrides[m->n_overrides++];
    *eq = 0;
    o->suffix = arg;
    return sl_quantise_type_parse(eq + 1, &o->type);
}

enum {
    OPT_OUT = 256,
    OPT_PRESET,
    OPT_SEED,
    OPT_TYPE,
    OPT_EMBED_TYPE,
    OPT_OVERRIDE,
    OPT_ARCH,
    OPT_UNTIED,
    OPT_TOOLS,
    OPT_FACTORS,
    OPT_THETA,
    OPT_LINEAR,
    OPT_NAME,
    OPT_HELP,
    OPT_LAYERS,
    OPT_D_MODEL,
    OPT_HEADS,
    OPT_KV_HEADS,
    OPT_HEAD_DIM,
    OPT_FF,
    OPT_VOCAB,
    OPT_CONTEXT,
    OPT_WINDOW,
    OPT_PATTERN
};

static const struct option options[] = {{"out", 1, NULL, OPT_OUT},
                                        {"preset", 1, NULL, OPT_PRESET},
                                        {"seed", 1, NULL, OPT_SEED},
                                        {"type", 1, NULL, OPT_TYPE},
                                        {"embed-type", 1, NULL, OPT_EMBED_TYPE},
                                        {"override", 1, NULL, OPT_OVERRIDE},
                                        {"arch", 1, NULL, OPT_ARCH},
                                        {"untied", 0, NULL, OPT_UNTIED},
                                        {"tools", 0, NULL, OPT_TOOLS},
                                        {"rope-factors", 0, NULL, OPT_FACTORS},
                                        {"rope-theta", 1, NULL, OPT_THETA},
                                        {"rope-linear", 1, NULL, OPT_LINEAR},
                                        {"window", 1, NULL, OPT_WINDOW},
                                        {"window-pattern", 1, NULL, OPT_PATTERN},
                                        {"name", 1, NULL, OPT_NAME},
                                        {"help", 0, NULL, OPT_HELP},
                                        {"layers", 1, NULL, OPT_LAYERS},
                                        {"d-model", 1, NULL, OPT_D_MODEL},
                                        {"heads", 1, NULL, OPT_HEADS},
                                        {"kv-heads", 1, NULL, OPT_KV_HEADS},
                                        {"head-dim", 1, NULL, OPT_HEAD_DIM},
                                        {"ff", 1, NULL, OPT_FF},
                                        {"vocab", 1, NULL, OPT_VOCAB},
                                        {"context", 1, NULL, OPT_CONTEXT},
                                        {NULL, 0, NULL, 0}};

/* The preset is where the others start, wherever it stands on the line. */
static bool preset_find(int argc, char **argv, struct sl_make_model *m)
{
    const char *preset = "tiny";
    int opt;
    while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (opt == OPT_PRESET)
            preset = optarg;
    }
    optind = 0; /* restarts getopt */
    opterr = 0; /* what is wrong was said by the first walk */
    return sl_make_model_preset(preset, m);
}

int main(int argc, char **argv)
{
    struct sl_make_model m;
    const char *out = NULL;
    if (!preset_find(argc, argv, &m))
        return usage_error("unknown preset", "take tiny, smollm2 or 1b");
    int opt;
    while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
        uint32_t *const numbers[] = {&m.n_layers,       &m.d_model,       &m.n_heads, &m.n_kv_heads,
                                     &m.head_dim,       &m.d_ff,          &m.n_vocab, &m.context_length,
                                     &m.sliding_window, &m.window_pattern};
        uint64_t v;
        char *end;
        switch (opt) {
        case OPT_OUT:
            out = optarg;
            break;
        case OPT_PRESET:
            break;
        case OPT_SEED:
            if (!parse_u64(optarg, &m.seed))
                return usage_error("--seed wants a number", optarg);
            break;
        case OPT_TYPE:
            if (!sl_quantise_type_parse(optarg, &m.type))
                return usage_error("unknown type", optarg);
            break;
        case OPT_EMBED_TYPE:
            if (!sl_quantise_type_parse(optarg, &m.embed_type))
                return usage_error("unknown type", optarg);
            break;
        case OPT_OVERRIDE:
            if (!parse_override(optarg, &m))
                return usage_error("--override wants SUFFIX=TYPE, 16 at most", optarg);
            break;
        case OPT_ARCH:
            m.arch = optarg;
            break;
        case OPT_UNTIED:
            m.tied = false;
            break;
        case OPT_TOOLS:
            m.tools = true;
            break;
        case OPT_FACTORS:
            m.rope_factors = true;
            break;
        case OPT_THETA:
            m.rope_theta = strtof(optarg, &end);
            if (end == optarg || *end != 0 || !(m.rope_theta > 1))
                return usage_error("--rope-theta wants a number over 1", optarg);
            break;
        case OPT_LINEAR:
            m.rope_scaling = "linear";
            m.rope_scaling_factor = strtof(optarg, &end);
            if (end == optarg || *end != 0 || !(m.rope_scaling_factor > 0))
                return usage_error("--rope-linear wants a positive number", optarg);
            break;
        case OPT_NAME:
            m.name = optarg;
            break;
        case OPT_HELP:
            fputs(help, stdout);
            return 0;
        case '?':
            return 64;
        default:
            if (!parse_u64(optarg, &v) || v > 1u << 30)
                return usage_error("a size must be a number", optarg);
            *numbers[opt - OPT_LAYERS] = (uint32_t)v;
        }
    }
    if (out == NULL || optind != argc)
        return usage_error("wants --out FILE and options only",
                           optind < argc ? argv[optind] : "no file given");
    struct sl_why why = {{0}};
    if (sl_make_model_write(&m, out, &why) != SL_OK) {
        fprintf(stderr, "sluice-make-model: %s\n", why.text);
        return 1;
    }
    return 0;
}
