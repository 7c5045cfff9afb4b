/* router/api/openai_parse.c - step 1 of the request path. One table says what is done with each member's
 * name; the functions below it read the members that mean something, a group each. */
#include "router/api/openai_parse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rand.h"

enum use {
    READ,    /* by a function below */
    IGNORED, /* cannot change the answer */
    REFUSED  /* would change it and is not offered; null and empty values say nothing and pass */
};

static const struct member {
    const char *name;
    enum use use;
} members[] = {
    {"model", READ},
    {"messages", READ},
    {"prompt", READ},
    {"stream", READ},
    {"stream_options", READ},
    {"max_tokens", READ},
    {"max_completion_tokens", READ},
    {"min_tokens", READ},
    {"temperature", READ},
    {"top_p", READ},
    {"top_k", READ},
    {"min_p", READ},
    {"seed", READ},
    {"stop", READ},
    {"stop_token_ids", READ},
    {"ignore_eos", READ},
    {"presence_penalty", READ},
    {"frequency_penalty", READ},
    {"repetition_penalty", READ},
    {"logit_bias", READ},
    {"logprobs", READ},
    {"top_logprobs", READ},
    {"prompt_logprobs", READ},
    {"echo", READ},
    {"n", READ},
    {"best_of", READ},
    {"cache_salt", READ},
    {"priority", READ},
    {"request_id", READ},
    {"return_token_ids", READ},
    {"return_tokens_as_token_ids", READ},
    {"skip_special_tokens", READ},
    {"include_stop_str_in_output", READ},
    {"truncate_prompt_tokens", READ},
    {"add_special_tokens", READ},
    {"parse_special", READ},
    {"add_generation_prompt", READ},
    {"continue_final_message", READ},
    {"chat_template_kwargs", READ},
    {"response_format", READ},
    {"guided_json", READ},
    {"guided_choice", READ},
    {"guided_regex", READ},
    {"structured_outputs", READ},
    {"json_schema", READ},
    {"tools", READ},
    {"tool_choice", READ},
    {"parallel_tool_calls", READ},
    {"modalities", READ},

    {"user", IGNORED},
    {"metadata", IGNORED},
    {"store", IGNORED},
    {"service_tier", IGNORED},
    {"prompt_cache_key", IGNORED},
    {"prompt_cache_retention", IGNORED},
    {"safety_identifier", IGNORED},
    {"reasoning_effort", IGNORED}, /* for models that reason; none is served */
    {"include_reasoning", IGNORED},
    {"verbosity", IGNORED},
    {"prediction", IGNORED}, /* a hint for speed */
    {"spaces_between_special_tokens", IGNORED},
    {"length_penalty", IGNORED}, /* of beam search, which is refused */
    {"early_stopping", IGNORED},

    {"functions", REFUSED},
    {"function_call", REFUSED},
    {"audio", REFUSED},
    {"web_search_options", REFUSED},
    {"suffix", REFUSED},
    {"use_beam_search", REFUSED},
    {"bad_words", REFUSED},
    {"allowed_token_ids", REFUSED},
    {"guided_grammar", REFUSED},
    {"grammar", REFUSED},
    {"logits_processors", REFUSED},
    {"chat_template", REFUSED},
    {"documents", REFUSED},
    {"mm_processor_kwargs", REFUSED},
    {"kv_transfer_params", REFUSED},
    {"prompt_embeds", REFUSED},
};

static const struct member *member_find(const char *name)
{
    for (size_t i = 0; i < SL_COUNTOF(members); i++)
        if (strcmp(members[i].name, name) == 0)
            return &members[i];
    return NULL;
}

static void check_names(const json_t *body, struct sl_oai_request *out, struct sl_fault *fault)
{
    const char *name;
    json_t *value;
    json_object_foreach ((json_t *)body, name, value) {
        const struct member *m = member_find(name);
        if (!m && out->n_unknown < SL_MAX_UNKNOWN)
            out->unknown[out->n_unknown++] = name;
        else if (m && m->use == REFUSED && !sl_json_says_nothing(value))
            sl_fault_set(fault, SL_EUNSUPPORTED, name, "%s is not supported.", name);
    }
}

bool sl_oai_check_model(const struct sl_oai_model *model, const char *name, struct sl_fault *fault)
{
    if (!name)
        return true;
    for (size_t i = 0; i < model->n_names; i++)
        if (strcmp(model->names[i], name) == 0)
            return true;
    return sl_fault_set(fault, SL_ENOTFOUND, "model", "The model `%.200s` does not exist. Served here: %s.",
                        name, model->names[0]);
}

/* ---- what would need work that is not there ---- */

static void refuse_best_of(const struct sl_fields *f, uint32_t n)
{
    if (sl_field_int(f, "best_of", 1, SL_MAX_CHOICES, n) != n)
        sl_fault_set(f->fault, SL_EUNSUPPORTED, "best_of", "best_of other than n is not supported.");
}

bool sl_oai_keep_schema(const json_t *schema, const struct sl_schema_frame *frame, const char *param,
                        struct sl_gen_req *req, struct sl_fault *fault)
{
    struct sl_why why = {0};
    struct sl_grammar *grammar;
    size_t n = json_dumpb(schema, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY);
    if (n > SL_SCHEMA_MAX_BYTES)
        return sl_fault_set(fault, SL_EINVAL, param, "The schema has %zu bytes; at most %u are taken.", n,
                            SL_SCHEMA_MAX_BYTES);
    enum sl_err err = sl_json_schema_compile(schema, frame, &grammar, &why);
    if (err != SL_OK)
        return sl_fault_set(fault, err == SL_EUNSUPPORTED ? err : SL_EINVAL, param, "%s: %s.", param,
                            why.text);
    sl_grammar_free(grammar);
    req->sampling.json_schema = sl_arena_alloc(req->arena, n + 1);
    if (!req->sampling.json_schema)
        return sl_fault_set(fault, SL_ENOMEM, NULL, "No memory for the request.");
    (void)json_dumpb(schema, req->sampling.json_schema, n, JSON_COMPACT | JSON_ENCODE_ANY);
    return true;
}

/* A text that is complete has to be able to end; what names who wants it complete. */
static void must_end(const struct sl_fields *f, const char *what)
{
    if (sl_field_bool(f, "ignore_eos", false))
        sl_fault_set(f->fault, SL_EINVAL, "ignore_eos", "ignore_eos cannot stand beside %s.", what);
    if (sl_field_int(f, "min_tokens", 0, INT32_MAX, 0) > 0)
        sl_fault_set(f->fault, SL_EINVAL, "min_tokens", "min_tokens cannot stand beside %s.", what);
}

/* The answer's form, asked for by the member `param`; schema is taken, NULL when it was faulty. */
static void keep_form(const struct sl_fields *f, const char *param, json_t *schema, struct sl_gen_req *req)
{
    if (req->sampling.json_schema)
        sl_fault_set(f->fault, SL_EINVAL, param,
                     "%s and another member both say what the answer has to look like; send one of them.",
                     param);
    else if (schema && !f->fault->err && sl_oai_keep_schema(schema, NULL, param, req, f->fault))
        must_end(f, param);
    json_decref(schema);
}

static json_t *any_object(void)
{
    return json_pack("{s:s}", "type", "object");
}

/* A schema as it is, or as its JSON text. */
static json_t *schema_in(const struct sl_fields *f, const char *param, const json_t *value)
{
    struct sl_fault broken = {0};
    json_t *schema = json_is_string(value)
                         ? sl_json_body(json_string_value(value), json_string_length(value), &broken)
                     : json_is_object(value) ? json_incref((json_t *)value)
                                             : NULL;
    if (!schema)
        sl_fault_set(f->fault, SL_EINVAL, param, "%s is %s and no JSON schema; expected an object.", param,
                     sl_json_kind(value));
    return schema;
}

/* One of these texts, as they stand. */
static json_t *choice_in(const struct sl_fields *f, const char *param, const json_t *value)
{
    size_t i, n = json_array_size(value);
    const json_t *one;
    bool good = n > 0 && n <= SL_SCHEMA_MAX_VALUES;
    json_array_foreach ((json_t *)value, i, one)
        good &= json_string_length(one) > 0;
    if (good)
        return json_pack("{s:O}", SL_SCHEMA_TEXTS, value);
    sl_fault_set(f->fault, SL_EINVAL, param, "%s must be a list of 1 to %d texts, none of them empty.", param,
                 SL_SCHEMA_MAX_VALUES);
    return NULL;
}

/* An expression that the whole answer matches. */
static json_t *regex_in(const struct sl_fields *f, const char *param, const json_t *value)
{
    if (json_is_string(value))
        return json_pack("{s:O}", SL_SCHEMA_REGEX, value);
    sl_fault_set(f->fault, SL_EINVAL, param, "%s is %s; expected a regular expression, a string.", param,
                 sl_json_kind(value));
    return NULL;
}

static void read_response_format(const struct sl_fields *f, struct sl_gen_req *req)
{
    static const char name[] = "response_format";
    const json_t *format = sl_field_object(f, name);
    const char *word = json_string_value(json_object_get(format, "type"));
    const json_t *schema = json_object_get(json_object_get(format, "json_schema"), "schema");
    if (!format || (word && strcmp(word, "text") == 0))
        return;
    if (!schema)
        schema = json_object_get(format, "schema"); /* llama.cpp's way, for both types */
    bool object = word && strcmp(word, "json_object") == 0;
    if (!object && !(word && strcmp(word, "json_schema") == 0))
        sl_fault_set(f->fault, SL_EINVAL, name,
                     "response_format.type must be \"text\", \"json_object\" or \"json_schema\".");
    else if (!schema && !object)
        sl_fault_set(f->fault, SL_EINVAL, name, "response_format.json_schema.schema is missing.");
    else
        keep_form(f, name, schema ? json_incref((json_t *)schema) : any_object(), req);
}

/* vLLM's structured_outputs: {"json": ...}, {"choice": [...]}, {"regex": ...} or {"json_object": true}. */
static void read_structured_outputs(const struct sl_fields *f, struct sl_gen_req *req)
{
    static const char name[] = "structured_outputs";
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)sl_field_object(f, name), key, value) {
        if (sl_json_says_nothing(value))
            continue;
        if (strcmp(key, "json") == 0)
            keep_form(f, name, schema_in(f, name, value), req);
        else if (strcmp(key, "choice") == 0)
            keep_form(f, name, choice_in(f, name, value), req);
        else if (strcmp(key, "regex") == 0)
            keep_form(f, name, regex_in(f, name, value), req);
        else if (strcmp(key, "json_object") == 0)
            keep_form(f, name, any_object(), req);
        else
            sl_fault_set(
                f->fault, SL_EUNSUPPORTED, name,
                "structured_outputs.%.64s is not supported; json, choice, regex and json_object are.", key);
    }
}

/* The ways of other servers to ask for a form. */
static void read_guided(const struct sl_fields *f, struct sl_gen_req *req)
{
    static const struct {
        const char *name;
        json_t *(*read)(const struct sl_fields *f, const char *param, const json_t *value);
    } ways[] = {{"guided_json", schema_in},
                {"json_schema", schema_in},
                {"guided_choice", choice_in},
                {"guided_regex", regex_in}};
    for (size_t i = 0; i < SL_COUNTOF(ways); i++) {
        const json_t *value = sl_field(f, ways[i].name);
        if (value && !sl_json_says_nothing(value))
            keep_form(f, ways[i].name, ways[i].read(f, ways[i].name, value), req);
    }
    read_structured_outputs(f, req);
}

static void refuse_formats(const struct sl_fields *f)
{
    const json_t *modalities = sl_field_array(f, "modalities");
    size_t i;
    json_t *m;
    json_array_foreach (modalities, i, m) {
        if (!json_is_string(m) || strcmp(json_string_value(m), "text") != 0)
            sl_fault_set(f->fault, SL_EUNSUPPORTED, "modalities", "Only the modality \"text\" is supported.");
    }
    if (sl_field(f, "prompt_logprobs"))
        sl_fault_set(f->fault, SL_EUNSUPPORTED, "prompt_logprobs", "prompt_logprobs is not supported.");
}

static bool is_tool(const json_t *tools, const char *name)
{
    size_t i;
    json_t *tool;
    json_array_foreach ((json_t *)tools, i, tool) {
        const char *n = json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
        if (n && strcmp(n, name) == 0)
            return true;
    }
    return false;
}

/* The one function that has to be called: {"type": "function", "function": {"name": ...}}. */
static void read_named_tool(const struct sl_fields *f, const json_t *choice, const json_t *tools,
                            struct sl_oai_request *out)
{
    const char *type = json_string_value(json_object_get(choice, "type"));
    const char *name = json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
    if (!type || strcmp(type, "function") != 0 || !name)
        sl_fault_set(
            f->fault, type && strcmp(type, "function") != 0 ? SL_EUNSUPPORTED : SL_EINVAL, "tool_choice",
            "tool_choice as an object is {\"type\": \"function\", \"function\": {\"name\": ...}} here.");
    else if (!is_tool(tools, name))
        sl_fault_set(f->fault, SL_EINVAL, "tool_choice",
                     "tool_choice names '%.64s', which tools does not have.", name);
    else
        snprintf(out->forced_tool, sizeof out->forced_tool, "%s", name);
}

/* tools, and whether the model may or must call them. */
static void read_tools(const struct sl_fields *f, struct sl_oai_request *out)
{
    const json_t *tools = sl_field_array(f, "tools");
    const json_t *choice = sl_field(f, "tool_choice");
    const char *word = json_is_string(choice) ? json_string_value(choice) : NULL;
    size_t i;
    json_t *tool;
    bool none = word && strcmp(word, "none") == 0;
    bool must = json_is_object(choice) || (word && strcmp(word, "required") == 0);
    out->one_call = !sl_field_bool(f, "parallel_tool_calls", true);
    bool some = json_array_size(tools) > 0;
    if (choice && !none && !some && (must || !tools))
        sl_fault_set(f->fault, SL_EINVAL, "tool_choice", "tool_choice needs tools.");
    else if (choice && !none && !must && !(word && strcmp(word, "auto") == 0))
        sl_fault_set(f->fault, SL_EINVAL, "tool_choice",
                     "tool_choice must be \"auto\", \"none\", \"required\" or name a function.");
    else if (some && sl_tools_check(tools, f->fault) && !none)
        out->tools = tools;
    if (!out->tools)
        return;
    out->must_call = must;
    json_array_foreach ((json_t *)tools, i, tool)
        out->strict |= sl_tool_is_strict(tool);
    if (!must && !out->strict)
        return;
    if (json_is_object(choice))
        read_named_tool(f, choice, tools, out);
    if (out->req->sampling.json_schema)
        sl_fault_set(
            f->fault, SL_EINVAL, must ? "tool_choice" : "tools",
            must ? "A call cannot be forced beside an answer that has to fit a form."
                 : "A strict tool cannot be called beside an answer that has to fit a form; send one of "
                   "them.");
    must_end(f, must ? "a tool_choice that forces a call" : "a strict tool");
}

/* ---- sampling ---- */

static void read_sampling(const struct sl_fields *f, Sluice__Sampling *s)
{
    s->temperature = (float)sl_field_number(f, "temperature", 0, INFINITY, 1);
    s->top_p = (float)sl_field_number(f, "top_p", 0, 1, 1);
    if (!f->fault->err && s->top_p == 0)
        sl_fault_set(f->fault, SL_EINVAL, "top_p", "top_p is 0; expected more than 0, at most 1.");
    int64_t top_k = sl_field_int(f, "top_k", -1, INT32_MAX, 0);
    s->top_k = top_k > 0 ? (uint32_t)top_k : 0;
    s->min_p = (float)sl_field_number(f, "min_p", 0, 1, 0);
    s->repetition_penalty = (float)sl_field_number(f, "repetition_penalty", 0, INFINITY, 1);
    if (!f->fault->err && s->repetition_penalty == 0)
        sl_fault_set(f->fault, SL_EINVAL, "repetition_penalty",
                     "repetition_penalty is 0; expected more than 0.");
    s->presence_penalty = (float)sl_field_number(f, "presence_penalty", -2, 2, 0);
    s->frequency_penalty = (float)sl_field_number(f, "frequency_penalty", -2, 2, 0);
    if (!f->fault->err && (isinf(s->temperature) || isinf(s->repetition_penalty)))
        sl_fault_set(f->fault, SL_EINVAL, isinf(s->temperature) ? "temperature" : "repetition_penalty",
                     "The value is too large.");
    if (sl_field(f, "seed"))
        s->seed = (uint64_t)sl_field_int(f, "seed", INT64_MIN, INT64_MAX, 0);
    else
        s->seed = sl_random_u64();
}

static void read_bias(const struct sl_fields *f, uint32_t n_vocab, struct sl_arena *arena,
                      Sluice__Sampling *s)
{
    const json_t *bias = sl_field_object(f, "logit_bias");
    size_t n = json_object_size(bias);
    if (n == 0)
        return;
    if (n > SL_MAX_BIASES) {
        sl_fault_set(f->fault, SL_EINVAL, "logit_bias", "logit_bias has %zu entries; at most %d are taken.",
                     n, SL_MAX_BIASES);
        return;
    }
    s->bias = sl_arena_alloc(arena, n * sizeof *s->bias);
    Sluice__LogitBias *entries = sl_arena_alloc(arena, n * sizeof *entries);
    if (!s->bias || !entries) {
        sl_fault_set(f->fault, SL_ENOMEM, NULL, "No memory for the request.");
        return;
    }
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)bias, key, value) {
        char *end;
        size_t digits = strspn(key, "0123456789");
        unsigned long long id = digits && digits < 11 ? strtoull(key, &end, 10) : 0;
        if (!digits || digits > 10 || key[digits] || id >= n_vocab) {
            sl_fault_set(f->fault, SL_EINVAL, "logit_bias",
                         "logit_bias names token \"%.40s\"; expected a token id below %u.", key, n_vocab);
            return;
        }
        double v = json_is_number(value) ? json_number_value(value) : 1e9;
        if (v < -100 || v > 100) {
            sl_fault_set(f->fault, SL_EINVAL, "logit_bias",
                         "logit_bias of token %llu must be a number from -100 to 100.", id);
            return;
        }
        Sluice__LogitBias *b = &entries[s->n_bias];
        sluice__logit_bias__init(b);
        b->token = (int32_t)id;
        b->bias = (float)v;
        s->bias[s->n_bias++] = b;
    }
}

/* ---- where it ends ---- */

static void read_lengths(const struct sl_fields *f, bool chat, uint32_t context, struct sl_oai_request *out,
                         Sluice__Sampling *s)
{
    int64_t min_allowed = out->req->echo ? 0 : 1;
    const char *name = chat && sl_field(f, "max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
    out->max_tokens_given = sl_field(f, name) != NULL;
    /* completions: OpenAI's default of 16; chat: the rest of the context, known once the prompt is */
    s->max_tokens = (uint32_t)sl_field_int(f, name, min_allowed, INT32_MAX, chat ? (int64_t)context : 16);
    s->min_tokens = (uint32_t)sl_field_int(f, "min_tokens", 0, INT32_MAX, 0);
    if (!f->fault->err && out->max_tokens_given && s->min_tokens > s->max_tokens)
        sl_fault_set(f->fault, SL_EINVAL, "min_tokens", "min_tokens is %u and %s is %u; it cannot be more.",
                     s->min_tokens, name, s->max_tokens);
}

static void read_stop_strings(const struct sl_fields *f, struct sl_gen_req *req)
{
    const json_t *stop = sl_field(f, "stop");
    if (!stop)
        return;
    if (!json_is_string(stop) && !json_is_array(stop)) {
        sl_fault_set(f->fault, SL_EINVAL, "stop", "stop is %s; expected a string or a list of strings.",
                     sl_json_kind(stop));
        return;
    }
    size_t n = json_is_array(stop) ? json_array_size(stop) : 1;
    if (n > SL_MAX_STOP_STRINGS) {
        sl_fault_set(f->fault, SL_EINVAL, "stop", "stop has %zu strings; at most %d are taken.", n,
                     SL_MAX_STOP_STRINGS);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(stop) ? json_array_get(stop, i) : stop;
        size_t len = json_string_length(one);
        if (!json_is_string(one) || len == 0 || len > SL_MAX_STOP_BYTES) {
            sl_fault_set(f->fault, SL_EINVAL, "stop", "Each string of stop must have 1 to %d bytes.",
                         SL_MAX_STOP_BYTES);
            return;
        }
        req->stop[req->n_stop] = sl_arena_strndup(req->arena, json_string_value(one), len);
        if (!req->stop[req->n_stop++])
            sl_fault_set(f->fault, SL_ENOMEM, NULL, "No memory for the request.");
    }
}

/* ignore_eos takes back the model's own end tokens only, as in vLLM; the nodes' flag of that name is for all
 * ids, so it is set when none is left. */
static void read_stop_tokens(const struct sl_fields *f, const struct sl_oai_model *model,
                             struct sl_oai_request *out, Sluice__Sampling *s)
{
    bool ignore_eos = sl_field_bool(f, "ignore_eos", false);
    const json_t *list = sl_field_array(f, "stop_token_ids");
    size_t n_eog = ignore_eos ? 0 : model->n_eog;
    size_t n = json_array_size(list);
    if (n_eog > SL_MAX_STOP_TOKENS)
        n_eog = SL_MAX_STOP_TOKENS;
    if (n + n_eog > SL_MAX_STOP_TOKENS) {
        sl_fault_set(f->fault, SL_EINVAL, "stop_token_ids",
                     "stop_token_ids has %zu ids; at most %zu are taken.", n, SL_MAX_STOP_TOKENS - n_eog);
        return;
    }
    s->stop_ids = sl_arena_alloc(out->req->arena, SL_MAX_STOP_TOKENS * sizeof *s->stop_ids);
    if (!s->stop_ids) {
        sl_fault_set(f->fault, SL_ENOMEM, NULL, "No memory for the request.");
        return;
    }
    for (size_t i = 0; i < n_eog; i++)
        s->stop_ids[s->n_stop_ids++] = (int32_t)model->eog[i];
    size_t i;
    json_t *id;
    json_array_foreach (list, i, id) {
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= model->n_vocab) {
            sl_fault_set(f->fault, SL_EINVAL, "stop_token_ids", "stop_token_ids must be token ids below %u.",
                         model->n_vocab);
            return;
        }
        out->user_stop_ids[out->n_user_stop_ids++] = (int32_t)json_integer_value(id);
        s->stop_ids[s->n_stop_ids++] = (int32_t)json_integer_value(id);
    }
    s->ignore_eos = s->n_stop_ids == 0;
}

/* ---- how it is shown ---- */

static void read_logprobs(const struct sl_fields *f, bool chat, struct sl_gen_req *req)
{
    req->sampling.n_logprobs = -1;
    if (!chat) {
        int64_t n = sl_field_int(f, "logprobs", 0, SL_MAX_TOP_LOGPROBS, -1);
        req->logprobs = n >= 0;
        req->sampling.n_logprobs = (int32_t)n;
        if (req->logprobs && req->echo)
            sl_fault_set(f->fault, SL_EUNSUPPORTED, "logprobs",
                         "logprobs with echo is not supported: prompt tokens have none here.");
        return;
    }
    req->logprobs = sl_field_bool(f, "logprobs", false);
    int64_t top = sl_field_int(f, "top_logprobs", 0, SL_MAX_TOP_LOGPROBS, 0);
    if (sl_field(f, "top_logprobs") && top > 0 && !req->logprobs)
        sl_fault_set(f->fault, SL_EINVAL, "top_logprobs", "top_logprobs needs logprobs to be true.");
    if (req->logprobs)
        req->sampling.n_logprobs = (int32_t)top;
}

static void read_stream(const struct sl_fields *f, struct sl_oai_request *out)
{
    struct sl_gen_req *req = out->req;
    req->stream = sl_field_bool(f, "stream", false);
    const json_t *options = sl_field_object(f, "stream_options");
    if (!options)
        return;
    if (!req->stream) {
        sl_fault_set(f->fault, SL_EINVAL, "stream_options", "stream_options needs stream to be true.");
        return;
    }
    const struct sl_fields in = {options, f->fault};
    req->include_usage = sl_field_bool(&in, "include_usage", false);
    out->continuous_usage = req->include_usage && sl_field_bool(&in, "continuous_usage_stats", false);
}

/* ---- the prompt ---- */

bool sl_oai_token_list(const json_t *list, const char *name, uint32_t n_vocab, struct sl_arena *arena,
                       int32_t **tokens, uint32_t *n, struct sl_fault *fault)
{
    size_t len = json_array_size(list);
    if (len > UINT32_MAX / sizeof **tokens)
        return sl_fault_set(fault, SL_EINVAL, name, "%s has too many tokens.", name);
    int32_t *ids = sl_arena_alloc(arena, (len ? len : 1) * sizeof *ids);
    if (!ids)
        return sl_fault_set(fault, SL_ENOMEM, NULL, "No memory for the request.");
    size_t i;
    json_t *id;
    json_array_foreach (list, i, id) {
        if (!json_is_integer(id))
            return sl_fault_set(fault, SL_EINVAL, name, "%s holds %s; expected token ids only.", name,
                                sl_json_kind(id));
        if (json_integer_value(id) < 0 || json_integer_value(id) >= n_vocab)
            return sl_fault_set(fault, SL_EINVAL, name, "%s holds token %lld; expected ids from 0 to %u.",
                                name, (long long)json_integer_value(id), n_vocab - 1);
        ids[i] = (int32_t)json_integer_value(id);
    }
    *tokens = ids;
    *n = (uint32_t)len;
    return true;
}

static bool read_prompt(const struct sl_fields *f, const json_t *p, const struct sl_oai_model *model,
                        struct sl_oai_request *out, struct sl_oai_prompt *to)
{
    enum sl_prompt_kind kind = json_is_string(p) ? SL_PROMPT_TEXT : SL_PROMPT_TOKENS;
    if (!json_is_string(p) && !json_is_array(p))
        return sl_fault_set(f->fault, SL_EINVAL, "prompt",
                            "prompt is %s; expected a string or a list of token ids.", sl_json_kind(p));
    if (to != out->prompts && kind != out->prompt_kind)
        return sl_fault_set(f->fault, SL_EINVAL, "prompt",
                            "prompt mixes texts and lists of token ids; send them in requests of their own.");
    out->prompt_kind = kind;
    to->text = json_string_value(p);
    to->text_len = json_string_length(p);
    if (kind == SL_PROMPT_TOKENS && !sl_oai_token_list(p, "prompt", model->n_vocab, out->req->arena,
                                                       &to->tokens, &to->n_tokens, f->fault))
        return false;
    if (to->text_len == 0 && to->n_tokens == 0)
        return sl_fault_set(f->fault, SL_EINVAL, "prompt", "prompt is empty.");
    return true;
}

/* Room for n prompts, each with n choices. */
static bool add_prompts(const struct sl_fields *f, struct sl_oai_request *out, size_t n)
{
    if (f->fault->err)
        return false;
    if (n * out->n > SL_MAX_CHOICES)
        return sl_fault_set(f->fault, SL_EINVAL, n > 1 ? "prompt" : "n",
                            "%zu prompts with n = %u make %zu choices; at most %d are given to one request.",
                            n, out->n, n * out->n, SL_MAX_CHOICES);
    out->prompts = sl_arena_alloc(out->req->arena, n * sizeof *out->prompts);
    if (!out->prompts)
        return sl_fault_set(f->fault, SL_ENOMEM, NULL, "No memory for the request.");
    out->n_prompts = (uint32_t)n;
    return true;
}

/* One prompt, or a list of them. */
static void read_prompts(const struct sl_fields *f, const struct sl_oai_model *model,
                         struct sl_oai_request *out)
{
    const json_t *p = sl_field(f, "prompt");
    const json_t *first = json_array_get(p, 0);
    if (!f->fault->err && (!p || (json_is_array(p) && !first)))
        sl_fault_set(f->fault, SL_EINVAL, "prompt", "prompt is missing or empty.");
    bool batch = json_is_string(first) || json_is_array(first);
    if (!add_prompts(f, out, batch ? json_array_size(p) : 1))
        return;
    for (uint32_t i = 0; i < out->n_prompts; i++)
        if (!read_prompt(f, batch ? json_array_get(p, i) : p, model, out, &out->prompts[i]))
            return;
}

static void read_messages(const struct sl_fields *f, struct sl_oai_request *out)
{
    out->prompt_kind = SL_PROMPT_MESSAGES;
    add_prompts(f, out, 1);
    out->messages = sl_field_array(f, "messages");
    if (!f->fault->err && json_array_size(out->messages) == 0)
        sl_fault_set(f->fault, SL_EINVAL, "messages", "messages is missing or empty.");
    out->template_kwargs = sl_field_object(f, "chat_template_kwargs");
    out->continue_final_message = sl_field_bool(f, "continue_final_message", false);
    out->add_generation_prompt = sl_field_bool(f, "add_generation_prompt", !out->continue_final_message);
    if (out->continue_final_message && out->add_generation_prompt)
        sl_fault_set(f->fault, SL_EINVAL, "continue_final_message",
                     "continue_final_message and add_generation_prompt cannot both be true.");
}

static const char *keep(struct sl_arena *arena, const char *s)
{
    return s ? sl_arena_strndup(arena, s, strlen(s)) : NULL;
}

bool sl_oai_parse(const struct sl_oai_model *model, bool chat, const json_t *body, struct sl_gen_req *req,
                  struct sl_oai_request *out, struct sl_fault *fault)
{
    const struct sl_fields f = {body, fault};
    memset(out, 0, sizeof *out);
    out->req = req;
    req->chat = chat;
    sluice__sampling__init(&req->sampling);

    const char *name = sl_field_string(&f, "model", NULL);
    if (name && !*name)
        name = NULL;
    sl_oai_check_model(model, name, fault);
    req->model = keep(req->arena, name ? name : model->names[0]);
    out->n = (uint32_t)sl_field_int(&f, "n", 1, SL_MAX_CHOICES, 1);
    if (chat)
        read_messages(&f, out);
    else
        read_prompts(&f, model, out);
    check_names(body, out, fault);
    refuse_best_of(&f, out->n);
    read_response_format(&f, req);
    read_guided(&f, req);
    refuse_formats(&f);
    if (chat)
        read_tools(&f, out);
    else if (sl_field(&f, "tools") && !sl_json_says_nothing(sl_field(&f, "tools")))
        sl_fault_set(fault, SL_EUNSUPPORTED, "tools", "tools are supported for /v1/chat/completions only.");

    req->echo = sl_field_bool(&f, "echo", false);
    if (chat && req->echo)
        sl_fault_set(fault, SL_EUNSUPPORTED, "echo", "echo is supported for /v1/completions only.");
    read_sampling(&f, &req->sampling);
    read_bias(&f, model->n_vocab, req->arena, &req->sampling);
    read_lengths(&f, chat, model->context_length, out, &req->sampling);
    read_stop_strings(&f, req);
    read_stop_tokens(&f, model, out, &req->sampling);
    read_logprobs(&f, chat, req);
    read_stream(&f, out);

    req->include_stop = sl_field_bool(&f, "include_stop_str_in_output", false);
    req->skip_special = sl_field_bool(&f, "skip_special_tokens", true);
    req->return_token_ids = sl_field_bool(&f, "return_token_ids", false);
    out->tokens_as_ids = sl_field_bool(&f, "return_tokens_as_token_ids", false);
    out->add_special = sl_field_bool(&f, "add_special_tokens", !chat);
    out->parse_special = sl_field_bool(&f, "parse_special", false);
    out->truncate = sl_field_int(&f, "truncate_prompt_tokens", -1, INT32_MAX, 0);
    out->request_id = sl_field_string(&f, "request_id", NULL);
    req->priority = (int32_t)sl_field_int(&f, "priority", INT32_MIN, INT32_MAX, 0);
    const char *salt = sl_field_string(&f, "cache_salt", NULL);
    if (salt && (!salt[0] || strlen(salt) > SL_MAX_SALT_BYTES))
        sl_fault_set(fault, SL_EINVAL, "cache_salt", "cache_salt must have 1 to %d bytes.",
                     SL_MAX_SALT_BYTES);
    req->cache_salt = keep(req->arena, salt);
    return fault->err == SL_OK;
}
