"""sluice-bench engine and steps on a tiny random model: every group of figures is there and sane, the picture is XML.

  test_engine.py SLUICE_BENCH SLUICE_MAKE_MODEL
"""
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

BENCH, MAKE_MODEL = sys.argv[1:3]
SMALL = {"prompt": "64,600", "batch": "1,4", "depth": "0,100", "chunk": "8,32", "decodes": "0,3", "history": "0,64", "context": "40", "steps": "2",
         "repeat": "2", "retries": "0", "roof-memory": "2M"}


def command(model, **changed):
    words = [f"--{k}={v}" for k, v in {**SMALL, **{k.replace("_", "-"): v for k, v in changed.items()}}.items()]
    return [BENCH, "engine", "--model", model, *words]


def check(what, good):
    if not good:
        sys.exit(f"{what} does not hold")


def main():
    with tempfile.TemporaryDirectory() as folder:
        model, result, picture = (os.path.join(folder, n) for n in ("m.gguf", "r.json", "r.svg"))
        subprocess.run([MAKE_MODEL, "--out", model, "--context", "512"], check=True)
        subprocess.run(command(model, threads=2, json=result, plot=picture), check=True)
        with open(result) as f:
            doc = json.load(f)
        check("roofs of one and of two threads", [r["threads"] for r in doc["roofs"]] == [1, 2])
        check("bandwidth is positive", all(r["read_gb_s"]["min"] > 0 for r in doc["roofs"]))
        check("a prompt beyond the context is left out", [p["tokens"] for p in doc["prompt"]] == [64])
        check("decode over batch and depth", [(d["batch"], d["depth"]) for d in doc["decode"]] == [(1, 0), (4, 0), (1, 100), (4, 100)])
        check("mixed steps", len(doc["mixed"]) == 2 * 2 * 2)
        for o in doc["prompt"] + doc["decode"]:
            check(f"smallest <= median <= largest in {o}", 0 < o["min"] <= o["tokens_per_s"] <= o["max"])
        check("a fitted cost model", doc["cost_model"]["rows"][0] == 1 and all(ms > 0 for ms in doc["cost_model"]["ms"]))
        xml.etree.ElementTree.parse(picture)
        # contexts that share pages; JSON alone on standard output
        subprocess.run(command(model, chunk="0,8", decodes="0,1", prompt="none", batch="none"), check=True, capture_output=True)  # one pair is no step
        out = subprocess.run(command(model, kv_memory="1M", batch=64, chunk="none", json="-"), check=True, capture_output=True, text=True).stdout
        check("shared pages are told", json.loads(out)["shared_pages"])
        bad = subprocess.run(command(model, batch="1,x"), capture_output=True, text=True)
        check("a bad list is refused", bad.returncode == 2 and "whole numbers" in bad.stderr)
        helps = [subprocess.run([BENCH, *words], check=True, capture_output=True, text=True).stdout for words in (("help", "engine"), ("engine", "--batch", "1", "--help"))]
        check("help where a person asks for it", helps[0] == helps[1] and "usage: sluice-bench engine" in helps[0])
        check("a version", subprocess.run([BENCH, "--version"], check=True, capture_output=True, text=True).stdout.startswith("sluice-bench "))
        steps = [BENCH, "steps", "--model", model, "--streams", "2", "--stream-prompt", "8", "--prompt-tokens", "200", "--lead-steps", "10",
                 "--rounds", "1", "--warm-rounds", "0", "--chunks", "16,0", "--kv-memory", "4M", "--json", result, "--csv", picture]
        subprocess.run(steps, check=True)
        with open(result) as f:
            arms = json.load(f)
        check("both arms", all(arms[a]["longest_gap_ms"] > 0 and arms[a]["ttft_ms"] > 0 for a in ("16", "0")))
        with open(picture) as f:
            rows = [line.split(",") for line in f.read().splitlines()[1:]]
        check("the steps have the prompt in chunks of 16", sum(int(r[3]) for r in rows if r[0] == "16") == 200)


main()
