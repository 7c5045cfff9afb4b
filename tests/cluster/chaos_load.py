"""The load of chaos: questions whose answers are known, asked again and again by a few clients, and what each asking came to.

A question is made from the seed; its answer, the oracle, is taken once from one quiet node without cache, split or speculation. Whatever a later
asking goes through, what it shows must be that answer, or a beginning of it followed by one error.
"""
import http.client
import json
import random
import threading
import time

from harness import prompt_of, wait_for

VOCAB = 512  # of sluice-make-model --preset tiny
LONGEST_PROMPT = 1200
DEADLINE_S = 90.0
# What a client waits beyond the deadline before it says that the stream hangs.
GRACE_S = 30.0
MODES = ("pd", "colocated", "hybrid", None)


def make_question(rng):
    """The members of a completion request that decide its tokens."""
    n_prompt = min(LONGEST_PROMPT, int(rng.lognormvariate(4.0, 1.2)) + 1)
    max_tokens = rng.randint(1, 160)
    body = {"model": "tiny", "prompt": prompt_of(n_prompt, rng.randrange(1 << 30), VOCAB), "max_tokens": max_tokens, "seed": rng.randrange(1 << 40),
            "temperature": rng.choice((0, 0.7, 1.0, 1.6)), "return_token_ids": True, "ignore_eos": rng.random() < 0.7}
    if rng.random() < 0.3:
        body["logprobs"] = rng.randint(0, 4)
    if rng.random() < 0.3:
        body.update(presence_penalty=rng.choice((-0.5, 0.8)), frequency_penalty=0.4, repetition_penalty=1.2)
    if rng.random() < 0.3:
        body.update(top_p=0.9, top_k=40)
    if rng.random() < 0.2:
        body["min_tokens"] = max_tokens // 2
    return body


class Answer:
    """What a client saw of one asking."""

    def __init__(self):
        self.status = None  # of HTTP; None: the connection broke before it
        self.id = None
        self.tokens, self.digests, self.logprobs, self.text = [], [], [], ""
        self.finish, self.stop_reason, self.usage = None, None, None
        self.n_ends = 0  # finish frames and error frames
        self.error = None
        self.closed = False  # [DONE], or a whole body
        self.broken = None  # how the connection broke
        self.longest_gap_s = 0.0

    def take_choice(self, choice):
        self.text += choice.get("text") or ""
        self.tokens += choice.get("token_ids") or []
        if choice.get("logprobs"):
            self.logprobs += list(zip(choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]))
        if choice.get("finish_reason"):
            self.n_ends += 1
            self.finish, self.stop_reason = choice["finish_reason"], choice.get("stop_reason")

    def take(self, doc):
        self.id = doc.get("id", self.id)
        if "error" in doc:
            self.n_ends += 1
            self.error = doc["error"]["message"]
        for choice in doc.get("choices", []):
            self.take_choice(choice)
        told = doc.get("sluice", {})
        self.digests += told.get("digests") or ([told["digest"]] if "digest" in told else [])
        if doc.get("usage"):
            self.usage = (doc["usage"]["prompt_tokens"], doc["usage"]["completion_tokens"])

    def whole(self):
        """Everything that must be equal in two runs of one question."""
        return {"tokens": self.tokens, "digests": self.digests, "logprobs": self.logprobs, "text": self.text, "finish": self.finish,
                "stop_reason": self.stop_reason, "usage": self.usage}


class Asking:
    """One request of one client; leave() closes its connection from another thread."""

    def __init__(self, cluster, body, headers):
        self.connection = http.client.HTTPConnection(cluster.address, cluster.http_port, timeout=DEADLINE_S + GRACE_S)
        self.body, self.headers = body, headers
        self.answer = Answer()
        self.left = False

    def leave(self):
        self.left = True
        sock = self.connection.sock
        if sock:
            try:
                sock.shutdown(2)
            except OSError:
                pass  # it is over already

    def read_stream(self, response):
        last = time.monotonic()
        for line in response:
            now = time.monotonic()
            self.answer.longest_gap_s, last = max(self.answer.longest_gap_s, now - last), now
            if line.startswith(b"data: [DONE]"):
                self.answer.closed = True
            elif line.startswith(b"data: "):
                self.answer.take(json.loads(line[6:]))

    def run(self):
        try:
            self.connection.request("POST", "/v1/completions", json.dumps(self.body), {"Content-Type": "application/json", **self.headers})
            response = self.connection.getresponse()
            self.answer.status = response.status
            if self.body.get("stream") and response.status == 200:
                self.read_stream(response)
            else:
                self.answer.take(json.loads(response.read()))
                self.answer.closed = True
        except (OSError, http.client.HTTPException, ValueError) as e:
            self.answer.broken = repr(e)
        finally:
            self.connection.close()
        return self.answer


class Question:
    def __init__(self, rng):
        self.body = make_question(rng)
        self.oracle = None

    def learn(self, cluster, rng, node):
        """Asks the quiet cluster; three in ten then also stop at a piece of their own answer's text."""
        quiet = {"X-Sluice-Mode": "colocated", "X-Sluice-Decode-Node": node, "X-Sluice-No-Cache": "1", "X-Sluice-Speculation": "off",
                 "X-Sluice-Digest": "1"}

        def answer():
            a = Asking(cluster, self.body, quiet).run()
            return a if a.status == 200 and a.finish else None

        def ask():  # a node that is only slow may be given up for a moment
            return wait_for("the oracle to answer", answer)

        self.oracle = ask()
        text = self.oracle.text
        if rng.random() < 0.3 and len(text) > 8:
            at = rng.randrange(len(text) // 2, len(text) - 3)
            self.body["stop"] = [text[at:at + 3]]
            self.oracle = ask()


def first_difference(what, got, want):
    if not isinstance(got, (list, str)):
        return f"{what} is {got!r}, not {want!r}"
    at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
    return f"{what} of length {len(got)}, not {len(want)}, at {at}: {got[at:at + 4]!r}, not {want[at:at + 4]!r}"


def judge(answer, oracle, streamed):
    """What is wrong with an answer whose client stayed; None when nothing is."""
    if answer.broken:
        return f"the connection broke: {answer.broken}"
    if not answer.closed:
        return "the stream ended without [DONE]"
    if answer.n_ends != 1:
        return f"{answer.n_ends} ends"
    if answer.error is None:
        want, got = oracle.whole(), answer.whole()
        if streamed:
            want["usage"] = None  # a stream shows it when asked
        wrong = [first_difference(k, got[k], want[k]) for k in want if want[k] != got[k]]
        return "differs from the oracle: " + "; ".join(wrong) if wrong else None
    return judge_beginning(answer, oracle)


def judge_beginning(answer, oracle):
    """As much as was seen must be how the oracle begins."""
    n = len(answer.tokens)
    if answer.tokens != oracle.tokens[:n] or answer.digests != oracle.digests[:len(answer.digests)]:
        return f"began otherwise than the oracle: {answer.tokens} {oracle.tokens}"
    if not oracle.text.startswith(answer.text):
        return f"text began otherwise than the oracle: {answer.text!r} {oracle.text!r}"
    return None


class Load:
    """`clients` threads that ask until stop(). outcomes: (question number, body and headers, streamed, left, canceled, Answer)."""

    def __init__(self, cluster, questions, seed, clients):
        self.cluster, self.questions = cluster, questions
        self.lock = threading.Lock()
        self.open, self.outcomes = [], []
        self.canceled = set()
        self.ended = threading.Event()
        self.n_asked = 0
        self.threads = [threading.Thread(target=self.client, args=(random.Random(f"{seed}-client{i}"),)) for i in range(clients)]
        for t in self.threads:
            t.start()

    def client(self, rng):
        while not self.ended.is_set():
            number = rng.randrange(len(self.questions))
            streamed = rng.random() < 0.8
            mode = rng.choice(MODES)
            with self.lock:
                self.n_asked += 1
                # Most have a cache of their own, so that modes really differ; some share one, so that hits are in the game.
                salt = "shared" if rng.random() < 0.3 else f"asking{self.n_asked}"
            headers = {"X-Sluice-Digest": "1", "X-Sluice-Deadline-Ms": str(int(DEADLINE_S * 1000))}
            if mode:
                headers["X-Sluice-Mode"] = mode
            if rng.random() < 0.4:
                headers["X-Sluice-Chunk"] = str(rng.choice((1, 16, 48)))
            asking = Asking(self.cluster, {**self.questions[number].body, "cache_salt": salt, "stream": streamed}, headers)
            with self.lock:
                self.open.append(asking)
            answer = asking.run()
            with self.lock:
                self.open.remove(asking)
                self.outcomes.append((number, asking, streamed, answer))
            if answer.status != 200:
                self.ended.wait(0.2)  # a polite client does not storm

    def some_open(self, rng):
        with self.lock:
            return rng.choice(self.open) if self.open else None

    def stop(self):
        """Ends the asking and waits for what is open; true when all of it ended."""
        self.ended.set()
        end = time.monotonic() + DEADLINE_S + 2 * GRACE_S
        for t in self.threads:
            t.join(max(0.0, end - time.monotonic()))
        return not any(t.is_alive() for t in self.threads)

    def verdicts(self):
        """Counts, and a sentence for each wrong answer."""
        counts = {"asked": len(self.outcomes), "equal": 0, "left": 0, "canceled": 0, "refused": 0, "failed": 0, "tokens": 0}
        wrong, reasons = [], {}
        for number, asking, streamed, a in self.outcomes:
            oracle = self.questions[number].oracle
            counts["tokens"] += len(a.tokens)
            if asking.left:
                counts["left"] += 1
                problem = judge_beginning(a, oracle) if a.status == 200 else None
            elif a.error is not None and "administrator canceled" in a.error:
                counts["canceled"] += 1
                problem = judge(a, oracle, streamed)
            elif a.status in (429, 503):
                counts["refused"] += 1
                problem = judge(a, oracle, streamed)
                reasons[a.error] = reasons.get(a.error, 0) + 1
            else:
                problem = judge(a, oracle, streamed)
                counts["equal" if problem is None and a.error is None else "failed"] += 1
                if a.error is not None:
                    reasons[a.error] = reasons.get(a.error, 0) + 1
            if problem:
                wrong.append(f"question {number}, {asking.headers.get('X-Sluice-Mode', 'auto')}, {a.id}: {problem}"[:2000])
        stayed = [o for o in self.outcomes if not o[1].left]
        if stayed:
            number, asking, _, a = max(stayed, key=lambda o: o[3].longest_gap_s)
            counts["longest_gap_s"] = round(a.longest_gap_s, 2)
            counts["longest_gap_of"] = f"{a.id}: {asking.headers.get('X-Sluice-Mode', 'auto')}, prompt of {len(self.questions[number].body['prompt'])} tokens"
        return counts, wrong, reasons
