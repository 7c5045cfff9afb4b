"""Nodes whose pages lie on CUDA devices: emulated ones, two to a node that share every layer over a fake NCCL, in memory that neither the host nor the other device may touch
(tests/support/emulated_nodes). The tokens are those of one node alone, by every mode and transport, and neither a prefill node killed in a transfer nor a client that
leaves in one keeps a page.

With SLUICE_GPU=1 in the environment the nodes are the programs themselves, all on the cards of this machine, SLUICE_GPU_DEGREE (1) to a node; over ucx alone, as NCCL refuses two
ranks of a pair on one."""
import http.client
import json
import os
import subprocess
import unittest

from harness import BIN, LIMIT_S, Cluster, at, program, prompt_of, tiny_model, wait_for
from streams import Background, errors_of, tokens_of

CARD = os.environ.get("SLUICE_GPU") == "1"
SUFFIX = "" if CARD else "-emulated"
CARDS = len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.splitlines()) if CARD else 4
DEGREE = int(os.environ.get("SLUICE_GPU_DEGREE", "1")) if CARD else 2
FIRST = {"p": 0, "d": 0 if CARD else 2}  # device of the nodes
ENV = {} if CARD else {"CU_EMU_GUARD": "1", "LD_LIBRARY_PATH": os.path.join(BIN, "..", "fake_nccl")}
# An emulated device takes its time: the model is small.
MODEL = ["--layers", "2", "--d-model", "64", "--heads", "4", "--kv-heads", "2", "--head-dim", "32", "--ff", "64", "--vocab", "512"]
NODE = ["--backend", "cuda-plain", "--tensor-parallel", str(DEGREE), "--threads", str(DEGREE)]
PAGE = {"X-Sluice-Chunk": "16"}
PROMPT_TOKENS, PAGES = 70, 5
HOLD = 3  # chunks of a page: in the middle of the second prompt of p0


class Gpu(unittest.TestCase):
    def test_cards_that_are_not_there_are_refused(self):
        argv = [program("sluice-decode" + SUFFIX), "--model", tiny_model(*MODEL), "--backend", "cuda-plain", "--tensor-parallel", "2", "--threads", "2", "--device",
                str(CARDS - 1)]
        r = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, **ENV})
        self.assertEqual(r.returncode, 78, r.stderr)
        self.assertIn(f'take devices up to number {CARDS} of backend "cuda-plain", and this machine shows {CARDS},', r.stderr)

    def start(self, c, transports):
        for i, transport in enumerate(transports):
            for name, which in ((f"p{i}", "sluice-prefill"), (f"d{i}", "sluice-decode")):
                c.start_node(name, which + SUFFIX, ["--transfer-transport", transport, "--device", str(FIRST[name[0]])], ENV)
        c.wait_nodes(2 * len(transports))

    def test_tokens_are_those_of_one_node_alone(self):
        transports = ["ucx"] if CARD else ["ucx", "nccl"]
        with Cluster(prefill=0, decode=0, node_options=NODE, model_options=MODEL, hold={"p0": PAGES + 2 + HOLD}) as c:
            self.start(c, transports)
            self.assertEqual({r["tensor_parallel"] for r in c.nodes()}, {str(DEGREE)})
            prompt = prompt_of(PROMPT_TOKENS)
            want, doc = c.complete(prompt, 6, "colocated", {**at("d0"), "X-Sluice-Digest": "1"}, cache_salt="alone")
            for i in range(len(transports)):
                for mode, split in (("pd", {}), ("hybrid", {"X-Sluice-Split": "32"})):
                    got, other = c.complete(prompt, 6, mode, {**PAGE, **split, **at(f"d{i}", f"p{i}"), "X-Sluice-Digest": "1"}, cache_salt=mode)
                    self.assertEqual(got, want, f"{mode} over {transports[i]}")
                    self.assertEqual(other["sluice"]["digests"], doc["sluice"]["digests"])
                    self.assertEqual(c.record(other["id"])["pages_received"], str(2 if split else PAGES))
            c.wait_idle()
            self.leave_and_kill(c, prompt_of(PROMPT_TOKENS, 2))

    def leave_and_kill(self, c, prompt):
        """p0 stands still after some pages: the client of one request leaves, then p0 is killed under another."""
        want, _ = c.complete(prompt, 6, "colocated", at("d0"), cache_salt="base")
        leaves = http.client.HTTPConnection(c.address, c.http_port)
        leaves.request("POST", "/v1/completions", json.dumps({"model": "tiny", "prompt": prompt, "stream": True, "cache_salt": "leaves"}),
                       {"Content-Type": "application/json", "X-Sluice-Mode": "pd", **PAGE, **at("d0", "p0")})
        wait_for("p0 to stand still", lambda: "the hold begins" in c.daemons["p0"].log())
        stream = Background(c.stream(prompt, 6, "pd", {**PAGE, **at("d0", "p0")}, cache_salt="killed"))
        transfers = lambda: next(r["transfers"] for r in c.nodes() if r["node"] == "d0")  # noqa: E731
        wait_for("both transfers to be open", lambda: transfers() == "2")
        leaves.close()
        wait_for("the one that was left to be over", lambda: transfers() == "1")
        c.daemons["p0"].kill()
        chunks = stream.result()
        self.assertEqual(errors_of(chunks), [])
        self.assertEqual(tokens_of(chunks), want)
        c.daemons["p0"].wait()
        wait_for("d0 to have all pages free or cached", lambda: [
            r for r in c.nodes() if r["node"] == "d0" and r["pages_free"] == r["pages"] and r["transfers"] == "0"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
