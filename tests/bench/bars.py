#!/usr/bin/env python3
"""The figures of README and docs/benchmarks.md, beside llama.cpp in the same run: medians, both sides taking turns.

  tests/bench/bars.py engine|stall|handover [--rounds N] [--model FILE] [--json FILE]

engine    prompt of 512 tokens and decode at batch 1 and 8, 2 threads
stall     a 4096-token prompt into 7 decoding streams: one Sluice node with 2 threads, llama-server at its defaults and with batches of 128
handover  first to second token in pd mode, by the router's clock (decision records)

Uses build/release/bin (or SLUICE_BIN) and brings llama.cpp by peer.py (or takes SLUICE_PEER).
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "cluster"))
import harness  # noqa: E402
import peer  # noqa: E402

THREADS = 2
DEFAULT_MODEL = os.path.join(os.environ.get("SLUICE_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),
                                                                            "sluice"), "models", "SmolLM2-135M-Instruct.Q4_1.gguf")


def output(*argv):
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def ours_engine(model):
    doc = json.loads(output(harness.program("sluice-bench"), "engine", "--model", model, "--threads", str(THREADS), "--prompt", "512", "--steps", "64",
                            "--batch", "1,8", "--depth", "0", "--chunk", "none", "--repeat", "1", "--json", "-"))
    return {"prompt 512": doc["prompt"][0]["tokens_per_s"], **{f"decode b{d['batch']}": d["tokens_per_s"] for d in doc["decode"]}}


def peer_engine(folder, model):
    rows = [json.loads(line) for line in output(os.path.join(folder, "llama-bench"), "-o", "jsonl", "-m", model, "-t", str(THREADS), "-p", "512",
                                                "-n", "64", "-r", "1").splitlines() if line.startswith("{")]
    text = output(os.path.join(folder, "llama-batched-bench"), "-m", model, "-c", "4096", "-b", "2048", "-ub", "512", "-npp", "16", "-ntg", "64",
                  "-npl", "8", "-t", str(THREADS))
    batched = [line.split("|") for line in text.splitlines() if re.match(r"\|\s+16 \|", line)][0]
    return {"prompt 512": next(r["avg_ts"] for r in rows if r["n_prompt"] == 512),
            "decode b1": next(r["avg_ts"] for r in rows if r["n_gen"] == 64), "decode b8": float(batched[8])}


def engine(args):
    folder, rounds = peer.bring(), []
    for i in range(args.rounds):
        rounds.append((ours_engine(args.model), peer_engine(folder, args.model)))
        print(f"round {i + 1}: {rounds[-1]}", file=sys.stderr)
    result = {}
    print("| tokens/s, 2 threads | Sluice | llama.cpp | ratio |\n|---|---|---|---|")
    for key in rounds[0][0]:
        a, b = (statistics.median(r[side][key] for r in rounds) for side in (0, 1))
        ratio = statistics.median(r[0][key] / r[1][key] for r in rounds)
        result[key] = {"sluice": a, "llama.cpp": b, "ratio": ratio}
        print(f"| {key} | {a:.0f} | {b:.0f} | {ratio:.2f} |")
    return result


def stall_once(url, chunk):
    with tempfile.NamedTemporaryFile(suffix=".json") as f:
        r = subprocess.run([harness.program("sluice-bench"), "stall", "--url", url, "--chunks", chunk, "--rounds", "1", "--seed",
                            str(stall_once.seed), "--stream-tokens", "3000", "--lead-s", "3", "--json", f.name], capture_output=True, text=True)
        if r.returncode:
            raise RuntimeError(r.stdout + r.stderr)
        return json.load(f)[chunk]


def llama_server(folder, model, *options):
    port = harness.free_port()
    d = harness.Daemon(f"llama{port}", [os.path.join(folder, "llama-server"), "--host", "127.0.0.1", "--port", str(port), "-m", model, "-c", "65536",
                                        "-np", "8", "-t", str(THREADS), "--no-webui", "--offline", *options], tempfile.gettempdir())

    def healthy():
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as r:
                return r.status == 200
        except OSError:
            return False

    harness.wait_for("llama-server to be healthy", healthy)
    return d, f"http://127.0.0.1:{port}"


def stall(args):
    folder = peer.bring()
    servers = [("llama-server, defaults", *llama_server(folder, args.model)),
               ("llama-server, -b 128 -ub 128", *llama_server(folder, args.model, "-b", "128", "-ub", "128"))]
    figures = {}
    try:
        with harness.Cluster(prefill=0, model=args.model, node_options=["--kv-memory", "1G", "--threads", str(THREADS), "--cpus", "0-1",
                                                                        "--page-tokens", "32"]) as c:
            arms = [("Sluice, default", c.url, "auto"), ("Sluice, chunk_tokens = 0", c.url, "0")] + [(n, u, "auto") for n, _, u in servers]
            for i in range(args.rounds):
                stall_once.seed = i + 1
                for name, url, chunk in arms:
                    figures.setdefault(name, []).append(stall_once(url, chunk))
                    print(f"round {i + 1}, {name}: {figures[name][-1]}", file=sys.stderr)
    finally:
        for _, d, _ in servers:
            d.stop()
    print("| server | median gap before, ms | longest gap during, ms | ratio | TTFT of the prompt, s |\n|---|---|---|---|---|")
    result = {}
    for name, rows in figures.items():
        m = {k: statistics.median(r[k] for r in rows) for k in rows[0]}
        result[name] = m
        print(f"| {name} | {m['gap_before_ms']:.1f} | {m['longest_gap_ms']:.0f} | {m['ratio']:.1f} | {m['ttft_ms'] / 1000:.2f} |")
    ratio = statistics.median(a["ttft_ms"] / b["ttft_ms"] for a, b in zip(figures["Sluice, default"], figures["Sluice, chunk_tokens = 0"]))
    print(f"\nTTFT, default over chunk_tokens = 0: {ratio:.2f}")
    result["ttft_ratio"] = ratio
    return result


def handover(args):
    with harness.Cluster(model=args.model, node_options=["--kv-memory", "1G", "--page-tokens", "32"]) as c, \
            tempfile.NamedTemporaryFile(suffix=".json") as f:
        print(output(harness.program("sluice-bench"), "compare", "--url", c.url, "--arms", "pd", "--rate", "1", "--requests", "20", "--rounds",
                     str(args.rounds), "--prompt-tokens", "64:1024", "--output-tokens", "16:32", "--json", f.name))
        return json.load(f)["modes"]["pd"]["handover_ms"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("engine", "stall", "handover"))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--model", default=DEFAULT_MODEL)
    p.add_argument("--json")
    args = p.parse_args()
    result = {"engine": engine, "stall": stall, "handover": handover}[args.what](args)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(result, f, indent=1)


if __name__ == "__main__":
    main()
