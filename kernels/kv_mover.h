/* kernels/kv_mover.h - pages between a device's pool and memory that a transport sends from and receives into,
 * beside the steps: a table of a backend whose pages lie on a device.
 *
 * A mover has slots of a page each, on the device and, the same, in pinned host memory. Pages are gathered into
 * consecutive slots, and then are one run of bytes for a copy over the bus (fetch, place) or for a transport that
 * sends from the device (gather, scatter). Copies over the bus run beside the gathering of others. Of a pool that
 * several devices share by heads (kv_open_parts) slots are on the first one's, and hold whole pages in the layout of
 * kernels/tensor.h: what travels does not know of them.
 *
 * Threads: all calls of one mover come from one thread, any; the device thread runs steps meanwhile. Pages that
 * are moved must be final, or not yet in use by a step: a mover does not wait for steps, nor they for it.
 * Each call that starts something returns its ticket, which grows. Slots are the caller's to share out. */
#ifndef SLUICE_KERNELS_KV_MOVER_H
#define SLUICE_KERNELS_KV_MOVER_H

#include "common/base/err.h"
#include "kernels/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

struct sl_kv_mover; /* opaque */
struct sl_dev;
struct sl_kv;

struct sl_kv_slots {
    void *host, *device;     /* [n_slots, page_bytes] */
    const uint64_t *digests; /* [n_slots] of the pages in them, where a call was told their tokens */
    uint32_t n_slots;
    size_t page_bytes;
    void *stream; /* of gather and scatter: the device's own kind (cudaStream_t), for libraries */
};

struct sl_kv_mover_ops {
    enum sl_err (*open)(struct sl_dev *d, struct sl_kv *kv, uint32_t n_slots, struct sl_kv_mover **out,
                        struct sl_why *why);
    void (*close)(struct sl_kv_mover *m); /* waits for what is under way; takes NULL */
    struct sl_kv_slots (*slots)(const struct sl_kv_mover *m);
    /* pages [n] to slots [slot, slot + n) on the device; fetch: and on to the host's. n_tokens [n] or NULL: their
     * digests too, as sl_kv_page_digest() gives them. The lists are free at return. */
    uint64_t (*gather)(struct sl_kv_mover *m, const uint32_t *pages, const uint32_t *n_tokens, uint32_t n,
                       uint32_t slot);
    uint64_t (*fetch)(struct sl_kv_mover *m, const uint32_t *pages, const uint32_t *n_tokens, uint32_t n,
                      uint32_t slot);
    /* The other way: from the device's slots; place: from the host's, through the device's. */
    uint64_t (*scatter)(struct sl_kv_mover *m, const uint32_t *pages, const uint32_t *n_tokens, uint32_t n,
                        uint32_t slot);
    uint64_t (*place)(struct sl_kv_mover *m, const uint32_t *pages, const uint32_t *n_tokens, uint32_t n,
                      uint32_t slot);
    /* True when what the ticket is of is over, and its digests are there. */
    int (*done)(struct sl_kv_mover *m, uint64_t ticket);
    void (*wait)(struct sl_kv_mover *m, uint64_t ticket);
};

/* Pages that lie on a device, and who moves them. Borrowed: of use as long as the device is open. */
struct sl_kv_on_device {
    const struct sl_kv_mover_ops *ops;
    struct sl_dev *dev;
    struct sl_kv *kv;
};

#ifdef __cplusplus
}
#endif
#endif
