"""Wrong configs and wrong model files: exit status 78 and one sentence that says what was found, expected and what to do."""
import os
import socket
import struct
import subprocess
import tempfile
import unittest

import harness
from harness import LIMIT_S, program


def start(which, *options, config=None):
    with tempfile.TemporaryDirectory() as d:
        argv = [program(which)]
        if config is not None:
            path = os.path.join(d, "x.conf")
            with open(path, "w") as f:
                f.write(config)
            argv += ["--config", path]
        r = subprocess.run([*argv, *options], capture_output=True, text=True, timeout=LIMIT_S)
    return r.returncode, [line for line in r.stderr.splitlines() if line.startswith("<3>") or not line.startswith("<")]


class BadStart(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = os.path.join(cls.folder.name, "tiny.gguf")
        subprocess.run([program("sluice-make-model"), "--preset", "tiny", "--out", cls.model], check=True, stdout=subprocess.DEVNULL)
        with open(cls.model, "rb") as f:
            cls.bytes = f.read()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def refused(self, which, *options, config=None, words=(), want=78):
        status, lines = start(which, *options, config=config)
        self.assertEqual(status, want, lines)
        self.assertEqual(len(lines), 1, lines)
        for w in words:
            self.assertIn(w, lines[0])

    def file_with(self, data):
        path = os.path.join(self.folder.name, "bad.gguf")
        with open(path, "wb") as f:
            f.write(data)
        return path

    def test_wrong_keys_and_values(self):
        for which in ("sluice-router", "sluice-prefill", "sluice-decode"):
            self.refused(which, config=f"modle = {self.model}\n", words=["modle", "x.conf"])
            self.refused(which, "--no-such-option", "1", words=["no-such-option"])
            self.refused(which, words=["model"])
            self.refused(which, "--model", "/no/such/file.gguf", words=["/no/such/file.gguf"])
        self.refused("sluice-decode", "--model", self.model, "--threads", "many", words=["threads"])
        self.refused("sluice-decode", "--model", self.model, "--tensor-parallel", "2", "--threads", "3", words=["threads is 3", "tensor_parallel is 2"])
        self.refused("sluice-decode", "--model", self.model, "--tensor-parallel", "4", words=["tensor_parallel is 4", "2 KV heads"])
        self.refused("sluice-decode", "--model", self.model, "--roles", "cook", words=["cook"])
        self.refused("sluice-decode", "--model", self.model, "--kv-memory", "1", words=["kv"])
        self.refused("sluice-decode", "--model", self.model, "--transfer-listen", "8.8.8.8:0", words=["trust_network"])
        self.refused("sluice-decode", "--model", self.model, "--backend", "abacus", words=["abacus"])
        self.refused("sluice-router", "--model", self.model, "--mode", "psychic", words=["psychic"])
        # Addresses are looked at before the model is read, and by --check-config.
        for which, key, value in (("decode", "routers", "127.0.0.1:7100"), ("decode", "routers", "tcp://127.0.0.1"), ("decode", "listen", "http://127.0.0.1:0"),
                                  ("prefill", "transfer-listen", "tcp://127.0.0.1"), ("router", "admin-url", "/tmp/x.sock"), ("router", "register-url", "tcp://127.0.0.1:70000"),
                                  ("router", "event-url", "7101"), ("router", "model-digest", "abc")):
            self.refused("sluice-" + which, "--model", self.model, "--" + key, value, "--check-config", words=[key.replace("-", "_"), value, "expected"])
        self.refused("sluice-router", "--model", self.model, "--listen", "127.0.0.1:0", "--register-url", "tcp://127.0.0.1:0", "--admin-url",
                     f"ipc://{self.folder.name}/none/r.sock", words=["no such folder"], want=1)

    def test_broken_model_files(self):
        for which in ("sluice-router", "sluice-decode"):
            for data, word in ((b"", "GGUF"), (b"GGML" + self.bytes[4:], "GGUF"), (self.bytes[:100], ""), (self.bytes[:4] + struct.pack("<I", 9) + self.bytes[8:], "9"),
                               (self.bytes[:8] + b"\xff" * 8 + self.bytes[16:], "")):
                self.refused(which, "--model", self.file_with(data), words=["bad.gguf", word])
        self.refused("sluice-decode", "--model", self.file_with(self.bytes[:-5000]), words=["bad.gguf"])

    def test_unknown_architecture_and_tokenizer(self):
        arch = self.bytes.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0zebra", 1)
        self.refused("sluice-decode", "--model", self.file_with(arch), words=["zebra"])
        pre = self.bytes.replace(b"\x06\0\0\0\0\0\0\0smollm", b"\x06\0\0\0\0\0\0\0zigzag", 1)
        self.assertNotEqual(pre, self.bytes)
        self.refused("sluice-router", "--model", self.file_with(pre), words=["zigzag"])

    def test_broken_folders(self):
        with tempfile.TemporaryDirectory() as d:
            for which in ("sluice-router", "sluice-decode"):
                self.refused(which, "--model", d, words=[d, "config.json"])
            folder = os.path.join(d, "tiny")
            subprocess.run([program("sluice-gguf-to-hf"), self.model, folder, "bf16", "0"], check=True)
            weights = os.path.join(folder, "model.safetensors")
            with open(weights, "rb") as f:
                data = f.read()
            for bad, word in ((b"", "empty"), (data[:100], "header"), (data[:-1], "damaged"), (b"GGUF" + data[4:], "safetensors")):
                with open(weights, "wb") as f:
                    f.write(bad)
                self.refused("sluice-decode", "--model", folder, words=[weights, word])
            os.unlink(weights)
            self.refused("sluice-decode", "--model", folder, words=[folder, "safetensors"])
            config = os.path.join(folder, "config.json")
            with open(config) as f:
                text = f.read()
            with open(config, "w") as f:
                f.write(text.replace('"llama"', '"zebra"'))
            self.refused("sluice-decode", "--model", folder, words=[folder, "zebra"])

    def test_address_in_use(self):
        # Not a wrong config: it may be free in a moment, so the status tells systemd to try again.
        with harness.Cluster(prefill=0, decode=0) as c:
            self.refused("sluice-router", "--model", self.model, "--listen", f"127.0.0.1:{c.http_port}", "--register-url",
                         "tcp://127.0.0.1:0", "--admin-url", f"ipc://{self.folder.name}/r.sock", words=[str(c.http_port), "in use"], want=1)

    def test_model_digest_of_the_router_goes_before_the_first_node(self):
        digest = "ab" * 16
        with harness.Cluster(prefill=0, decode=0, router_options=["--model-digest", digest]) as c:
            c.start_node("d0", "sluice-decode")
            harness.wait_for("the refusal to be told", lambda: any(f"this router takes {digest} only" in r["text"] for r in c.tables("events")["events"]))
            harness.wait_for("the node to say so", lambda: digest in c.daemons["d0"].log())
            self.assertEqual(c.nodes(), [])

    def test_unreachable_router_the_node_waits_and_says_so(self):
        with tempfile.TemporaryDirectory() as d, socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # nobody can listen there
            port = taken.getsockname()[1]
            node = harness.Daemon("d0", [program("sluice-decode"), "--name", "d0", "--model", self.model, "--kv-memory", "4M", "--cache-dir", "none", "--routers",
                                         f"tcp://127.0.0.1:{port}"], d)
            harness.wait_for("a line about the router", lambda: f"127.0.0.1:{port}" in node.log())
            self.assertTrue(node.alive())
            self.assertEqual(node.stop(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
