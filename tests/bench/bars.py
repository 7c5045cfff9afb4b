#!/usr/bin/env python3
"""The figures of README and docs/benchmarks.md, beside llama.cpp in the same run: medians, both sides taking turns.

  tests/bench/bars.py engine|stall|handover|client [--rounds N] [--models LIST] [--model FILE] [--kv TYPE] [--alone] [--json FILE]

engine    prompt of 512 tokens, decode at batch 1, 8, 32 and at batch 1 over 4096 tokens; SmolLM2's shape and a 1B one in Q4_1, Q4_0, Q8_0, bf16; each
          beside its bar. Models are made with random weights where the real file is not there. With --kv q8 llama.cpp gets the better of f16 and q8_0
stall     a 4096-token prompt into 7 decoding streams: one Sluice node with 2 threads, llama-server at its defaults and with batches of 128
handover  first to second token in pd mode, by the router's clock (decision records)
client    what sluice-bench itself costs: on core 0, 500 streams of a paced server on core 1, 10 tokens/s each; P99 of the send lag below 1 ms

Uses build/release/bin (or SLUICE_BIN) and brings llama.cpp by peer.py (or takes SLUICE_PEER).
"""
import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "cluster"))
import harness  # noqa: E402
import paced  # noqa: E402
import peer  # noqa: E402

THREADS = 2
CACHE = os.environ.get("SLUICE_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "sluice")
DEFAULT_MODEL = os.path.join(CACHE, "models", "SmolLM2-135M-Instruct.Q4_1.gguf")

# name: preset, type and embedding type of sluice-make-model
MODELS = {
    "smollm2-q4_1": ("smollm2", "q4_1", "q8_0"),
    "smollm2-q4_0": ("smollm2", "q4_0", "q8_0"),
    "smollm2-q8_0": ("smollm2", "q8_0", "q8_0"),
    "smollm2-bf16": ("smollm2", "bf16", "bf16"),
    "1b-q4_0": ("1b", "q4_0", "q8_0"),
    "1b-q8_0": ("1b", "q8_0", "q8_0"),
    "1b-bf16": ("1b", "bf16", "bf16"),
}
PROMPT, B1, B8, B32, DEEP = "prompt 512", "decode b1", "decode b8", "decode b32", "decode b1 at 4096"
# least ratio to llama.cpp
RATIO_BARS = {
    "smollm2-q4_1": {PROMPT: 6, B1: 2, B8: 4, B32: 5, DEEP: 3},
    "smollm2-q4_0": {PROMPT: 2},
    "smollm2-q8_0": {PROMPT: 4},
    "smollm2-bf16": {PROMPT: 2, B8: 3},
    "1b-bf16": {PROMPT: 1.4, B8: 3},
}
# least percent of a roof that sluice-bench measures in the same run: of arithmetic in the weights' type, or of reading
ROOF_BARS = {
    "smollm2-q4_1": {PROMPT: ("percent_of_peak", 45)},
    "smollm2-q4_0": {PROMPT: ("percent_of_peak", 45)},
    "smollm2-q8_0": {PROMPT: ("percent_of_peak", 45)},
    "smollm2-bf16": {PROMPT: ("percent_of_peak", 55)},
    "1b-q4_0": {PROMPT: ("percent_of_peak", 45), B1: ("percent_of_read", 80)},
    "1b-q8_0": {PROMPT: ("percent_of_peak", 45), B1: ("percent_of_read", 80)},
    "1b-bf16": {PROMPT: ("percent_of_peak", 70), B1: ("percent_of_read", 80)},
}


def output(*argv):
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def model_file(name):
    """The real file where there is one, else one of that shape with random weights, made once."""
    if name == "smollm2-q4_1" and os.path.exists(DEFAULT_MODEL):
        return DEFAULT_MODEL
    preset, kind, embed = MODELS[name]
    path = os.path.join(CACHE, "bench-models", f"{name}.gguf")
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        output(harness.program("sluice-make-model"), "--preset", preset, "--type", kind, "--embed-type", embed, "--out", path)
    return path


def ours_engine(model, kv):
    """figure -> tokens/s and percents of roofs"""
    base = [harness.program("sluice-bench"), "engine", "--model", model, "--threads", str(THREADS), "--chunk", "none", "--repeat", "1", "--kv", kv,
            "--json", "-"]
    flat = json.loads(output(*base, "--prompt", "512", "--batch", "1,8,32", "--depth", "0", "--steps", "32"))
    deep = json.loads(output(*base, "--prompt", "none", "--batch", "1", "--depth", "4096", "--steps", "32"))
    return {PROMPT: flat["prompt"][0], B1: flat["decode"][0], B8: flat["decode"][1], B32: flat["decode"][2], DEEP: deep["decode"][0]}


def peer_engine(folder, model, kv):
    """figure -> tokens/s; the better of flash attention on and off, and of KV in f16 and q8_0 where Sluice has q8"""
    def bench(*what, flash="on,off"):
        rows = output(os.path.join(folder, "llama-bench"), "-o", "jsonl", "-m", model, "-t", str(THREADS), "-fa", flash, "-r", "1", *what)
        return [json.loads(line) for line in rows.splitlines() if line.startswith("{")]
    flat, deep = bench("-p", "512", "-n", "32"), bench("-p", "0", "-n", "32", "-d", "4096")
    if kv == "q8":
        deep += bench("-p", "0", "-n", "32", "-d", "4096", "-ctk", "q8_0", "-ctv", "q8_0", flash="on")
    text = output(os.path.join(folder, "llama-batched-bench"), "-m", model, "-c", "4096", "-b", "2048", "-ub", "512", "-npp", "16", "-ntg", "32",
                  "-npl", "8,32", "-t", str(THREADS))
    batched = {int(c[3]): float(c[8]) for c in (line.split("|") for line in text.splitlines()) if len(c) > 8 and c[1].strip() == "16"}
    return {PROMPT: max(r["avg_ts"] for r in flat if r["n_prompt"]), B1: max(r["avg_ts"] for r in flat if r["n_gen"]),
            B8: batched[8], B32: batched[32], DEEP: max(r["avg_ts"] for r in deep)}


def verdict(value, bar):
    return "" if bar is None else f"{bar:g}: {'met' if value >= bar else 'not met'}"


def engine_table(name, rounds):
    """Prints one model's figures; returns them."""
    result = {}
    print(f"\n**{name}**, medians of {len(rounds)}, {THREADS} threads\n\n| | Sluice tokens/s | llama.cpp tokens/s | ratio | bar | % of peak | % of read | bar |"
          "\n|---|---|---|---|---|---|---|---|")
    for key in (PROMPT, B1, B8, B32, DEEP):
        ours, theirs = [r[0][key] for r in rounds], [r[1][key] for r in rounds]
        v = {k: statistics.median(o[k] for o in ours) for k in ("tokens_per_s", "percent_of_peak", "percent_of_read")}
        v["llama_cpp_tokens_per_s"] = statistics.median(theirs)
        v["ratio"] = statistics.median(o["tokens_per_s"] / t for o, t in zip(ours, theirs))
        v["disturbed"] = sum(o["disturbed"] for o in ours)
        v["ratio_bar"] = RATIO_BARS.get(name, {}).get(key)
        percent, v["roof_bar"] = ROOF_BARS.get(name, {}).get(key, ("percent_of_peak", None))
        print(f"| {key} | {v['tokens_per_s']:.0f} | {v['llama_cpp_tokens_per_s']:.0f} | {v['ratio']:.2f} | {verdict(v['ratio'], v['ratio_bar'])} "
              f"| {v['percent_of_peak']:.0f} | {v['percent_of_read']:.0f} | {verdict(v[percent], v['roof_bar'])} |", flush=True)
        result[key] = v
    disturbed = sum(v["disturbed"] for v in result.values())
    if disturbed:
        print(f"\n{disturbed} of {5 * len(rounds)} Sluice figures were taken while other work ran on the cores.")
    return result


def engine(args):
    folder, result = peer.bring(), {}
    for name in args.models.split(","):
        path, rounds = model_file(name), []
        for i in range(args.rounds):
            rounds.append((ours_engine(path, args.kv), peer_engine(folder, path, args.kv)))
            print(f"{name} round {i + 1}: " + ", ".join(f"{k} {rounds[-1][0][k]['tokens_per_s']:.0f} / {rounds[-1][1][k]:.0f}" for k in rounds[-1][1]),
                  file=sys.stderr)
        result[name] = engine_table(name, rounds)
    return result


def stall_once(url, chunk):
    with tempfile.NamedTemporaryFile(suffix=".json") as f:
        r = subprocess.run([harness.program("sluice-bench"), "stall", "--url", url, "--chunks", chunk, "--rounds", "1", "--seed",
                            str(stall_once.seed), "--stream-tokens", "3000", "--lead-s", "3", "--json", f.name], capture_output=True, text=True)
        if r.returncode:
            raise RuntimeError(r.stdout + r.stderr)
        return json.load(f)[chunk]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def llama_server(folder, model, *options):
    port = free_port()
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
    folder = None if args.alone else peer.bring()
    servers = [] if args.alone else [
        ("llama-server, defaults", *llama_server(folder, args.model)),
        ("llama-server, -b 128 -ub 128", *llama_server(folder, args.model, "-b", "128", "-ub", "128"))]
    figures = {}
    try:
        with harness.Cluster(prefill=0, model=args.model, node_options=["--kv-memory", "1G", "--threads", str(THREADS), "--cpus", "0-1",
                                                                        "--page-tokens", "32", "--kv-dtype", args.kv]) as c:
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


def client(args):
    rows = []
    with paced.Paced(harness.program("sluice-paced-server"), prefix=("taskset", "-c", "1"), ttft_ms=100, pace_ms=100) as server, \
            tempfile.TemporaryDirectory() as folder:
        for _ in range(args.rounds):  # 50 requests/s of 10 s each
            output("taskset", "-c", "0", harness.program("sluice-bench"), "serve", "--base-url", server.url, "--num-prompts", "1500", "--request-rate",
                   "50", "--random-input-len", "32", "--random-output-len", "100", "--disable-tqdm", "--save-result", "--result-dir", folder,
                   "--result-filename", "r.json")
            with open(os.path.join(folder, "r.json")) as f:
                doc = json.load(f)
            ours = doc["sluice"]
            rows.append({"lag_p99_ms": ours["send_lag_ms"]["p99"], "lag_p50_ms": ours["send_lag_ms"]["p50"], "streams": doc["max_concurrent_requests"],
                         "tokens_per_s": doc["max_output_tokens_per_s"], "cpu_s_per_1000_streams": ours["client_cpu_s_per_1000_streams"],
                         "cpu_share": ours["client_cpu_s"] / doc["duration"], "itl_p99_ms": doc["p99_itl_ms"]})
            print({k: round(v, 3) for k, v in rows[-1].items()}, file=sys.stderr)
    m = {k: statistics.median(r[k] for r in rows) for k in rows[0]}
    print(f"{m['streams']:.0f} streams at most, {m['tokens_per_s']:.0f} tokens/s: send lag P50 {m['lag_p50_ms']:.2f}, P99 {m['lag_p99_ms']:.2f} ms "
          f"({'met' if m['lag_p99_ms'] < 1 else 'not met'}: below 1); {m['cpu_s_per_1000_streams']:.2f} CPU s per 1000 streams of 100 tokens, "
          f"{100 * m['cpu_share']:.0f} % of a core")
    return m


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("engine", "stall", "handover", "client"))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--models", default=",".join(MODELS), help="of engine: " + ", ".join(MODELS))
    p.add_argument("--model", default=DEFAULT_MODEL, help="of stall and handover")
    p.add_argument("--kv", default="bf16", help="Sluice's KV type in engine and stall: bf16, f16, q8, fp8, f32")
    p.add_argument("--alone", action="store_true", help="stall without llama-server")
    p.add_argument("--json")
    args = p.parse_args()
    result = {"engine": engine, "stall": stall, "handover": handover, "client": client}[args.what](args)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(result, f, indent=1)


if __name__ == "__main__":
    main()
