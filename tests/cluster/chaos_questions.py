"""What chaos asks, as tables: forms of requests, members that decide the answer, and what may change from asking to asking and must not.

Everything is drawn from the seed's random numbers alone.
"""
from harness import prompt_of

VOCAB = 512  # of sluice-make-model --preset tiny
CONTEXT = 2048
LONGEST_PROMPT = 1200
# Prompts that begin alike, cut within a page, at its edge and behind it, for pages of 8 to 64 tokens.
DOCUMENTS = (901, 902)
CUTS = (1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 127, 128, 129, 256, 500, 640, 1024)
# Tokens of the tiny vocabulary that are one byte of a longer character each: heads and tails of é, ö, and an emoji.
BYTES = (130, 105, 117, 175, 256, 249, 225)
TEXTS = ("Once upon a time", "hé wörld 😀 ", "the cat and the dog and ", "{\"a\": [1, 2", "x")
NUMBER = {"type": "object", "properties": {"n": {"$ref": "#/$defs/small"}}, "required": ["n"], "$defs": {"small": {"enum": [1, 2, 3]}}}
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}, "tag": {"enum": ["red", "green"]},
                                           "list": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 4}, "in": {"type": "integer"}},
          "required": ["ok", "tag", "list"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": NUMBER}},
         {"type": "function", "function": {"name": "find", "parameters": SCHEMA}}]


def ids(rng):
    return prompt_of(min(LONGEST_PROMPT, int(rng.lognormvariate(4.0, 1.2)) + 1), rng.randrange(1 << 30), VOCAB)


def beginning(rng):
    tail = prompt_of(rng.choice((0, 0, 1, 20)), rng.randrange(1 << 30), VOCAB)
    return prompt_of(LONGEST_PROMPT, rng.choice(DOCUMENTS), VOCAB)[:rng.choice(CUTS)] + tail


def text(rng):
    return rng.choice(TEXTS) * rng.randint(1, 12)


def several(rng):
    make = rng.choice((ids, beginning, text))
    return [make(rng) for _ in range(rng.randint(2, 3))]


def full_context(rng, body):
    """Prompt and answer end where the context does."""
    n = CONTEXT - rng.choice((1, 2, 60))
    return {"prompt": prompt_of(n, rng.randrange(1 << 30), VOCAB), "max_tokens": CONTEXT - n, "min_tokens": 0, "ignore_eos": True}


def messages(rng):
    return [{"role": "system", "content": "Be brief."}] * rng.randint(0, 1) + [{"role": "user", "content": text(rng)}]


# name: (share, path, the members that it has)
FORMS = {
    "ids": (30, "/v1/completions", lambda rng: {"prompt": ids(rng)}),
    "beginning": (20, "/v1/completions", lambda rng: {"prompt": beginning(rng)}),
    "text": (8, "/v1/completions", lambda rng: {"prompt": text(rng), "echo": rng.random() < 0.3}),
    "several": (8, "/v1/completions", lambda rng: {"prompt": several(rng)}),
    "chat": (10, "/v1/chat/completions", lambda rng: {"messages": messages(rng)}),
    "tools": (10, "/v1/chat/completions", lambda rng: {"messages": messages(rng), "tools": TOOLS, "max_tokens": 300, "tool_choice": rng.choice(
        ("required", {"type": "function", "function": {"name": "add"}}, "auto"))}),
    "schema": (8, "/v1/chat/completions", lambda rng: {"messages": messages(rng), "max_tokens": 200, "response_format": {
        "type": "json_schema", "json_schema": {"name": "thing", "strict": True, "schema": SCHEMA}}}),
    "regex": (5, "/v1/completions", lambda rng: {"prompt": ids(rng), "guided_regex": "(([a-f]{2,9}|é+) [0-9]{1,3}, ){4,12}end"}),
    "object": (6, "/v1/completions", lambda rng: {"prompt": beginning(rng), "response_format": {"type": "json_object"}}),
}


def logprobs(rng, body):
    n = rng.randint(0, 4)
    if body.get("echo"):
        return {}  # prompt tokens have none
    return {"logprobs": True, "top_logprobs": n} if "messages" in body else {"logprobs": n}


def free(body):
    """Nothing holds the answer to a form."""
    return not {"response_format", "tools", "guided_regex"} & body.keys()


# (share in a hundred, for which, what it adds)
MEMBERS = (
    (30, None, logprobs),
    (30, None, lambda rng, body: {"presence_penalty": rng.choice((-0.5, 0.8)), "frequency_penalty": 0.4, "repetition_penalty": 1.2}),
    (30, None, lambda rng, body: {"top_p": 0.9, "top_k": 40}),
    (15, None, lambda rng, body: {"min_p": 0.05}),
    (20, free, lambda rng, body: {"min_tokens": body["max_tokens"] // 2}),
    (60, free, lambda rng, body: {"ignore_eos": True}),
    (20, free, lambda rng, body: {"stop_token_ids": [rng.randrange(16, VOCAB) for _ in range(6)], "ignore_eos": False}),
    (10, free, lambda rng, body: {"logit_bias": {str(t): 12 for t in BYTES}}),
    # few letters, in which guesses are often right
    (10, free, lambda rng, body: {"logit_bias": {"70": 30, "80": 30, "90": 30}}),
    (15, None, lambda rng, body: {"n": rng.randint(2, 3)}),
    (4, lambda body: isinstance(body.get("prompt"), list) and isinstance(body["prompt"][0], int) and free(body), full_context),
    (5, None, lambda rng, body: {"max_tokens": 1, "min_tokens": 0}),
)


def make_question(rng):
    """(path, members that decide the answer)"""
    _, path, members = rng.choices(list(FORMS.values()), [f[0] for f in FORMS.values()])[0]
    body = {"model": "tiny", "max_tokens": rng.randint(1, 160), "seed": rng.randrange(1 << 40), "temperature": rng.choice((0, 0.7, 1.0, 1.6)),
            "return_token_ids": True, **members(rng)}
    for share, goes_with, add in MEMBERS:
        if rng.random() * 100 < share and (goes_with is None or goes_with(body)):
            body.update(add(rng, body))
    return path, body


MODES = ("pd", "colocated", "hybrid")


def split(rng, body):
    """At a token that all its prompts have."""
    prompts = body.get("prompt")
    if not isinstance(prompts, list):
        return {}
    lists = [prompts] if isinstance(prompts[0], int) else [p for p in prompts if isinstance(p, list)]
    shortest = min(map(len, lists)) if len(lists) == len(prompts) or lists == [prompts] else 0
    at = [c for c in (*CUTS, shortest - 1, shortest) if 0 < c <= shortest]
    return {"X-Sluice-Mode": "hybrid", "X-Sluice-Split": str(rng.choice(at))} if at else {}


# (share in a hundred, headers that one asking brings): none may change a token.
HEADERS = (
    (75, lambda rng, body: {"X-Sluice-Mode": rng.choice(MODES)}),
    (30, split),
    (40, lambda rng, body: {"X-Sluice-Chunk": rng.choice(("1", "16", "48", "0", "auto"))}),
    (40, lambda rng, body: {"X-Sluice-Speculation": rng.choice(("off", "1", "4", "31"))}),
    (20, lambda rng, body: {"X-Sluice-Ttft-Ms": rng.choice(("1", "200")), "X-Sluice-Tpot-Ms": rng.choice(("1", "50"))}),
    (10, lambda rng, body: {"X-Sluice-No-Cache": "1"}),
    (20, lambda rng, body: {"X-Sluice-Class": "chat"}),
)

# (share in a hundred, members that one asking brings)
HOW = (
    (40, lambda rng, body: {"stream": True}),
    (70, lambda rng, body: {"stream": True, "stream_options": {"include_usage": True}}),
    (30, lambda rng, body: {"priority": rng.choice((-1, 0, 5))}),
)


def drawn(rng, table, body):
    out = {}
    for share, add in table:
        if rng.random() * 100 < share:
            out.update(add(rng, body))
    return out
