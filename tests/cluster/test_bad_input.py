"""Hostile and wrong requests: a 4xx with the error object and a sentence, and the server goes on serving the others."""
import socket
import unittest

from harness import Cluster, prompt_of

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
TEXT = {"model": "tiny", "prompt": "hi", "max_tokens": 2}


class BadInput(unittest.TestCase):
    def refused(self, c, path, body, status=400, words=(), headers=None):
        got, doc, _ = c.status(path, body, headers)
        self.assertEqual(got, status, (body if len(str(body)) < 300 else "...", doc))
        self.assertTrue(doc and doc["error"]["message"], body)
        self.assertEqual(doc["error"]["code"], status)
        for w in words:
            self.assertIn(w, doc["error"]["message"])

    def test_every_wrong_request_is_refused_and_the_next_is_served(self):
        with Cluster(router_options=["--max-body-bytes", "1M"]) as c:
            completions, chat = "/v1/completions", "/v1/chat/completions"
            for body in (b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe{}", b'{"model": "tiny", "prompt": "\xff"}', b"[" * 100000,
                         b'{"a":' * 5000 + b"1" + b"}" * 5000, b'{"model":"tiny","model":"tiny"}'):
                self.refused(c, completions, body)
                self.refused(c, chat, body)
            self.refused(c, completions, b'{"prompt": "' + b"x" * (2 << 20) + b'"}', 413)
            self.refused(c, completions, {**TEXT, "model": "other"}, 404, ["other"])
            self.refused(c, "/v1/nothing", TEXT, 404)
            for key, value in (("max_tokens", "many"), ("max_tokens", -1), ("temperature", "hot"), ("temperature", -1),
                               ("top_p", 0), ("top_p", 1.5), ("top_k", -2), ("seed", "x"), ("stop", 7), ("stop", ["a"] * 99),
                               ("logprobs", 21), ("n", 129), ("best_of", 2), ("logit_bias", {"999999": 1}), ("logit_bias", {"x": 1}),
                               ("presence_penalty", 3), ("stream", "yes"), ("stream_options", {"include_usage": True}), ("prompt", []),
                               ("prompt", ""), ("prompt", [-1]), ("prompt", [99999999]), ("prompt", None), ("suffix", "x")):
                self.refused(c, completions, {**TEXT, key: value})
            for key, value in (("messages", None), ("messages", "x"), ("messages", []), ("messages", [123]), ("messages", [{}]),
                               ("messages", [{"role": 1, "content": "x"}]), ("messages", [{"role": "user", "content": 1}]),
                               ("tools", [{"type": "function", "function": {"name": "f"}}]), ("tool_choice", "auto"),
                               ("response_format", {"type": "json_schema"}), ("top_logprobs", 3), ("n", 0)):
                self.refused(c, chat, {**CHAT, key: value})
            long = prompt_of(20000)
            self.refused(c, completions, {**TEXT, "prompt": long}, words=["20000"])
            self.refused(c, completions, {**TEXT, "prompt": long, "stream": True}, words=["20000"])
            for name, value in (("X-Sluice-Mode", "psychic"), ("X-Sluice-Split", "many"), ("X-Sluice-Chunk", "-7"), ("X-Sluice-Split", "-3")):
                self.refused(c, completions, TEXT, headers={name: value})
            self.refused(c, completions, TEXT, 503, ["nobody"], headers={"X-Sluice-Decode-Node": "nobody"})
            self.assertEqual(c.status("/v1/completions", method="GET")[0], 405)
            self.assertEqual(len(c.complete(prompt_of(20), 4)[0]), 4)
            c.wait_idle()

    def test_kv_that_can_never_fit_is_refused_with_numbers(self):
        # Pages for 128 tokens: the pool is far smaller than the context.
        with Cluster(node_options=["--kv-memory", "128K"]) as c:
            pages = int(c.nodes()[0]["pages"])
            self.refused(c, "/v1/completions", {**TEXT, "prompt": prompt_of(pages * 16 + 20)}, 413, words=["page"])
            self.assertEqual(len(c.complete(prompt_of(20), 4)[0]), 4)

    def test_raw_junk_on_the_socket_hurts_nobody(self):
        with Cluster() as c:
            for junk in (b"\0" * 4096, b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
                         b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"A" * 100000):
                with socket.create_connection((c.address, c.http_port)) as s:
                    try:
                        s.sendall(junk)
                        s.shutdown(socket.SHUT_WR)
                        s.settimeout(10)
                        while s.recv(4096):
                            pass
                    except OSError:
                        pass
            # The ports of the control plane, too.
            for port in (c.register_port, c.event_port):
                with socket.create_connection((c.address, port)) as s:
                    s.sendall(b"\0SP\0\0\x30\0\0" + b"\0\0\0\0\0\0\0\x20" + b"\x80\0\0\1" + b"\xff" * 28)
            self.assertEqual(len(c.complete(prompt_of(20), 4, "pd")[0]), 4)

    def test_api_keys_guard_all_but_public_paths(self):
        import os
        import tempfile
        with tempfile.NamedTemporaryFile("w", suffix=".keys", delete=False) as f:
            f.write("# comment\nalice:secret-one\nsecret-two\n")
        try:
            with Cluster(router_options=["--api-key-file", f.name]) as c:
                self.refused(c, "/v1/completions", TEXT, 401)
                self.refused(c, "/v1/completions", TEXT, 401, headers={"Authorization": "Bearer wrong"})
                for key in ("secret-one", "secret-two"):
                    self.assertEqual(c.status("/v1/completions", TEXT, {"Authorization": f"Bearer {key}"})[0], 200)
                self.assertEqual(c.status("/health")[0], 200)
                self.assertEqual(c.status("/sluice/v1/mode/pd", {}, method="POST")[0], 401)
        finally:
            os.unlink(f.name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
