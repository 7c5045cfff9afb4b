/* tests/golden/text/text_fixture.h - committed vocabularies and JSON lines for the tests of common/text. */
#ifndef SLUICE_TESTS_GOLDEN_TEXT_TEXT_FIXTURE_H
#define SLUICE_TESTS_GOLDEN_TEXT_TEXT_FIXTURE_H

#include <jansson.h>
#include "common/text/tokenizer.h"

/* A tiny vocabulary, as a model file would give it; sl_vocab_src_fini. pre: the pre-tokeniser of a byte-level
 * one (tiny_vocab.json), or one of the SentencePiece kinds of tiny_spm.json: "spm" (a space in front),
 * "spm-plain", "spm-odd" (shared scores, letters that are no tokens), "spm-unk" (the same without byte
 * tokens). */
void text_fixture_tiny_vocab(const char *pre, struct sl_vocab_src *out);

/* Calls fn for every line of a JSON-lines file, failing the running test when one does not parse. Returns the
 * number of lines, -1 when there is no such file. */
typedef void text_fixture_line_fn(void *arg, const json_t *line, int number);
int text_fixture_lines(const char *path, text_fixture_line_fn *fn, void *arg);

struct text_fixture_vector {
    const char *text;
    size_t len;
    unsigned flags; /* of sl_tokenizer_encode(); control tokens are shown by name when they are recognised */
    const json_t *fields; /* ids, and decoded when that is not the text: null = not to be looked at */
};

/* Encodes and decodes, and fails the running test when either is not as expected. */
void text_fixture_check(const struct sl_tokenizer *t, const struct text_fixture_vector *v, const char *where,
                        int number);

/* The vectors of llama.cpp for this vocabulary, in the shared data. Returns how many there were, 0 when the
 * files are not there. */
int text_fixture_llama_vectors(const struct sl_tokenizer *t, const char *name);

/* Where the SmolLM2 model file is (SLUICE_TEST_MODEL, or the quick start's cache); NULL when it is not there.
 * sl_free. */
char *text_fixture_smollm2_path(void);

#endif
