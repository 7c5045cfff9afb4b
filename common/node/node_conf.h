/* common/node/node_conf.h - what a node is told: one table of options for both daemons. */
#ifndef SLUICE_COMMON_NODE_NODE_CONF_H
#define SLUICE_COMMON_NODE_NODE_CONF_H

#include "common/base/conf.h"
#include "common/base/secret.h"
#include "kernels/tensor.h"
#include "proto/sluice.pb-c.h"

struct sl_node_conf {
    char *name;
    struct sl_conf_list routers;
    char *listen, *advertise;
    char *model, *backend, *cache_dir;
    uint32_t threads; /* 0 in the file = one per CPU of cpus, else one per rank */
    uint32_t tensor_parallel, device;
    bool cuda_graphs;
    char *cpus;
    uint64_t kv_memory_bytes;
    int kv_dtype_word; /* index into the words of the option; kv_dtype is what it means */
    uint32_t page_tokens, max_batch_tokens, max_sequences, max_waiting, ungranted_pages;
    char *chunk_tokens_text;
    double tpot_target_ms, chunk_stretch;
    char *speculation_text;
    struct sl_conf_list roles;
    bool exact;
    char *transport, *transfer_listen, *ucx_tls, *ucx_devices;
    char *cluster_secret_file, *control_tls_ca_file, *control_tls_cert_file, *control_tls_key_file;
    bool trust_network, digests, link_test;
    uint32_t max_constrained, max_transfers, peer_heartbeat_ms, peer_dead_ms, peer_wait_ms, stall_ms;
    uint32_t heartbeat_ms, router_dead_ms, drain_ms;
    int log_level;
    char *pace_name;
    uint32_t fault_flip_bit, fault_wedge_step, fault_hold_after;

    /* derived from the above by sl_node_conf_load() */
    enum sl_dtype kv_dtype;
    int32_t chunk_tokens, speculation;
    const struct sl_cost_model *pace; /* NULL = none */
    Sluice__Role prefers;
    bool may_prefill, may_decode;
    bool has_secret;
    struct sl_secret secret; /* of cluster_secret_file */
    int *cpu_list;           /* n_cpus of them */
    char *cache_path;        /* sl_cache_dir() of cache_dir; NULL = no cache */
    size_t n_cpus;
};

extern const struct sl_conf_opt sl_node_opts[];

/* Defaults, file, command line, then the checks that concern more than one value. name defaults to the duty
 * that is preferred. On error *conf is safe for sl_node_conf_fini(). */
SL_MUST_CHECK enum sl_err sl_node_conf_load(int argc, char **argv, Sluice__Role prefers,
                                            struct sl_node_conf *conf, struct sl_why *why);
/* What the machine must have: asked at start only, as a running node has its memory already. SL_ECONFIG. */
SL_MUST_CHECK enum sl_err sl_node_conf_fits(const struct sl_node_conf *conf, struct sl_why *why);
void sl_node_conf_fini(struct sl_node_conf *conf);

/* Whether a key can change while the node runs. */
bool sl_node_conf_is_live(const char *key);
/* Changes such a key. SL_ECONFIG, SL_EUNSUPPORTED: *conf is as it was. */
SL_MUST_CHECK enum sl_err sl_node_conf_set(struct sl_node_conf *conf, const char *key, const char *text,
                                           struct sl_why *why);

#endif
