/* common/transfer/ucx_load.c - see ucx_load.h. The operator's environment wins over the settings here. */
#include "common/transfer/ucx_load.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The version whose headers were compiled; brings libuct, libucs and libucm. */
#define LIBRARY "libucp.so.0"

struct sl_ucx sl_ucx;
static struct sl_why not_loaded;

static const char *const environment[][2] = {
    {"UCX_HANDLE_ERRORS", "none"}, /* no signal handlers, no backtraces */
    {"UCX_DEBUG_SIGNO", "0"},
    {"UCX_MEM_EVENTS", "n"}, /* no patches: the pool is registered by hand and once */
    {"UCX_WARN_UNUSED_ENV_VARS", "n"},
    {"UCX_POSIX_ERROR_HANDLING", "y"}, /* else peer-error mode drops shared memory */
    {"UCX_SYSV_ERROR_HANDLING", "y"},
    /* else closing beside a put whose acknowledgement is under way can fail an assertion
                           * of UCX 1.13 (tcp_ep.c, PUT_TX_WAITING_ACK) and end the process */
    {"UCX_TCP_PUT_ENABLE", "n"},
    {"UCX_TCP_CONN_NB", "y"}, /* a connect that blocks holds up all; and when its peer
                                                       goes, 1.13 aborts the process */
    {"UCX_TCP_KEEPIDLE", "1s"},
    {"UCX_TCP_KEEPINTVL", "1s"},
    {"UCX_TCP_KEEPCNT", "3"},
    {"UCX_KEEPALIVE_INTERVAL", "1s"},
    {"UCX_MAX_RNDV_RAILS", "1"}, /* no striping over all interfaces */
};

#define UCP(name)                                                                                            \
    {                                                                                                        \
        "ucp_" #name, offsetof(struct sl_ucx, name)                                                          \
    }
static const struct {
    const char *name;
    size_t at;
} functions[] = {
    UCP(config_read),
    UCP(config_modify),
    UCP(config_release),
    UCP(init_version),
    UCP(cleanup),
    UCP(context_query),
    UCP(mem_map),
    UCP(mem_unmap),
    UCP(worker_create),
    UCP(worker_destroy),
    UCP(worker_get_efd),
    UCP(worker_arm),
    UCP(worker_progress),
    UCP(worker_set_am_recv_handler),
    UCP(listener_create),
    UCP(listener_query),
    UCP(listener_reject),
    UCP(listener_destroy),
    UCP(ep_create),
    UCP(ep_close_nbx),
    UCP(am_send_nbx),
    UCP(am_recv_data_nbx),
    UCP(request_check_status),
    UCP(request_free),
    {"ucs_status_string", offsetof(struct sl_ucx, status_string)},
};
_Static_assert(SL_COUNTOF(functions) * sizeof(void (*)(void)) == sizeof(struct sl_ucx),
               "one line per function");

#if defined(__has_feature)
#define HAS_ASAN __has_feature(address_sanitizer)
#elif defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#else
#define HAS_ASAN 0
#endif
#if HAS_ASAN
/* The leak checker guesses where the thread-local memory of a library that was loaded late lies, and when it
 * guesses wrong it ends the program. It does without. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "intercept_tls_get_addr=0";
}
#endif

static void load(void)
{
    for (size_t i = 0; i < SL_COUNTOF(environment); i++)
        setenv(environment[i][0], environment[i][1], 0);
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        sl_why_set(&not_loaded, SL_ECONFIG,
                   "transport \"ucx\" needs %s, which cannot be loaded (%s); install UCX (Debian: libucx0)",
                   LIBRARY, dlerror());
        return;
    }
    for (size_t i = 0; i < SL_COUNTOF(functions); i++) {
        void *f = dlsym(library, functions[i].name);
        if (!f) {
            sl_why_set(&not_loaded, SL_ECONFIG,
                       "%s has no function %s: it is another version of UCX than the "
                       "one Sluice was built with",
                       LIBRARY, functions[i].name);
            return;
        }
        memcpy((char *)&sl_ucx + functions[i].at, &f, sizeof f);
    }
}

enum sl_err sl_ucx_load(struct sl_why *why)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return not_loaded.text[0] ? sl_why_set(why, SL_ECONFIG, "%s", not_loaded.text) : SL_OK;
}
