/* tests/fuzz/transfer/fuzz_kv_wire.c - messages of a peer that has shaken hands and then sends anything.
 *
 * An input is a list of messages to a decode node and to a prefill node that each have a session open with
 * the peer. A message is either ten bytes that shape a header which is mostly right, or raw header bytes.
 * After each input: pages that no session was given are untouched, the nodes still answer, and both sessions
 * end. */
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/unit/transfer/raw_peer.h"

#define PT       RIG_PAGE_TOKENS
#define N_PAGES  6u
#define N_TOKENS (N_PAGES * PT - 1)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Of D's pool: two runs, the first page a prefix hit. */
static const uint32_t d_pages[N_PAGES] = {8, 9, 10, 20, 21, 22};

static struct rig_node p, d;
static struct raw_peer as_p, as_d; /* who talks to D, who talks to P */
static struct sl_xfer_key key;

static void open_all(void)
{
    sl_log_set_level(SL_LOG_ERROR);
    rig_open(&p, &(struct rig_opts){.name = "p0", .n_pages = 32});
    rig_open(&d, &(struct rig_opts){.name = "d0", .n_pages = 32});
    raw_open(&as_p, "loop", "p1", 5);
    raw_open(&as_d, "loop", "d1", 6);
    for (uint32_t i = 0; i < N_PAGES; i++)
        rig_fill(&p, i, 1, i);
}

/* Both sessions are open, D's is granted, P has all its pages ready. */
static void begin(void)
{
    uint32_t p_pages[N_PAGES];
    unsigned char bitmap = 1;
    struct sl_xfer_peer from = raw_ref(&as_p), to = raw_ref(&as_d);
    key = rig_key("r", key.epoch + 1);
    rig_iota(p_pages, N_PAGES, 0);
    if (!as_p.conn)
        raw_join(&as_p, &d);
    SL_ASSERT(sl_xfer_recv_open(d.x, &key, &from, d_pages, N_TOKENS, 1, RIG_DEADLINE_MS) == SL_OK);
    SL_ASSERT(sl_xfer_send_open(p.x, &key, &to, N_TOKENS, RIG_DEADLINE_MS) == SL_OK);
    SL_ASSERT(sl_xfer_send_ready(p.x, &key, p_pages, N_TOKENS) == SL_OK);
    struct sl_kv_header h = {.type = SL_KV_ANNOUNCE, .key = key, .n_tokens = N_TOKENS, .deadline_ms = 60000};
    raw_send(&as_p, &h, NULL, 0);
    raw_free(raw_wait(&as_p, SL_KV_GRANT));
    if (!as_d.conn)
        raw_be_joined(&as_d);
    raw_free(raw_wait(&as_d, SL_KV_ANNOUNCE));
    if (key.epoch % 2) {
        h = (struct sl_kv_header){.type = SL_KV_GRANT, .key = key, .count = N_PAGES};
        raw_send(&as_d, &h, &bitmap, 1);
    }
}

static struct sl_kv_header shape(const uint8_t b[10])
{
    static const char *const ids[] = {"r", "r", "r", "other", ""};
    struct sl_kv_header h = {.type = b[0] & 0x0f,
                             .flags = b[1],
                             .key = rig_key(ids[b[2] % SL_COUNTOF(ids)], key.epoch - (b[2] & 0x80 ? 1 : 0)),
                             .index = b[3] & 0x80 ? b[3] * 300u : b[3] % (N_PAGES + 2),
                             .count = b[4] & 0x80 ? b[4] * 300u : b[4] % (N_PAGES + 2),
                             .n_tokens = N_TOKENS + (b[5] & 0x80 ? b[5] : 0),
                             .deadline_ms = b[6] * 1000u,
                             .token = b[7],
                             .value = b[8]};
    return h;
}

static size_t payload_length(uint8_t select, const struct sl_kv_header *h)
{
    size_t n = h->count < 16 ? h->count : 16;
    switch (select % 6) {
    case 0:
        return 0;
    case 1:
        return n * p.page_bytes;
    case 2:
        return n * 8;
    case 3:
        return SL_KV_IDENTITY_BYTES;
    case 4:
        return 1;
    default:
        return select;
    }
}

static void run(const uint8_t *data, size_t size)
{
    static unsigned char payload[16 * 256];
    while (size >= 10) {
        struct raw_peer *to = data[0] & 0x40 ? &as_d : &as_p;
        if (data[0] & 0x80) {
            size_t n = data[1] % (SL_LINK_MAX_HEADER + 1);
            n = n < size - 2 ? n : size - 2;
            raw_send_bytes(to, data + 2, n, payload, data[0] & 0x3f, data[0] & 0x20);
            data += 2 + n;
            size -= 2 + n;
            continue;
        }
        struct sl_kv_header h = shape(data);
        size_t len = payload_length(data[9], &h);
        memset(payload, data[9], sizeof payload);
        raw_send(to, &h, payload, len);
        data += 10;
        size -= 10;
    }
}

/* All that was sent has been read: the node answers a ping, or has closed the connection. */
static void settle(struct raw_peer *r)
{
    /* not a value that an input's own pings have: their answers may come before the connection closes */
    struct sl_kv_header ping = {.type = SL_KV_PING, .value = 0x123456789};
    raw_send(r, &ping, NULL, 0);
    while (r->conn) {
        struct raw_message *m = raw_next(r);
        bool pong = m && m->h.type == SL_KV_PONG && m->h.value == ping.value;
        if (m)
            raw_free(m);
        if (pong)
            return;
        if (!m)
            raw_progress(r, 20);
    }
}

static void check_untouched(void)
{
    for (uint32_t i = 0; i < d.n_pages; i++) {
        bool given = false;
        for (uint32_t j = 1; j < N_PAGES; j++)
            given |= d_pages[j] == i;
        for (size_t b = 0; !given && b < d.page_bytes; b++)
            SL_ASSERT(rig_page(&d, i)[b] == 0);
    }
    for (uint32_t i = 0; i < N_PAGES; i++)
        SL_ASSERT(rig_page_is(&p, i, 1, i));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool open;
    if (!open)
        open_all();
    open = true;
    if (size > 4096)
        return 0;
    begin();
    run(data, size);
    settle(&as_p);
    settle(&as_d);
    check_untouched();
    struct sl_xfer_peer to = raw_ref(&as_d);
    SL_ASSERT(sl_xfer_recv_cancel(d.x, &key) == SL_OK);
    if (!rig_has(&p, SL_XFER_SEND_DONE, &key))
        SL_ASSERT(sl_xfer_send_abort(p.x, &key, &to, "enough") == SL_OK);
    rig_wait(&d, SL_XFER_RECV_DONE, &key);
    rig_wait(&p, SL_XFER_SEND_DONE, &key);
    rig_forget(&p);
    rig_forget(&d);
    return 0;
}
