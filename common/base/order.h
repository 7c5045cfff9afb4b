/* common/base/order.h - for qsort() and bsearch(): plain numbers, ascending. NaN has no place in an order. */
#ifndef SLUICE_COMMON_BASE_ORDER_H
#define SLUICE_COMMON_BASE_ORDER_H

int sl_order_u32(const void *a, const void *b);
int sl_order_u64(const void *a, const void *b);
int sl_order_f64(const void *a, const void *b);

#endif
