#!/usr/bin/env python3
"""sluice-bench serve beside an independent client, guidellm (pip install guidellm), by turns on the same target at the same constant rate.

  agree.py --guidellm PATH [--url URL --model NAME] [--rounds 3] [--requests 100] [--rate 10]

The target is a sluice-paced-server of its own unless a URL is given: with a known pace what differs is the clients. Prints, for TTFT, time between tokens
and TPOT, both clients' medians over the rounds of mean, median and P95, and their ratio; ends with 1 when TTFT or ITL differ by more than 5 %.
(guidellm's own TPOT is the whole latency over the tokens, another quantity than ours; its ITL is comparable.)
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from paced import Paced

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.environ.get("SLUICE_BIN", os.path.join(HERE, "..", "..", "build", "release", "bin"))
LIMIT = 0.05
FIGURES = [(m, s) for m in ("ttft", "itl") for s in ("mean", "median", "p95")]


def ours(o, url, prompts, folder):
    path = os.path.join(folder, "ours.json")
    subprocess.run([os.path.join(BIN, "sluice-bench"), "serve", "--base-url", url, "--model", o.model, "--dataset-name", "custom", "--dataset-path", prompts,
                    "--custom-output-len", str(o.tokens), "--num-prompts", str(o.requests), "--request-rate", str(o.rate), "--burstiness", "1e6",
                    "--metric-percentiles", "95", "--ignore-eos", "--save-result", "--result-dir", folder, "--result-filename", "ours.json",
                    "--disable-tqdm"], check=True, stdout=subprocess.DEVNULL)
    with open(path) as f:
        doc = json.load(f)
    return {(m, s): doc[f"{s}_{m}_ms"] for m, s in FIGURES}


def theirs(o, url, prompts, folder):
    path = os.path.join(folder, "theirs.json")
    subprocess.run([o.guidellm, "run", "--backend", f"kind=openai_http,target={url},model={o.model}", "--profile", f"kind=constant,rate={o.rate}",
                    "--constraint", f"kind=max_requests,count={o.requests}", "--data", f"kind=json_file,path={prompts}", "--output",
                    f"kind=json,path={path}", "--disable-console"], check=True, stdout=subprocess.DEVNULL)
    with open(path) as f:
        metrics = json.load(f)["benchmarks"][0]["metrics"]
    out = {}
    for m, name in (("ttft", "time_to_first_token_ms"), ("itl", "inter_token_latency_ms")):
        got = metrics[name]["successful"]
        out.update({(m, "mean"): got["mean"], (m, "median"): got["median"], (m, "p95"): got["percentiles"]["p95"]})
    return out


def compare(o, url):
    rounds = {"sluice-bench": [], "guidellm": []}
    with tempfile.TemporaryDirectory() as folder:
        prompts = os.path.join(folder, "prompts.jsonl")
        with open(prompts, "w") as f:
            for i in range(o.requests):
                f.write(json.dumps({"prompt": " ".join([f"word{i}"] * o.words), "output_tokens_count": o.tokens}) + "\n")
        for i in range(o.rounds):
            for name, run in (("sluice-bench", ours), ("guidellm", theirs)) if i % 2 == 0 else (("guidellm", theirs), ("sluice-bench", ours)):
                rounds[name].append(run(o, url, prompts, folder))
    worst = 0
    print(f"{'ms':<14} {'sluice-bench':>12} {'guidellm':>12} {'ratio':>8}")
    for figure in FIGURES:
        a, b = (statistics.median(r[figure] for r in rounds[n]) for n in ("sluice-bench", "guidellm"))
        print(f"{' '.join(figure):<14} {a:12.2f} {b:12.2f} {a / b:8.4f}")
        if figure[1] != "p95":
            worst = max(worst, abs(a / b - 1))
    print(f"largest difference of a mean or median: {worst:.1%} (bar {LIMIT:.0%})")
    return worst <= LIMIT


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--guidellm", default="guidellm", help="the program")
    p.add_argument("--url", help="a server that runs; none = a paced one")
    p.add_argument("--model", default="paced")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--requests", type=int, default=100)
    p.add_argument("--rate", type=float, default=10)
    p.add_argument("--tokens", type=int, default=40, help="of each answer")
    p.add_argument("--words", type=int, default=32, help="of each prompt")
    p.add_argument("--ttft-ms", type=float, default=150, help="of the paced server")
    p.add_argument("--pace-ms", type=float, default=20, help="of the paced server")
    o = p.parse_args()
    if o.url:
        sys.exit(not compare(o, o.url))
    with Paced(os.path.join(BIN, "sluice-paced-server"), ttft_ms=o.ttft_ms, pace_ms=o.pace_ms) as target:
        sys.exit(not compare(o, target.url))


if __name__ == "__main__":
    main()
