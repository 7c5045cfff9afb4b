/* tests/unit/transfer/raw_peer.h - a peer that speaks the page protocol message by message, or breaks it.
 *
 * Runs in the test's thread over any link. As P it connects; as D it waits to be dialled. */
#ifndef SLUICE_TESTS_UNIT_TRANSFER_RAW_PEER_H
#define SLUICE_TESTS_UNIT_TRANSFER_RAW_PEER_H

#include "common/base/list.h"
#include "common/transfer/kv_wire.h"
#include "tests/unit/transfer/xfer_rig.h"

struct raw_peer {
    const struct sl_link_ops *ops;
    struct sl_link *link;
    struct sl_conn *conn; /* NULL before and after */
    struct sl_kv_hello hello;
    struct sl_list inbox;    /* struct raw_message */
    struct sl_list payloads; /* on their way */
};

struct raw_message {
    struct sl_list node;
    struct sl_kv_header h;
    size_t len;
    unsigned char *payload;
};

/* Takes the identity of a node as the rig opens it, under this name. */
void raw_open(struct raw_peer *r, const char *transport, const char *name, uint64_t boot_id);
void raw_close(struct raw_peer *r);
struct sl_xfer_peer raw_ref(const struct raw_peer *r);

void raw_connect(struct raw_peer *r, const struct rig_node *to);
/* Connects and shakes hands. */
void raw_join(struct raw_peer *r, const struct rig_node *to);
/* Waits for a node to dial and to say hello; answers that all is well. */
void raw_be_joined(struct raw_peer *r);

void raw_send(struct raw_peer *r, const struct sl_kv_header *h, const void *payload, size_t len);
/* Any header bytes. control: as a control message. */
void raw_send_bytes(struct raw_peer *r, const void *header, size_t header_len, const void *payload,
                    size_t len, bool control);
void raw_progress(struct raw_peer *r, uint32_t wait_ms);
/* The next message that is here, or NULL. To be freed with raw_free. */
struct raw_message *raw_next(struct raw_peer *r);
/* The next message of this type, to be freed with raw_free; others before it are dropped. */
struct raw_message *raw_wait(struct raw_peer *r, enum sl_kv_type type);
void raw_free(struct raw_message *m);
void raw_wait_closed(struct raw_peer *r);

#endif
