"""TLS: the API over HTTPS with a certificate that is replaced while the router runs; the control plane with certificates on both sides; what is refused at the start."""
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import unittest

import harness
from harness import LIMIT_S, program, wait_for
from streams import Background


def make_certificate(folder, name):
    """A self-signed certificate for localhost: (certificate, key)."""
    cert, key = (os.path.join(folder, f"{name}.{kind}") for kind in ("crt", "key"))
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", cert, "-days", "2",
                    "-subj", f"/O={name}/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
    os.chmod(key, 0o600)
    return cert, key


@unittest.skipUnless(shutil.which("openssl"), "there is no openssl to make certificates with")
class Https(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.cert, self.key = make_certificate(self.folder, "first")

    def ask(self, c, cert, method, path, body=None):
        trust = ssl.create_default_context(cafile=cert)
        connection = http.client.HTTPSConnection("127.0.0.1", c.http_port, context=trust, timeout=LIMIT_S)
        try:
            connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
            r = connection.getresponse()
            return r.status, r.read()
        finally:
            connection.close()

    def pieces(self, c, cert, path, body):
        """A generator of what comes of the answer, as it comes."""
        connection = http.client.HTTPSConnection("127.0.0.1", c.http_port, context=ssl.create_default_context(cafile=cert), timeout=LIMIT_S)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            r = connection.getresponse()
            self.assertEqual(r.status, 200)
            while piece := r.read1(65536):
                yield piece
        finally:
            connection.close()

    def test_streams_and_new_certificates(self):
        with harness.Cluster(prefill=0, hold={"d0": 20}, router_options=["--tls-cert-file", self.cert, "--tls-key-file", self.key]) as c:
            body = {"model": "tiny", "prompt": [20, 21, 22], "max_tokens": 40, "ignore_eos": True, "stream": True, "temperature": 0}
            # held in its middle, so that what follows comes when the stream has been without a frame
            stream = Background(self.pieces(c, self.cert, "/v1/completions", body))
            wait_for("the stream to stand still", lambda: not stream.running() or stream.chunks and "the hold begins" in c.daemons["d0"].log())
            c.release("d0")
            text = b"".join(stream.result())
            self.assertTrue(text.endswith(b"data: [DONE]\n\n"))
            frames = [json.loads(line[6:]) for line in text.split(b"\n\n") if line.startswith(b"data: {")]
            self.assertEqual(len(frames), 41)
            self.assertGreater(len(stream.chunks), 1)
            status, whole = self.ask(c, self.cert, "POST", "/v1/completions", {**body, "stream": False})
            self.assertEqual(status, 200, whole)
            self.assertEqual("".join(f["choices"][0]["text"] for f in frames if f["choices"]), json.loads(whole)["choices"][0]["text"])
            # nothing is told without TLS
            with socket.create_connection(("127.0.0.1", c.http_port), timeout=LIMIT_S) as s:
                s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                try:
                    self.assertNotIn(b"HTTP/1.1 200", s.recv(4096))
                except ConnectionError:
                    pass
            router = c.daemons["router"]
            new_cert, new_key = make_certificate(self.folder, "second")
            # half of it: the old one goes on
            shutil.copy(new_cert, self.cert + ".new")
            shutil.copy(self.cert, self.cert + ".old")
            os.replace(self.cert + ".new", self.cert)
            router.kill(signal.SIGHUP)
            wait_for("the refusal", lambda: "the certificate stays as it was: tls_key_file" in router.log())
            self.assertEqual(self.ask(c, self.cert + ".old", "GET", "/version")[0], 200)
            shutil.copy(new_key, self.key)
            n = router.log().count("reloaded")
            router.kill(signal.SIGHUP)
            wait_for("the reload", lambda: router.log().count("reloaded") > n)
            self.assertEqual(self.ask(c, self.cert, "GET", "/version")[0], 200)
            with self.assertRaises(ssl.SSLError):
                self.ask(c, self.cert + ".old", "GET", "/version")

    def test_control_plane_with_certificates_on_both_sides(self):
        def files(authority, cert, key):
            return ["--control-tls-ca-file", authority, "--control-tls-cert-file", cert, "--control-tls-key-file", key]

        mine = files(self.cert, self.cert, self.key)  # self-signed: its own authority
        urls = ["--register-url", "tls+tcp://localhost:0", "--event-url", "tls+tcp://localhost:0"]
        with harness.Cluster(prefill=0, decode=0, router_options=[*urls, *mine]) as c:
            other_cert, other_key = make_certificate(self.folder, "other")
            stranger = c.start_tls_node("stranger", "sluice-decode", files(self.cert, other_cert, other_key))
            c.start_tls_node("p0", "sluice-prefill", mine)
            c.start_tls_node("d0", "sluice-decode", mine)
            c.wait_nodes(2)
            apart, _ = c.complete(harness.prompt_of(70), mode="pd", headers=harness.at("d0", "p0"))
            alone, _ = c.complete(harness.prompt_of(70), mode="colocated", headers={**harness.at("d0"), "X-Sluice-No-Cache": "1"})
            self.assertEqual(alone, apart)
            wait_for("the stranger to be without an answer", lambda: "router does not answer" in stranger.log())
            self.assertEqual({n["node"] for n in c.nodes()}, {"p0", "d0"})
            # what is without TLS is refused by name at the start
            for options, words in ((["--routers", "tcp://127.0.0.1:1", *mine], "is without TLS"), (["--routers", "tls+tcp://localhost:1"], "asks for TLS"),
                                   (["--listen", "tls+tcp://localhost:0", "--control-tls-ca-file", self.cert], "control_tls_key_file is not set")):
                r = subprocess.run([program("sluice-decode"), "--model", c.model, "--kv-memory", "1M", "--cache-dir", "none", *options], capture_output=True,
                                   text=True, timeout=LIMIT_S)
                self.assertEqual(r.returncode, 78, r.stderr)
                self.assertIn(words, r.stderr)

    def test_wrong_files_are_refused_at_the_start(self):
        model = os.path.join(self.folder, "tiny.gguf")
        subprocess.run([program("sluice-make-model"), "--preset", "tiny", "--out", model], check=True, stdout=subprocess.DEVNULL)
        _, other = make_certificate(self.folder, "other")
        bare = os.path.join(self.folder, "bare.key")
        shutil.copy(self.key, bare)
        os.chmod(bare, 0o644)
        for cert, key, words in ((self.cert, other, "is not the key of the certificate"), (self.cert, None, "tls_key_file is not; HTTPS needs both"),
                                 (None, self.key, "tls_cert_file is not"), (self.key, self.key, "is no certificate in PEM"),
                                 (self.cert, self.cert, "has mode"), (self.cert, bare, "has mode 644"), ("/none", self.key, "cannot be read")):
            options = [*(["--tls-cert-file", cert] if cert else []), *(["--tls-key-file", key] if key else [])]
            r = subprocess.run([program("sluice-router"), "--model", model, "--check-config", *options], capture_output=True, text=True, timeout=LIMIT_S)
            self.assertEqual(r.returncode, 78, r.stderr)
            errors = [line for line in r.stderr.splitlines() if line.startswith("<3>")]
            self.assertEqual(len(errors), 1, r.stderr)
            self.assertIn(words, errors[0])


if __name__ == "__main__":
    unittest.main(verbosity=2)
