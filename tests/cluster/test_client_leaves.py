"""A client that goes away frees everything on all nodes, whenever it goes."""
import http.client
import json
import time
import unittest

from harness import LIMIT_S, Cluster, at, prompt_of, wait_for
from streams import Background, errors_of


def leave(c, mode, prompt, after_chunks, salt, stream=True):
    """Sends a long request and closes the connection after some chunks."""
    conn = http.client.HTTPConnection(c.address, c.http_port, timeout=LIMIT_S)
    conn.request("POST", "/v1/completions", json.dumps({
        "model": "tiny", "prompt": prompt, "max_tokens": 350, "min_tokens": 350, "ignore_eos": True, "stream": stream,
        "cache_salt": salt}), {"Content-Type": "application/json", "X-Sluice-Mode": mode})
    if after_chunks:
        r = conn.getresponse()
        for _ in range(after_chunks):
            r.readline()
    conn.close()


class ClientLeaves(unittest.TestCase):
    def test_in_every_mode_and_at_every_stage_pages_come_back(self):
        with Cluster(router_options=["--heartbeat-ms", "100"]) as c:
            n = 0
            for mode in ("pd", "colocated", "hybrid"):
                for after in (0, 1, 9):
                    for length in (5, 120, 400):
                        n += 1
                        leave(c, mode, prompt_of(length, seed=n), after, f"leave{n}")
            for length in (30, 300):
                leave(c, "pd", prompt_of(length), 0, f"whole{length}", stream=False)
            left = time.monotonic()
            c.wait_idle()
            print(f"everything of {n + 2} requests was free on all nodes {time.monotonic() - left:.2f} s after the last client left", flush=True)
            c.wait_none_open()
            # and everything still works
            a, _ = c.complete(prompt_of(60), 8, "pd", cache_salt="x")
            b, _ = c.complete(prompt_of(60), 8, "colocated", cache_salt="y")
            self.assertEqual(a, b)

    def test_cancel_by_admin_ends_the_stream_with_an_error(self):
        with Cluster(hold={"d0": 100}) as c:
            stream = Background(c.stream(prompt_of(20), 400, "pd", at("d0", "p0")))
            wait_for("tokens to come", lambda: len(stream.chunks) > 3)
            c.ctl("cancel", stream.chunks[0]["id"])
            chunks = stream.result()
            self.assertEqual(len(errors_of(chunks)), 1, chunks[-1])
            c.release("d0")
            c.wait_idle()


if __name__ == "__main__":
    unittest.main(verbosity=2)
