/* kernels/cuda/cu_runtime.h - what the backend needs of a device: memory, ordered streams, launches.
 * cu_runtime.c is CUDA's, emulation/cu_runtime_emulated.c runs on the CPU.
 *
 * Every call is checked. A device that fails cannot be repaired from inside the process and the ops have no
 * error to give back, so the process says why and ends: for the cluster that is a node that died, whose
 * requests go on elsewhere.
 *
 * Threads: all calls on a stream come from one thread. */
#ifndef SLUICE_KERNELS_CUDA_CU_RUNTIME_H
#define SLUICE_KERNELS_CUDA_CU_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cu_stream; /* opaque */

/* NULL when there is a device to open, else what is missing, as a clause: "no CUDA driver is loaded". */
const char *cu_missing(void);

unsigned cu_devices(void); /* that there are to open, numbered from 0 */

/* SL_EDEVICE. */
SL_MUST_CHECK enum sl_err cu_stream_open(unsigned device, struct cu_stream **out, struct sl_why *why);
void cu_stream_close(struct cu_stream *s); /* takes NULL */
/* Makes its device the one that libraries take for the calling thread's. So do calls here. */
void cu_stream_use(struct cu_stream *s);
/* Lets copies between the two streams' devices go from one to the other where the hardware can, and not by the
 * host. */
void cu_reach(struct cu_stream *s, struct cu_stream *other);
unsigned cu_multiprocessors(const struct cu_stream *s);
size_t cu_memory_free(const struct cu_stream *s); /* bytes of the device */
void *cu_native_stream(struct cu_stream *s);      /* CUDA's own, for libraries; under emulation s */

/* Device memory, zeroed in stream order; NULL when there is none. */
void *cu_alloc(struct cu_stream *s, size_t bytes);
/* Host memory for cu_copy_pinned. */
void *cu_alloc_pinned(struct cu_stream *s, size_t bytes);
/* Of either, after all that uses it: waits for the stream. Takes NULL. */
void cu_free(struct cu_stream *s, void *p);

/* Ordered. The host's bytes are taken at the call, and are there after cu_sync. */
void cu_upload(struct cu_stream *s, void *dst, const void *src, size_t bytes);
void cu_download(struct cu_stream *s, void *dst, const void *src, size_t bytes);
/* Ordered. src, of cu_alloc_pinned, stays as it is until cu_sync. */
void cu_copy_pinned(struct cu_stream *s, void *dst, const void *src, size_t bytes);
/* The same for n runs of bytes, a stride apart; either side may also be another device's memory. */
void cu_copy_rows(struct cu_stream *s, void *dst, size_t dst_stride, const void *src, size_t src_stride,
                  size_t bytes, size_t n);

void cu_sync(struct cu_stream *s);

/* A mark in the order of a stream of s's device, which streams of any device may join. */
struct cu_event;
struct cu_event *cu_event_new(struct cu_stream *s);
void cu_event_free(struct cu_event *e); /* takes NULL */
void cu_event_record(struct cu_event *e, struct cu_stream *s);
/* What is queued on s from here on begins after what was recorded last. */
void cu_event_join(const struct cu_event *e, struct cu_stream *s);
/* Whether what was recorded last is over; what never was is. From any thread. */
int cu_event_done(struct cu_event *e);
void cu_event_wait(struct cu_event *e);

/* What was queued once, to be queued again by one call: the same kernels with the same arguments. */
struct cu_graph;
/* Until the end nothing that is queued runs; it is recorded. False: that cannot be, and nothing changed. */
bool cu_capture_begin(struct cu_stream *s);
/* NULL: something could not be recorded (an error, an upload or download, a wait), and nothing of it ran. */
struct cu_graph *cu_capture_end(struct cu_stream *s);
void cu_graph_launch(struct cu_stream *s, struct cu_graph *g);
void cu_graph_free(struct cu_graph *g); /* takes NULL */

struct cu_launch {
    const char *name;
    const void *kernel; /* of a CU_KERNEL */
    unsigned grid_x, grid_y, n_threads;
    size_t shared_bytes;
    const void *args; /* the kernel's one struct, taken at the call */
    size_t args_bytes;
};
/* Nothing happens for a grid of no blocks. */
void cu_launch(struct cu_stream *s, const struct cu_launch *l);

#ifdef __cplusplus
}
#endif
#endif
