"""A drained node finishes what runs and takes nothing new; SIGTERM does the same and then ends."""
import signal
import unittest

from harness import Cluster, at, prompt_of, wait_for
from streams import Background, errors_of, tokens_of


class Drain(unittest.TestCase):
    def begin(self, c, mode, base):
        """(the tokens wanted, the same request as a stream in the middle of which d0 is held)"""
        want, _ = c.complete(prompt_of(40), 300, "colocated", at(base), cache_salt="a")
        stream = Background(c.stream(prompt_of(40), 300, mode, at("d0"), cache_salt="b"))
        wait_for("tokens to come", lambda: len(stream.chunks) > 3)
        return want, stream

    def finish(self, want, stream):
        chunks = stream.result()
        self.assertEqual(errors_of(chunks), [])
        self.assertEqual(tokens_of(chunks), want)

    def test_drained_node_finishes_and_gets_nothing_new(self):
        with Cluster(decode=2, router_options=["--heartbeat-ms", "100"], hold={"d0": 100}) as c:
            want, stream = self.begin(c, "colocated", "d1")
            c.ctl("drain", "d0")
            c.release("d0")
            self.finish(want, stream)
            for i in range(6):
                _, doc = c.complete(prompt_of(30, seed=i), 2, "colocated")
                self.assertNotEqual(c.record(doc["id"])["D"], "d0")
            c.ctl("undrain", "d0")
            wait_for("d0 to serve again", lambda: c.status("/v1/completions", {
                "model": "tiny", "prompt": [30, 31], "max_tokens": 2}, {"X-Sluice-Mode": "colocated", **at("d0")})[0] == 200)
            c.wait_idle()

    def test_sigterm_of_a_node_loses_no_stream(self):
        with Cluster(decode=2, router_options=["--heartbeat-ms", "100"], hold={"d0": 100}) as c:
            want, stream = self.begin(c, "pd", "d1")
            c.daemons["d0"].kill(signal.SIGTERM)
            self.finish(want, stream)
            self.assertEqual(c.daemons["d0"].wait(), 0)

    def test_sigterm_of_the_router_finishes_the_stream(self):
        with Cluster(hold={"d0": 100}) as c:
            want, stream = self.begin(c, "pd", "p0")
            c.daemons["router"].kill(signal.SIGTERM)
            wait_for("the router to say that it stops", lambda: "stopping:" in c.daemons["router"].log())
            c.release("d0")
            self.finish(want, stream)
            self.assertEqual(c.daemons["router"].wait(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
