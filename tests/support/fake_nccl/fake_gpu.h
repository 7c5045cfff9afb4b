/* tests/support/fake_nccl/fake_gpu.h - what the two halves of the fake share: a stream is a thread that works
 * off a list, device memory is host memory that is remembered. There are eight devices; in a program with emulated
 * ones as many as those, whose streams and memory are taken too.
 *
 * One shared library answers to both names, libcuda.so.1 and libnccl.so.2 (CMakeLists.txt). It has only what
 * common/transfer calls, and it is strict: what the real libraries would answer with a hang or a wrong byte -
 * a call on a communicator that is busy, host memory given to NCCL, groups that differ at the two ranks -
 * ends the process with a sentence. */
#ifndef SLUICE_TESTS_SUPPORT_FAKE_NCCL_FAKE_GPU_H
#define SLUICE_TESTS_SUPPORT_FAKE_NCCL_FAKE_GPU_H

#include <stdbool.h>
#include <stddef.h>

typedef void fake_task_fn(void *arg);

/* Runs fn(arg) in the stream's thread after all that was pushed before. */
void fake_stream_push(void *stream, fake_task_fn *fn, void *arg);
bool fake_is_device(const void *p, size_t bytes);
/* Whether the stream was made here; else it is an emulated device's. */
bool fake_is_stream(const void *stream);
int fake_current_device(void); /* of the thread's context; -1 = none */
void fake_copy(void *dst, const void *src, size_t bytes);
_Noreturn void fake_misuse(const char *what);

/* Of a program that has emulated devices (kernels/cuda/emulation/cu_emu.h) and exports them; else NULL. */
__attribute__((weak)) unsigned cu_devices(void);
__attribute__((weak)) int cu_emu_device_of(const void *p);
__attribute__((weak)) void cu_emu_copy_rows(void *dst, size_t dst_stride, const void *src, size_t src_stride,
                                            size_t bytes, size_t n);
__attribute__((weak)) void cu_emu_call(void *stream, void (*fn)(const void *arg), const void *arg,
                                       size_t bytes);
__attribute__((weak)) unsigned cu_emu_stream_device(const void *stream);
__attribute__((weak)) bool cu_emu_is_capturing(const void *stream);

#endif
