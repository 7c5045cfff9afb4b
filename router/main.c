/* router/main.c - sluice-router: options, start and stop order.
 *
 * thread   owns                                            waits on                    sends to
 * main     start, signals, drain, stop, free memory        signalfd                    the flow (drain), http (close)
 * http     client connections, streams, the library        epoll: sockets, ready list  workers (requests), the flow
 *                                                                                      (cancel)
 * api-N    one request at a time: JSON, template, tokens   its bounded queue           the flow (submit), http (answers)
 * flow     requests, journal, node table, placement        epoll: nng queues, timers   http (events), nodes (commands)
 * nng's    sockets of the control plane                    -                           queues only
 *
 * Start: options -> model file (vocabulary, template) -> flow -> api -> http -> ready (to accept connections;
 * /health tells whether nodes are there). Stop, in reverse, bounded: SIGTERM or SIGINT drains - new requests
 * get 503, streams go on for drain_timeout_s - then what is left ends with an error frame, the last bytes go
 * out, everything closes. A second signal skips the waiting.
 *
 * Exit: 0 after a stop that was asked for, 78 for anything a person configured wrongly (one sentence on
 * stderr), 1 otherwise. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/mem_trim.h"
#include "common/base/notify.h"
#include "common/base/program.h"
#include "common/base/rand.h"
#include "common/base/secret.h"
#include "common/base/start_signals.h"
#include "common/text/vocab.h"
#include "common/wire/wire_sock.h"
#include "router/admin/admin_out.h"
#include "router/api/api.h"
#include "router/api/key_weights.h"
#include "router/fleet/node_table.h"
#include "router/http/http_tls.h"

#define LAST_BYTES_MS   2000u /* for error frames and answers after the flow has ended */
#define DRAIN_POLL_MS   50
#define SPARE_FILES     4096u /* three for each of up to 1024 nodes, those of 64 http daemons, the model, logs */
#define WATCHDOG_LOOKS  4     /* per watchdog period: one answer of the flow thread may come late */
#define STATUS_MS       10000u /* between two lines for `systemctl status` where there is no watchdog */
#define CREDENTIAL_KEYS "sluice.api-keys" /* systemd.exec(5), LoadCredential */

struct options {
    char *listen, *model, *register_url, *event_url, *admin_url, *api_key_file, *cluster_secret_file,
        *control_tls_ca_file, *control_tls_cert_file, *control_tls_key_file, *tls_cert_file, *tls_key_file,
        *model_digest;
    struct sl_conf_list served_model_name, cors_origins, slo_classes, key_weights;
    int mode, slo_miss, log_level;
    bool exact, open_admin, cache_per_key;
    uint32_t max_requests, max_connections, max_waiting, api_threads, receive_timeout_s, idle_timeout_s,
        drain_timeout_s;
    uint32_t hold_ms, max_wait_ms, request_timeout_s, heartbeat_ms, node_dead_ms, node_stall_ms,
        command_timeout_ms, context_length;
    uint64_t max_body_bytes, max_unread_bytes, max_unread_total_bytes;
};

static const char *const miss_words[] = {"serve", "relegate", "refuse", NULL}; /* enum sl_slo_miss */
static const char *const level_words[] = {"error", "warn", "info", "debug", "trace", NULL}; /* sl_log_level */
static const char *const mode_words[] = {"pd", "colocated", "hybrid", NULL}; /* Sluice__Mode less one */

#define AT(member) offsetof(struct options, member)
static const struct sl_conf_opt table[] = {
    {"listen", SL_CONF_STRING, AT(listen), "127.0.0.1:8000",
     "HTTP address; 0.0.0.0:8000 or [::]:8000 serve other machines", 0, 0, NULL},
    {"model", SL_CONF_STRING, AT(model), NULL,
     "GGUF file or Hugging Face folder: its vocabulary and chat template (the same as the nodes')", 0, 0,
     NULL},
    {"model_digest", SL_CONF_STRING, AT(model_digest), NULL,
     "nodes with another model file are refused, as sluicectl nodes shows it in the column model_digest; "
     "without it the first node decides for those that come while it is alive",
     0, 0, NULL},
    {"served_model_name", SL_CONF_LIST, AT(served_model_name), NULL,
     "names clients may use; default: the model's own", 0, 0, NULL},
    {"context_length", SL_CONF_U32, AT(context_length), "0",
     "tokens of prompt and answer together; 0 = as the model file says", 0, 0, NULL},
    {"register_url", SL_CONF_STRING, AT(register_url), "tcp://127.0.0.1:7100",
     "nodes register here (their option routers); port 0 = any, told in the log", 0, 0, NULL},
    {"event_url", SL_CONF_STRING, AT(event_url), "tcp://127.0.0.1:0", "nodes send tokens here; port 0 = any",
     0, 0, NULL},
    {"admin_url", SL_CONF_STRING, AT(admin_url), "ipc:///run/sluice/router.sock", "sluicectl connects here",
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
    {"mode", SL_CONF_ENUM, AT(mode), "hybrid", "how requests are split at start; sluicectl mode switches it",
     0, 0, mode_words},
    {"slo_classes", SL_CONF_LIST, AT(slo_classes), NULL,
     "NAME ttft_ms=N tpot_ms=N priority=N, each but the name optional; a request is of the class in its "
     "header "
     "X-Sluice-Class, or named like its API key, or \"default\"",
     0, 0, NULL},
    {"slo_miss", SL_CONF_ENUM, AT(slo_miss), "serve",
     "when no placement is predicted to meet a request's wishes: serve it all the same, relegate it behind "
     "the "
     "others, or refuse it with 429",
     0, 0, miss_words},
    {"hold_ms", SL_CONF_U32, AT(hold_ms), "2000",
     "milliseconds of work before a request at the best node for it beyond which it waits at the router for "
     "its "
     "turn: more urgent classes first, then fairly between API keys; 0 = never",
     0, 3600000, NULL},
    {"max_wait_ms", SL_CONF_U32, AT(max_wait_ms), "0",
     "refuse at once, with 429, what is predicted to wait at the router for longer; 0 = only what would wait "
     "beyond its deadline",
     0, 86400000, NULL},
    {"key_weights", SL_CONF_LIST, AT(key_weights), NULL,
     "NAME=W: a key of weight 2 gets twice the share of one of weight 1, which all others have, while "
     "requests "
     "wait",
     0, 0, NULL},
    {"exact", SL_CONF_BOOL, AT(exact), "true", "pair only nodes whose arithmetic is bit for bit the same", 0,
     0, NULL},
    {"api_key_file", SL_CONF_STRING, AT(api_key_file), NULL,
     "one name:sha256:SALT:DIGEST a line, with limits, as sluicectl keys add writes it, or key or name:key; "
     "read "
     "anew at a reload; without it the credential sluice.api-keys that "
     "systemd "
     "passes, else no key is asked for",
     0, 0, NULL},
    {"cache_per_key", SL_CONF_BOOL, AT(cache_per_key), "false",
     "what one API key's prompts left in the prefix cache is of no use to another key, and no sign of it", 0,
     0, NULL},
    {"open_admin", SL_CONF_BOOL, AT(open_admin), "false",
     "without API keys: let everybody read /metrics and /load and use /sluice/v1, not only root and the "
     "router's user on its own machine; with keys that takes one with admin=yes",
     0, 0, NULL},
    {"tls_cert_file", SL_CONF_STRING, AT(tls_cert_file), NULL,
     "certificate in PEM, with what lies between it and its root behind it: the API then speaks HTTPS alone; "
     "read "
     "anew at a reload",
     0, 0, NULL},
    {"tls_key_file", SL_CONF_STRING, AT(tls_key_file), NULL, "the certificate's private key in PEM", 0, 0,
     NULL},
    {"cors_origins", SL_CONF_LIST, AT(cors_origins), "*",
     "origins whose web pages may use the API; * = any, none = no page", 0, 0, NULL},
    {"max_requests", SL_CONF_U32, AT(max_requests), "1024",
     "generations open at once; more get 429; the last eighth is kept for those of a priority below 0", 1,
     1000000, NULL},
    {"max_connections", SL_CONF_U32, AT(max_connections), "4096",
     "client connections; one more takes the place of one that waits for its client, or gets 503", 1, 1000000,
     NULL},
    {"max_waiting", SL_CONF_U32, AT(max_waiting), "1024", "requests waiting for an API thread; more get 429",
     1, 1000000, NULL},
    {"max_body_bytes", SL_CONF_BYTES, AT(max_body_bytes), "16M", "largest request body; more gets 413", 1024,
     0x1p32, NULL},
    {"max_unread_bytes", SL_CONF_BYTES, AT(max_unread_bytes), "4M",
     "a stream's bytes its client may leave unread before it is cut", 65536, 0x1p32, NULL},
    {"max_unread_total_bytes", SL_CONF_BYTES, AT(max_unread_total_bytes), "256M",
     "bytes that all clients together may leave unread; then whoever has more than an even share of it is "
     "cut",
     65536, 0x1p40, NULL},
    {"api_threads", SL_CONF_U32, AT(api_threads), "1",
     "threads for JSON, templates and tokens; one more serves small bodies alone", 1, 64, NULL},
    {"receive_timeout_s", SL_CONF_U32, AT(receive_timeout_s), "30", "seconds for a request to arrive whole",
     1, 3600, NULL},
    {"idle_timeout_s", SL_CONF_U32, AT(idle_timeout_s), "75", "seconds an idle connection is kept", 1, 3600,
     NULL},
    {"request_timeout_s", SL_CONF_U32, AT(request_timeout_s), "600",
     "deadline of a request that does not bring its own", 1, 86400, NULL},
    {"drain_timeout_s", SL_CONF_U32, AT(drain_timeout_s), "30", "seconds running streams get after SIGTERM",
     0, 86400, NULL},
    {"heartbeat_ms", SL_CONF_U32, AT(heartbeat_ms), "1000", "nodes report this often", 50, 60000, NULL},
    {"node_dead_ms", SL_CONF_U32, AT(node_dead_ms), "3000", "a node silent for this long is given up", 100,
     600000, NULL},
    {"node_stall_ms", SL_CONF_U32, AT(node_stall_ms), "30000",
     "a node with work at hand that computes no layer for this long is stalled: its requests are placed "
     "again elsewhere",
     100, 3600000, NULL},
    {"command_timeout_ms", SL_CONF_U32, AT(command_timeout_ms), "2000",
     "a node answers a command within this", 50, 60000, NULL},
    {"log_level", SL_CONF_ENUM, AT(log_level), "info", "what is logged", 0, 0, level_words},
    {0},
};

static const char *const reloads[] = {"drain_timeout_s", "log_level", NULL};

struct router {
    struct options o;
    struct sl_vocab_src vocab;
    struct sl_model_info model;
    struct sl_tokenizer *tokenizer;
    struct sl_template *template;
    json_t *template_model;
    struct sl_api_keys *keys;
    struct sl_slo_classes slo_classes;
    struct sl_metrics *metrics;
    struct sl_flow *flow; /* the api's, which closes it */
    struct sl_api *api;
    struct sl_http_server *http;
    struct sl_secret secret; /* of o.cluster_secret_file */
    struct sl_wire_guard guard;
    uint8_t digest[16]; /* of o.model_digest */
    bool has_digest;
    const char *own_name; /* where no name is configured */
    bool is_public;       /* other machines reach its API */
    pthread_mutex_t lock; /* of what a reload changes in o */
};

static json_t *token_text(const struct sl_tokenizer *t, uint32_t id)
{
    size_t n = 0;
    const char *p = id == SL_VOCAB_NO_ID ? "" : sl_tokenizer_piece(t, id, true, &n);
    json_t *j = json_stringn(p, n);
    return j ? j : json_string("");
}

static enum sl_err open_model(struct router *r, struct sl_why *why)
{
    if (!r->o.model)
        return sl_why_set(why, SL_ECONFIG,
                          "no model is given; set model (or --model) to the GGUF file or Hugging Face folder "
                          "that the nodes serve");
    enum sl_err err = sl_vocab_load(r->o.model, &r->vocab, &r->model, why);
    if (err)
        return err;
    err = sl_tokenizer_open(&r->vocab, &r->tokenizer, why);
    if (err)
        return err;
    if (r->o.context_length > r->model.context_length && r->model.context_length)
        return sl_why_set(why, SL_ECONFIG, "context_length is %u; the model %s has %u at most",
                          r->o.context_length, r->o.model, r->model.context_length);
    if (r->o.context_length)
        r->model.context_length = r->o.context_length;
    if (!r->model.context_length)
        return sl_why_set(why, SL_ECONFIG, "the model %s does not say its context length; set context_length",
                          r->o.model);
    if (r->vocab.chat_template) {
        err = sl_template_compile(r->vocab.chat_template, r->vocab.chat_template_bytes, &r->template, why);
        if (err)
            return err;
    } else {
        SL_WARN("the model has no chat template: /v1/chat/completions and /v1/responses are refused model=%s",
                r->o.model);
    }
    r->template_model = json_object();
    json_object_set_new(r->template_model, "bos_token",
                        token_text(r->tokenizer, sl_tokenizer_bos(r->tokenizer)));
    json_object_set_new(r->template_model, "eos_token",
                        token_text(r->tokenizer, sl_tokenizer_eos(r->tokenizer)));
    return SL_OK;
}

/* Open files: one per client and those of the router; without one to be had, a client waits. */
static void raise_file_limit(uint32_t max_connections)
{
    struct rlimit l;
    rlim_t want = (rlim_t)max_connections + SPARE_FILES;
    if (getrlimit(RLIMIT_NOFILE, &l) != 0 || l.rlim_cur >= want)
        return;
    l.rlim_cur = l.rlim_max == RLIM_INFINITY || want < l.rlim_max ? want : l.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &l) != 0 || l.rlim_cur < want)
        SL_WARN("fewer files may be open than max_connections needs limit=%llu needed=%llu",
                (unsigned long long)l.rlim_cur, (unsigned long long)want);
}

/* For `sluicectl config show`; the flow thread. */
static void tell_config(void *arg, struct sl_admin_out *out)
{
    struct router *r = arg;
    sl_admin_table(out, "config", "key,value,default,change");
    pthread_mutex_lock(&r->lock);
    for (const struct sl_conf_opt *o = table; o->key; o++) {
        char value[512];
        sl_conf_print(o, &r->o, value, sizeof value);
        sl_admin_row(out);
        sl_admin_cell(out, "%s", o->key);
        sl_admin_cell(out, "%s", value);
        sl_admin_cell(out, "%s", o->dflt ? o->dflt : "");
        bool live = false;
        for (const char *const *k = reloads; *k; k++)
            live |= strcmp(*k, o->key) == 0;
        sl_admin_cell(out, "%s", live ? "reload" : "restart");
    }
    pthread_mutex_unlock(&r->lock);
}

static enum sl_err open_flow(struct router *r, struct sl_flow **flow, struct sl_why *why)
{
    const struct sl_flow_conf conf = {
        .register_url = r->o.register_url,
        .event_url = r->o.event_url,
        .admin_url = r->o.admin_url,
        .guard = &r->guard,
        .mode = r->o.mode + SLUICE__MODE__MODE_PD,
        .max_requests = r->o.max_requests,
        .heartbeat_ms = r->o.heartbeat_ms,
        .node_dead_ms = r->o.node_dead_ms,
        .node_stall_ms = r->o.node_stall_ms,
        .command_timeout_ms = r->o.command_timeout_ms,
        .default_deadline_ms = r->o.request_timeout_s * 1000,
        .boot_id = sl_random_u64(),
        .tokenizer = r->tokenizer,
        .context_length = r->model.context_length,
        .model_digest = r->has_digest ? r->digest : NULL, /* the router itself reads no weights */
        .exact = r->o.exact,
        .slo_miss = (enum sl_slo_miss)r->o.slo_miss,
        .hold_ms = r->o.hold_ms,
        .max_wait_ms = r->o.max_wait_ms,
        .metrics = r->metrics,
        .model_name = r->o.served_model_name.n ? r->o.served_model_name.items[0] : r->model.name,
        .version = SLUICE_VERSION,
        .tell_config = tell_config,
        .tell_config_arg = r,
    };
    return sl_flow_open(&conf, flow, why);
}

static void open_api(struct router *r, struct sl_flow *flow)
{
    r->own_name = r->model.name;
    bool named = r->o.served_model_name.n > 0;
    const struct sl_api_conf conf = {
        .flow = flow,
        .tokenizer = r->tokenizer,
        .template = r->template,
        .template_source = r->vocab.chat_template,
        .template_model = r->template_model,
        .names = named ? (const char *const *)r->o.served_model_name.items : &r->own_name,
        .n_names = named ? r->o.served_model_name.n : 1,
        .root = r->model.name,
        .context_length = r->model.context_length,
        .keys = r->keys,
        .open_admin = r->o.open_admin,
        .cache_per_key = r->o.cache_per_key,
        .cors_origins = &r->o.cors_origins,
        .max_unread_bytes = r->o.max_unread_bytes,
        .default_deadline_ms = r->o.request_timeout_s * 1000,
        .slo_classes = r->slo_classes,
        .key_weights = &r->o.key_weights,
        .metrics = r->metrics,
    };
    r->api = sl_api_open(&conf);
}

static enum sl_err open_http(struct router *r, struct sl_why *why)
{
    const struct sl_http_conf conf = {
        .listen = r->o.listen,
        .tls = sl_http_tls_loaded(),
        .max_connections = r->o.max_connections,
        .n_workers = r->o.api_threads,
        .max_waiting = r->o.max_waiting,
        .max_body_bytes = r->o.max_body_bytes,
        .max_unread_bytes = r->o.max_unread_bytes,
        .max_unread_total_bytes = r->o.max_unread_total_bytes,
        .receive_timeout_s = r->o.receive_timeout_s,
        .idle_timeout_s = r->o.idle_timeout_s,
        .check = sl_api_check,
        .handle = sl_api_handle,
        .arg = r->api,
        .metrics = r->metrics,
    };
    return sl_http_server_open(&conf, &r->http, why);
}

static enum sl_err load_tls(const struct options *o, struct sl_why *why)
{
    bool cert = o->tls_cert_file && *o->tls_cert_file, key = o->tls_key_file && *o->tls_key_file;
    if (cert != key)
        return sl_why_set(why, SL_ECONFIG, "%s is set and %s is not; HTTPS needs both",
                          cert ? "tls_cert_file" : "tls_key_file", cert ? "tls_key_file" : "tls_cert_file");
    return cert ? sl_http_tls_load(o->tls_cert_file, o->tls_key_file, why) : SL_OK;
}

static enum sl_err read_digest(struct router *r, struct sl_why *why)
{
    r->has_digest = r->o.model_digest && *r->o.model_digest;
    if (!r->has_digest || sl_node_digest_parse(r->o.model_digest, r->digest))
        return SL_OK;
    return sl_why_set(
        why, SL_ECONFIG,
        "model_digest is \"%.64s\"; expected 32 hexadecimal digits, as sluicectl nodes shows them",
        r->o.model_digest);
}

/* All that a person configures, read and checked; nothing is opened to the network yet. */
static enum sl_err prepare(struct router *r, struct sl_why *why)
{
    enum sl_err err = sl_http_listen_is_public(r->o.listen, &r->is_public, why);
    if (!err)
        err = sl_wire_url_check("register_url", r->o.register_url, why);
    if (!err)
        err = sl_wire_url_check("event_url", r->o.event_url, why);
    if (!err)
        err = sl_wire_url_check("admin_url", r->o.admin_url, why);
    if (!err && r->o.api_key_file)
        err = sl_api_keys_load(r->o.api_key_file, &r->keys, why);
    if (!err)
        err = load_tls(&r->o, why);
    if (!err && r->o.cluster_secret_file) {
        err = sl_secret_load(r->o.cluster_secret_file, &r->secret, why);
        r->guard.secret = &r->secret;
    }
    r->guard.tls_ca_file = r->o.control_tls_ca_file;
    r->guard.tls_cert_file = r->o.control_tls_cert_file;
    r->guard.tls_key_file = r->o.control_tls_key_file;
    if (!err)
        err = sl_wire_guard_check(&r->guard, why);
    if (!err)
        err = read_digest(r, why);
    if (!err)
        err = sl_slo_classes_parse(&r->o.slo_classes, &r->slo_classes, why);
    if (!err)
        err = sl_key_weights_check(&r->o.key_weights, why);
    if (!err && open_model(r, why) != SL_OK)
        err = SL_ECONFIG; /* whatever is wrong with the file, a restart does not help */
    return err;
}

static enum sl_err start(struct router *r, struct sl_why *why)
{
    raise_file_limit(r->o.max_connections);
    r->metrics = sl_metrics_new();
    enum sl_err err = open_flow(r, &r->flow, why);
    if (err)
        return err;
    open_api(r, r->flow);
    err = open_http(r, why);
    if (err)
        return err;
    if (r->is_public && !r->keys)
        SL_WARN(
            "other machines can reach this router and no API key is asked for; set api_key_file listen=%s",
            r->o.listen);
    if (!r->guard.secret && !(sl_address_is_local(r->o.register_url) && sl_address_is_local(r->o.event_url)))
        SL_WARN("other machines can register at this router and no cluster secret is asked for; set "
                "cluster_secret_file");
    SL_INFO("router ready listen=%s port=%u model=%s context=%u mode=%s keys=%s tls=%s", r->o.listen,
            sl_http_server_port(r->http), r->model.name, r->model.context_length, mode_words[r->o.mode],
            r->keys ? "yes" : "no", sl_http_tls_loaded() ? "yes" : "no");
    return SL_OK;
}

/* The signal that came within wait_ms, or 0. */
static int wait_signal(int signal_fd, int wait_ms)
{
    struct pollfd p = {.fd = signal_fd, .events = POLLIN};
    struct signalfd_siginfo info;
    if (poll(&p, 1, wait_ms) != 1 || read(signal_fd, &info, sizeof info) != (ssize_t)sizeof info)
        return 0;
    return (int)info.ssi_signo;
}

/* Waits a little; true when another signal to stop came. */
static bool stop_asked_again(int signal_fd)
{
    int got = wait_signal(signal_fd, DRAIN_POLL_MS);
    return got != 0 && got != SIGHUP;
}

static void drain(struct router *r, int signal_fd)
{
    uint64_t until_ms = sl_now_ms() + (uint64_t)r->o.drain_timeout_s * 1000;
    uint32_t open_requests;
    sl_api_drain(r->api, &open_requests);
    SL_INFO("stopping: new requests are refused open_requests=%u drain_timeout_s=%u", open_requests,
            r->o.drain_timeout_s);
    while (open_requests > 0 && sl_now_ms() < until_ms && !stop_asked_again(signal_fd)) {
        sl_api_drain(r->api, &open_requests);
        sl_notify("WATCHDOG=1\nSTATUS=draining, %u requests", open_requests);
    }
    if (open_requests > 0)
        SL_WARN("requests are ended by the stop open_requests=%u", open_requests);
}

/* Takes a router that is half started too. */
static void stop(struct router *r)
{
    if (r->api)
        sl_api_close_flow(r->api);
    if (r->http)
        sl_http_server_wait_idle(r->http, LAST_BYTES_MS);
    sl_http_server_close(r->http);
    sl_api_close(r->api);
    sl_http_tls_free();
    sl_metrics_free(r->metrics);
    sl_template_free(r->template);
    json_decref(r->template_model);
    sl_tokenizer_close(r->tokenizer);
    sl_vocab_src_fini(&r->vocab);
    sl_api_keys_free(r->keys);
    explicit_bzero(&r->secret, sizeof r->secret);
    sl_conf_fini(table, &r->o);
}

static const struct sl_program program = {
    .name = "sluice-router",
    .version = SLUICE_VERSION,
    .date = SLUICE_DATE,
    .summary = "front of a Sluice cluster",
    .about =
        "Takes requests over the OpenAI API, places each one on prefill and decode nodes, and streams the "
        "answers. A first run:\n\n"
        "    sluice-router --model model.gguf --admin-url ipc:///tmp/router.sock\n\n"
        "And on the same machine:\n\n"
        "    sluice-decode --routers tcp://127.0.0.1:7100 --model model.gguf\n",
    .signals =
        "SIGTERM and SIGINT drain: new requests get 503, streams go on for drain_timeout_s, then what is "
        "left "
        "ends with an error frame. A second one skips the waiting.\n\n"
        "SIGHUP reads the config file, the certificate and the file of API keys again; a key that is no "
        "longer in it "
        "stops to count at once, and requests that run go on. CONFIGURATION says which other keys take "
        "effect; for any other that differs the log names the key that needs a restart. A file that is "
        "wrong changes nothing.\n\n"
        "The watchdog of systemd is fed only while the thread that owns the requests answers.\n",
    .config_file = "/etc/sluice/router.conf",
    .config_about = "/etc/sluice/router.conf: sluice-router.service reads it.\n\n"
                    "One key has no default and must be set: model. On several machines set also listen (an "
                    "address clients "
                    "reach), register_url and event_url (addresses the nodes reach), and api_key_file. To "
                    "see whether all "
                    "is right: sluice-router --config FILE --check-config\n",
    .section = "router",
    .see_also = "sluice-decode 8",
    .opts = table,
    .reloads = reloads,
    .must_set = "model",
    .must_value = "/var/lib/sluice/models/model.gguf",
};

/* Defaults, file and command line, and what can be checked of one value alone. */
static enum sl_err load_options(int argc, char **argv, struct options *o, struct sl_why *why)
{
    enum sl_err err = sl_conf_load(table, sl_conf_file_arg(argc, argv), argc, argv, o, why);
    if (!err && (!o->api_key_file || !*o->api_key_file)) {
        sl_free(o->api_key_file);
        o->api_key_file = sl_credential(CREDENTIAL_KEYS);
    }
    if (!err && (!o->cluster_secret_file || !*o->cluster_secret_file)) {
        sl_free(o->cluster_secret_file);
        o->cluster_secret_file = sl_credential(SL_CREDENTIAL_SECRET);
    }
    return err;
}

/* What a running router can take over, it does; the rest is told. A file that is wrong changes nothing. */
static void reload(struct router *r, int argc, char **argv)
{
    struct options now = {0};
    struct sl_why why = {0};
    sl_notify("RELOADING=1");
    enum sl_err err = load_options(argc, argv, &now, &why);
    if (!err && r->keys)
        err = sl_api_keys_reload(r->keys, r->o.api_key_file, &why);
    if (err) {
        SL_ERROR("the reload changed nothing: %s", why.text);
    } else {
        sl_program_tell_changes(&program, &r->o, &now);
        pthread_mutex_lock(&r->lock);
        r->o.drain_timeout_s = now.drain_timeout_s;
        r->o.log_level = now.log_level;
        pthread_mutex_unlock(&r->lock);
        sl_log_set_level((enum sl_log_level)now.log_level);
        /* from the same files: other names need a restart */
        if (sl_http_tls_loaded() && load_tls(&r->o, &why) != SL_OK)
            SL_ERROR("the certificate stays as it was: %s", why.text);
        SL_INFO("reloaded");
    }
    sl_conf_fini(table, &now);
    sl_notify("READY=1");
}

/* The flow thread answers, so it lives; its answer is what `systemctl status` shows. */
static void tell_alive(struct router *r, uint32_t patience_ms)
{
    Sluice__AdminReply *reply;
    if (sl_flow_admin(r->flow, "status", NULL, 0, patience_ms, &reply) != SL_OK) {
        SL_ERROR("the flow thread does not answer waited_ms=%u", patience_ms);
        return;
    }
    sl_notify("WATCHDOG=1\nSTATUS=%s", reply->text ? reply->text : "");
    sluice__admin_reply__free_unpacked(reply, NULL);
}

/* Until a signal to stop comes. */
static void serve(struct router *r, int signal_fd, int argc, char **argv)
{
    uint32_t watchdog_ms = sl_notify_watchdog_ms();
    uint32_t look_ms = watchdog_ms ? watchdog_ms / WATCHDOG_LOOKS : STATUS_MS;
    struct sl_mem_trim trim = {0};
    for (;;) {
        int got = wait_signal(signal_fd, (int)look_ms);
        if (got == SIGHUP)
            reload(r, argc, argv);
        else if (got)
            return;
        else {
            tell_alive(r, look_ms);
            sl_mem_trim_look(&trim, sl_flow_open_requests(r->flow));
        }
    }
}

int main(int argc, char **argv)
{
    struct router r = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct sl_why why = {0};
    sigset_t signals;
    if (sl_program_answers(&program, argc, argv))
        return 0;
    sl_start_signals_keep_reload();
    sl_mem_bound_heaps();
    signal(SIGPIPE, SIG_IGN);
    sl_vocab_src_init(&r.vocab);
    enum sl_err err = load_options(argc, argv, &r.o, &why);
    if (!err) {
        sl_log_set_level((enum sl_log_level)r.o.log_level);
        err = prepare(&r, &why);
    }
    bool only_check = sl_conf_check_arg(argc, argv);
    /* before any thread; until here a signal to stop simply ends the program, as one that loads should */
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    int signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
    if (!err && signal_fd < 0)
        err = sl_why_set(&why, SL_EIO, "signals cannot be received: %s", strerror(errno));
    if (!err && !only_check)
        err = start(&r, &why);
    if (err) {
        SL_ERROR("%s", why.text);
        stop(&r);
        return sl_err_class(err) == SL_CLASS_BAD_INPUT ? SL_EXIT_CONFIG : 1;
    }
    if (only_check) {
        stop(&r);
        return 0;
    }
    sl_notify("READY=1");
    serve(&r, signal_fd, argc, argv);
    sl_notify("STOPPING=1");
    drain(&r, signal_fd);
    stop(&r);
    SL_INFO("router stopped");
    return 0;
}
