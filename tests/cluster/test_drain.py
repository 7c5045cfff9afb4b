"""A drained node finishes what runs and takes nothing new; SIGTERM does the same and then ends."""
import signal
import unittest

from harness import Cluster, prompt_of, wait_for
from streams import Background, errors_of, tokens_of


class Drain(unittest.TestCase):
    def test_drained_node_finishes_and_gets_nothing_new(self):
        with Cluster(decode=2, router_options=["--heartbeat-ms", "100"]) as c:
            want, _ = c.complete(prompt_of(40), 300, "colocated", {"X-Sluice-Decode-Node": "d1"}, cache_salt="a")
            stream = Background(c.stream(prompt_of(40), 300, "colocated", {"X-Sluice-Decode-Node": "d0"}, cache_salt="b"))
            wait_for("tokens to come", lambda: len(stream.chunks) > 3)
            c.ctl("drain", "d0")
            chunks = stream.result()
            self.assertEqual(errors_of(chunks), [])
            self.assertEqual(tokens_of(chunks), want)
            for i in range(6):
                _, doc = c.complete(prompt_of(30, seed=i), 2, "colocated")
                self.assertNotEqual(c.record(doc["id"])["D"], "d0")
            c.ctl("undrain", "d0")
            wait_for("d0 to serve again", lambda: c.status("/v1/completions", {
                "model": "tiny", "prompt": [30, 31], "max_tokens": 2}, {"X-Sluice-Mode": "colocated", "X-Sluice-Decode-Node": "d0"})[0] == 200)
            c.wait_idle()

    def test_sigterm_of_a_node_loses_no_stream(self):
        with Cluster(decode=2, router_options=["--heartbeat-ms", "100"]) as c:
            want, _ = c.complete(prompt_of(40), 300, "colocated", {"X-Sluice-Decode-Node": "d1"}, cache_salt="a")
            stream = Background(c.stream(prompt_of(40), 300, "pd", {"X-Sluice-Decode-Node": "d0"}, cache_salt="b"))
            wait_for("tokens to come", lambda: len(stream.chunks) > 3)
            c.daemons["d0"].kill(signal.SIGTERM)
            chunks = stream.result()
            self.assertEqual(errors_of(chunks), [])
            self.assertEqual(tokens_of(chunks), want)
            self.assertEqual(c.daemons["d0"].wait(), 0)

    def test_sigterm_of_the_router_finishes_the_stream(self):
        with Cluster() as c:
            want, _ = c.complete(prompt_of(40), 200, "colocated", cache_salt="a")
            stream = Background(c.stream(prompt_of(40), 200, "pd", cache_salt="b"))
            wait_for("tokens to come", lambda: len(stream.chunks) > 3)
            c.daemons["router"].kill(signal.SIGTERM)
            chunks = stream.result()
            self.assertEqual(errors_of(chunks), [])
            self.assertEqual(tokens_of(chunks), want)
            self.assertEqual(c.daemons["router"].wait(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
