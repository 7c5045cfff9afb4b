#!/usr/bin/env python3
"""tests/bench/check_simulator.py [--trace FILE] [--requests N] [--load PART] - the simulator against the real cluster on the same requests.

A prefill and a decode node of one thread each, pinned to a core of their own where there are two; router and client are not pinned and take their
share of both, as on any small machine: that the nodes feel it is part of what they learn. First loads with other seeds, from which the nodes learn
their costs, the second at the speed that the first one's costs make PART of the time; then `sluice-bench snapshot` writes them down; the simulator
finds the speed of the trace at which the nodes are busy for PART of the time; the trace runs at that speed on the cluster and in the simulator, and
P50, P90 and P99 of TTFT and TPOT are compared, beside how far predictions were off on the cluster.

The simulator runs twice. What is judged is the simulator: its steps cost what steps cost in that very run (what the nodes believed, read every few
seconds, times what steps took over what was predicted, with the same scatter). What it would have said before the run stands beside it: nodes that share
a computer slow each other down, so costs learnt at another load are others. With --pace MACHINE the nodes serve a tiny model and their steps take as
long as on that machine: what is compared then is all but the engine, also on a busy computer and with more nodes than it has cores (--prefill, --decode).
Exit status 1 when a bar is not met: TTFT and TPOT P50 within 15 %, P90 within 25 %, predicted step time off by 10 % and predicted TTFT by 20 % at
most (medians). On a machine with other work the figures say more about that work.
"""
import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import threading

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
WATCH_S = 5.0  # between two looks at what nodes believe
SCATTER = 0.6745  # of a normal distribution: median of what it is off by, over its standard deviation


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


def counters(c, name):
    return {row["key"]: float(row["value"]) for row in c.tables("nodes", name)["counters"]}


class Watch:
    """What each node believes its steps to cost, looked at every WATCH_S while the block runs, and what its counters grew by."""

    def __init__(self, c):
        self.c, self.over = c, threading.Event()
        self.seen = {name: [] for name in node_names(c)}
        self.thread = threading.Thread(target=self.run)

    def look(self):
        for name, rows in self.seen.items():
            rows.append(counters(self.c, name))

    def run(self):
        while not self.over.wait(WATCH_S):
            self.look()

    def __enter__(self):
        self.look()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        self.look()

    def grew(self, name, key):
        return self.seen[name][-1][key] - self.seen[name][0][key]

    def costs(self, name):
        """The mean of what was believed, times what steps took over what was predicted."""
        rows = self.seen[name]
        predicted = self.grew(name, "step_predicted_ms_total")
        factor = self.grew(name, "step_actual_ms_total") / predicted if predicted > 0 else 1
        return {key: factor * sum(r[key] for r in rows) / len(rows) for key in rows[0] if key.startswith("cost_")}

    def errors(self, key="step_error_p50"):
        return {name: rows[-1][key] for name, rows in self.seen.items()}


def with_costs(path, out, costs):
    """The cluster file with other costs, {node: {counter: value}}."""
    node, lines = None, []
    with open(path, encoding="utf-8") as f:
        for line in f.read().splitlines():
            key = line.split(" = ")[0]
            if line.startswith("[group "):
                node = costs[line[len("[group "):-1]]
            if node and key == "cost_rows":
                rows = line.split(" = ")[1].split()
            elif node and key == "cost_ms":
                line = "cost_ms = " + " ".join(f"{node['cost_ms_at_' + n + '_rows']:.4g}" for n in rows)
            elif node and key in node:
                line = f"{key} = {node[key]:.6g}"
            lines.append(line)
    with open(out, "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")


def span_s(requests):
    """First arrival to last token of replay's rows: at_s, prompt, output, ttft_ms, second_ms, tpot_ms."""
    return max(r[0] + (r[3] + r[5] * (r[2] - 1)) / 1e3 for r in requests if len(r) > 5) - requests[0][0]


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
    p.add_argument("--token-scale", type=float, default=0.1)
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
        file, own = os.path.join(c.folder, "cluster.ini"), os.path.join(c.folder, "own.ini")
        for seed, n in ((2, args.learn // 3), (3, args.learn - args.learn // 3)):
            snapshot(c.url, file, args.prefill + args.decode)
            warm = [*scale, "--seed", seed, "--requests", n]
            bench("replay", "--url", c.url, *warm, "--alone", 0, "--mode", args.mode, "--speed", find_speed(file, warm, args.mode, args.load))
        snapshot(c.url, file, args.prefill + args.decode)
        trace = [*scale, "--seed", 1, "--requests", args.requests]
        speed = find_speed(file, trace, args.mode, args.load)
        trace += ["--speed", speed]
        with Watch(c) as watch:
            real = bench("replay", "--url", c.url, *trace, "--alone", 0, "--mode", args.mode)
        names, errors = node_names(c), watch.errors()
        with_costs(file, own, {name: watch.costs(name) for name in names})
        before = simulate(file, trace, args.mode)
        simulated = simulate(own, trace, args.mode, sum(errors.values()) / len(errors) / SCATTER)
        busy = sum(watch.grew(name, "step_busy_ms_total") for name in names) / 1e3 / len(names) / span_s(real["requests"])
    result = {"speed": speed, "step_error_p50": errors, "ttft_error_p50": real["ttft_prediction_error_p50"], "load": busy,
              "simulated_load": simulated["busy_share"], "load_before": before["busy_share"]}
    failed = []
    print(f"{args.requests} requests of {os.path.basename(args.trace)}, tokens x {args.token_scale}, speed {speed:.3g}: nodes busy for {100 * busy:.0f} % of "
          f"the time, {100 * simulated['busy_share']:.0f} % in the simulation, {100 * before['busy_share']:.0f} % with the costs from before\n\n"
          "| ms | cluster | simulated | off by | bar | with the costs from before | off by |\n|---|---|---|---|---|---|---|")
    for metric, name in (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT")):
        for q, bar in BARS.items():
            r, s, b = real["felt"][metric][q], simulated[metric][q], before[metric][q]
            off = s / r - 1
            met = bar is None or abs(off) <= bar
            failed += [] if met else [f"{name} {q}"]
            result[f"{name} {q}"] = {"cluster": r, "simulated": s, "before": b}
            print(f"| {name} {q.upper()} | {r:.1f} | {s:.1f} | {100 * off:+.0f} % | {'' if bar is None else f'{100 * bar:.0f} %'}{'' if met else ', **not met**'} "
                  f"| {b:.1f} | {100 * (b / r - 1):+.0f} % |")
    for name, value, bar in [*((f"step time of {n}", v, STEP_BAR) for n, v in errors.items()), ("TTFT", result["ttft_error_p50"], TTFT_BAR)]:
        failed += [] if value <= bar else [f"prediction of {name}"]
        print(f"| prediction of {name}, median error | | | {100 * value:.0f} % | {100 * bar:.0f} %{'' if value <= bar else ', **not met**'} | | |")
    print(f"\nplaced on the cluster: {placed(real['requests'], REAL_MODE)}; simulated: {placed(simulated['requests'], SIMULATED_MODE)}")
    if args.json:
        with open(args.json, "w") as f:
            json.dump({**result, "not_met": failed, "requests": real["requests"], "simulated_requests": simulated["requests"]}, f, indent=1)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
