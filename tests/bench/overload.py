#!/usr/bin/env python3
"""Twice what two real nodes serve: who is late, who is refused, how soon, and what each key gets.

  tests/bench/overload.py [--seconds N] [--model FILE] [--threads N] [--pace MACHINE] [--json FILE]

First the rate that is served is found with requests that always wait (a closed loop). Then requests come at twice that rate, in an open loop: a fifth
urgent (class priority -10, first token wished within 5 times what it took unloaded), the others of three keys, one of which asks for four times as much
as each of the others. With --pace MACHINE (sluice-bench simulate --help lists them) the nodes serve a tiny model and their steps take as long as on that
machine: they sleep, so the figures are the scheduler's and the router's also beside other work. Goodput is what was served in time a second, over
what the closed loop was served. Exit status 1 when a bar is not met. Uses build/release/bin (or SLUICE_BIN).
"""
import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import urllib.error

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "cluster"))
import harness  # noqa: E402

PROMPT_WORDS, OUTPUT = 150, 24
PACED_PROMPT_TOKENS, PACED_OUTPUT, PACED_CONTEXT = 2048, 32, 4096  # so much work that this computer's clients can ask for twice what is served
PACED_TALKERS = 32
FIRST_ID, LAST_ID = 260, 500  # of the tiny model's tokens: no control tokens
URGENT_LATE_BAR, TOLD_BAR_MS, GOODPUT_BAR = 0.01, 100, 0.95
TALKERS = 12  # of the closed loop: more than the nodes run at once
TIMES_UNLOADED = 5
SHARES = {"urgent": 0.2, "greedy": 0.534, "small-a": 0.133, "small-b": 0.133}
WORDS = "river stone cloud market window garden paper silver number morning letter engine village answer ocean winter".split()


class Asked:
    """One streamed request: status, seconds to the first token or to the refusal, Retry-After."""

    def __init__(self, cluster, key, seed):
        self.key, self.status, self.first_s, self.told_s, self.retry_s = key, None, None, None, None
        rng = random.Random(seed)
        if cluster.paced:
            prompt, output = [rng.randint(FIRST_ID, LAST_ID) for _ in range(PACED_PROMPT_TOKENS)], PACED_OUTPUT
        else:
            prompt, output = " ".join(rng.choice(WORDS) for _ in range(PROMPT_WORDS)), OUTPUT
        body = {"model": "tiny", "prompt": prompt, "max_tokens": output, "min_tokens": output, "ignore_eos": True, "stream": True}
        began = time.monotonic()
        try:
            with cluster.open("/v1/completions", body, {"Authorization": f"Bearer {key}"}) as r:
                self.status = r.status
                for line in r:
                    if line.startswith(b"data: {") and self.first_s is None:
                        self.first_s = time.monotonic() - began
                    if b'"error"' in line:
                        self.status = 500
        except urllib.error.HTTPError as e:
            self.told_s = time.monotonic() - began
            self.status, self.retry_s = e.code, float(e.headers.get("Retry-After", "nan"))


def keys_file():
    f = tempfile.NamedTemporaryFile("w", suffix=".keys", delete=False)
    f.write("".join(f"{name}:{name}\n" for name in SHARES))
    f.close()
    return f.name


def cluster(args, router_options):
    options = ["--threads", str(args.threads), "--kv-memory", "256M", *(["--pace", args.pace] if args.pace else [])]
    more = {"model_options": ["--context", str(PACED_CONTEXT)]} if args.pace else {}
    c = harness.Cluster(model=args.model, **more, node_options=options, router_options=["--api-key-file", args.keys, *router_options])
    c.paced = bool(args.pace)
    return c


def closed_loop(c, seconds):
    """(requests a second, median seconds to the first token of one alone)"""
    alone = statistics.median(Asked(c, "urgent", -i - 1).first_s for i in range(5))
    stop, done = time.monotonic() + seconds, []

    def talk(k):
        while time.monotonic() < stop:
            done.append(Asked(c, "greedy", len(done) * 100 + k))

    threads = [threading.Thread(target=talk, args=(k,)) for k in range(PACED_TALKERS if c.paced else TALKERS)]
    began = time.monotonic()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return len(done) / (time.monotonic() - began), alone


def open_loop(c, rate, seconds):
    asked, threads, rng = [], [], random.Random(1)
    at, i, began = 0.0, 0, time.monotonic()
    while at < seconds:
        time.sleep(max(0, began + at - time.monotonic()))
        key = rng.choices(list(SHARES), SHARES.values())[0]
        t = threading.Thread(target=lambda k=key, s=i: asked.append(Asked(c, k, 10**6 + s)))
        t.start()
        threads.append(t)
        at += rng.expovariate(rate)
        i += 1
    for t in threads:
        t.join()
    return asked


def report(asked, wish_s):
    urgent = [a for a in asked if a.key == "urgent"]
    late = [a for a in urgent if a.status != 200 or a.first_s > wish_s]
    refused = [a for a in asked if a.status == 429]
    told = sorted(a.told_s * 1e3 for a in refused)
    out = {"asked": len(asked), "served": sum(a.status == 200 for a in asked), "refused": len(refused),
           "others": sum(a.status not in (200, 429) for a in asked), "urgent": len(urgent), "urgent_late": len(late),
           "urgent_first_ms": [round(1e3 * q) for q in statistics.quantiles([a.first_s for a in urgent if a.first_s], n=100)[49::49]] if len(urgent) > 2 else [],
           "refused_told_ms": {"p50": round(statistics.median(told), 1), "p99": round(told[int(len(told) * 0.99)], 1), "max": round(told[-1], 1)} if told else {},
           "retry_after_s": sorted({a.retry_s for a in refused}),
           "served_by_key": {k: f"{sum(a.status == 200 for a in asked if a.key == k)} of {sum(a.key == k for a in asked)}" for k in SHARES}}
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--seconds", type=float, default=60)
    p.add_argument("--model", default=None, help="model file; a tiny one is made without it")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--pace", help="machine that the nodes keep the pace of")
    p.add_argument("--json")
    args = p.parse_args()
    args.keys = keys_file()
    try:
        with cluster(args, []) as c:
            rate, alone = closed_loop(c, args.seconds / 3)
        wish_s = TIMES_UNLOADED * alone
        classes = f"urgent priority=-10 ttft_ms={max(1, round(wish_s * 1e3))}"
        print(f"served in a closed loop: {rate:.2f} requests/s; first token of one alone after {alone * 1e3:.0f} ms", flush=True)
        with cluster(args, ["--slo-classes", classes, "--slo-miss", "refuse", "--hold-ms", str(max(100, round(1e3 * alone))), "--max-wait-ms", "5000"]) as c:
            asked = open_loop(c, 2 * rate, args.seconds)
    finally:
        os.unlink(args.keys)
    out = {"served_per_s": round(rate, 2), "asked_per_s": round(2 * rate, 2), "alone_ms": round(alone * 1e3), "wish_ms": round(wish_s * 1e3), **report(asked, wish_s)}
    out["goodput"] = round(out["served"] / args.seconds / rate, 3)
    bars = {"urgent late or refused": (out["urgent_late"] / max(1, out["urgent"]), "at most", URGENT_LATE_BAR),
            "told of a refusal, slowest, ms": (out["refused_told_ms"].get("max", 0), "at most", TOLD_BAR_MS),
            "goodput over what was served at capacity": (out["goodput"], "at least", GOODPUT_BAR)}
    print(json.dumps(out, indent=1))
    out["not_met"] = [name for name, (v, how, bar) in bars.items() if (v > bar if how == "at most" else v < bar)]
    for name, (v, how, bar) in bars.items():
        print(f"{'NOT MET' if name in out['not_met'] else 'met':8s} {name}: {v:.3g}, wanted {how} {bar}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(out, f, indent=1)
    return 1 if out["not_met"] else 0


if __name__ == "__main__":
    sys.exit(main())
