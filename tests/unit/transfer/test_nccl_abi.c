/* tests/unit/transfer/test_nccl_abi.c - what nccl_load.h declares of NCCL and of the CUDA driver, held against
 * the real headers and linked with the real libnccl. Built where both are installed; needs no card. */
#include <cuda.h>
#include <nccl.h>
#include <stdlib.h>

#include "common/transfer/nccl_load.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

_Static_assert((int)ncclSuccess == SL_NCCL_SUCCESS && (int)ncclInProgress == SL_NCCL_IN_PROGRESS, "results");
_Static_assert((int)CUDA_SUCCESS == SL_CUDA_SUCCESS && (int)CUDA_ERROR_NOT_READY == SL_CUDA_NOT_READY,
               "results");
_Static_assert((int)ncclUint8 == SL_NCCL_UINT8, "type of bytes");
_Static_assert((unsigned)CU_STREAM_NON_BLOCKING == SL_CUDA_NON_BLOCKING, "streams");
_Static_assert((unsigned)CU_EVENT_DISABLE_TIMING == SL_CUDA_NO_TIMING, "events");
_Static_assert(sizeof(ncclUniqueId) == sizeof(struct sl_nccl_id), "id");
_Static_assert(sizeof(CUdeviceptr) == sizeof(sl_cuda_ptr), "device address");
_Static_assert(sizeof(ncclResult_t) == sizeof(int) && sizeof(CUresult) == sizeof(int), "results are ints");
_Static_assert(sizeof(ncclDataType_t) == sizeof(int) && sizeof(CUdevice) == sizeof(int), "so are these");
/* The head of the configuration is that of 2.14. */
#define SAME_PLACE(member)                                                                                   \
    _Static_assert(offsetof(ncclConfig_t, member) == offsetof(struct sl_nccl_config, member), #member)
SAME_PLACE(size);
SAME_PLACE(magic);
SAME_PLACE(version);
SAME_PLACE(blocking);
_Static_assert(sizeof(ncclConfig_t) >= sizeof(struct sl_nccl_config), "it only grew");
_Static_assert(NCCL_VERSION(2, 14, 0) == SL_NCCL_MIN_VERSION, "how versions are counted");

/* The real functions with their real types, called as the table's are: same number and order of arguments. A
 * type that does not fit is a warning, which is an error here. */
static ncclResult_t call_all(ncclComm_t c, CUstream s, CUevent e, CUcontext x)
{
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t state;
    int version;
    void *p = NULL;
    (void)ncclGetErrorString(ncclSuccess);
    ncclGetVersion(&version);
    ncclGetUniqueId(&id);
    ncclCommInitRankConfig(&c, 2, id, 0, &config);
    ncclCommGetAsyncError(c, &state);
    ncclGroupStart();
    ncclSend(p, (size_t)1, ncclUint8, 1, c, (cudaStream_t)s);
    ncclRecv(p, (size_t)1, ncclUint8, 1, c, (cudaStream_t)s);
    ncclGroupEnd();
    ncclAllGather(p, p, (size_t)1, ncclUint8, c, (cudaStream_t)s);
    (void)e;
    (void)x;
    return ncclCommAbort(c);
}

/* What cuda.h calls the function that the table names, with the table's types. */
#define SAME_DRIVER(name, ...)                                                                               \
    _Static_assert(_Generic(&name, CUresult(*)(__VA_ARGS__) : 1, default : 0), #name)
SAME_DRIVER(cuInit, unsigned);
SAME_DRIVER(cuDeviceGet, CUdevice *, int);
SAME_DRIVER(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice);
SAME_DRIVER(cuCtxSetCurrent, CUcontext);
SAME_DRIVER(cuGetErrorString, CUresult, const char **);
SAME_DRIVER(cuStreamCreate, CUstream *, unsigned);
SAME_DRIVER(cuStreamDestroy, CUstream);
SAME_DRIVER(cuStreamSynchronize, CUstream);
SAME_DRIVER(cuEventCreate, CUevent *, unsigned);
SAME_DRIVER(cuEventDestroy, CUevent);
SAME_DRIVER(cuEventRecord, CUevent, CUstream);
SAME_DRIVER(cuEventQuery, CUevent);
SAME_DRIVER(cuMemAlloc, CUdeviceptr *, size_t);
SAME_DRIVER(cuMemFree, CUdeviceptr);
SAME_DRIVER(cuMemHostRegister, void *, size_t, unsigned);
SAME_DRIVER(cuMemHostUnregister, void *);
SAME_DRIVER(cuMemcpyAsync, CUdeviceptr, CUdeviceptr, size_t, CUstream);
/* The versions that nccl_load.c asks the library for are those that cuda.h means. */
#define TEXT(name)  #name
#define NAMED(name) TEXT(name)
static const char *const versions[][2] = {
    {NAMED(cuStreamDestroy), "cuStreamDestroy_v2"},
    {NAMED(cuEventDestroy), "cuEventDestroy_v2"},
    {NAMED(cuMemAlloc), "cuMemAlloc_v2"},
    {NAMED(cuMemFree), "cuMemFree_v2"},
    {NAMED(cuMemHostRegister), "cuMemHostRegister_v2"},
    {NAMED(cuEventRecord), "cuEventRecord"},
    {NAMED(cuStreamCreate), "cuStreamCreate"},
    {NAMED(cuDevicePrimaryCtxRetain), "cuDevicePrimaryCtxRetain"},
};

static void the_driver_means_the_versions_loaded(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(versions); i++)
        assert_string_equal(versions[i][0], versions[i][1]);
}

static void the_real_library_gives_ids(void **state)
{
    ncclUniqueId a, b;
    int version = 0;
    (void)state;
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    assert_int_equal(ncclGetVersion(&version), ncclSuccess);
    assert_true(version >= SL_NCCL_MIN_VERSION && version / 10000 == 2);
    assert_int_equal(ncclGetUniqueId(&a), ncclSuccess);
    assert_int_equal(ncclGetUniqueId(&b), ncclSuccess);
    assert_memory_not_equal(&a, &b, sizeof a);
    if (getenv("SLUICE_NEVER")) /* it is enough that it links */
        assert_int_equal(call_all(NULL, NULL, NULL, NULL), ncclSuccess);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_driver_means_the_versions_loaded),
        cmocka_unit_test(the_real_library_gives_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
