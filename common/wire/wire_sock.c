/* common/wire/wire_sock.c - what all sockets share: options, addresses, messages in and out.
 *
 * Traps of nng 1.5 that these files walk around: messages over 1 MiB are dropped unless RECVMAXSZ is raised;
 * a dial that waits fails for good when the peer is not up yet; REQ sends again by itself after 60 s and when
 * a connection is lost, so a request may arrive twice; a PUSH without a peer blocks. An aio that was stopped
 * may or may not call back when it is used again: nothing here counts on either. */
#include "common/wire/wire_nng.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"

#define RECONNECT_MIN_MS 50
#define RECONNECT_MAX_MS 500

const struct sl_secret *sl_nng_secret(const struct sl_wire_guard *guard, const char *url)
{
    bool network = strncmp(url, "ipc:", 4) != 0 && strncmp(url, "inproc:", 7) != 0;
    return guard && network ? guard->secret : NULL;
}

enum sl_err sl_nng_pack(Sluice__Envelope *e, nng_msg **out)
{
    struct sl_buf buf;
    sl_buf_init(&buf, SL_WIRE_MAX_BYTES);
    enum sl_err err = sl_wire_pack(e, &buf);
    nng_msg *m = NULL;
    if (err == SL_OK && nng_msg_alloc(&m, 0) != 0)
        err = SL_ENOMEM;
    if (err == SL_OK &&
        (nng_msg_reserve(m, buf.len + SL_SEAL_BYTES) != 0 || nng_msg_append(m, buf.data, buf.len) != 0)) {
        nng_msg_free(m);
        err = SL_ENOMEM;
    }
    sl_buf_fini(&buf);
    if (err == SL_OK)
        *out = m;
    return err;
}

void sl_nng_seal(nng_msg *m, const struct sl_secret *s, enum sl_seal_kind kind, const struct sl_seal *asked,
                 const struct sl_stamp *stamp, struct sl_seal *out)
{
    if (!s)
        return;
    sl_seal_make(s, kind, asked, stamp, nng_msg_body(m), nng_msg_len(m), out);
    SL_ASSERT(nng_msg_append(m, out->bytes, sizeof out->bytes) == 0); /* there is room */
}

enum sl_err sl_nng_unpack(nng_msg *m, const struct sl_secret *s, enum sl_seal_kind kind,
                          const struct sl_seal *asked, struct sl_seal *seal, Sluice__Envelope **out,
                          struct sl_why *why)
{
    size_t n = nng_msg_len(m);
    enum sl_err err = sl_seal_check(s, kind, asked, nng_msg_body(m), &n, seal, why);
    return err == SL_OK ? sl_wire_unpack(nng_msg_body(m), n, out, why) : err;
}

nng_msg *sl_nng_refusal(enum sl_err code, const char *why)
{
    Sluice__CommandReply reply = SLUICE__COMMAND_REPLY__INIT;
    Sluice__Envelope e = SLUICE__ENVELOPE__INIT;
    reply.code = (uint32_t)code;
    reply.why = (char *)(uintptr_t)why; /* packed, not kept */
    e.body_case = SLUICE__ENVELOPE__BODY_COMMAND_REPLY;
    e.command_reply = &reply;
    nng_msg *m;
    SL_ASSERT(sl_nng_pack(&e, &m) == SL_OK);
    return m;
}

struct sl_wire_in *sl_nng_in_new(enum sl_wire_kind kind, enum sl_err err, Sluice__Envelope *msg, uint64_t tag)
{
    struct sl_wire_in *in = sl_xcalloc(1, sizeof *in);
    in->kind = kind;
    in->err = err;
    in->msg = msg;
    in->tag = tag;
    return in;
}

void sl_wire_in_free(struct sl_wire_in *in)
{
    if (!in)
        return;
    if (in->internal)
        sl_nng_server_drop(in);
    sl_wire_free(in->msg);
    sl_free(in);
}

void sl_nng_set_options(nng_socket s)
{
    /* not every socket has every option: what is missing is not needed there */
    nng_socket_set_size(s, NNG_OPT_RECVMAXSZ, SL_WIRE_MAX_BYTES + SL_SEAL_BYTES);
    nng_socket_set_ms(s, NNG_OPT_RECONNMINT, RECONNECT_MIN_MS);
    nng_socket_set_ms(s, NNG_OPT_RECONNMAXT, RECONNECT_MAX_MS);
    nng_socket_set_bool(s, NNG_OPT_TCP_KEEPALIVE, true);
    nng_socket_set_bool(s, NNG_OPT_TCP_NODELAY, true);
}

static bool is_port(const char *s)
{
    size_t n = strlen(s);
    return n > 0 && n <= 5 && strspn(s, "0123456789") == n && strtoul(s, NULL, 10) <= 65535;
}

enum sl_err sl_wire_url_check(const char *key, const char *url, struct sl_why *why)
{
    nng_url *u = NULL;
    bool good = false;
    if (nng_url_parse(&u, url) == 0) {
        bool network = strcmp(u->u_scheme, "tcp") == 0 || strcmp(u->u_scheme, "tls+tcp") == 0;
        bool local = strcmp(u->u_scheme, "ipc") == 0 || strcmp(u->u_scheme, "inproc") == 0 ||
                     strcmp(u->u_scheme, "abstract") == 0;
        good = (network && is_port(u->u_port)) || (local && u->u_path && *u->u_path);
        nng_url_free(u);
    }
    if (good)
        return SL_OK;
    return sl_why_set(why, SL_ECONFIG,
                      "%s is \"%.200s\"; expected tcp://HOST:PORT, tls+tcp://HOST:PORT or ipc:///PATH", key,
                      url);
}

enum sl_err sl_nng_url_error(int rv, const char *verb, const char *url, struct sl_why *why)
{
    switch (rv) {
    case NNG_ENOTSUP:
    case NNG_EINVAL:
    case NNG_EADDRINVAL:
        return sl_why_set(
            why, SL_ECONFIG,
            "cannot %s %s: %s; expected tcp://HOST:PORT or ipc:///PATH with an address of this kind", verb,
            url, nng_strerror(rv));
    case NNG_ENOENT: /* of a socket that is a file */
        return sl_why_set(why, SL_EIO,
                          "cannot %s %s: there is no such folder; make it, or choose another address", verb,
                          url);
    default:
        return sl_why_set(why, SL_EIO, "cannot %s %s: %s; choose another address", verb, url,
                          nng_strerror(rv));
    }
}

enum sl_err sl_nng_listen(nng_socket s, const char *url, const struct sl_wire_guard *guard, char **bound,
                          struct sl_why *why)
{
    nng_listener l;
    nng_tls_config *tls = NULL;
    enum sl_err err = sl_nng_tls(guard, url, true, &tls, why);
    if (err != SL_OK)
        return err;
    int rv = nng_listener_create(&l, s, url);
    if (rv == 0 && tls)
        rv = nng_listener_set_ptr(l, NNG_OPT_TLS_CONFIG, tls);
    if (rv == 0)
        rv = nng_listener_start(l, 0);
    if (tls) /* nng does not take NULL */
        nng_tls_config_free(tls);
    if (rv != 0)
        return sl_nng_url_error(rv, "listen on", url, why);
    int port;
    const char *colon = strrchr(url, ':');
    if (strstr(url, "tcp://") && colon && nng_listener_get_int(l, NNG_OPT_TCP_BOUND_PORT, &port) == 0)
        *bound = sl_xasprintf("%.*s:%d", (int)(colon - url), url, port);
    else
        *bound = sl_xstrdup(url);
    return SL_OK;
}
