"""Many streams of all kinds lose a node at once, by kill -9 or by SIGSTOP: each goes on as if nothing had been, bit for bit.

Equality is judged; how long the streams stood still is printed as a figure, since that is the machine's too.
"""
import signal
import time
import unittest

from chaos_load import Choice
from harness import Cluster, at, prompt_of, wait_for
from streams import Background

N_STREAMS, TOKENS = 16, 120
# Shorter than the harness', so that a node that stops is seen; long enough for the healthy ones, the only other places, on a slow machine.
BEATS = ["--heartbeat-ms", "1000", "--node-dead-ms", "6000"]
PEER_BEATS = ["--peer-dead-ms", "6000", "--peer-heartbeat-ms", "200"]
PAGE = {"X-Sluice-Chunk": "16"}

KINDS = {
    "n": {"n": 2, "temperature": 1.2},
    "logprobs": {"logprobs": 3, "temperature": 0.7},
    "penalties": {"presence_penalty": 0.8, "frequency_penalty": 0.4, "repetition_penalty": 1.2, "temperature": 1.0},
    "stop": {"temperature": 1.6, "min_tokens": 0},
}


class Timed(Background):
    """A stream whose chunks carry the second in which they came."""

    def run(self, generator):
        def timed():
            for chunk in generator:
                yield time.monotonic(), chunk

        super().run(timed())

    def gap_around(self, moment):
        """From a moment to the first chunk after it."""
        return min((t for t, _ in self.chunks if t > moment), default=moment) - moment


def choices_of(chunks):
    """What a client saw of each choice: everything that must be equal in two runs."""
    seen = {}
    for chunk in chunks:
        if "error" in chunk:
            raise AssertionError(chunk["error"])
        for choice in chunk.get("choices", []):
            seen.setdefault(choice["index"], Choice()).take(choice)
    return {index: answer.whole() for index, answer in seen.items()}


def n_tokens(stream):
    return sum(len(choice.get("token_ids") or []) for _, chunk in stream.chunks for choice in chunk.get("choices", []))


def requests_of_all_kinds(c):
    """{kind: members}, each with a prompt of its own; the stop string is a piece of the answer's own text, far behind."""
    asked = {kind: {"prompt": prompt_of(200, seed=i), **extra} for i, (kind, extra) in enumerate(KINDS.items())}
    text = choices_of(ask(c, asked["stop"], "colocated", at("d1"), "learn"))[0]["text"]
    asked["stop"]["stop"] = [text[-8:-4]]
    return asked


def ask(c, members, mode, headers, salt):
    members = dict(members)
    return c.stream(members.pop("prompt"), TOKENS, mode, headers, cache_salt=salt, **members)


class StreamsSurvive(unittest.TestCase):
    def test_sixteen_streams_of_a_killed_decode_node_go_on(self):
        with Cluster(decode=2, router_options=BEATS, hold={"d0": N_STREAMS * TOKENS // 3}) as c:
            prompts = [prompt_of(60, seed=i) for i in range(N_STREAMS)]
            quiet = [Background(c.stream(p, TOKENS, "colocated", at("d1"), cache_salt="base")) for p in prompts]
            want = [choices_of(s.result()) for s in quiet]
            streams = [Timed(c.stream(p, TOKENS, "pd", at("d0", "p0"), cache_salt="lost")) for p in prompts]
            wait_for("all streams to flow and the node to be held", lambda: min(map(n_tokens, streams)) > 0 and
                     sum(map(n_tokens, streams)) >= N_STREAMS * TOKENS // 3)
            killed = time.monotonic()
            c.daemons["d0"].kill(signal.SIGKILL)
            c.daemons["d0"].wait()
            for stream, right in zip(streams, want):
                self.assertEqual(choices_of([chunk for _, chunk in stream.result()]), right)
            hit = [s.gap_around(killed) for s in streams if s.chunks[-1][0] > killed]
            print(f"{len(hit)} of {N_STREAMS} streams went on after kill -9; the longest stood still for {max(hit):.2f} s", flush=True)
            self.assertTrue(hit)

    def test_all_kinds_of_streams_outlive_a_decode_and_a_prefill_node_that_stop(self):
        with Cluster(prefill=2, decode=2, router_options=BEATS, node_options=PEER_BEATS, hold={"d0": 150, "p0": 20}) as c:
            asked = requests_of_all_kinds(c)
            want = {kind: choices_of(ask(c, m, "colocated", at("d1"), "base")) for kind, m in asked.items()}
            self.assertEqual(want["stop"][0]["finish"], "stop")
            self.assertEqual(len(want["n"]), 2)
            streams = {(kind, lost): Background(ask(c, m, "pd", {**PAGE, **nodes}, lost)) for kind, m in asked.items()
                       for lost, nodes in (("d0", at("d0", "p1")), ("p0", at("d1", "p0")))}
            for name in ("d0", "p0"):
                wait_for(f"{name} to be held", lambda: "the hold begins" in c.daemons[name].log())
                c.daemons[name].kill(signal.SIGSTOP)
            for (kind, lost), stream in streams.items():
                with self.subTest(kind=kind, lost=lost):
                    self.assertEqual(choices_of(stream.result()), want[kind])
            for name in ("d0", "p0"):
                c.daemons[name].kill(signal.SIGCONT)

    def test_streams_outlive_nodes_that_answer_and_compute_nothing(self):
        stalls = ["--stall-ms", "10000"]
        # one of their two ranks stops for ever, the other waits for it in an all-gather
        with Cluster(prefill=0, decode=1, router_options=["--node-stall-ms", "10000", "--heartbeat-ms", "100"],
                     node_options=["--tensor-parallel", "2", "--threads", "2"]) as c:
            for name, which in (("p", "sluice-prefill"), ("d", "sluice-decode")):
                c.start_node(name, which, ["--fault-wedge-step", "12", *stalls])
            c.wait_nodes(3)
            prompt = prompt_of(400)
            want = choices_of(c.stream(prompt, TOKENS, "colocated", at("d0"), cache_salt="base"))
            lost_p = Background(c.stream(prompt, TOKENS, "pd", {**PAGE, **at("d0", "p")}, cache_salt="p"))
            lost_d = Background(c.stream(prompt, TOKENS, "colocated", {**PAGE, **at("d")}, cache_salt="d"))
            self.assertEqual(choices_of(lost_p.result()), want)
            self.assertEqual(choices_of(lost_d.result()), want)
            wait_for("both to be told as stalled", lambda: {r["state"] for r in c.nodes() if r["node"] in ("p", "d")} == {"stalled"})
            for name in ("p", "d"):  # they would not come to an end
                c.daemons[name].kill()
                c.daemons[name].wait()


if __name__ == "__main__":
    unittest.main(verbosity=2)
