"""The decode node dies in the middle of a stream: another one goes on, no token lost, none twice, none different. Without another: a clear error."""
import signal
import unittest

from harness import Cluster, at, prompt_of, wait_for
from streams import Background, errors_of, tokens_of

# Who is silent for so long is lost: the shortest time in which a busy machine lets every process run.
FAST_BEATS = ["--heartbeat-ms", "50", "--node-dead-ms", "3000"]


class DecodeLost(unittest.TestCase):
    def lose(self, mode, sig, **extra):
        with Cluster(decode=2, router_options=FAST_BEATS, hold={"d0": 100}) as c:
            prompt = prompt_of(90)
            want, _ = c.complete(prompt, 300, "colocated", at("d1"), cache_salt="base", **extra)
            stream = Background(c.stream(prompt, 300, mode, at("d0"), cache_salt="lost", **extra))
            wait_for("tokens to come", lambda: len(stream.chunks) > 20)
            c.daemons["d0"].kill(sig)
            chunks = stream.result()
            if sig == signal.SIGSTOP:
                c.daemons["d0"].kill(signal.SIGCONT)
            self.assertEqual(errors_of(chunks), [])
            self.assertEqual(tokens_of(chunks), want)
            record = c.record(chunks[0]["id"])
            self.assertEqual(record["finish"], "length")
            self.assertNotEqual(record["attempts"], "1")
            if sig == signal.SIGKILL:
                c.daemons["d0"].wait()
            wait_for("the other nodes to have all pages free or cached", lambda: all(
                r["pages_free"] == r["pages"] and r["transfers"] == "0" for r in c.nodes() if r["node"] != "d0"))

    def test_killed_in_pd_another_goes_on(self):
        self.lose("pd", signal.SIGKILL)

    def test_killed_in_an_answer_that_has_to_fit_a_schema_another_goes_on(self):
        string = {"type": "string", "pattern": "^[^x]+$", "minLength": 300, "maxLength": 1000}
        self.lose("pd", signal.SIGKILL, min_tokens=0, ignore_eos=False,
                  response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "array", "items": string, "minItems": 9}}})

    def test_killed_in_colocated_another_goes_on(self):
        self.lose("colocated", signal.SIGKILL)

    def test_hung_another_goes_on(self):
        self.lose("colocated", signal.SIGSTOP)

    def test_all_nodes_killed_the_stream_ends_with_a_clear_error(self):
        with Cluster(router_options=FAST_BEATS, hold={"d0": 100}) as c:
            stream = Background(c.stream(prompt_of(50), 350, "pd", at("d0", "p0")))
            wait_for("tokens to come", lambda: len(stream.chunks) > 5)
            for name in ("p0", "d0"):
                c.daemons[name].kill()
                c.daemons[name].wait()
            chunks = stream.result()
            self.assertEqual(len(errors_of(chunks)), 1, chunks[-2:])
            self.assertIn("node", errors_of(chunks)[0]["message"])
            wait_for("the router to miss both", lambda: all(r["state"] == "dead" for r in c.nodes()))
            status, doc, headers = c.status("/v1/completions", {"model": "tiny", "prompt": [20, 21], "max_tokens": 2})
            self.assertEqual(status, 503)
            self.assertTrue(doc["error"]["message"])
            self.assertTrue(headers["Retry-After"])
            self.assertEqual(c.status("/health")[0], 503)
            # and the cluster heals when nodes come back
            c.start_node("p0", "sluice-prefill")
            c.start_node("d0", "sluice-decode")
            c.wait_nodes(2)
            self.assertEqual(c.status("/health")[0], 200)
            self.assertEqual(len(c.complete(prompt_of(50), 4, "pd")[0]), 4)


if __name__ == "__main__":
    unittest.main(verbosity=2)
