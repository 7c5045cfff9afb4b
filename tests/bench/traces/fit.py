#!/usr/bin/env python3
"""tests/bench/traces/fit.py TRACE.csv.. - fits the model of tests/bench/trace_fit.c to traces, writes NAME.fit beside this file.

    tests/bench/traces/fit.py ../shared/traces/norm/*.csv      fits, and tells how good the fits are
    tests/bench/traces/fit.py --check ../shared/traces/norm/*  only tells

TRACE is normalised (sluice-bench trace --csv). The goodness is original beside fitted, by the same `sluice-bench trace`, with the largest
distance between the two distributions (Kolmogorov-Smirnov) of prompts and of outputs.
"""
import argparse
import bisect
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
BENCH = os.path.join(os.environ.get("SLUICE_BIN", os.path.join(HERE, "..", "..", "..", "build", "release", "bin")), "sluice-bench")
# As quantile_at in trace_fit.c.
AT = (0, .01, .05, .1, .2, .3, .4, .5, .6, .7, .8, .9, .95, .97, .99, .995, 1)
WINDOW_S = 10
BUSY = 4  # requests of a window whose gaps tell the clustering inside it


def read(path):
    """[(at_s, prompt, output, [block..])], tokens of a block (0 = none)"""
    with open(path) as f:
        header = f.readline().strip().split(",")
        block_tokens = int(header[3][len("blocks"):]) if len(header) > 3 and header[3].startswith("blocks") else 0
        rows = []
        for line in f:
            cells = line.rstrip("\n").split(",")
            blocks = []
            for word in cells[3].split() if block_tokens and len(cells) > 3 else ():
                a, _, b = word.partition("-")
                blocks.extend(range(int(a), int(b or a) + 1))
            prompt = int(cells[1])
            rows.append((int(cells[0]) / 1e6, prompt, int(cells[2]), blocks[:prompt // block_tokens] if block_tokens else []))
    return rows, block_tokens


def quantiles(values):
    v = sorted(values)
    out = []
    for q in AT:
        x = q * (len(v) - 1)
        i = min(int(x), len(v) - 2) if len(v) > 1 else 0
        out.append(v[i] + (x - i) * (v[min(i + 1, len(v) - 1)] - v[i]))
    return out


def ranks(values):
    order = sorted(range(len(values)), key=values.__getitem__)
    out = [0.0] * len(values)
    i = 0
    while i < len(order):
        end = i
        while end < len(order) and values[order[end]] == values[order[i]]:
            end += 1
        for k in order[i:end]:
            out[k] = (i + end - 1) / 2
        i = end
    return out


def pearson(x, y):
    mx, my = sum(x) / len(x), sum(y) / len(y)
    both = sum((a - mx) * (b - my) for a, b in zip(x, y))
    xx, yy = sum((a - mx) ** 2 for a in x), sum((b - my) ** 2 for b in y)
    return both / math.sqrt(xx * yy) if xx and yy else 0.0


def score_correlation(x, y):
    """Correlation of normal scores with that rank correlation."""
    return 2 * math.sin(math.pi / 6 * pearson(ranks(x), ranks(y)))


def biserial(x, yes):
    """Correlation of the normal scores of x with a normal score that is high where yes is 1."""
    p = sum(yes) / len(yes)
    if p in (0, 1):
        return 0.0
    normal = statistics.NormalDist()
    scores = [normal.inv_cdf((r + 0.5) / len(x)) for r in ranks(x)]
    density = normal.pdf(normal.inv_cdf(p))
    return min(max(pearson(scores, yes) * math.sqrt(p * (1 - p)) / density, -.99), .99)


def weibull_shape(cv):
    """The shape with that standard deviation over mean."""
    low, high = 0.1, 10.0
    for _ in range(60):
        k = math.sqrt(low * high)
        m1, m2 = math.gamma(1 + 1 / k), math.gamma(1 + 2 / k)
        low, high = (k, high) if math.sqrt(m2 / m1 ** 2 - 1) > cv else (low, k)
    return low


def fit_arrivals(times):
    n = max(int((times[-1] - times[0]) / WINDOW_S), 1)
    windows = [[] for _ in range(n)]
    for t in times:
        w = int((t - times[0]) / WINDOW_S)
        if w < n:
            windows[w].append(t)
    counts = [len(w) for w in windows]
    gaps = []
    for w in windows:
        if len(w) > BUSY:
            g = [b - a for a, b in zip(w, w[1:])]
            mean = sum(g) / len(g)
            gaps.extend(x / mean for x in g if mean > 0)
    cv = math.sqrt(max(sum(g * g for g in gaps) / len(gaps) - 1, 0.01)) if gaps else 1.0
    memory = score_correlation(counts[:-1], counts[1:]) if n > 2 else 0
    return {"window_s": WINDOW_S, "counts": quantiles(counts), "memory": min(max(memory, -.99), .99), "gap_shape": weibull_shape(cv)}


def fit_prefixes(rows, block_tokens):
    last, depth, lengths, age, followers = {}, [], [], [], 0
    total = len(rows)
    first_requests = {}
    for _, _, _, blocks in rows:
        for i, b in enumerate(blocks):
            first_requests.setdefault(i, {}).setdefault(b, 0)
            first_requests[i][b] += 1
    common = 0  # leading blocks that more than half of all requests have
    while common in first_requests and max(first_requests[common].values()) > total / 2:
        common += 1
    follows = [0] * total
    for i, (_, _, _, blocks) in enumerate(rows):
        hits = 0
        while hits < len(blocks) and blocks[hits] in last:
            hits += 1
        if hits > common:
            followers += 1
            follows[i] = 1
            lengths.append(len(blocks))
            depth.append(hits / len(blocks))
            age.append(i - last[blocks[hits - 1]])
        for b in blocks:
            last[b] = i
    if not depth:
        return {"block_tokens": block_tokens, "common": common, "reuse": 0, "reuse_correlation": 0, "depth_correlation": 0, "depth": [0] * len(AT), "age": [1] * len(AT)}
    return {"block_tokens": block_tokens, "common": common, "reuse": followers / total, "reuse_correlation": biserial([len(r[3]) for r in rows], follows),
            "depth_correlation": score_correlation(lengths, depth), "depth": quantiles(depth), "age": quantiles(age)}


def fit(path):
    rows, block_tokens = read(path)
    prompts, outputs = [max(r[1], 1) for r in rows], [max(r[2], 1) for r in rows]
    model = {"trace": {"requests": len(rows)}, "arrivals": fit_arrivals([r[0] for r in rows]),
             "lengths": {"prompt": quantiles(prompts), "output": quantiles(outputs), "correlation": score_correlation(prompts, outputs)}}
    if block_tokens:
        model["prefix"] = fit_prefixes(rows, block_tokens)
    return model


def write(model, path, source):
    def text(v):
        return " ".join(f"{x:.6g}" for x in v) if isinstance(v, list) else f"{v:.6g}"

    with open(path, "w") as f:
        for section, values in model.items():
            f.write(f"[{section}]\n")
            if section == "trace":
                f.write(f"; fitted by tests/bench/traces/fit.py to {source}; parameters only, tests/bench/trace_fit.c says what they mean\n")
            f.writelines(f"{k} = {text(v)}\n" for k, v in values.items())


def distance(a, b):
    a, b = sorted(a), sorted(b)
    return max(abs(bisect.bisect_right(a, x) / len(a) - bisect.bisect_right(b, x) / len(b)) for x in a + b)


def describe(trace, csv):
    with tempfile.NamedTemporaryFile(suffix=".json") as f:
        subprocess.run([BENCH, "trace", "--trace", trace, "--csv", csv, "--json", f.name], check=True, stdout=subprocess.DEVNULL)
        return json.load(f)


def check(path, fitted):
    with tempfile.NamedTemporaryFile(suffix=".csv") as a, tempfile.NamedTemporaryFile(suffix=".csv") as b:
        was, now = describe(path, a.name), describe(fitted, b.name)
        (x, _), (y, _) = read(a.name), read(b.name)
    ks = [distance([r[i] for r in x], [r[i] for r in y]) for i in (1, 2)]
    name = os.path.basename(fitted).removesuffix(".fit")
    for key in ("rate_per_s", "gap_cv", "dispersion_1s", "dispersion_10s", "dispersion_60s", "prompt_mean", "prompt_p99", "output_mean", "output_p99",
                "rank_correlation", "hit_share"):
        print(f"| {name} | {key} | {was[key]:.4g} | {now[key]:.4g} |")
    print(f"| {name} | largest distance of distributions, prompt and output | | {ks[0]:.3f}, {ks[1]:.3f} |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("traces", nargs="+")
    p.add_argument("--check", action="store_true")
    args = p.parse_args()
    print("| trace | number | original | fitted |\n|---|---|---|---|")
    for path in args.traces:
        name = os.path.basename(path).removesuffix(".csv")
        fitted = os.path.join(HERE, name + ".fit")
        if not args.check:
            write(fit(path), fitted, name)
        check(path, fitted)


if __name__ == "__main__":
    sys.exit(main())
