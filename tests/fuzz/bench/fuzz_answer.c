/* tests/fuzz/bench/fuzz_answer.c - any bytes as the answer that the bench's client gets: where they are cut on their way
 * changes nothing. Input: a byte for where, then the bytes. */
#include <stdint.h>
#include <string.h>

#include "tests/bench/client.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void take(const uint8_t *bytes, size_t n, size_t piece, struct sl_job *j)
{
    sl_buf_init(&j->text, SL_CLIENT_MAX_ANSWER);
    sl_buf_init(&j->raw, SL_CLIENT_MAX_ANSWER);
    for (size_t at = 0; at < n; at += piece) {
        SL_ASSERT(sl_buf_append(&j->raw, bytes + at, piece < n - at ? piece : n - at));
        sl_job_take_stream(j, 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sl_job whole = {0}, cut = {0}, plain = {0};
    if (size < 2)
        return 0;
    take(data + 1, size - 1, size, &whole);
    take(data + 1, size - 1, 1 + data[0], &cut);
    SL_ASSERT(whole.n_tokens == cut.n_tokens && whole.text.len == cut.text.len &&
              whole.raw.len == cut.raw.len);
    SL_ASSERT(whole.done_seen == cut.done_seen && strcmp(whole.error, cut.error) == 0 &&
              strcmp(whole.finish, cut.finish) == 0);
    SL_ASSERT(whole.n_tokens == 0 ||
              memcmp(whole.token_id, cut.token_id, whole.n_tokens * sizeof *whole.token_id) == 0);
    sl_buf_init(&plain.text, SL_CLIENT_MAX_ANSWER);
    sl_job_take_answer(&plain, (const char *)data + 1, size - 1, 1);
    sl_job_fini(&whole);
    sl_job_fini(&cut);
    sl_job_fini(&plain);
    return 0;
}
