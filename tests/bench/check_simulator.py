#!/usr/bin/env python3
"""tests/bench/check_simulator.py [--trace FILE] [--requests N] [--load PART] - the simulator against the real cluster on the same requests.

A prefill and a decode node of one thread each, pinned to a core of their own where there are two; router and client are not pinned and take their
share of both, as on any small machine: that the nodes feel it is part of what they learn. First a load with another seed, from which the nodes learn
their costs; then `sluice-bench snapshot` writes them down; the simulator finds the speed of the trace at which the nodes are busy for PART of the
time; the trace runs at that speed on the cluster and in the simulator, and P50, P90 and P99 of TTFT and TPOT are compared, beside how far predictions
were off on the cluster. With --pace MACHINE the nodes serve a tiny model and their steps take as long as on that machine: what is compared then is
all but the engine, also on a busy computer and with more nodes than it has cores (--prefill, --decode). Exit status 1 when a bar is not met: TTFT and TPOT P50 within 15 %, P90 within 25 %, predicted step time off by 10 % and
predicted TTFT by 20 % at most (medians). On a machine with other work the figures say more about that work.
"""
import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "cluster"))
import harness  # noqa: E402
from bars import DEFAULT_MODEL  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
PAGE_TOKENS = 32
PACED_CONTEXT = 16384  # of the tiny model: the longest request of the conversation traces at their own length
SPEED_TRIES = 8
BARS = {"p50": 0.15, "p90": 0.25, "p99": None}
STEP_BAR, TTFT_BAR = 0.10, 0.20
REAL_MODE, SIMULATED_MODE = 8, 5  # of a request in their results


def bench(command, *options):
    """The report of a sluice-bench command."""
    with tempfile.NamedTemporaryFile(suffix=".json") as f:
        r = subprocess.run([harness.program("sluice-bench"), command, *map(str, options), "--json", f.name], capture_output=True, text=True)
        if r.returncode:
            raise RuntimeError(r.stdout + r.stderr)
        return json.load(f)


def snapshot(url, path, nodes):
    subprocess.run([harness.program("sluice-bench"), "snapshot", "--url", url, "--out", path, "--nodes", str(nodes)], check=True)


def simulate(cluster, trace, mode, noise=0.0):
    """What clients allow is what comes, as in replay; the nodes have learnt already, so nothing is left out at the beginning."""
    return bench("simulate", "--cluster", cluster, *trace, "--arms", mode, "--cost-error", 0, "--noise", noise, "--warm-up", 0, "--max-tokens", 1,
                 "--quiet", "true", "--each", "true")["arms"][0]


def placed(rows, at):
    """How many requests ran in which mode; where that stands in a row of replay's or simulate's result."""
    return ", ".join(f"{n} {mode}" for mode, n in sorted(collections.Counter(r[at] for r in rows if r and len(r) > at).items()))


def find_speed(cluster, trace, mode, load):
    """The speed at which the nodes are busy for that part of the time, by bisection."""
    low, high = 0.01, 100.0
    for _ in range(SPEED_TRIES):
        speed = (low * high) ** 0.5
        busy = simulate(cluster, [*trace, "--speed", speed], mode)["busy_share"]
        low, high = (speed, high) if busy < load else (low, speed)
    return low


def step_errors(c):
    return {name: float(row["value"]) for name in node_names(c) for row in c.tables("nodes", name)["counters"] if row["key"] == "step_error_p50"}


def node_names(c):
    return [name for name in c.daemons if name != "router"]


def start_nodes(c, args):
    """Nodes with a core of their own where there is one for each; paced ones sleep and need none."""
    cores = sorted(os.sched_getaffinity(0))
    names = [(f"p{i}", "sluice-prefill") for i in range(args.prefill)] + [(f"d{i}", "sluice-decode") for i in range(args.decode)]
    for i, (name, program) in enumerate(names):
        c.start_node(name, program, ["--pace", args.pace] if args.pace else ["--cpus", str(cores[i])] if len(names) <= len(cores) else [])
    c.wait_nodes(len(names))


def cluster(args):
    options = {"node_options": ["--kv-memory", "1G", "--page-tokens", str(PAGE_TOKENS)], "model": args.model}
    if args.pace:
        options = {"node_options": ["--kv-memory", "256M", "--page-tokens", str(PAGE_TOKENS)], "model_options": ["--context", str(PACED_CONTEXT)]}
    return harness.Cluster(prefill=0, decode=0, **options)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--trace", default=os.path.join(HERE, "traces", "azure2023_conv.fit"))
    p.add_argument("--token-scale", type=float, default=0.125)
    p.add_argument("--requests", type=int, default=1000)
    p.add_argument("--learn", type=int, default=200, help="requests from which the nodes learn first")
    p.add_argument("--load", type=float, default=0.7)
    p.add_argument("--mode", default="hybrid")
    p.add_argument("--model", default=DEFAULT_MODEL)
    p.add_argument("--pace")
    p.add_argument("--prefill", type=int, default=1)
    p.add_argument("--decode", type=int, default=1)
    p.add_argument("--json")
    args = p.parse_args()
    scale = ["--trace", args.trace, "--token-scale", args.token_scale]
    with cluster(args) as c:
        start_nodes(c, args)
        file = os.path.join(c.folder, "cluster.ini")
        warm = [*scale, "--seed", 2, "--requests", args.learn]
        snapshot(c.url, file, args.prefill + args.decode)
        bench("replay", "--url", c.url, *warm, "--alone", 0, "--mode", args.mode, "--speed", find_speed(file, warm, args.mode, args.load))
        snapshot(c.url, file, args.prefill + args.decode)
        trace = [*scale, "--seed", 1, "--requests", args.requests]
        speed = find_speed(file, trace, args.mode, args.load)
        trace += ["--speed", speed]
        real = bench("replay", "--url", c.url, *trace, "--alone", 0, "--mode", args.mode)
        errors = step_errors(c)
        simulated = simulate(file, trace, args.mode)
    result = {"speed": speed, "step_error_p50": errors, "ttft_error_p50": real["ttft_prediction_error_p50"], "load": simulated["busy_share"]}
    failed = []
    print(f"{args.requests} requests of {os.path.basename(args.trace)}, tokens x {args.token_scale}, speed {speed:.3g}: nodes busy "
          f"{100 * simulated['busy_share']:.0f} % in the simulation\n\n| ms | cluster | simulated | off by | bar |\n|---|---|---|---|---|")
    for metric, name in (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT")):
        for q, bar in BARS.items():
            r, s = real["felt"][metric][q], simulated[metric][q]
            off = s / r - 1
            met = bar is None or abs(off) <= bar
            failed += [] if met else [f"{name} {q}"]
            result[f"{name} {q}"] = {"cluster": r, "simulated": s}
            print(f"| {name} {q.upper()} | {r:.1f} | {s:.1f} | {100 * off:+.0f} % | {'' if bar is None else f'{100 * bar:.0f} %'}{'' if met else ' not met'} |")
    for name, value, bar in [*((f"step time of {n}", v, STEP_BAR) for n, v in errors.items()), ("TTFT", result["ttft_error_p50"], TTFT_BAR)]:
        failed += [] if value <= bar else [f"prediction of {name}"]
        print(f"| prediction of {name}, median error | | | {100 * value:.0f} % | {100 * bar:.0f} %{'' if value <= bar else ' not met'} |")
    print(f"\nplaced on the cluster: {placed(real['requests'], REAL_MODE)}; simulated: {placed(simulated['requests'], SIMULATED_MODE)}")
    if args.json:
        with open(args.json, "w") as f:
            json.dump({**result, "not_met": failed, "requests": real["requests"], "simulated_requests": simulated["requests"]}, f, indent=1)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
