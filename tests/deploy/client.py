"""A client of the router that keeps streams and knows what each of them has to say."""
import json
import threading
import urllib.error
import urllib.request

from harness import prompt_of

LIMIT_S = 300.0
VOCAB = 40000  # of the model's, so that every id is one of a text


class Client:
    def __init__(self, url):
        self.url, self.key = url, None
        self.known = {}  # (seed, tokens): what an undisturbed stream said

    def open(self, path, body=None, headers=None):
        h = {"Content-Type": "application/json", **(headers or {})}
        if self.key:
            h["Authorization"] = f"Bearer {self.key}"
        return urllib.request.urlopen(urllib.request.Request(self.url + path, json.dumps(body).encode() if body else None, h), timeout=LIMIT_S)

    def status(self, path):
        """The HTTP status, or None when nobody answers."""
        try:
            with self.open(path) as r:
                return r.status
        except urllib.error.HTTPError as e:
            return e.code
        except OSError:
            return None

    def tokens(self, prompt, n, headers=None, on_token=None):
        """The token ids of a stream that runs to n tokens."""
        body = {"model": "model", "prompt": prompt, "max_tokens": n, "min_tokens": n, "ignore_eos": True, "temperature": 0.8, "seed": 7, "stream": True,
                "return_token_ids": True}
        out = []
        with self.open("/v1/completions", body, headers) as r:
            for line in r:
                if line.startswith(b"data: [DONE]"):
                    return out
                if line.startswith(b"data: "):
                    chunk = json.loads(line[6:])
                    if "error" in chunk:
                        raise AssertionError(f"the stream ended after {len(out)} of {n} tokens: {chunk['error']}")
                    for choice in chunk["choices"]:
                        out += choice.get("token_ids") or []
                    if on_token and out:
                        on_token()
        raise AssertionError(f"the stream broke off after {len(out)} of {n} tokens")


class Streams:
    """n streams at once whose answers are known: with Streams(...) as s, do things to the cluster; the end
    of the block waits for them and fails when one was lost or said something else than undisturbed."""

    def __init__(self, client, n, n_tokens, headers):
        self.n_tokens = n_tokens
        prompts = [prompt_of(100, seed, VOCAB) for seed in range(n)]
        if (0, n_tokens) not in client.known:
            self.prepare(client, prompts, None)
            self.__enter__()
            self.end()
            client.known.update({(i, n_tokens): got for i, got in enumerate(self.got)})
        self.want = [client.known[i, n_tokens] for i in range(n)]
        self.prepare(client, prompts, headers)

    def prepare(self, client, prompts, headers):
        n = len(prompts)
        self.got, self.faults = [None] * n, [None] * n
        self.began = [threading.Event() for _ in range(n)]
        self.threads = [threading.Thread(target=self.one, args=(client, i, p, headers), daemon=True) for i, p in enumerate(prompts)]

    def one(self, client, i, prompt, headers):
        try:
            self.got[i] = client.tokens(prompt, self.n_tokens, headers, self.began[i].set)
        except Exception as e:  # told by join()
            self.faults[i] = e
        self.began[i].set()

    def __enter__(self):
        for t in self.threads:
            t.start()
        for e in self.began:
            assert e.wait(LIMIT_S), "a stream did not begin"
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.end()
            assert self.got == self.want, "streams went on with other tokens"

    def running(self):
        return sum(t.is_alive() for t in self.threads)

    def end(self):
        for t in self.threads:
            t.join(LIMIT_S)
        lost = [f"{f}" for f in self.faults if f]
        assert not lost and None not in self.got, f"streams were lost: {lost}"
