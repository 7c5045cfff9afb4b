/* common/transfer/nccl_load.h - the functions of NCCL and of the CUDA driver that link_nccl.c, nccl_pair.c and
 * nccl_group.c call, loaded when the first nccl link or group opens.
 *
 * Declared here and not included: a build needs neither nccl.h nor cuda.h, and one build runs with every
 * NCCL from 2.14 on, whose structs say their own size. tests/unit/transfer/test_nccl_abi.c compares with the
 * real headers where they are installed. The driver and not the runtime of CUDA, because its library has one
 * name for all versions. */
#ifndef SLUICE_COMMON_TRANSFER_NCCL_LOAD_H
#define SLUICE_COMMON_TRANSFER_NCCL_LOAD_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

#define SL_NCCL_MIN_VERSION  21400 /* the first with ncclCommInitRankConfig: communicators that do not block */
#define SL_NCCL_CONFIG_MAGIC 0xcafebeefu
#define SL_NCCL_UINT8        1 /* ncclDataType_t */

enum sl_nccl_result { SL_NCCL_SUCCESS = 0, SL_NCCL_IN_PROGRESS = 7 };
enum sl_cuda_result { SL_CUDA_SUCCESS = 0, SL_CUDA_NOT_READY = 600 };
#define SL_CUDA_NON_BLOCKING 1u /* CU_STREAM_NON_BLOCKING */
#define SL_CUDA_NO_TIMING    2u /* CU_EVENT_DISABLE_TIMING */

struct sl_nccl_id {
    char bytes[128];
};
/* ncclConfig_t of 2.14; later ones are longer and take this one by its size and version. */
struct sl_nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
};
typedef unsigned long long sl_cuda_ptr;

/* Each has the contract of the function it is named after. Communicators, streams, events and contexts are
 * opaque pointers. */
struct sl_nccl {
    int (*ncclGetVersion)(int *version);
    int (*ncclGetUniqueId)(struct sl_nccl_id *id);
    int (*ncclCommInitRankConfig)(void **comm, int n_ranks, struct sl_nccl_id id, int rank,
                                  struct sl_nccl_config *config);
    int (*ncclCommGetAsyncError)(void *comm, int *result);
    int (*ncclCommAbort)(void *comm);
    int (*ncclGroupStart)(void);
    int (*ncclGroupEnd)(void);
    int (*ncclSend)(const void *p, size_t count, int type, int peer, void *comm, void *stream);
    int (*ncclRecv)(void *p, size_t count, int type, int peer, void *comm, void *stream);
    int (*ncclAllGather)(const void *own, void *parts, size_t count, int type, void *comm, void *stream);
    const char *(*ncclGetErrorString)(int result);
    int (*cuInit)(unsigned flags);
    int (*cuDeviceGet)(int *device, int ordinal);
    int (*cuDevicePrimaryCtxRetain)(void **context, int device);
    int (*cuCtxSetCurrent)(void *context);
    int (*cuGetErrorString)(int result, const char **text);
    int (*cuStreamCreate)(void **stream, unsigned flags);
    int (*cuStreamDestroy)(void *stream);
    int (*cuStreamSynchronize)(void *stream);
    int (*cuEventCreate)(void **event, unsigned flags);
    int (*cuEventDestroy)(void *event);
    int (*cuEventRecord)(void *event, void *stream);
    int (*cuEventQuery)(void *event);
    int (*cuMemAlloc)(sl_cuda_ptr *p, size_t bytes);
    int (*cuMemFree)(sl_cuda_ptr p);
    int (*cuMemHostRegister)(void *p, size_t bytes, unsigned flags);
    int (*cuMemHostUnregister)(void *p);
    int (*cuMemcpyAsync)(sl_cuda_ptr dst, sl_cuda_ptr src, size_t bytes,
                         void *stream); /* either of any memory */
};

extern struct sl_nccl sl_nccl;      /* after sl_nccl_load() */
extern int sl_nccl_version;         /* as ncclGetVersion says: 22809 is 2.28.9 */
extern void *sl_nccl_context;       /* of the first device; every thread that calls makes it current */
const char *sl_cuda_text(int code); /* what a CUDA result means */

/* Any number of times, from any thread; all with the process' first device. SL_ECONFIG: no NCCL, one that is too old,
 * no driver or no device. The first call takes as long as NCCL and CUDA take to start. */
SL_MUST_CHECK enum sl_err sl_nccl_load(uint32_t device, struct sl_why *why);

#endif
