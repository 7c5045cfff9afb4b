/* common/transfer/nccl_load.c - see nccl_load.h. */
#include "common/transfer/nccl_load.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#define NCCL "libnccl.so.2"
#define CUDA "libcuda.so.1"

struct sl_nccl sl_nccl;
int sl_nccl_version;
void *sl_nccl_context;
static struct sl_why not_loaded;
static uint32_t first_device;

#define AT(name) offsetof(struct sl_nccl, name)
#define SAME(name)                                                                                           \
    {                                                                                                        \
#name, AT(name)                                                                                      \
    }
struct function {
    const char *name;
    size_t at;
};
static const struct function of_nccl[] = {
    SAME(ncclGetVersion), SAME(ncclGetUniqueId), SAME(ncclCommInitRankConfig), SAME(ncclCommGetAsyncError),
    SAME(ncclCommAbort),  SAME(ncclGroupStart),  SAME(ncclGroupEnd),           SAME(ncclSend),
    SAME(ncclRecv),       SAME(ncclAllGather),   SAME(ncclGetErrorString),
};
/* cuda.h renames some to their second versions, which are the ones declared here. */
static const struct function of_cuda[] = {
    SAME(cuInit),
    SAME(cuDeviceGet),
    SAME(cuDevicePrimaryCtxRetain),
    SAME(cuCtxSetCurrent),
    SAME(cuGetErrorString),
    SAME(cuStreamCreate),
    {"cuStreamDestroy_v2", AT(cuStreamDestroy)},
    SAME(cuStreamSynchronize),
    SAME(cuEventCreate),
    {"cuEventDestroy_v2", AT(cuEventDestroy)},
    SAME(cuEventRecord),
    SAME(cuEventQuery),
    {"cuMemAlloc_v2", AT(cuMemAlloc)},
    {"cuMemFree_v2", AT(cuMemFree)},
    {"cuMemHostRegister_v2", AT(cuMemHostRegister)},
    SAME(cuMemHostUnregister),
    SAME(cuMemcpyAsync),
};
_Static_assert((SL_COUNTOF(of_nccl) + SL_COUNTOF(of_cuda)) * sizeof(void (*)(void)) == sizeof(struct sl_nccl),
               "one line per function");

const char *sl_cuda_text(int code)
{
    const char *text = NULL;
    return sl_nccl.cuGetErrorString(code, &text) == SL_CUDA_SUCCESS && text ? text : "an unknown error";
}

static bool load_from(const char *library, const char *install, const struct function *f, size_t n)
{
    void *l = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!l) {
        sl_why_set(&not_loaded, SL_ECONFIG, "NCCL is asked for, and %s cannot be loaded (%s); %s", library,
                   dlerror(), install);
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        void *p = dlsym(l, f[i].name);
        if (!p) {
            sl_why_set(&not_loaded, SL_ECONFIG, "%s has no function %s; %s", library, f[i].name, install);
            return false;
        }
        memcpy((char *)&sl_nccl + f[i].at, &p, sizeof p);
    }
    return true;
}

static bool start_cuda(void)
{
    int device = 0, rc = sl_nccl.cuInit(0);
    if (rc == SL_CUDA_SUCCESS)
        rc = sl_nccl.cuDeviceGet(&device, (int)first_device);
    if (rc == SL_CUDA_SUCCESS)
        rc = sl_nccl.cuDevicePrimaryCtxRetain(&sl_nccl_context, device);
    if (rc != SL_CUDA_SUCCESS)
        sl_why_set(
            &not_loaded, SL_ECONFIG,
            "NCCL needs CUDA device %u, and it is not one to use (%s); set device and transfer_transport "
            "for the cards that are here",
            first_device, sl_cuda_text(rc));
    return rc == SL_CUDA_SUCCESS;
}

/* 2.9 changed how versions are counted: 2804 was 2.8.4, 20900 is 2.9.0. */
static bool check_version(void)
{
    int v = 0, rc = sl_nccl.ncclGetVersion(&v);
    sl_nccl_version = v;
    if (rc == SL_NCCL_SUCCESS && v >= SL_NCCL_MIN_VERSION && v / 10000 == SL_NCCL_MIN_VERSION / 10000)
        return true;
    sl_why_set(&not_loaded, SL_ECONFIG, "%s says that it is version %d; expected NCCL 2, from 2.14 (%d) on",
               NCCL, v, SL_NCCL_MIN_VERSION);
    return false;
}

/* The first id makes NCCL look for its networks; a pair that meets later does not wait for it. */
static bool start_nccl(void)
{
    struct sl_nccl_id id;
    int rc = sl_nccl.ncclGetUniqueId(&id);
    if (rc != SL_NCCL_SUCCESS)
        sl_why_set(&not_loaded, SL_ECONFIG,
                   "NCCL does not start: %s; run with NCCL_DEBUG=WARN, and set NCCL_SOCKET_IFNAME to the "
                   "interface that the nodes share",
                   sl_nccl.ncclGetErrorString(rc));
    return rc == SL_NCCL_SUCCESS;
}

static void load(void)
{
    bool ok =
        load_from(NCCL, "install NCCL beside the CUDA driver (Debian, PyPI: libnccl2, nvidia-nccl-cu12)",
                  of_nccl, SL_COUNTOF(of_nccl)) &&
        check_version() && load_from(CUDA, "install the driver of the card", of_cuda, SL_COUNTOF(of_cuda)) &&
        start_cuda() && start_nccl();
    (void)ok; /* what went wrong stands in not_loaded */
}

enum sl_err sl_nccl_load(uint32_t device, struct sl_why *why)
{
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    static bool tried;
    pthread_mutex_lock(&one);
    if (!tried) {
        first_device = device;
        load();
    }
    tried = true;
    pthread_mutex_unlock(&one);
    return not_loaded.text[0] ? sl_why_set(why, SL_ECONFIG, "%s", not_loaded.text) : SL_OK;
}
