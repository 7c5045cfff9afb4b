/* common/transfer/link_ucx.c - the UCX transport: one worker, active messages, endpoints in peer-error mode.
 *
 * What UCX does on these systems, and what follows:
 *  - force-closing the endpoint is the only cancel: disconnect() does that, and on_closed is told from here;
 *  - a normal close looks like a failure to the other side: the layer above says BYE first;
 *  - the error callback runs inside progress and may not close the endpoint there: reap() does it after;
 *  - peer-error mode drops shared memory unless that is told to handle errors; tcp must stay in the list for
 *    connecting.
 *
 * All messages of a connection go over one endpoint, control messages eager, which keeps their order.
 * Payloads are eager or rendezvous as UCX prefers by size. Measured with tcp on loopback, both ends of a
 * transfer with digests, GB per CPU second used:
 *
 *                                          eager forced   rendezvous forced   UCX's choice
 *     720 KiB pages in messages of 3.5 MiB      1.0            1.4 - 1.5           1.5
 *     16 KiB pages, one a message               1.2            0.3 - 0.4           1.1 */
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "common/base/hashmap.h"
#include "common/base/list.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/transfer/link.h"
#include "common/transfer/resolve.h"
#include "common/transfer/ucx_load.h"

#define AM_ID               1u
#define ROUNDS_PER_PROGRESS 64  /* of ucp_worker_progress(), each a handful of socket reads */
#define CLOSE_MS            500 /* a force close ends in microseconds; past this the rest is left to UCX */

struct sl_conn {
    struct sl_link *link;
    ucp_ep_h ep;   /* NULL until the address is known, and once closing began */
    void *closing; /* request of ucp_ep_close_nbx, or NULL */
    bool failed;   /* the error callback ran, or disconnect() was called */
    bool closed_told;
    uint32_t n_pending; /* sends and receives not completed */
    void *user;
    struct sl_list node; /* link->conns */
    char transport[32];
    struct sl_resolve *resolve; /* of the address that was dialled; NULL: it is known */
    struct sl_why why;          /* it never will be */
};

/* Lives from the call until its completion callback. */
struct op {
    struct sl_conn *conn;
    uint64_t token;
    bool is_recv, silent; /* silent: no on_sent */
    unsigned char header[SL_LINK_MAX_HEADER];
    unsigned char *copy; /* of a control payload */
};

struct sl_link_rx {
    const ucp_am_recv_param_t *param;
    void *data;
    bool in_progress; /* recv() took over a rendezvous */
};

struct sl_link {
    struct sl_link_events events;
    void *arg;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_listener_h listener;
    ucp_mem_h pool_mem;
    const unsigned char *device; /* the pool when it is the CUDA device's, of device_bytes; else NULL */
    size_t device_bytes;
    int efd;
    char address[64], tls[64];
    struct sl_list conns;
    struct sl_hashmap *by_ep; /* ucp_ep_h -> conn */
    bool deaf;                /* closing: nobody hears callbacks any more */
};

/* The network device that has this address, so that UCX opens its data ports there and nowhere else; false for
 * the wildcard, and for what no device has. */
static bool device_of(const struct sockaddr_storage *sa, char name[IF_NAMESIZE])
{
    struct ifaddrs *all = NULL;
    bool found = false;
    if (getifaddrs(&all) != 0)
        return false;
    for (const struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
        if (!i->ifa_addr || i->ifa_addr->sa_family != sa->ss_family)
            continue;
        const struct sockaddr_in *a4 = (const void *)i->ifa_addr, *b4 = (const void *)sa;
        const struct sockaddr_in6 *a6 = (const void *)i->ifa_addr, *b6 = (const void *)sa;
        found = sa->ss_family == AF_INET6 ? memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof a6->sin6_addr) == 0
                                          : a4->sin_addr.s_addr == b4->sin_addr.s_addr;
        if (found) /* "eth0:1" is a label on eth0 */
            snprintf(name, IF_NAMESIZE, "%.*s", (int)strcspn(i->ifa_name, ":"), i->ifa_name);
    }
    freeifaddrs(all);
    return found;
}

/* UCX looks for the device that has the very address that a connection came to, and drops the connection when none has:
 * of 127.0.0.0/8 that is 127.0.0.1, though all of it can be listened on. Instead of another one the node listens there,
 * on any port, since the next node's may be the same; peers are told the address that came of it. */
static enum sl_err resolve_listen(const char *text, struct sockaddr_storage *sa, socklen_t *len, bool *moved,
                                  struct sl_why *why)
{
    char name[IF_NAMESIZE];
    struct sockaddr_in *a = (void *)sa;
    enum sl_err e = sl_resolve_wait(text, sa, len, why);
    *moved = !e && sa->ss_family == AF_INET && ntohl(a->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET &&
             ntohl(a->sin_addr.s_addr) != INADDR_LOOPBACK && !device_of(sa, name);
    if (*moved) {
        a->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        a->sin_port = 0;
    }
    return e;
}

static struct sl_conn *conn_new(struct sl_link *l)
{
    struct sl_conn *c = sl_xcalloc(1, sizeof *c);
    c->link = l;
    snprintf(c->transport, sizeof c->transport, "ucx %.24s", l->tls);
    sl_list_add_tail(&l->conns, &c->node);
    return c;
}

static void conn_free(struct sl_conn *c)
{
    sl_resolve_end(c->resolve);
    sl_free(c);
}

static void on_ep_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    struct sl_conn *c = arg;
    (void)ep;
    if (!c->failed)
        SL_DEBUG("connection lost transport=ucx why=\"%s\"", sl_ucx.status_string(status));
    c->failed = true;
}

static enum sl_err make_ep(struct sl_conn *c, ucp_ep_params_t *p)
{
    p->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    p->err_mode = UCP_ERR_HANDLING_MODE_PEER;
    p->err_handler.cb = on_ep_error;
    p->err_handler.arg = c;
    ucs_status_t s = sl_ucx.ep_create(c->link->worker, p, &c->ep);
    if (s != UCS_OK) {
        SL_WARN("no endpoint could be made transport=ucx why=\"%s\"", sl_ucx.status_string(s));
        c->ep = NULL;
        c->failed = true;
        return SL_EPEER;
    }
    sl_hashmap_put_u64(c->link->by_ep, (uint64_t)(uintptr_t)c->ep, c);
    return SL_OK;
}

static void on_conn_request(ucp_conn_request_h request, void *arg)
{
    struct sl_link *l = arg;
    if (l->deaf) {
        sl_ucx.listener_reject(l->listener, request);
        return;
    }
    struct sl_conn *c = conn_new(l);
    ucp_ep_params_t p = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST, .conn_request = request};
    if (make_ep(c, &p) == SL_OK)
        l->events.on_accept(l->arg, c);
    else
        c->closed_told = true; /* the layer above never knew it */
}

static ucs_status_t on_am(void *arg, const void *header, size_t header_len, void *data, size_t len,
                          const ucp_am_recv_param_t *param)
{
    struct sl_link *l = arg;
    struct sl_conn *c = param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP
                            ? sl_hashmap_get_u64(l->by_ep, (uint64_t)(uintptr_t)param->reply_ep)
                            : NULL;
    bool rendezvous = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    if (!c || c->failed || l->deaf)
        return UCS_OK; /* dropped */
    struct sl_link_rx rx = {param, data, false};
    l->events.on_message(l->arg, c, header, header_len, rendezvous ? NULL : data, len, &rx);
    return rx.in_progress ? UCS_INPROGRESS : UCS_OK;
}

static enum sl_err to_err(ucs_status_t s)
{
    return s == UCS_OK ? SL_OK : SL_EPEER;
}

static void op_done(struct op *op, ucs_status_t status)
{
    struct sl_conn *c = op->conn;
    struct sl_link *l = c->link;
    c->n_pending--;
    if (!l->deaf && op->is_recv)
        l->events.on_received(l->arg, c, op->token, to_err(status));
    else if (!l->deaf && !op->silent)
        l->events.on_sent(l->arg, c, op->token, to_err(status));
    sl_free(op->copy);
    sl_free(op);
}

static void on_send_done(void *request, ucs_status_t status, void *arg)
{
    sl_ucx.request_free(request);
    op_done(arg, status);
}

static void on_recv_done(void *request, ucs_status_t status, size_t length, void *arg)
{
    (void)length;
    sl_ucx.request_free(request);
    op_done(arg, status);
}

/* UCX is told where a payload lies: left to itself it asks the driver each time. */
static void say_memory(const struct sl_link *l, const void *payload, ucp_request_param_t *p)
{
    uintptr_t at = (uintptr_t)payload - (uintptr_t)l->device;
    if (!l->device || at >= l->device_bytes)
        return;
    p->op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    p->memory_type = UCS_MEMORY_TYPE_CUDA;
}

static enum sl_err ucx_send(struct sl_conn *c, const void *header, size_t header_len, const void *payload,
                            size_t payload_len, bool control, uint64_t token)
{
    SL_ASSERT(header_len <= SL_LINK_MAX_HEADER);
    if (c->failed || !c->ep)
        return SL_EPEER;
    struct op *op = sl_xcalloc(1, sizeof *op);
    *op = (struct op){.conn = c, .token = token, .silent = control};
    memcpy(op->header, header, header_len);
    if (control && payload_len) {
        op->copy = sl_xmemdup(payload, payload_len);
        payload = op->copy;
    }
    ucp_request_param_t p = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_REPLY | (control ? UCP_AM_SEND_FLAG_EAGER : 0u),
        .cb.send = on_send_done,
        .user_data = op,
    };
    say_memory(c->link, payload, &p);
    c->n_pending++;
    ucs_status_ptr_t r = sl_ucx.am_send_nbx(c->ep, AM_ID, op->header, header_len, payload, payload_len, &p);
    if (r == NULL) {
        op_done(op, UCS_OK);
    } else if (UCS_PTR_IS_ERR(r)) {
        c->n_pending--;
        c->failed = true;
        sl_free(op->copy);
        sl_free(op);
        return SL_EPEER;
    }
    return SL_OK;
}

static void ucx_recv(struct sl_conn *c, struct sl_link_rx *rx, void *dst, size_t len, uint64_t token)
{
    struct sl_link *l = c->link;
    if (!(rx->param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
        memcpy(dst, rx->data, len);
        l->events.on_received(l->arg, c, token, SL_OK);
        return;
    }
    struct op *op = sl_xcalloc(1, sizeof *op);
    *op = (struct op){.conn = c, .token = token, .is_recv = true};
    ucp_request_param_t p = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.recv_am = on_recv_done,
        .user_data = op,
    };
    say_memory(l, dst, &p);
    rx->in_progress = true;
    c->n_pending++;
    ucs_status_ptr_t r = sl_ucx.am_recv_data_nbx(l->worker, rx->data, dst, len, &p);
    if (r == NULL)
        op_done(op, UCS_OK);
    else if (UCS_PTR_IS_ERR(r))
        op_done(op, UCS_PTR_STATUS(r));
}

/* Once the address is known. A failure is told by on_closed in the next progress(), as a later one would be. */
static void connect_resolved(struct sl_conn *c)
{
    struct sockaddr_storage sa;
    socklen_t len = 0;
    enum sl_err e = sl_resolve_poll(c->resolve, &sa, &len, &c->why);
    if (e == SL_EAGAIN)
        return;
    sl_resolve_end(c->resolve);
    c->resolve = NULL;
    ucp_ep_params_t p = {
        .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR,
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr = {(const struct sockaddr *)&sa, len},
    };
    c->failed = e != SL_OK || make_ep(c, &p) != SL_OK;
}

static enum sl_err ucx_connect(struct sl_link *l, const char *address, struct sl_conn **out,
                               struct sl_why *why)
{
    struct sl_resolve *r;
    enum sl_err e = sl_resolve_start(address, &r, why);
    if (e)
        return e;
    struct sl_conn *c = conn_new(l);
    c->resolve = r;
    connect_resolved(c);
    *out = c;
    return SL_OK;
}

static void ucx_disconnect(struct sl_conn *c)
{
    c->failed = true;
}

/* Connects what is known by now, closes what failed and frees what has nothing pending. Outside of UCX's callbacks.
 * True when something happened. */
static bool reap(struct sl_link *l)
{
    bool any = false;
    SL_LIST_FOREACH_SAFE (n, tmp, &l->conns) {
        struct sl_conn *c = SL_CONTAINER_OF(n, struct sl_conn, node);
        if (c->resolve && !c->failed)
            connect_resolved(c);
        if (!c->failed)
            continue;
        if (c->ep) {
            ucp_request_param_t p = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                     .flags = UCP_EP_CLOSE_FLAG_FORCE};
            sl_hashmap_del_u64(l->by_ep, (uint64_t)(uintptr_t)c->ep);
            ucs_status_ptr_t r = sl_ucx.ep_close_nbx(c->ep, &p);
            c->ep = NULL;
            c->closing = UCS_PTR_IS_PTR(r) ? r : NULL;
            any = true;
        }
        if (!c->closed_told) {
            c->closed_told = true;
            if (!l->deaf)
                l->events.on_closed(l->arg, c);
            any = true;
        }
        if (c->closing && sl_ucx.request_check_status(c->closing) != UCS_INPROGRESS) {
            sl_ucx.request_free(c->closing);
            c->closing = NULL;
        }
        if (!c->closing && c->n_pending == 0) {
            sl_list_remove(&c->node);
            conn_free(c);
        }
    }
    return any;
}

static bool ucx_progress(struct sl_link *l)
{
    for (int i = 0; i < ROUNDS_PER_PROGRESS; i++)
        if (sl_ucx.worker_progress(l->worker) == 0 && !reap(l) && sl_ucx.worker_arm(l->worker) == UCS_OK)
            return false;
    return true;
}

static enum sl_err bound_address(struct sl_link *l, struct sl_why *why)
{
    ucp_listener_attr_t a = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    char host[INET6_ADDRSTRLEN], port[8];
    if (sl_ucx.listener_query(l->listener, &a) != UCS_OK ||
        getnameinfo((struct sockaddr *)&a.sockaddr, sizeof a.sockaddr, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return sl_why_set(why, SL_EIO, "cannot tell the transfer address that was bound");
    snprintf(l->address, sizeof l->address, strchr(host, ':') ? "[%.48s]:%s" : "%.48s:%s", host, port);
    return SL_OK;
}

static void ucx_close(struct sl_link *l)
{
    l->deaf = true;
    if (l->listener)
        sl_ucx.listener_destroy(l->listener);
    if (l->worker) {
        SL_LIST_FOREACH (n, &l->conns)
            SL_CONTAINER_OF(n, struct sl_conn, node)->failed = true;
        for (uint64_t end = sl_now_ms() + CLOSE_MS; !sl_list_empty(&l->conns) && sl_now_ms() < end;) {
            sl_ucx.worker_progress(l->worker);
            reap(l);
        }
        if (l->pool_mem)
            sl_ucx.mem_unmap(l->context, l->pool_mem);
        sl_ucx.worker_destroy(l->worker);
    }
    SL_LIST_FOREACH_SAFE (n, tmp, &l->conns)
        conn_free(SL_CONTAINER_OF(n, struct sl_conn, node));
    if (l->context)
        sl_ucx.cleanup(l->context);
    sl_hashmap_free(l->by_ep);
    sl_free(l);
}

static const char *tls_of(const struct sl_link_conf *conf)
{
    return conf->tls && *conf->tls ? conf->tls : "tcp";
}

/* A context with the transports of conf and the network device of its address. */
static ucs_status_t context_open(const struct sl_link_conf *conf, const struct sockaddr_storage *sa,
                                 ucp_context_h *out)
{
    ucp_config_t *config = NULL;
    char device[IF_NAMESIZE];
    const char *devices = conf->devices && *conf->devices ? conf->devices
                          : device_of(sa, device)         ? device
                                                          : NULL;
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                           .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP};
    ucs_status_t s = sl_ucx.config_read(NULL, NULL, &config);
    if (s == UCS_OK)
        s = sl_ucx.config_modify(config, "TLS", tls_of(conf));
    if (s == UCS_OK && devices)
        s = sl_ucx.config_modify(config, "NET_DEVICES", devices);
    if (s == UCS_OK)
        s = sl_ucx.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, out);
    if (config)
        sl_ucx.config_release(config);
    return s;
}

/* Whether what a context said of the memory that it sends from has a CUDA device's. */
static bool has_cuda(ucs_status_t status, const ucp_context_attr_t *a)
{
    return status == UCS_OK && (a->field_mask & UCP_ATTR_FIELD_MEMORY_TYPES) &&
           a->memory_types >> UCS_MEMORY_TYPE_CUDA & 1;
}

/* UCX as this process finds it: built with CUDA or not, and with transports that take the device's memory (cuda_copy
 * among ucx_tls) or not. What goes wrong here goes wrong again when the link opens, and is told then. */
static bool ucx_takes_device(const struct sl_link_conf *conf)
{
    struct sl_why why;
    struct sockaddr_storage sa;
    socklen_t len = 0;
    bool moved;
    ucp_context_h context = NULL;
    ucp_context_attr_t a = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    if (sl_ucx_load(&why) != SL_OK || resolve_listen(conf->listen, &sa, &len, &moved, &why) != SL_OK ||
        context_open(conf, &sa, &context) != UCS_OK)
        return false;
    bool takes = has_cuda(sl_ucx.context_query(context, &a), &a);
    sl_ucx.cleanup(context);
    SL_INFO("pages of the device go %s transport=ucx tls=\"%s\"",
            takes ? "from it and to it" : "by way of pinned host memory", tls_of(conf));
    return takes;
}

static enum sl_err ucx_open(const struct sl_link_conf *conf, const struct sl_link_events *events, void *arg,
                            struct sl_link **out, struct sl_why *why)
{
    struct sockaddr_storage sa;
    socklen_t sa_len = 0;
    bool moved = false;
    struct sl_link *l = sl_xcalloc(1, sizeof *l);
    ucs_status_t s = UCS_OK;
    enum sl_err e;

    l->events = *events;
    l->arg = arg;
    l->by_ep = sl_hashmap_new();
    snprintf(l->tls, sizeof l->tls, "%s", tls_of(conf));
    sl_list_init(&l->conns);

    e = sl_ucx_load(why);
    if (!e)
        e = resolve_listen(conf->listen, &sa, &sa_len, &moved, why);
    if (e)
        goto fail;
    s = context_open(conf, &sa, &l->context);
    ucp_worker_params_t wp = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                              .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    if (s == UCS_OK)
        s = sl_ucx.worker_create(l->context, &wp, &l->worker);
    ucp_am_handler_param_t ap = {
        .field_mask =
            UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = AM_ID,
        .cb = on_am,
        .arg = l,
    };
    if (s == UCS_OK)
        s = sl_ucx.worker_set_am_recv_handler(l->worker, &ap);
    if (s == UCS_OK)
        s = sl_ucx.worker_get_efd(l->worker, &l->efd);
    if (s == UCS_OK && conf->pool_bytes) {
        ucp_mem_map_params_t mp = {.field_mask =
                                       UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                                   .address = conf->pool,
                                   .length = conf->pool_bytes};
        if (conf->pool_on_device) {
            mp.field_mask |= UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
            mp.memory_type = UCS_MEMORY_TYPE_CUDA;
            l->device = conf->pool;
            l->device_bytes = conf->pool_bytes;
        }
        s = sl_ucx.mem_map(l->context, &mp, &l->pool_mem);
    }
    ucp_listener_params_t lp = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {(const struct sockaddr *)&sa, sa_len},
        .conn_handler = {on_conn_request, l},
    };
    if (s == UCS_OK)
        s = sl_ucx.listener_create(l->worker, &lp, &l->listener);
    if (s != UCS_OK) {
        e = sl_why_set(why, SL_ECONFIG,
                       "UCX cannot listen on %s with transports \"%s\": %s; check transfer_listen, ucx_tls "
                       "and ucx_devices",
                       conf->listen, tls_of(conf), sl_ucx.status_string(s));
        goto fail;
    }
    e = bound_address(l, why);
    if (e)
        goto fail;
    if (moved)
        SL_INFO("no network device has the address of transfer_listen and UCX takes no connections to it; "
                "pages come to "
                "127.0.0.1 instead transfer_listen=%s address=%s",
                conf->listen, l->address);
    *out = l;
    return SL_OK;
fail:
    ucx_close(l);
    return e;
}

static const char *ucx_address(const struct sl_link *l)
{
    return l->address;
}

static int ucx_fd(const struct sl_link *l)
{
    return l->efd;
}

static void ucx_set_user(struct sl_conn *c, void *user)
{
    c->user = user;
}

static void *ucx_user(const struct sl_conn *c)
{
    return c->user;
}

static const char *ucx_why(const struct sl_conn *c)
{
    return c->why.text[0] ? c->why.text : NULL;
}

static const char *ucx_transport(const struct sl_conn *c)
{
    return c->transport;
}

const struct sl_link_ops sl_link_ucx = {
    .name = "ucx",
    .takes_device = ucx_takes_device,
    .open = ucx_open,
    .close = ucx_close,
    .address = ucx_address,
    .progress = ucx_progress,
    .fd = ucx_fd,
    .connect = ucx_connect,
    .send = ucx_send,
    .recv = ucx_recv,
    .disconnect = ucx_disconnect,
    .set_user = ucx_set_user,
    .user = ucx_user,
    .why = ucx_why,
    .transport = ucx_transport,
};
