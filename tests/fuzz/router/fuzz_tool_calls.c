/* tests/fuzz/router/fuzz_tool_calls.c - any text as what a model says while calls of tools are looked for: cutting it
 * elsewhere changes nothing. Input: a byte for the format, one for where it is cut, then the text. */
#include <stdint.h>
#include <string.h>

#include "common/base/mem.h"
#include "router/api/tool_calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct said {
    struct sl_buf content;
    json_t *calls;
};

/* In pieces of 1 to `most` bytes. */
static void say(const struct sl_tool_format *format, bool one_call, const char *text, size_t n, size_t most,
                struct said *out)
{
    struct sl_tool_filter *f = sl_tool_filter_new(format, one_call);
    sl_buf_init(&out->content, SIZE_MAX);
    out->calls = json_array();
    for (size_t at = 0, piece = most; at < n; at += piece) {
        piece = 1 + (piece * 7 + at) % most;
        piece = piece < n - at ? piece : n - at;
        sl_tool_filter_put(f, text + at, piece, &out->content, out->calls);
    }
    sl_tool_filter_end(f, &out->content, out->calls);
    sl_tool_filter_free(f);
}

static void forget(struct said *s)
{
    sl_buf_fini(&s->content);
    json_decref(s->calls);
}

static void check_calls(const json_t *calls, bool one_call)
{
    size_t i;
    json_t *call;
    SL_ASSERT(!one_call || json_array_size(calls) <= 1);
    json_array_foreach (calls, i, call) {
        const json_t *arguments = json_object_get(call, "arguments");
        json_t *parsed = json_loadb(json_string_value(arguments), json_string_length(arguments),
                                    JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        SL_ASSERT(json_is_string(json_object_get(call, "name")) && parsed);
        json_decref(parsed);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const taught[] = {"<tool_call>\\n{", "[TOOL_CALLS]", "\"parameters\": dictionary"};
    if (size < 2)
        return 0;
    const struct sl_tool_format *format = sl_tool_format_of(taught[data[0] % SL_COUNTOF(taught)]);
    const char *text = (const char *)data + 2;
    struct said whole, cut;
    bool one_call = data[0] & 0x80;
    say(format, one_call, text, size - 2, size, &whole);
    say(format, one_call, text, size - 2, 1 + data[1] % 16, &cut);
    check_calls(whole.calls, one_call);
    SL_ASSERT(json_equal(whole.calls, cut.calls) && whole.content.len == cut.content.len);
    SL_ASSERT(whole.content.len == 0 || memcmp(whole.content.data, cut.content.data, cut.content.len) == 0);
    forget(&whole);
    forget(&cut);
    return 0;
}
