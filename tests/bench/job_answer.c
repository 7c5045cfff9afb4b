/* tests/bench/job_answer.c - what a server answers to a job: frames of a stream, or JSON.
 *
 * A frame is one line "data: JSON"; "[DONE]" ends. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/client.h"

static void take_error(struct sl_job *j, json_t *error)
{
    const char *message = json_string_value(json_object_get(error, "message"));
    snprintf(j->error, sizeof j->error, "%s", message ? message : "error without a message");
}

static const char *text_of(const json_t *choice)
{
    static const char *const names[] = {"content", "reasoning_content", "reasoning"};
    const char *text = json_string_value(json_object_get(choice, "text"));
    const json_t *delta = json_object_get(choice, "delta");
    for (size_t i = 0; !text && i < SL_COUNTOF(names); i++)
        text = json_string_value(json_object_get(delta, names[i]));
    return text ? text : "";
}

/* One data frame of the stream (or, with the same members, the whole answer of an unstreamed request). */
void sl_job_take_answer(struct sl_job *j, const char *data, size_t len, double at)
{
    json_error_t why;
    json_t *doc = json_loadb(data, len, JSON_ALLOW_NUL, &why); /* a token may be a NUL byte */
    if (!doc) {
        snprintf(j->error, sizeof j->error, "an answer that is no JSON: %s", why.text);
        return;
    }
    json_t *error = json_object_get(doc, "error");
    if (json_is_object(error))
        take_error(j, error);
    json_t *usage = json_object_get(doc, "usage");
    if (json_is_object(usage)) {
        j->prompt_tokens = (uint32_t)json_integer_value(json_object_get(usage, "prompt_tokens"));
        j->completion_tokens = (uint32_t)json_integer_value(json_object_get(usage, "completion_tokens"));
        j->cached_tokens = (uint32_t)json_integer_value(
            json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"));
    }
    json_t *choice = json_array_get(json_object_get(doc, "choices"), 0);
    const char *text = text_of(choice);
    sl_buf_puts(&j->text, text);
    json_t *finish = json_object_get(choice, "finish_reason");
    if (json_is_string(finish))
        snprintf(j->finish, sizeof j->finish, "%s", json_string_value(finish));
    json_t *ids = json_object_get(choice, "token_ids");
    const char *digest = json_string_value(json_object_get(json_object_get(doc, "sluice"), "digest"));
    if (json_array_size(ids) > 0)
        for (size_t i = 0; i < json_array_size(ids); i++)
            sl_job_add_token(j, at, (int32_t)json_integer_value(json_array_get(ids, i)),
                             digest ? strtoull(digest, NULL, 16) : 0);
    /* A server without token ids: one chunk is one token. One without text is a token that ends within a
     * character, unless it tells the role or the end. */
    else if (choice && !ids &&
             (*text ||
              (!json_is_string(finish) && !json_object_get(json_object_get(choice, "delta"), "role"))))
        sl_job_add_token(j, at, -1, 0);
    json_decref(doc);
}

void sl_job_take_stream(struct sl_job *j, double at)
{
    size_t used = 0;
    while (used < j->raw.len) {
        const char *line = j->raw.data + used, *end = memchr(line, '\n', j->raw.len - used);
        if (!end)
            break;
        used += (size_t)(end - line) + 1;
        if (end > line && end[-1] == '\r')
            end--;
        if (end - line < 5 || memcmp(line, "data:", 5) != 0)
            continue;
        line += 5;
        while (line < end && *line == ' ')
            line++;
        if (end - line >= 6 && memcmp(line, "[DONE]", 6) == 0)
            j->done_seen = true;
        else
            sl_job_take_answer(j, line, (size_t)(end - line), at);
    }
    sl_buf_consume(&j->raw, used);
}
