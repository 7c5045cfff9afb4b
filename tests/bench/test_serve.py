"""sluice-bench serve against a server whose times are known, and llama.cpp's where it is built: keys and layout are those of vllm bench serve, failures
are misses, every kind of prompt reaches the server.

  test_serve.py SLUICE_BENCH SLUICE_PACED_SERVER SLUICE_MAKE_MODEL
"""
import contextlib
import glob
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
import xml.etree.ElementTree

from paced import Paced

BENCH, PACED, MAKE_MODEL = sys.argv[1:4]
CACHE = os.environ.get("SLUICE_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "sluice")
LLAMA = [p for p in glob.glob(os.path.join(CACHE, "llama-cpp-*", "build", "bin", "llama-server")) if os.access(p, os.X_OK)]

# The members of vllm bench serve's result file, in its words.
KEYS = """date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness max_concurrency duration completed failed
total_input_tokens total_output_tokens request_throughput request_goodput output_throughput total_token_throughput max_output_tokens_per_s
max_concurrent_requests rtfx latencies queue_times mean_ttft_ms median_ttft_ms std_ttft_ms p99_ttft_ms mean_tpot_ms median_tpot_ms std_tpot_ms
p99_tpot_ms mean_itl_ms median_itl_ms std_itl_ms p99_itl_ms""".split()
DETAILS = "input_lens output_lens start_times ttfts itls generated_texts errors".split()
LAYOUT = """============ Serving Benchmark Result ============
Successful requests:                     6         \nFailed requests:                         0         \nMaximum request concurrency:             8         \nRequest rate configured (RPS):           N
Benchmark duration (s):                  N
Total input tokens:                      N
Total generated tokens:                  30        \nRequest throughput (req/s):              N
Request goodput (req/s):                 N
Output token throughput (tok/s):         N
Peak output token throughput (tok/s):    N
Peak concurrent requests:                N
Total token throughput (tok/s):          N
---------------Time to First Token----------------
Mean TTFT (ms):                          N
Median TTFT (ms):                        N
P99 TTFT (ms):                           N
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          N
Median TPOT (ms):                        N
P99 TPOT (ms):                           N
---------------Inter-token Latency----------------
Mean ITL (ms):                           N
Median ITL (ms):                         N
P99 ITL (ms):                            N
----------------End-to-end Latency----------------
Mean E2EL (ms):                          N
Median E2EL (ms):                        N
P99 E2EL (ms):                           N
==================================================
"""


class Serve(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory()) if hasattr(self, "enterContext") else tempfile.mkdtemp()

    def serve(self, url, *options, code=0, env=None):
        """(standard output, result file)"""
        r = subprocess.run([BENCH, "serve", "--base-url", url, "--disable-tqdm", "--save-result", "--result-dir", os.path.join(self.folder, "new"),
                            "--result-filename", "r.json", *options], capture_output=True, text=True, env={**os.environ, **(env or {})})
        self.assertEqual(r.returncode, code, r.stdout + r.stderr)
        path = os.path.join(self.folder, "new", "r.json")
        if not os.path.exists(path):
            return r.stdout + r.stderr, None
        with open(path) as f:
            return r.stdout + r.stderr, json.load(f)

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w") as f:
            f.write(text)
        return path

    def test_keys_and_layout_are_vllms(self):
        load = ("--num-prompts", "6", "--request-rate", "400", "--random-input-len", "8", "--random-output-len", "5")
        with Paced(PACED, ttft_ms=1, pace_ms=1) as p:
            out, doc = self.serve(p.url, *load)
            self.assertEqual(set(doc), {*KEYS, "sluice"})
            out, doc = self.serve(p.url, *load, "--save-detailed", "--max-concurrency", "8", "--goodput", "ttft:60000", "tpot:60000",
                                  "--percentile-metrics", "ttft,tpot,itl,e2el", "--metadata", "version=1", "tp=2")
        e2el = {f"{k}_e2el_ms" for k in ("mean", "median", "std", "p99")}
        self.assertEqual(set(doc), {*KEYS, *DETAILS, *e2el, "version", "tp", "sluice"})
        text = re.sub(r"\d+\.\d\d *$", "N", out[:out.index("= sluice-bench")].rsplit("\n", 1)[0] + "\n", flags=re.M)
        self.assertEqual(re.sub(r"(Total input tokens: *)\d+ *$", r"\1N", text, flags=re.M), LAYOUT)
        self.assertEqual((doc["completed"], doc["total_output_tokens"], doc["output_lens"], doc["request_rate"]), (6, 30, [5] * 6, 400.0))
        self.assertEqual([len(x) for x in doc["itls"]], [4] * 6)
        self.assertEqual(doc["generated_texts"][0], " word" * 5)
        self.assertEqual(doc["sluice"]["slo_attainment"], 1)
        self.assertAlmostEqual(doc["request_goodput"], doc["request_throughput"])

    def test_times_are_not_below_the_servers_and_failures_are_misses(self):
        with Paced(PACED, ttft_ms=40, pace_ms=8, fail_every=5) as p:
            out, doc = self.serve(p.url, "--num-prompts", "20", "--random-input-len", "4", "--random-output-len", "6", "--goodput", "ttft:60000",
                                  "--backend", "openai-chat", "--percentile-metrics", "ttft,tpot,itl,e2el", code=1)
        self.assertEqual((doc["completed"], doc["failed"]), (16, 4))
        self.assertEqual(doc["sluice"]["slo_attainment"], 0.8)
        self.assertIn("Error 0: failed as asked", out)
        self.assertGreaterEqual(doc["mean_ttft_ms"], 40)
        # what comes late to the client shortens the gap behind it, never the whole
        self.assertGreaterEqual(doc["mean_e2el_ms"], 40 + 5 * 8)

    def test_concurrency_is_a_limit_and_waiting_is_told(self):
        with Paced(PACED, ttft_ms=20, pace_ms=1) as p:
            _, doc = self.serve(p.url, "--num-prompts", "9", "--max-concurrency", "3", "--random-output-len", "2", "--percentile-metrics",
                                "client_queue_time")
        self.assertEqual(doc["max_concurrent_requests"], 3)
        self.assertGreater(doc["p99_client_queue_time_ms"], 40)  # the last three wait for two answers
        self.assertNotIn("mean_ttft_ms", doc)

    def test_every_data_set_reaches_the_server(self):
        model = os.path.join(self.folder, "m.gguf")
        subprocess.run([MAKE_MODEL, "--preset", "tiny", "--out", model], check=True, stdout=subprocess.DEVNULL)
        custom = self.write("c.jsonl", "".join(json.dumps({"prompt": f"Say {i} once more", "output_tokens": 3}) + "\n" for i in range(2)))
        talks = self.write("s.json", json.dumps([{"conversations": [{"value": "What is a sluice, and why?"}, {"value": "A gate for water."}]}]))
        poem = self.write("p.txt", "Shall I compare thee to a summer's day?\nThou art more lovely and more temperate\n")
        with Paced(PACED, ttft_ms=1, pace_ms=0) as p:
            for options in (("--dataset-name", "custom", "--dataset-path", custom, "--custom-output-len", "0"),
                            ("--dataset-name", "sharegpt", "--dataset-path", talks, "--tokenizer", model),
                            ("--dataset-name", "sonnet", "--dataset-path", poem, "--sonnet-input-len", "60", "--sonnet-output-len", "3"),
                            ("--tokenizer", model, "--random-input-len", "50", "--random-output-len", "3", "--random-range-ratio", "0.2")):
                _, doc = self.serve(p.url, "--num-prompts", "5", "--save-detailed", *options)
                self.assertEqual(doc["completed"], 5, options)
                self.assertTrue(all(n > 2 for n in doc["input_lens"]), (options, doc["input_lens"]))

    def test_a_seed_gives_the_same_load(self):
        with Paced(PACED, ttft_ms=1, pace_ms=0) as p:
            lens = [self.serve(p.url, "--num-prompts", "8", "--random-input-len", "40", "--random-output-len", "6", "--random-range-ratio", "0.5",
                               "--save-detailed", "--seed", seed)[1]["output_lens"] for seed in ("1", "1", "2")]
        self.assertEqual(lens[0], lens[1])
        self.assertNotEqual(lens[0], lens[2])

    def test_sweep_tells_arms_rates_and_seeds(self):
        report, csv = (os.path.join(self.folder, n) for n in ("sweep.json", "sweep.csv"))
        with Paced(PACED, ttft_ms=1, pace_ms=1, fail_every=4) as p:
            subprocess.run([BENCH, "sweep", "--url", p.url, "--arms", "default", "--rates", "200,400", "--requests", "4", "--seeds", "2", "--bisect",
                            "false", "--prompt-tokens", "4", "--output-tokens", "3", "--goodput", "ttft:60000", "tpot:60000", "--json", report, "--csv",
                            csv], check=True, capture_output=True)
        with open(report) as f:
            doc = json.load(f)
        self.assertEqual([(x["arm"], x["rate"]) for x in doc["points"]], [(a, r) for r in (200, 400) for a in ("default", "default+again")])
        # every fourth request fails, whoever sent it: the two arms of a seed are equal, and an interval of equal values has no width
        self.assertEqual([x["attainment"] for x in doc["points"]], [{"mean": 0.75, "low": 0.75, "high": 0.75}] * 4)
        with open(csv) as f:
            self.assertEqual(len(f.readlines()), 1 + 2 * 2 * 2)

    def test_report_is_one_page_of_its_own(self):
        page = os.path.join(self.folder, "r.html")
        with Paced(PACED, ttft_ms=2, pace_ms=1, fail_every=5) as p:
            self.serve(p.url, "--num-prompts", "10", "--random-input-len", "5", "--random-output-len", "4", "--save-detailed", "--label", "<b>", code=1)
        made = {"serve": os.path.join(self.folder, "new", "r.json"),
                "compare": self.write("c.json", json.dumps({"differences": 0, "modes": {"pd": {"ttft_ms": {"p50": 1, "cdf": [1, 2, 3]}}}})),
                "replay": self.write("t.json", json.dumps({"mode": "hybrid", "felt": {}, "requests": [[0, 64, 5, 7, 9, 2, 3, None], [1, 900, 5]]})),
                "simulate": self.write("s.json", json.dumps({"slo_ttft": 5, "arms": [{"arm": "pd", "speed": 1, "within_slo": 0.5}]})),
                "engine": self.write("e.json", json.dumps({"roofs": [], "decode": [{"batch": 1, "depth": 0, "tokens_per_s": 5, "min": 4, "max": 6}]}))}
        subprocess.run([BENCH, "report", *made.values(), "-o", page], check=True, capture_output=True)
        with open(page) as f:
            text = f.read()
        for part in ("Time to first token", "Mode against prompt length", "requests over time", "Decode", "Simulated", "<desc>", "class=\"failed\""):
            self.assertIn(part, text)
        for outside in ("http:", "https:", "src=", "@import", "<script", "<b>", "nan", "inf\""):
            self.assertNotIn(outside, text)
        for svg in re.findall(r"<svg.*?</svg>", text, flags=re.S):
            xml.etree.ElementTree.fromstring(svg)
        for wrong, words in (([], "expected 1 to"), ([self.write("x.json", "{}")], "is no result"), ([self.write("y.json", "{")], "y.json:1")):
            r = subprocess.run([BENCH, "report", *wrong, "-o", page], capture_output=True, text=True)
            self.assertEqual(r.returncode, 2)
            self.assertIn(words, r.stderr)

    def test_what_cannot_be_done_is_said(self):
        for options, code, words in ((("--request-rate", "-1"), 2, "expected a number above 0, or inf"),
                                     (("--goodput", "itl:5"), 2, "write ttft:MS, tpot:MS or e2el:MS"),
                                     (("--extra-body", "[1]"), 2, "is no JSON object"),
                                     (("--temperature", "warm"), 2, "expected a number"),
                                     (("--dataset-name", "custom"), 2, "give --dataset-path FILE"),
                                     (("--header", "no"), 2, "KEY=VALUE"),
                                     (("--num-prompts", "2"), 3, "no server answers at http://127.0.0.1:1")):
            out, _ = self.serve("http://127.0.0.1:1", *options, code=code)
            self.assertIn(words, out)

    @unittest.skipUnless(LLAMA, "llama.cpp is not built: tests/bench/peer.py brings it")
    def test_llama_cpp_is_measured(self):
        model = os.path.join(self.folder, "m.gguf")
        subprocess.run([MAKE_MODEL, "--preset", "tiny", "--out", model], check=True, stdout=subprocess.DEVNULL)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        server = subprocess.Popen([LLAMA[0], "-m", model, "--port", str(port), "-np", "2", "-c", "512", "-t", "1"], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        try:
            while True:
                self.assertIsNone(server.poll(), "llama-server ended")
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                    break
                time.sleep(0.1)
            for options in ((), ("--backend", "openai-chat"), ("--tokenizer", model)):
                _, doc = self.serve(f"http://127.0.0.1:{port}", "--num-prompts", "4", "--random-input-len", "12", "--random-output-len", "6", *options)
                self.assertEqual((doc["completed"], doc["total_output_tokens"]), (4, 24))
                self.assertGreater(doc["total_input_tokens"], 4 * 11)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
