"""Trace files as published, against a real cluster: lengths and times are the trace's, shared blocks become cache hits. And the cluster as a file."""
import json
import os
import subprocess
import unittest

from harness import Cluster, program

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,1396,109
2023-11-16 18:15:51.2225670,879,55
"""
# Two turns of a conversation and a request that shares nothing; blocks are of 512 tokens.
MOONCAKE = "".join(json.dumps({"timestamp": t, "input_length": n, "output_length": o, "hash_ids": ids}) + "\n" for t, n, o, ids in (
    (0, 1100, 40, [1, 2, 3]), (3000, 700, 20, [7, 8]), (6000, 2100, 30, [1, 2, 4, 5, 6])))


class Replay(unittest.TestCase):
    def replay(self, c, text, *options):
        trace, report = os.path.join(c.folder, "trace"), os.path.join(c.folder, "replay.json")
        with open(trace, "w") as f:
            f.write(text)
        r = subprocess.run([program("sluice-bench"), "replay", "--url", c.url, "--trace", trace, "--json", report, *options],
                           capture_output=True, text=True)
        if r.returncode:
            return r, None
        with open(report) as f:
            return r, json.load(f)

    def test_azure_lengths_and_times_are_scaled(self):
        with Cluster() as c:
            r, doc = self.replay(c, AZURE, "--speed", "4", "--token-scale", "0.125", "--alone", "2")
            self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
            self.assertEqual([row[1:3] for row in doc["requests"]], [[47, 6], [175, 14], [110, 7]])
            self.assertAlmostEqual(doc["requests"][1][0], (50.9951690 - 46.6805900) / 4, 5)
            self.assertEqual((doc["felt"]["requests"], doc["felt"]["errors"]), (3, 0))
            self.assertEqual(len(doc["alone"]), 2)
            link = os.path.join(c.folder, "link.json")
            subprocess.run([program("sluice-bench"), "link", "--url", c.url, "--requests", "2", "--prompt-tokens", "48", "--json", link], check=True,
                           capture_output=True)
            with open(link) as f:
                pair, = json.load(f)["pairs"]
            self.assertEqual((pair["prefill"], pair["decode"], pair["failed"]), ("p0", "d0", 0))
            self.assertGreaterEqual(pair["pages"], 2 * 3)
            self.assertTrue(all(row[7] is not None for row in doc["requests"]))  # what was predicted when it was placed
            self.assertIn("not the trace itself: speed 4", r.stdout)
            # the same limits again, told to the cluster
            idle = os.path.join(c.folder, "idle.json")
            with open(idle, "w") as f:
                json.dump({"alone": [[47, 1000.4, 100], [110, 2000, 200]]}, f)
            r, doc = self.replay(c, AZURE, "--speed", "4", "--token-scale", "0.125", "--alone-from", idle, "--tell", "0.5")
            self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
            self.assertEqual(doc["alone"], [[47, 1000.4, 100.0], [110, 2000.0, 200.0]])
            last = c.record("last", whole=False)
            self.assertIn((last["wished_ttft_ms"], last["wished_tpot_ms"]), (("5002", "150"), ("10000", "300"), ("15157", "455")))
            for bad in ({}, {"alone": [[47, 1000, 100], [47, 2000, 200]]}):
                with open(idle, "w") as f:
                    json.dump(bad, f)
                r, _ = self.replay(c, AZURE, "--alone-from", idle)
                self.assertIn("is no result of replay", r.stderr)

    def test_mooncake_blocks_become_hits(self):
        with Cluster(prefill=0) as c:
            # 512 tokens x 1/16 = two pages of 16; 6 seconds are enough for the first turn to be done
            r, doc = self.replay(c, MOONCAKE, "--token-scale", "0.0625", "--alone", "0", "--mode", "colocated")
            self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
            self.assertEqual(doc["felt"]["errors"], 0)
            self.assertEqual(doc["felt"]["cached_tokens"], 2 * 32)
            # and a load as vllm bench serve makes it, whose prompts the router counts
            r = subprocess.run([program("sluice-bench"), "serve", "--base-url", c.url, "--num-prompts", "4", "--random-input-len", "9",
                                "--random-output-len", "5", "--save-result", "--result-dir", c.folder, "--result-filename", "serve.json"],
                               capture_output=True, text=True)
            self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
            with open(os.path.join(c.folder, "serve.json")) as f:
                doc = json.load(f)
            self.assertEqual((doc["completed"], doc["total_output_tokens"], doc["sluice"]["chunks"]), (4, 20, 20))

    def test_snapshot_of_a_cluster_can_be_simulated(self):
        with Cluster() as c:
            file = os.path.join(c.folder, "cluster.ini")
            subprocess.run([program("sluice-bench"), "snapshot", "--url", c.url, "--out", file, "--nodes", "2", "--probes", "2"], check=True)
            with open(file) as f:
                text = f.read()
            self.assertEqual({line for line in text.splitlines() if line.startswith("[")}, {"[cluster]", "[group d0]", "[group p0]"})
            report = os.path.join(c.folder, "simulated.json")
            subprocess.run([program("sluice-bench"), "simulate", "--cluster", file, "--rate", "20", "--requests", "50", "--max-total", "500",
                            "--arms", "hybrid", "--max-tokens", "1", "--json", report], check=True)
            with open(report) as f:
                self.assertEqual(json.load(f)["arms"][0]["unfinished"], 0)

    def test_what_is_no_trace_is_refused_in_words(self):
        with Cluster(prefill=0) as c:
            for text, words in (("a,b\n1,2\n", "the first line is"), ("TIMESTAMP,ContextTokens,GeneratedTokens\nx,1,2\n", ":2: \"x,1,2\"")):
                r, _ = self.replay(c, text)
                self.assertEqual(r.returncode, 2, r.stdout)
                self.assertIn(words, r.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
