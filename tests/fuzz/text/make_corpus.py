#!/usr/bin/env python3
"""Writes the first corpus of each fuzz target from the fixtures in tests/golden/text.

    pip install gguf
    make_corpus.py
"""
import json
import pathlib

import gguf
import numpy

HERE = pathlib.Path(__file__).parent
GOLDEN = HERE.parent.parent / "golden" / "text"


def put(target, name, data):
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def model_file(path, vocab, with_tensors):
    w = gguf.GGUFWriter(path, "llama")
    w.add_name("tiny")
    w.add_context_length(256)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list(vocab["tokens"])
    w.add_token_types(vocab["types"])
    w.add_token_merges(vocab["merges"])
    w.add_bos_token_id(vocab["bos_id"])
    w.add_eos_token_id(vocab["eos_id"])
    w.add_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}")
    if with_tensors:
        w.add_tensor("token_embd.weight", numpy.zeros((2, 32), dtype=numpy.float32))
        w.add_tensor("output_norm.weight", numpy.ones(32, dtype=numpy.float16))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    full = json.loads((GOLDEN / "tiny_vocab.json").read_text())
    letters = [i for i, s in enumerate(full["tokens"]) if len(s) == 1 or full["types"][i] != 1]
    small = {"tokens": [full["tokens"][i] for i in letters] + ["th", "the"],
             "types": [full["types"][i] for i in letters] + [1, 1], "merges": ["t h", "th e"], "bos_id": 1, "eos_id": 2}
    for name, with_tensors in (("vocab.gguf", False), ("tensors.gguf", True)):
        path = HERE / name
        model_file(path, small, with_tensors)
        data = path.read_bytes()
        path.unlink()
        put("gguf", name, data)
        put("gguf", "cut-" + name, data[: len(data) // 2])
    put("gguf", "empty", b"GGUF\3\0\0\0" + bytes(16))

    contexts = json.loads((GOLDEN / "contexts.json").read_text())
    for path in sorted((GOLDEN / "templates").glob("*.jinja")):
        for name in ("chat", "tools"):
            if name in contexts:
                data = path.read_bytes() + b"\0" + json.dumps(contexts[name]).encode()
                put("template", f"{path.stem}-{name}", data)
    cases = [json.loads(s) for f in ("micro_cases.jsonl", "template_vectors.jsonl") for s in open(GOLDEN / f, encoding="utf-8")]
    for i in range(0, len(cases), 24):  # many cases in one file: the fuzzer takes them apart
        text = "\n".join(c["template"] for c in cases[i : i + 24] if "error" not in c)
        context = {}
        for c in cases[i : i + 24]:
            context.update(c["context"])
        put("template", f"cases-{i:03}", text.encode() + b"\0" + json.dumps(context).encode())

    for path in sorted((GOLDEN / "hf").glob("*/tokenizer.json")):
        whole = json.loads(path.read_text(encoding="utf-8"))
        model, added = whole["model"], {t["content"] for t in whole["added_tokens"]}
        merges = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]][:12]
        keep = {s for m in merges for s in (*m, "".join(m))} | added | {model["unk_token"]}
        kept = [s for s in model["vocab"] if s in keep or len(s) == 1 or s.startswith("<0x")]
        model["vocab"] = {s: i for i, s in enumerate(kept)}
        model["merges"] = merges
        ids = iter(range(len(kept), 10000))
        for t in whole["added_tokens"]:
            t["id"] = model["vocab"].get(t["content"], None) or (0 if t["content"] == kept[0] else next(ids))
        names = {t["content"]: t["id"] for t in whole["added_tokens"]}
        for part in [whole["post_processor"], *(whole["post_processor"] or {}).get("processors", [])]:
            for name, token in (part or {}).get("special_tokens", {}).items():
                token["ids"] = [names.get(name, 0)]
        put("hf_tokenizer", path.parent.name, json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode())
    put("hf_tokenizer", "patterns", json.dumps({
        "added_tokens": [{"id": 3, "content": "<s>", "special": True, "normalized": True, "lstrip": True, "rstrip": True}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\\p{Han}+|[^\\s\\p{L}]{1,3}|(?i:'s)(?=\\w)"}, "behavior": "Contiguous", "invert": True},
            {"type": "Digits", "individual_digits": False}]},
        "model": {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"], "fuse_unk": True, "unk_token": "a"}}).encode())

    texts = [json.loads(s)["text"] for s in open(GOLDEN / "tiny_vectors.jsonl", encoding="utf-8")]
    for i, text in enumerate(sorted(set(texts), key=len)[-60::6]):
        put("tokenizer", f"text-{i:02}", bytes([2 * (i % 2), i % 10, 1, 5 + i]) + text.encode())
    put("tokenizer", "bad-utf8", b"\2\0\0\4\xff\xc3<|im_end|>\xe2\x82<|im_end|>\xf0\x9f\x99")


main()
