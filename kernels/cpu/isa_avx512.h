/* kernels/cpu/isa_avx512.h - the functions behind sl_cpu_isa_avx512; contracts beside struct sl_cpu_isa.
 * Included by
 * *_avx512.c only. */
#ifndef SLUICE_KERNELS_CPU_ISA_AVX512_H
#define SLUICE_KERNELS_CPU_ISA_AVX512_H

#include <string.h>
#include "kernels/cpu/cpu_dev.h"

/* r0 is a multiple of SL_GROUP. */
void sl_avx512_panel(const struct sl_weight *w, uint32_t p, const struct sl_acts *x, uint32_t r0, uint32_t r1,
                     const struct sl_store *to);

#endif
