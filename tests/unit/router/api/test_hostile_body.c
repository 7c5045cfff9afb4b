/* Bodies damaged at random: each is taken or refused with a sentence, and under the sanitizers nothing else
 * happens. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/base/mem.h"
#include "router/api/prompt.h"
#include "tests/support/support.h"
#include "tests/unit/router/api/tiny_vocab.h"

#define N_ROUNDS 20000

static struct sl_tokenizer *tok;
static struct sl_template *template;

static const char *const seeds[] = {
    "{\"model\":\"m\",\"prompt\":\"hey <|im_end|> "
    "you\",\"max_tokens\":20,\"temperature\":0.5,\"top_p\":0.9,\"top_k\":40,\"min_p\":0.1,"
    "\"seed\":-3,\"stop\":[\"a\",\"bc\"],\"stop_token_ids\":[5],\"min_tokens\":2,\"presence_penalty\":1,"
    "\"logit_bias\":{\"5\":-100},"
    "\"logprobs\":0,\"stream\":true,\"stream_options\":{\"include_usage\":true},\"cache_salt\":\"s\","
    "\"truncate_prompt_tokens\":5}",
    "{\"prompt\":[[1,2,3,200]],\"n\":1,\"best_of\":null,\"echo\":true,\"ignore_eos\":true,\"priority\":1,"
    "\"return_token_ids\":true}",
    "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":[{\"type\":"
    "\"text\",\"text\":\"\\u00e9\\ud83e\\udd17\"}]},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{"
    "\\\"a\\\":[1,{}]}\"}}]},"
    "{\"role\":\"assistant\",\"content\":\"One "
    "two\"}],\"continue_final_message\":true,\"chat_template_kwargs\":{\"x\":[1,{\"y\":null}]},"
    "\"max_completion_tokens\":9,\"top_logprobs\":3,\"logprobs\":true,\"response_format\":{\"type\":\"text\"}"
    "}",
};

/* What JSON is made of, so that damage often still parses. */
static const char *const pieces[] = {"{",
                                     "}",
                                     "[",
                                     "]",
                                     ",",
                                     ":",
                                     "\"",
                                     "null",
                                     "true",
                                     "-1",
                                     "1e308",
                                     "1e-9",
                                     "99",
                                     "\\u",
                                     "\\\"",
                                     "\"a\":",
                                     "\xf0\x9f\x90",
                                     "0",
                                     "false",
                                     "\"\"",
                                     "[]",
                                     "{}",
                                     "\\",
                                     "\x01",
                                     "4294967296",
                                     "-9223372036854775808",
                                     "9223372036854775807"};

static size_t damage(char *text, size_t n, size_t cap, unsigned long long *state)
{
    unsigned changes = 1 + (unsigned)(sl_test_random(state) % 4);
    while (changes--) {
        const char *piece = pieces[sl_test_random(state) % SL_COUNTOF(pieces)];
        size_t at = sl_test_random(state) % n, len = strlen(piece), drop = sl_test_random(state) % 12;
        if (drop > n - at)
            drop = n - at;
        if (n - drop + len >= cap || n - drop + len == 0)
            continue;
        memmove(text + at + len, text + at + drop, n - at - drop);
        memcpy(text + at, piece, len);
        n = n - drop + len;
    }
    return n;
}

static void damaged_body_is_taken_or_refused_with_a_sentence(void **unused)
{
    static const char *const names[] = {"m"};
    static const uint32_t eog[] = {TINY_IM_END};
    const struct sl_oai_model model = {names, 1, TINY_N_VOCAB, 128, eog, 1};
    const struct sl_prompt_conf conf = {.tokenizer = tok, .template = template, .context_length = 128};
    unsigned long long state = 42;
    unsigned taken = 0;
    (void)unused;
    for (unsigned round = 0; round < N_ROUNDS; round++) {
        char text[2048];
        const char *seed = seeds[round % SL_COUNTOF(seeds)];
        size_t n = strlen(seed);
        memcpy(text, seed, n);
        n = damage(text, n, sizeof text, &state);
        struct sl_fault fault = {0};
        struct sl_oai_request r;
        struct sl_arena *arena = sl_arena_new(1 << 20);
        struct sl_gen_req *req = sl_arena_alloc(arena, sizeof *req);
        req->arena = arena;
        json_t *body = sl_json_body(text, n, &fault);
        bool ok = body && sl_oai_parse(&model, round % 3 == 2, body, req, &r, &fault) &&
                  sl_prompt_make(&conf, &r, &fault);
        assert_int_equal(ok, fault.err == SL_OK);
        if (!ok)
            assert_true(fault.message[0] != '\0');
        else
            assert_true(r.n_prompts * r.n > 0 && r.n_prompts * r.n <= SL_MAX_CHOICES);
        for (uint32_t i = 0; ok && i < r.n_prompts; i++) {
            const struct sl_oai_prompt *p = &r.prompts[i];
            assert_true(p->n_tokens > 0 && p->n_tokens + p->max_tokens <= 128);
        }
        taken += ok;
        json_decref(body);
        sl_arena_free(arena);
    }
    assert_true(taken > 0 && taken < N_ROUNDS); /* the damage was neither too much nor too little */
}

static int open_all(void **state)
{
    struct sl_why why = {0};
    (void)state;
    tok = tiny_tokenizer();
    return sl_template_compile(tiny_template, strlen(tiny_template), &template, &why) == SL_OK ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    sl_template_free(template);
    sl_tokenizer_close(tok);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(damaged_body_is_taken_or_refused_with_a_sentence)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
