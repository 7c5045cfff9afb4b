/* common/node/node_conf.c - the options of a node and the checks between them. */
#include "common/node/node_conf.h"

#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cache_dir.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/model/share.h"
#include "common/base/memory_info.h"
#include "common/base/thread.h"
#include "common/sched/cost_presets.h"
#include "common/sched/speculate.h"
#include "common/transfer/link.h"
#include "common/wire/wire_msg.h"
#include "common/wire/wire_sock.h"

static const char *const dtype_words[] = {"f16", "bf16", "f32", "q8", "fp8", NULL};
static const enum sl_dtype dtype_values[] = {SL_F16, SL_BF16, SL_F32, SL_Q8, SL_FP8};
static const char *const level_words[] = {"error", "warn", "info", "debug", "trace", NULL};

#define AT(member) offsetof(struct sl_node_conf, member)

const struct sl_conf_opt sl_node_opts[] = {
    {"name", SL_CONF_STRING, AT(name), NULL,
     "name of this node, unique in the cluster; empty = its preferred duty", 0, 0, NULL},
    {"routers", SL_CONF_LIST, AT(routers), "tcp://127.0.0.1:7100",
     "registration addresses of the routers to serve", 0, 0, NULL},
    {"listen", SL_CONF_STRING, AT(listen), "tcp://127.0.0.1:0",
     "address for the routers' commands; port 0 = any free one", 0, 0, NULL},
    {"advertise", SL_CONF_STRING, AT(advertise), NULL,
     "host by which others reach this node, needed when it listens on all addresses", 0, 0, NULL},
    {"model", SL_CONF_STRING, AT(model), NULL, "GGUF file or Hugging Face folder", 0, 0, NULL},
    {"backend", SL_CONF_STRING, AT(backend), "auto",
     "auto, or one of avx512, avx2, portable, reference, cuda, cuda-plain", 0, 0, NULL},
    {"cache_dir", SL_CONF_STRING, AT(cache_dir), NULL,
     "folder for packed weights, which make the next start fast; none = no cache, empty = systemd's "
     "CacheDirectory, else $XDG_CACHE_HOME/sluice/node, else ~/.cache/sluice/node",
     0, 0, NULL},
    {"threads", SL_CONF_U32, AT(threads), "0",
     "compute threads; 0 = one per CPU of cpus, or one for each rank of tensor_parallel", 0, 1024, NULL},
    {"tensor_parallel", SL_CONF_U32, AT(tensor_parallel), "1",
     "ranks that each compute a part of every layer, with an equal part of the threads; the same on all "
     "nodes, and a number that divides the model's KV heads",
     1, SL_MAX_RANKS, NULL},
    {"device", SL_CONF_U32, AT(device), "0",
     "first CUDA device of this node, as CUDA counts them, for backend cuda and transfer_transport nccl; "
     "rank r of tensor_parallel has device + r",
     0, 1023, NULL},
    {"cuda_graphs", SL_CONF_BOOL, AT(cuda_graphs), "true",
     "keep passes of backend cuda as graphs, which start faster; changes no token", 0, 0, NULL},
    {"cpus", SL_CONF_STRING, AT(cpus), NULL, "CPUs of this node, \"0\" or \"0-3,8\"; empty = all, not pinned",
     0, 0, NULL},
    {"kv_memory", SL_CONF_BYTES, AT(kv_memory_bytes), "1G", "memory for KV pages, reserved at start", 1 << 16,
     1e15, NULL},
    {"kv_dtype", SL_CONF_ENUM, AT(kv_dtype_word), "bf16",
     "type of KV values; q8 (int8) and fp8 (e4m3) take half of bf16's memory and reads, and are a "
     "little less exact, fp8 more so",
     0, 0, dtype_words},
    {"page_tokens", SL_CONF_U32, AT(page_tokens), "32", "tokens per KV page; the same on all nodes", 1, 4096,
     NULL},
    {"max_batch_tokens", SL_CONF_U32, AT(max_batch_tokens), "8192",
     "most rows of one step: bounds the memory for activations", 1, 65536, NULL},
    {"max_sequences", SL_CONF_U32, AT(max_sequences), "256", "sequences with a place at once", 1, 65536,
     NULL},
    {"max_waiting", SL_CONF_U32, AT(max_waiting), "1024", "sequences that wait for a place; more are refused",
     1, 1000000, NULL},
    {"max_constrained", SL_CONF_U32, AT(max_constrained), "64",
     "requests at once whose answer has to fit a schema or a tool; each takes up to 12 MiB beside the KV "
     "memory",
     1, 65536, NULL},
    {"ungranted_pages", SL_CONF_U32, AT(ungranted_pages), "256",
     "pages that prefills may fill before their decode node has room", 0, 0, NULL},
    {"chunk_tokens", SL_CONF_STRING, AT(chunk_tokens_text), "auto",
     "prompt chunk: auto (by predicted time), 0 (whole prompts), or a number of tokens", 0, 0, NULL},
    {"tpot_target_ms", SL_CONF_F64, AT(tpot_target_ms), "0",
     "time target of a step that decodes; 0 = chunk_stretch times the step without a chunk", 0, 1e6, NULL},
    {"chunk_stretch", SL_CONF_F64, AT(chunk_stretch), "2.7",
     "how far a prompt chunk may stretch a decoding step", 1, 1000, NULL},
    {"speculation", SL_CONF_STRING, AT(speculation_text), "auto",
     "tokens guessed from a request's own text and verified beside its next one: auto (as many as pay), off, "
     "or a "
     "number up to 31; changes no token",
     0, 0, NULL},
    {"roles", SL_CONF_LIST, AT(roles), "prefill,decode", "duties this node may do", 0, 0, NULL},
    {"exact", SL_CONF_BOOL, AT(exact), "true", "refuse peers that do not compute the same bits", 0, 0, NULL},
    {"transfer_transport", SL_CONF_STRING, AT(transport), "ucx",
     "how pages travel, the same at all nodes: ucx, or nccl (from GPU to GPU by NCCL, the rest by UCX)", 0, 0,
     NULL},
    {"transfer_listen", SL_CONF_STRING, AT(transfer_listen), "127.0.0.1:0",
     "host:port for page transfers, on the interface that the nodes share; port 0 = any", 0, 0, NULL},
    {"trust_network", SL_CONF_BOOL, AT(trust_network), "false", "allow a public address for page transfers",
     0, 0, NULL},
    {"cluster_secret_file", SL_CONF_STRING, AT(cluster_secret_file), NULL,
     "secret that all nodes and routers of the cluster prove to each other, in a file that only the daemon "
     "can "
     "read; without it the credential sluice.cluster-secret that systemd passes, else none is asked for",
     0, 0, NULL},
    {"control_tls_ca_file", SL_CONF_STRING, AT(control_tls_ca_file), NULL,
     "authority (PEM) whose certificates nodes and routers show each other on tls+tcp:// addresses; with it "
     "no "
     "address of theirs is without TLS",
     0, 0, NULL},
    {"control_tls_cert_file", SL_CONF_STRING, AT(control_tls_cert_file), NULL,
     "certificate (PEM) of this program for it, with the name in its own addresses as DNS name", 0, 0, NULL},
    {"control_tls_key_file", SL_CONF_STRING, AT(control_tls_key_file), NULL,
     "the certificate's private key (PEM)", 0, 0, NULL},
    {"ucx_tls", SL_CONF_STRING, AT(ucx_tls), "tcp", "UCX transports", 0, 0, NULL},
    {"ucx_devices", SL_CONF_STRING, AT(ucx_devices), NULL,
     "UCX network devices; empty = the one that has the address of transfer_listen", 0, 0, NULL},
    {"digests", SL_CONF_BOOL, AT(digests), "true", "check every page that arrives", 0, 0, NULL},
    {"link_test", SL_CONF_BOOL, AT(link_test), "true", "measure each link when two nodes first meet", 0, 0,
     NULL},
    {"max_transfers", SL_CONF_U32, AT(max_transfers), "256", "transfers open at once", 1, 65536, NULL},
    {"peer_heartbeat_ms", SL_CONF_U32, AT(peer_heartbeat_ms), "1000", "heartbeat between nodes", 10, 60000,
     NULL},
    {"peer_dead_ms", SL_CONF_U32, AT(peer_dead_ms), "3000", "silence after which a peer counts as dead", 30,
     600000, NULL},
    {"peer_wait_ms", SL_CONF_U32, AT(peer_wait_ms), "10000",
     "longest wait for the other side of a transfer to announce itself; one that is not connected is waited "
     "for no longer than peer_dead_ms",
     100, 3600000, NULL},
    {"stall_ms", SL_CONF_U32, AT(stall_ms), "30000",
     "without a layer computed for this long, with a step in flight, this node's transfers are given up: the "
     "nodes at their other ends go on without it; 0 = never",
     0, 3600000, NULL},
    {"heartbeat_ms", SL_CONF_U32, AT(heartbeat_ms), "0", "heartbeat to the routers; 0 = as the router says",
     0, 60000, NULL},
    {"router_dead_ms", SL_CONF_U32, AT(router_dead_ms), "0",
     "silence after which a router's requests are canceled; 0 = as the router says", 0, 600000, NULL},
    {"drain_ms", SL_CONF_U32, AT(drain_ms), "30000", "time that running requests get at SIGTERM", 0, 86400000,
     NULL},
    {"log_level", SL_CONF_ENUM, AT(log_level), "info", "what is logged", 0, 0, level_words},
    {"pace", SL_CONF_STRING, AT(pace_name), NULL,
     "rehearsal of other machines: steps take as long as on this one (sluice-bench simulate --help lists "
     "them), "
     "whatever model is served; empty = as fast as they go",
     0, 0, NULL},
    {"fault_flip_bit", SL_CONF_U32, AT(fault_flip_bit), "0",
     "for tests only: flip one bit in the page sent as the N-th; 0 = never", 0, 0, NULL},
    {"fault_wedge_step", SL_CONF_U32, AT(fault_wedge_step), "0",
     "for tests only: stop computing in the N-th step, for ever; 0 = never", 0, 0, NULL},
    {"fault_hold_after", SL_CONF_U32, AT(fault_hold_after), "0",
     "for tests only: start no step after the N-th prompt chunk or token, until SIGUSR1 or SIGTERM; 0 = "
     "never",
     0, 0, NULL},
    {NULL, SL_CONF_STRING, 0, NULL, NULL, 0, 0, NULL},
};

static enum sl_err read_chunk_tokens(struct sl_node_conf *c, struct sl_why *why)
{
    if (strcmp(c->chunk_tokens_text, "auto") == 0) {
        c->chunk_tokens = -1;
        return SL_OK;
    }
    char *end;
    long v = strtol(c->chunk_tokens_text, &end, 10);
    if (!isdigit((unsigned char)c->chunk_tokens_text[0]) || *end || v > 1 << 20)
        return sl_why_set(why, SL_ECONFIG,
                          "chunk_tokens is \"%.40s\"; expected auto, 0, or a number up to %d",
                          c->chunk_tokens_text, 1 << 20);
    c->chunk_tokens = (int32_t)v;
    return SL_OK;
}

static enum sl_err read_speculation(struct sl_node_conf *c, struct sl_why *why)
{
    const char *s = c->speculation_text;
    c->speculation = strcmp(s, "auto") == 0 ? SL_SPEC_AUTO : SL_SPEC_OFF;
    if (strcmp(s, "auto") == 0 || strcmp(s, "off") == 0)
        return SL_OK;
    char *end;
    long v = strtol(s, &end, 10);
    if (!isdigit((unsigned char)s[0]) || *end || v > (long)SL_SPEC_MAX)
        return sl_why_set(why, SL_ECONFIG,
                          "speculation is \"%.40s\"; expected auto, off, or a number up to %u", s,
                          SL_SPEC_MAX);
    c->speculation = (int32_t)v;
    return SL_OK;
}

static enum sl_err read_pace(struct sl_node_conf *c, struct sl_why *why)
{
    if (!c->pace_name || !*c->pace_name)
        return SL_OK;
    const struct sl_cost_preset *p = sl_cost_preset_find(c->pace_name);
    if (!p)
        return sl_why_set(
            why, SL_ECONFIG,
            "pace is \"%.40s\"; expected a machine with a model that `sluice-bench simulate --help` "
            "lists, as %s",
            c->pace_name, sl_cost_preset_at(0)->name);
    c->pace = &p->cost;
    return SL_OK;
}

static enum sl_err read_roles(struct sl_node_conf *c, struct sl_why *why)
{
    c->may_prefill = c->may_decode = false;
    for (size_t i = 0; i < c->roles.n; i++) {
        if (strcmp(c->roles.items[i], "prefill") == 0)
            c->may_prefill = true;
        else if (strcmp(c->roles.items[i], "decode") == 0)
            c->may_decode = true;
        else
            return sl_why_set(why, SL_ECONFIG, "roles has \"%.40s\"; expected prefill, decode, or both",
                              c->roles.items[i]);
    }
    if (!c->may_prefill && !c->may_decode)
        return sl_why_set(why, SL_ECONFIG, "roles is empty; expected prefill, decode, or both");
    return SL_OK;
}

static enum sl_err read_secret(struct sl_node_conf *c, struct sl_why *why)
{
    if (!c->cluster_secret_file || !*c->cluster_secret_file) {
        sl_free(c->cluster_secret_file);
        c->cluster_secret_file = sl_credential(SL_CREDENTIAL_SECRET);
    }
    c->has_secret = c->cluster_secret_file != NULL;
    return c->has_secret ? sl_secret_load(c->cluster_secret_file, &c->secret, why) : SL_OK;
}

static bool name_is_valid(const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || n >= SL_WIRE_MAX_NAME)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!isalnum((unsigned char)name[i]) && !strchr("-_.", name[i]))
            return false;
    }
    return true;
}

static enum sl_err check_addresses(const struct sl_node_conf *c, struct sl_why *why)
{
    struct sl_link_address transfer;
    struct sl_why bad = {{0}};
    enum sl_err err = sl_wire_url_check("listen", c->listen, why);
    for (size_t i = 0; i < c->routers.n && !err; i++)
        err = sl_wire_url_check("routers", c->routers.items[i], why);
    if (!err && sl_link_address_split(c->transfer_listen, &transfer, &bad) != SL_OK)
        err =
            sl_why_set(why, SL_ECONFIG, "transfer_listen is \"%.200s\"; expected ADDRESS:PORT, as 10.0.0.2:0",
                       c->transfer_listen);
    return err;
}

enum sl_err sl_node_conf_load(int argc, char **argv, Sluice__Role prefers, struct sl_node_conf *c,
                              struct sl_why *why)
{
    memset(c, 0, sizeof *c);
    c->prefers = prefers;
    enum sl_err err = sl_conf_load(sl_node_opts, sl_conf_file_arg(argc, argv), argc, argv, c, why);
    if (err != SL_OK)
        return err;
    if (!c->name || !*c->name) {
        sl_free(c->name);
        c->name = sl_xstrdup(prefers == SLUICE__ROLE__ROLE_PREFILL ? "prefill" : "decode");
    }
    if (!name_is_valid(c->name))
        return sl_why_set(why, SL_ECONFIG,
                          "name is \"%.80s\"; expected 1 to %u letters, digits, dots, dashes or underscores",
                          c->name, SL_WIRE_MAX_NAME - 1);
    if (!c->model || !*c->model)
        return sl_why_set(why, SL_ECONFIG,
                          "no model is given; set model in the config file, or --model, to a GGUF file or a "
                          "Hugging Face folder");
    if (access(c->model, R_OK) != 0)
        return sl_why_set(why, SL_ECONFIG, "model is %.200s and cannot be read: %s", c->model,
                          strerror(errno));
    if (c->routers.n == 0)
        return sl_why_set(why, SL_ECONFIG, "routers is empty; name at least one, as tcp://HOST:PORT");
    if ((err = check_addresses(c, why)) != SL_OK)
        return err;
    c->kv_dtype = dtype_values[c->kv_dtype_word];
    c->cache_path = sl_cache_dir(c->cache_dir);
    if ((err = read_chunk_tokens(c, why)) != SL_OK || (err = read_speculation(c, why)) != SL_OK ||
        (err = read_pace(c, why)) != SL_OK || (err = read_roles(c, why)) != SL_OK ||
        (err = read_secret(c, why)) != SL_OK)
        return err;
    if (c->cpus && sl_cpu_list_parse(c->cpus, &c->cpu_list, &c->n_cpus) != SL_OK)
        return sl_why_set(why, SL_ECONFIG, "cpus is \"%.80s\"; expected a list like 0,2-3", c->cpus);
    if (c->threads == 0)
        c->threads = c->n_cpus ? (uint32_t)c->n_cpus : c->tensor_parallel;
    if (c->threads % c->tensor_parallel != 0)
        return sl_why_set(
            why, SL_ECONFIG,
            "threads is %u and tensor_parallel is %u; expected a multiple, as many threads for each "
            "rank",
            c->threads, c->tensor_parallel);
    if (c->n_cpus && c->threads > c->n_cpus)
        return sl_why_set(why, SL_ECONFIG,
                          "threads is %u and cpus \"%.80s\" has %zu; give each thread its CPU", c->threads,
                          c->cpus, c->n_cpus);
    if (c->peer_dead_ms < 2 * c->peer_heartbeat_ms)
        return sl_why_set(why, SL_ECONFIG,
                          "peer_dead_ms is %u; expected at least twice peer_heartbeat_ms, %u",
                          c->peer_dead_ms, 2 * c->peer_heartbeat_ms);
    return SL_OK;
}

enum sl_err sl_node_conf_fits(const struct sl_node_conf *c, struct sl_why *why)
{
    uint64_t available = sl_memory_available();
    if (available && c->kv_memory_bytes > available)
        return sl_why_set(
            why, SL_ECONFIG, "kv_memory is %llu MiB and this machine has %llu MiB to give; set less",
            (unsigned long long)(c->kv_memory_bytes >> 20), (unsigned long long)(available >> 20));
    return SL_OK;
}

void sl_node_conf_fini(struct sl_node_conf *c)
{
    sl_conf_fini(sl_node_opts, c);
    explicit_bzero(&c->secret, sizeof c->secret);
    sl_free(c->cpu_list);
    sl_free(c->cache_path);
    c->cpu_list = NULL;
    c->cache_path = NULL;
}

static const char *const live_keys[] = {"chunk_tokens", "tpot_target_ms", "chunk_stretch", "speculation",
                                        "roles",        "log_level",      "drain_ms"};

bool sl_node_conf_is_live(const char *key)
{
    for (size_t i = 0; i < SL_COUNTOF(live_keys); i++)
        if (strcmp(live_keys[i], key) == 0)
            return true;
    return false;
}

static enum sl_err derive_live(struct sl_node_conf *c, struct sl_why *why)
{
    enum sl_err err = read_chunk_tokens(c, why);
    if (!err)
        err = read_speculation(c, why);
    return err ? err : read_roles(c, why);
}

/* What the option is set to, whole; the caller frees it. */
static char *option_text(const struct sl_node_conf *c, const char *key)
{
    const struct sl_conf_opt *o = sl_node_opts;
    char *text = NULL;
    size_t size = 128;
    while (strcmp(o->key, key) != 0)
        o++;
    do {
        sl_free(text);
        text = sl_xalloc(size *= 2);
        sl_conf_print(o, c, text, size);
    } while (strlen(text) + 1 == size); /* it may have been cut */
    return text;
}

enum sl_err sl_node_conf_set(struct sl_node_conf *c, const char *key, const char *text, struct sl_why *why)
{
    struct sl_why ignored = {{0}};
    if (!sl_node_conf_is_live(key))
        return sl_why_set(why, SL_EUNSUPPORTED,
                          "%.40s cannot change while the node runs; these can: chunk_tokens, tpot_target_ms, "
                          "chunk_stretch, speculation, roles, log_level, drain_ms",
                          key);
    char *old = option_text(c, key);
    enum sl_err err = sl_conf_set(sl_node_opts, key, text, c, why);
    if (!err)
        err = derive_live(c, why);
    if (err &&
        (sl_conf_set(sl_node_opts, key, old, c, &ignored) != SL_OK || derive_live(c, &ignored) != SL_OK))
        SL_ASSERT(false); /* it was good before */
    sl_free(old);
    return err;
}
