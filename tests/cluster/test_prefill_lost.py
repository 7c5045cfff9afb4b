"""The prefill node dies, or hangs, in the middle of a transfer: the decode node computes the rest and the answer is the same."""
import contextlib
import signal
import threading
import time
import unittest

from harness import Cluster, prompt_of, wait_for
from streams import Background, errors_of, tokens_of

# A token a step over a model that is not quite tiny: long enough to be caught in the middle.
MODEL = ["--layers", "6", "--d-model", "256", "--heads", "8", "--kv-heads", "4", "--head-dim", "32", "--ff", "512", "--context", "4096"]
PIN = {"X-Sluice-Prefill-Node": "p0", "X-Sluice-Decode-Node": "d0"}
FAST_BEATS = ["--heartbeat-ms", "50", "--node-dead-ms", "1500"]


def pages_sent(c):
    return sum(int(r["pages_sent"]) for r in c.tables("links")["links"] if r["prefill"] == "p0")


@contextlib.contextmanager
def in_slices(daemon, run_s=0.01, stop_s=0.04):
    """The daemon runs in short slices, so that asking how far it is takes a fraction of what it does, however slow the asking is. It is left stopped."""
    done = threading.Event()

    def slices():
        while True:
            daemon.kill(signal.SIGSTOP)
            if done.wait(stop_s):
                return
            daemon.kill(signal.SIGCONT)
            time.sleep(run_s)

    t = threading.Thread(target=slices)
    t.start()
    try:
        yield
    finally:
        done.set()
        t.join()


class PrefillLost(unittest.TestCase):
    def caught_in_the_middle(self, c, sig, n_prompt):
        """One request whose P is lost while pages travel; False when it was over before."""
        prompt = prompt_of(n_prompt)
        want, _ = c.complete(prompt, 16, "colocated", {"X-Sluice-Decode-Node": "d0"}, cache_salt=f"base{n_prompt}")
        before = pages_sent(c)
        stream = Background(c.stream(prompt, 16, "pd", {"X-Sluice-Chunk": "1", **PIN}, cache_salt=f"lost{n_prompt}"))
        with in_slices(c.daemons["p0"]):
            wait_for("pages to travel", lambda: pages_sent(c) > before or not stream.running())
        c.daemons["p0"].kill(sig)
        chunks = stream.result()
        self.assertEqual(errors_of(chunks), [])
        self.assertEqual(tokens_of(chunks), want)
        return int(c.record(chunks[0]["id"])["recovered_tokens"]) > 0

    def lose(self, sig, node_options=()):
        for n_prompt in (800, 1600, 3200):
            with Cluster(router_options=FAST_BEATS, node_options=["--kv-memory", "64M", *node_options], model_options=MODEL) as c:
                # The first request pairs the nodes: P is lost in a transfer, not in a handshake.
                c.complete(prompt_of(40), 2, "pd", PIN, cache_salt="pair")
                caught = self.caught_in_the_middle(c, sig, n_prompt)
                if sig == signal.SIGSTOP:
                    c.daemons["p0"].kill(signal.SIGCONT)
                else:
                    c.daemons["p0"].wait()
                wait_for("d0 to have all pages free or cached", lambda: [
                    r for r in c.nodes() if r["node"] == "d0" and r["pages_free"] == r["pages"] and r["transfers"] == "0"])
                if caught:
                    return
        self.fail("the prefill node could not be caught in the middle of a transfer")

    def test_killed_the_decode_node_goes_on(self):
        self.lose(signal.SIGKILL)

    def test_hung_the_decode_node_goes_on(self):
        self.lose(signal.SIGSTOP, ["--peer-dead-ms", "1000", "--peer-heartbeat-ms", "200"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
