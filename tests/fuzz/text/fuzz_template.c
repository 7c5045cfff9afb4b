/* tests/fuzz/text/fuzz_template.c - any template over any request. Input: template, a zero byte, JSON. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/text/template.h"
#include "common/text/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t n = zero ? (size_t)(zero - data) : size;
    struct sl_template *t = NULL;
    struct sl_why why = {0};
    if (sl_template_compile((const char *)data, n, &t, &why)) {
        SL_ASSERT(why.text[0]);
        return 0;
    }
    json_t *request = zero ? json_loadb((const char *)zero + 1, size - n - 1, JSON_ALLOW_NUL, NULL) : NULL;
    struct sl_template_args args = {.request = json_is_object(request) ? request : NULL};
    struct sl_spans spans = {0};
    struct sl_buf out;
    sl_buf_init(&out, 1u << 20);
    enum sl_err e = sl_template_render(t, &args, &out, &spans, &why);
    SL_ASSERT(e == SL_OK || e == SL_EINVAL || e == SL_ETOOBIG);
    SL_ASSERT(e == SL_OK || (spans.n == 0 && out.len == 0));
    SL_ASSERT(out.len == 0 || sl_utf8_valid_prefix(out.data, out.len) == out.len);
    for (size_t i = 0; i < spans.n; i++)
        SL_ASSERT(spans.items[i].start < spans.items[i].end && spans.items[i].end <= out.len);
    sl_spans_fini(&spans);
    sl_buf_fini(&out);
    json_decref(request);
    sl_template_free(t);
    return 0;
}
