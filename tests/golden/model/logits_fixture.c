/* tests/golden/model/logits_fixture.c - see logits_fixture.h. */
#include "tests/golden/model/logits_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>

#include "common/base/mem.h"

static void *read_u32s(FILE *f, size_t n)
{
    void *p = sl_xcalloc(n, 4);
    assert_int_equal(fread(p, 4, n, f), n);
    return p;
}

struct logits_fixture logits_fixture_read(const char *path)
{
    struct logits_fixture x;
    char magic[8];
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fread(magic, 1, 8, f), 8);
    assert_memory_equal(magic, "SLTINY01", 8);
    assert_int_equal(fread(&x, 4, 4, f), 4);
    x.tokens = read_u32s(f, x.n_positions);
    x.kept = read_u32s(f, x.n_kept);
    x.logits = read_u32s(f, (size_t)x.n_kept * x.n_vocab);
    fclose(f);
    return x;
}

void logits_fixture_free(struct logits_fixture *x)
{
    sl_free(x->tokens);
    sl_free(x->kept);
    sl_free(x->logits);
}
