"""The prefill node dies, or hangs, in the middle of a transfer: the decode node computes the rest and the answer is the same."""
import signal
import unittest

from harness import Cluster, at, prompt_of, wait_for
from streams import Background, errors_of, tokens_of

PAIR = at("d0", "p0")
# Chunks of one page, of which P makes fewer than the prompt has.
PAGE = {"X-Sluice-Chunk": "16"}
HOLD, PROMPT_TOKENS = 12, 400
# The router may take its time: the decode node itself notices that P is lost.
FAST_BEATS = ["--heartbeat-ms", "50"]


def pages_sent(c):
    return sum(int(r["pages_sent"]) for r in c.tables("links")["links"] if r["prefill"] == "p0")


class PrefillLost(unittest.TestCase):
    def lose(self, sig, node_options=()):
        with Cluster(router_options=FAST_BEATS, node_options=node_options, hold={"p0": HOLD}) as c:
            # The first request pairs the nodes: P is lost in a transfer, not in a handshake.
            c.complete(prompt_of(40), 2, "pd", {**PAGE, **PAIR}, cache_salt="pair")
            prompt = prompt_of(PROMPT_TOKENS)
            want, _ = c.complete(prompt, 16, "colocated", at("d0"), cache_salt="base")
            before = pages_sent(c)
            stream = Background(c.stream(prompt, 16, "pd", {**PAGE, **PAIR}, cache_salt="lost"))
            wait_for("pages to travel", lambda: pages_sent(c) > before)
            c.daemons["p0"].kill(sig)
            chunks = stream.result()
            self.assertEqual(errors_of(chunks), [])
            self.assertEqual(tokens_of(chunks), want)
            self.assertGreater(int(c.record(chunks[0]["id"], whole=False)["recovered_tokens"]), 0)
            if sig == signal.SIGSTOP:
                c.daemons["p0"].kill(signal.SIGCONT)
            else:
                c.daemons["p0"].wait()
            wait_for("d0 to have all pages free or cached", lambda: [
                r for r in c.nodes() if r["node"] == "d0" and r["pages_free"] == r["pages"] and r["transfers"] == "0"])

    def test_killed_the_decode_node_goes_on(self):
        self.lose(signal.SIGKILL)

    def test_hung_the_decode_node_goes_on(self):
        self.lose(signal.SIGSTOP, ["--peer-dead-ms", "3000", "--peer-heartbeat-ms", "200"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
