"""/metrics: what promtool says of it, counters over the death of a node, and that rules and board ask only for what there is. /ui/steps."""
import json
import os
import re
import shutil
import signal
import subprocess
import unittest

from harness import Cluster, prompt_of, wait_for

DASHBOARDS = os.path.join(os.path.dirname(__file__), "..", "..", "deploy", "dashboards")
SERIES = re.compile(r"^([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)$")
# Names of series in PromQL, of rules too (sluice:ttft_seconds:p99_5m).
NAMES = re.compile(r"\b(?:sluice|vllm|process)[_:][\w:]*")
# What dashboards made for vLLM and the Gateway API inference extension read.
VLLM = """num_requests_running num_requests_waiting kv_cache_usage_perc gpu_cache_usage_perc cache_config_info time_to_first_token_seconds
    inter_token_latency_seconds time_per_output_token_seconds request_time_per_output_token_seconds e2e_request_latency_seconds
    request_queue_time_seconds request_inference_time_seconds request_prefill_time_seconds request_decode_time_seconds request_prompt_tokens
    request_generation_tokens request_max_num_generation_tokens request_params_max_tokens prompt_tokens_total generation_tokens_total
    prompt_tokens_cached_total request_success_total num_preemptions_total prefix_cache_queries_total prefix_cache_hits_total
    spec_decode_num_draft_tokens_total spec_decode_num_accepted_tokens_total""".split()


def series(text):
    """{name with labels: value}; every line that is no comment must be a series."""
    out = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = SERIES.match(line).groups()
            out[name + (labels or "")] = float(value)
    return out


def scrape(c):
    return series(c.get("/metrics").decode())


def told(c, name, node):
    return scrape(c).get(f'{name}{{node="{node}"}}', 0)


def load(c):
    for mode in ("pd", "colocated", "hybrid"):
        c.complete(prompt_of(100), 8, mode=mode)


class Metrics(unittest.TestCase):
    def check_names(self, text):
        """Rules and board ask for series that are there."""
        with open(os.path.join(DASHBOARDS, "sluice.rules.yml")) as f:
            rules = f.read()
        recorded = set(re.findall(r"record: (\S+)", rules))
        asked = re.findall(r"expr: (.*)", rules)
        with open(os.path.join(DASHBOARDS, "sluice.grafana.json")) as f:
            board = json.load(f)
        asked += [t["expr"] for p in board["panels"] for t in p.get("targets", [])]
        asked += [v["definition"] for v in board["templating"]["list"] if "definition" in v]
        names = {n for expr in asked for n in NAMES.findall(re.sub(r'"[^"]*"', "", expr))} - recorded
        self.assertGreater(len(names), 30)
        there = {SERIES.match(line).group(1) for line in text.splitlines() if not line.startswith("#")}
        self.assertEqual(sorted(names - there), [], "asked for by deploy/dashboards and not in /metrics")

    def check_vllm(self, text):
        for name in VLLM:
            line = re.search(rf"^vllm:{name}(_count)?\{{(.*)\}} ", text, re.M)
            self.assertIsNotNone(line, f"no vllm:{name} in\n{text}")
            self.assertIn('model_name="tiny",engine="0"', line.group(2))

    def check_promtool(self, text):
        r = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        # it dislikes vLLM's names, which are not ours to choose
        said = [line for line in (r.stdout + r.stderr).splitlines() if not line.startswith("vllm:")]
        self.assertEqual(said, [])

    def check_steps(self, c):
        """What /ui draws: the last steps of both nodes, and the transfers between them."""
        # p0 tells of its transfers in a message of its own
        answer = wait_for("steps of both nodes and their transfers", lambda: (lambda a: a if {s[0] for s in a["steps"]} >= {0, 1} and a["transfers"] else
                                                                             None)(json.loads(c.get("/ui/steps/0"))))
        lanes = [lane["node"] for lane in answer["lanes"]]
        self.assertEqual(sorted(lanes), ["d0", "p0"])
        for lane, start, took, _, decode, _, prompt, prompts in answer["steps"]:
            self.assertLessEqual(start + took, answer["now_us"])
            self.assertTrue(decode or prompt)
            self.assertEqual(prompt > 0, prompts > 0)
        self.assertIn(["p0", "d0"], [[lanes[t[0]], lanes[t[1]]] for t in answer["transfers"]])
        again = json.loads(c.get(f"/ui/steps/{answer['next']}"))
        self.assertEqual((again["steps"], again["transfers"]), ([], []))

    def test_metrics_are_whole_and_counters_never_go_back(self):
        with Cluster(router_options=["--slo-classes", "default ttft_ms=3600000"]) as c:
            load(c)
            c.wait_idle()
            wait_for("both nodes to have told their counters", lambda: told(c, "sluice_node_steps_total", "d0") and
                     told(c, "sluice_node_steps_total", "p0"))
            wait_for("a link to be told", lambda: 'sluice_link_up{node="p0",peer="d0"}' in scrape(c))
            self.check_steps(c)
            text = c.get("/metrics").decode()
            self.check_names(text)
            self.check_vllm(text)
            if shutil.which("promtool"):
                self.check_promtool(text)
            before = series(text)
            killed = next(n for n in c.nodes() if n["node"] == "d0")["boot"]
            c.daemons["d0"].kill(signal.SIGKILL)
            c.daemons["d0"].wait()
            c.start_node("d0", "sluice-decode")
            wait_for("the node's new life", lambda: any(n["node"] == "d0" and n["boot"] != killed and n["state"] == "up" for n in c.nodes()))
            load(c)
            c.wait_idle()
            wait_for("the counters of its new life", lambda: told(c, "sluice_node_steps_total", "d0") > before['sluice_node_steps_total{node="d0"}'])
            after = scrape(c)
            for name, value in before.items():
                if re.search(r"_(total|count|sum|bucket)(\{|$)", name):
                    self.assertGreaterEqual(after[name], value, name)
            c.wait_idle()


if __name__ == "__main__":
    unittest.main(verbosity=2)
