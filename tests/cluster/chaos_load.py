"""The load of chaos: questions whose answers are known (chaos_questions.py), asked again and again by a few clients, and what each asking came to.

The answer, the oracle, is taken once from one quiet node, whole, without cache, split or speculation. Whatever a later asking goes through, what it
shows must be that answer, or a beginning of it followed by one error; or, when its router was killed, by nothing.
"""
import http.client
import json
import random
import threading
import time

from chaos_questions import HEADERS, HOW, drawn, make_question
from harness import wait_for

DEADLINE_S = 90.0
# What a client waits beyond the deadline before it says that the stream hangs.
GRACE_S = 30.0
# At the cluster's routers, with keys of different weights.
ROUTERS = ("router", "router2")
KEYS = {"heavy": 3, "light": 1}
# Milliseconds in which some must be done, which not all of them can.
SHORT_DEADLINES = (20, 100, 400)


class Choice:
    def __init__(self):
        self.tokens, self.digests, self.logprobs, self.text, self.calls = [], [], [], "", {}
        self.finish, self.stop_reason, self.n_ends = None, None, 0

    def take(self, choice):
        part = choice.get("delta") or choice.get("message") or choice
        self.text += part.get("text") or part.get("content") or ""
        for i, call in enumerate(part.get("tool_calls") or []):
            name, arguments = self.calls.get(call.get("index", i), ("", ""))
            said = call["function"]
            self.calls[call.get("index", i)] = (name + (said.get("name") or ""), arguments + (said.get("arguments") or ""))
        self.tokens += choice.get("token_ids") or []
        told = choice.get("logprobs") or {}
        self.logprobs += told.get("content") or list(zip(*(told.get(k, []) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset"))))
        if choice.get("finish_reason"):
            self.n_ends += 1
            self.finish, self.stop_reason = choice["finish_reason"], choice.get("stop_reason")

    def whole(self):
        return {k: v for k, v in vars(self).items() if k != "n_ends"}


class Answer:
    """What a client saw of one asking."""

    def __init__(self):
        self.status = None  # of HTTP; None: the connection broke before it
        self.id = None
        self.choices = {}
        self.usage = None
        self.error, self.n_errors = None, 0
        self.closed = False  # [DONE], or a whole body
        self.broken = None  # how the connection broke
        self.longest_gap_s = 0.0

    def take(self, doc):
        self.id = doc.get("id", self.id)
        if "error" in doc:
            self.n_errors += 1
            self.error = doc["error"]["message"]
        choices = [self.choices.setdefault(c["index"], Choice()) for c in doc.get("choices", [])]
        for choice, said in zip(choices, doc.get("choices", [])):
            choice.take(said)
        told = doc.get("sluice", {})
        if "digest" in told:
            choices[0].digests.append(told["digest"])
        rest = told.get("digests") or []
        for choice in choices:
            choice.digests += rest[:len(choice.tokens)]
            rest = rest[len(choice.tokens):] if told.get("digests") else []
        if doc.get("usage"):
            self.usage = (doc["usage"]["prompt_tokens"], doc["usage"]["completion_tokens"])

    def whole(self):
        """Everything that must be equal in two runs of one question."""
        return {"usage": self.usage, "choices": sorted(self.choices), **{
            f"{k} of choice {i}": v for i, c in sorted(self.choices.items()) for k, v in c.whole().items()}}

    def n_tokens(self):
        return sum(len(c.tokens) for c in self.choices.values())


class Asking:
    """One request of one client at one router; leave() closes its connection from another thread."""

    def __init__(self, cluster, router, path, body, headers, short=False):
        self.cluster, self.router, self.path, self.body, self.headers = cluster, router, path, body, headers
        self.life = self.life_at_end = cluster.lives[router]
        self.connection = http.client.HTTPConnection(cluster.address, cluster.ports[router][2], timeout=DEADLINE_S + GRACE_S)
        self.answer = Answer()
        self.left, self.short = False, short
        self.read_s = 0.0  # what it takes for a line

    def cut(self):
        """Its router was killed meanwhile, or was down."""
        return self.life_at_end != self.life or self.life % 2 == 0

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
            time.sleep(self.read_s)
            if line.startswith(b"data: [DONE]"):
                self.answer.closed = True
            elif line.startswith(b"data: "):
                self.answer.take(json.loads(line[6:]))

    def run(self):
        try:
            self.connection.request("POST", self.path, json.dumps(self.body), {"Content-Type": "application/json", **self.headers})
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
            self.life_at_end = self.cluster.lives[self.router]
        return self.answer


class Question:
    def __init__(self, rng):
        self.path, self.body = make_question(rng)
        self.oracle = None

    def learn(self, cluster, rng, node):
        """Asks the quiet cluster; three in ten then also stop at a piece of their own answer's text."""
        quiet = {"X-Sluice-Mode": "colocated", "X-Sluice-Decode-Node": node, "X-Sluice-No-Cache": "1", "X-Sluice-Speculation": "off",
                 "X-Sluice-Digest": "1", **cluster.headers}

        def answer():
            a = Asking(cluster, "router", self.path, self.body, quiet).run()
            if a.status == 400:
                raise AssertionError(f"the oracle: {a.error} {self.body}")
            return a if a.status == 200 and not a.error else None

        def ask():  # a node that is only slow may be given up for a moment
            return wait_for("the oracle to answer", answer)

        self.oracle = ask()
        said = self.oracle.choices[0].text
        if rng.random() < 0.3 and len(said) > 8:
            at = rng.randrange(len(said) // 2, len(said) - 3)
            self.body["stop"] = [said[at:at + 3]]
            self.body["include_stop_str_in_output"] = rng.random() < 0.3
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
    if answer.error is not None:
        return judge_beginning(answer, oracle)
    want, got = oracle.whole(), answer.whole()
    if streamed and answer.usage is None:
        want["usage"] = None  # a stream shows it when asked
    wrong = [first_difference(k, got.get(k), want[k]) for k in want if want[k] != got.get(k)]
    wrong += [f"{c.n_ends} ends of choice {i}" for i, c in answer.choices.items() if c.n_ends != 1]
    return "differs from the oracle: " + "; ".join(wrong) if wrong else None


def judge_beginning(answer, oracle):
    """As much as was seen must be how the oracle begins."""
    if answer.n_errors > 1:
        return f"{answer.n_errors} errors"
    for i, c in answer.choices.items():
        want = oracle.choices.get(i, Choice())
        for k in ("tokens", "digests", "logprobs", "text"):
            seen, all_of_it = getattr(c, k), getattr(want, k)
            if seen != all_of_it[:len(seen)]:
                return f"choice {i} began otherwise than the oracle: " + first_difference(k, seen, all_of_it)
        if c.n_ends > 1 or c.n_ends and c.whole() != want.whole():
            return f"choice {i} ended otherwise than the oracle: {c.whole()}, not {want.whole()}"
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
            question = self.questions[number]
            with self.lock:
                self.n_asked += 1
                # Most have a cache of their own, so that modes really differ; some share one, so that hits are in the game.
                salt = "shared" if rng.random() < 0.3 else f"asking{self.n_asked}"
            body = {**question.body, "cache_salt": salt, **drawn(rng, HOW, question.body)}
            short = rng.random() < 0.02
            deadline_ms = rng.choice(SHORT_DEADLINES) if short else int(DEADLINE_S * 1000)
            headers = {"X-Sluice-Digest": "1", "X-Sluice-Deadline-Ms": str(deadline_ms), "Authorization": f"Bearer {rng.choice(list(KEYS))}",
                       **drawn(rng, HEADERS, question.body)}
            streamed = "stream" in body
            asking = Asking(self.cluster, rng.choice(ROUTERS), question.path, body, headers, short)
            asking.read_s = 0.02 if rng.random() < 0.02 else 0.0
            with self.lock:
                self.open.append(asking)
            answer = asking.run()
            with self.lock:
                self.open.remove(asking)
                self.outcomes.append((number, asking, streamed, answer))
            if answer.status != 200 and not short:
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
        counts = {"asked": len(self.outcomes), "equal": 0, "left": 0, "cut": 0, "canceled": 0, "late": 0, "refused": 0, "failed": 0, "tokens": 0}
        wrong, reasons = [], {}
        for number, asking, streamed, a in self.outcomes:
            oracle = self.questions[number].oracle
            counts["tokens"] += a.n_tokens()
            cut_short = asking.left or (asking.cut() and not a.closed)
            problem = judge_beginning(a, oracle) if cut_short else judge(a, oracle, streamed)
            kind = "equal"
            if cut_short:
                kind = "left" if asking.left else "cut"
            elif a.error is not None:
                kind = ("canceled" if "administrator canceled" in a.error else "late" if asking.short and "deadline" in a.error else
                        "refused" if a.status in (429, 503) else "failed")
                if kind in ("refused", "failed"):
                    reasons[a.error] = reasons.get(a.error, 0) + 1
            elif problem:
                kind = "failed"
            counts[kind] += 1
            if problem:
                wrong.append(f"question {number}, {asking.headers}, {a.id}: {problem}"[:2000])
        stayed = [o for o in self.outcomes if not o[1].left and not o[1].cut()]
        if stayed:
            number, asking, _, a = max(stayed, key=lambda o: o[3].longest_gap_s)
            counts["longest_gap_s"] = round(a.longest_gap_s, 2)
            counts["longest_gap_of"] = f"{a.id}: {asking.headers.get('X-Sluice-Mode', 'auto')}, question {number}"
        return counts, wrong, reasons
