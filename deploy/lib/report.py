#!/usr/bin/env python3
"""Puts the quick start's results into one report. Usage: report.py DIR MODEL"""
import json
import os
import sys

folder, model = sys.argv[1], sys.argv[2]


def load(name):
    with open(os.path.join(folder, name), encoding="utf-8") as f:
        return json.load(f) if name.endswith(".json") else f.read()


equal, compare = load("equal.json"), load("compare.json")
report = {
    "answer": load("answer.txt"),
    "model": os.path.basename(model),
    "equal": equal,
    "differences_in_compare": compare["differences"],
    "modes": compare["modes"],
    "tokens_per_s": {mode: m["tokens_per_s"] for mode, m in compare["modes"].items()},
    "load": compare["load"],
    "nodes": compare["nodes"].splitlines(),
}
with open(os.path.join(folder, "report.json"), "w", encoding="utf-8") as f:
    json.dump(report, f, indent=1, ensure_ascii=False)
    f.write("\n")
