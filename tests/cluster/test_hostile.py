"""Clients that mean harm, against a real router: each is refused or cut, nobody else notices, and nothing is left behind.

SLUICE_FULL=1 makes the same in full size: 10,000 idle connections, 100 MB that are really sent.
"""
import contextlib
import json
import os
import resource
import socket
import threading
import time
import unittest

import harness
from harness import LIMIT_S, wait_for

FULL = os.environ.get("SLUICE_FULL") == "1"
N_SLOW = 100 if not FULL else 2000
N_IDLE = 10000 if FULL else 500
JSON_HEAD = "Content-Type: application/json\r\n"


def head(method, path, extra=""):
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n{extra}\r\n".encode()


class Hostile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = cls.enterClassContext(harness.Cluster(prefill=0, decode=0, router_options=[
            "--receive-timeout-s", str(int(LIMIT_S)), "--idle-timeout-s", str(int(LIMIT_S)), "--max-connections", str(N_IDLE + 200), "--max-body-bytes", "16M"]))

    def setUp(self):
        self.router = self.c.daemons["router"]

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.c.http_port), timeout=LIMIT_S)

    def tearDown(self):
        self.forgotten()

    def forgotten(self):
        """The router serves, and has forgotten the connections."""
        self.serves()
        wait_for("connections to be closed", lambda: self.connections() <= 1)  # the one that asks

    def serves(self):
        self.assertTrue(self.router.alive())
        self.assertEqual(self.c.status("/version")[0], 200)

    def connections(self):
        text = self.c.get("/metrics").decode()
        return float(next(line for line in text.splitlines() if line.startswith("sluice_http_connections ")).split()[1])

    def peak_mb(self):
        with open(f"/proc/{self.router.process.pid}/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("VmHWM:")) / 1024

    def answer(self, s):
        """(status, body) of the one answer that comes before the end; (0, b"") when the connection just ends."""
        data = b""
        try:
            while part := s.recv(65536):
                data += part
        except ConnectionError:
            pass
        h, _, body = data.partition(b"\r\n\r\n")
        return (int(h.split()[1]) if h else 0), body

    def sent(self, data):
        """The answer to these bytes, which the router may refuse before it has them all."""
        with self.connect() as s:
            try:
                s.sendall(data)
            except ConnectionError:
                pass
            return self.answer(s)

    def test_requests_that_drip_in(self):
        """Connections that send a byte now and then for as long as they may."""
        starts = (b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: ", head("POST", "/v1/completions", JSON_HEAD + "Content-Length: 100000\r\n") + b"{")
        with harness.Cluster(prefill=0, decode=0, router_options=["--receive-timeout-s", "5"]) as impatient:
            self.c, self.router = impatient, impatient.daemons["router"]
            sockets = [self.connect() for _ in range(N_SLOW)]
            for i, s in enumerate(sockets):
                s.sendall(starts[i % 2])
            done = threading.Event()

            def go_on():
                while not done.is_set():
                    for s in sockets:
                        with contextlib.suppress(OSError):
                            s.send(b"x")
                    time.sleep(0.05)

            dripping = threading.Thread(target=go_on)
            dripping.start()
            try:
                self.serves()
                self.assertLessEqual({self.answer(s)[0] for s in sockets}, {408, 0})
            finally:
                done.set()
                dripping.join()
                for s in sockets:
                    s.close()
            self.forgotten()
            del self.c, self.router  # the class's again
            self.setUp()

    def test_idle_connections(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, N_IDLE + 1000), hard))
        before = self.peak_mb()
        idle = []
        try:
            for _ in range(N_IDLE):
                idle.append(self.connect())
            wait_for("all to be accepted", lambda: self.connections() >= N_IDLE)
            self.serves()
            self.assertLess(self.peak_mb() - before, 32 + N_IDLE * 0.05)
        finally:
            for s in idle:
                s.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def test_body_of_100_mb(self):
        before, size = self.peak_mb(), 100 << 20
        status, body = self.sent(head("POST", "/v1/completions", JSON_HEAD + f"Content-Length: {size}\r\n") + (b" " * size if FULL else b" " * 4096))
        self.assertEqual(status, 413, body)
        chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"  # without a length, 1 MiB each
        status, body = self.sent(head("POST", "/v1/completions", JSON_HEAD + "Connection: close\r\nTransfer-Encoding: chunked\r\n") + chunk * (100 if FULL else 17) + b"0\r\n\r\n")
        self.assertIn(status, (413, 0), body)
        self.assertLess(self.peak_mb() - before, 96)

    def post(self, body):
        return self.sent(head("POST", "/v1/completions", JSON_HEAD + f"Content-Length: {len(body)}\r\nConnection: close\r\n") + body)

    def test_prompts_of_a_million_tokens(self):
        ids = json.dumps({"model": "tiny", "prompt": [7] * 1000000}, separators=(",", ":")).encode()
        text = json.dumps({"model": "tiny", "prompt": "ab c" * (2000000 if FULL else 250000)}).encode()
        for body in (ids, text):
            status, answer = self.post(body)
            self.assertEqual(status, 400, answer[:300])
            self.assertIn(b"context", answer)

    def test_json_that_is_deep_or_no_text(self):
        for body in (b"[" * 100000, b'{"model":' * 50000, b'{"model":"tiny","prompt":' + b"[" * 3000 + b"1" + b"]" * 3000 + b"}",
                     b'{"model":"tiny","prompt":"\xff\xfe"}', b'{"model":"tiny","prompt":"\xed\xa0\x80"}', b'{"model":"tiny","prompt":"\\ud800"}',
                     b"\x00" * 1000, b'{"model":"tiny\x00","prompt":"a"}', b'{"prompt":' + b"9" * 100000 + b"}"):
            status, answer = self.post(body)
            self.assertEqual(status, 400, body[:40] + answer[:300])
            answer.decode()  # whatever it says is UTF-8

    def test_floods_of_headers(self):
        for extra in ("".join(f"X-{i}: {'v' * 90}\r\n" for i in range(3000)), "a:b\r\n" * 30000, "X-Long: " + "v" * 300000 + "\r\n", "X" * 300000 + ": v\r\n"):
            status, _ = self.sent(head("GET", "/version", extra + "Connection: close\r\n"))
            self.assertIn(status, (431, 413, 400, 0))
        status, _ = self.sent(head("GET", "/" + "p" * 300000, "Connection: close\r\n"))
        self.assertIn(status, (414, 431, 413, 400, 0))
        # what is only many is served
        status, _ = self.sent(head("GET", "/version", "".join(f"X-{i}: v\r\n" for i in range(100)) + "Connection: close\r\n"))
        self.assertEqual(status, 200)


if __name__ == "__main__":
    unittest.main(verbosity=2)
