"""A client that asks and does not read: its stream waits for it in a bounded buffer and is ended at the limit; nodes are free again and nobody else waits."""
import json
import re
import socket
import unittest

from harness import LIMIT_S, Cluster, prompt_of, wait_for
from streams import Background, errors_of, tokens_of

UNREAD_BYTES = 65536


def n_cut(c):
    return int(re.search(r"^sluice_http_slow_readers_cut_total (\d+)", c.get("/metrics").decode(), re.M).group(1))


class SlowReader(unittest.TestCase):
    def test_its_stream_is_ended_at_the_limit_and_another_s_goes_on(self):
        with Cluster(router_options=["--max-unread-bytes", str(UNREAD_BYTES), "--heartbeat-ms", "100"]) as c:
            want, _ = c.complete(prompt_of(30), 200, "colocated", cache_salt="base")
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(LIMIT_S)
            sock.connect((c.address, c.http_port))
            body = json.dumps({"model": "tiny", "prompt": prompt_of(20), "n": 16, "max_tokens": 400, "ignore_eos": True, "stream": True, "logprobs": 5})
            sock.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            other = Background(c.stream(prompt_of(30), 200, "pd", cache_salt="other"))
            wait_for("the stream to be cut", lambda: n_cut(c) == 1)
            c.wait_idle()  # although the client is still there
            chunks = other.result()
            self.assertEqual(errors_of(chunks), [])
            self.assertEqual(tokens_of(chunks), want)
            got = b""
            try:
                while piece := sock.recv(1 << 16):
                    got += piece
            except ConnectionResetError:
                pass
            self.assertTrue(got.startswith(b"HTTP/1.1 200 "))
            self.assertNotIn(b"[DONE]", got)  # it knows that it is not whole
            sock.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
