/* tests/support/fake_nccl/fake_gpu.h - what the two halves of the fake share: a stream is a thread that works
 * off a list, device memory is host memory that is remembered.
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
_Noreturn void fake_misuse(const char *what);

/* Of a program that has the emulated device (kernels/cuda/emulation/cu_emu.h) and exports them; else NULL. */
__attribute__((weak)) void cu_emu_memory_open(void);
__attribute__((weak)) void cu_emu_memory_close(void);

#endif
