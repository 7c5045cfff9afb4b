#!/usr/bin/env python3
"""Writes corpus/safetensors and corpus/hf_config: small good files and broken ones.

    make_model_corpus.py"""
import json
import pathlib
import shutil
import struct

HERE = pathlib.Path(__file__).parent


def put(folder, name, data):
    path = HERE / "corpus" / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def file_of(header, data):
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors():
    good = {"__metadata__": {"format": "pt"}, "model.norm.weight": tensor("F32", [4], 0, 16),
            "lm_head.weight": tensor("BF16", [2, 4], 16, 32), "none": tensor("I64", [0], 32, 32),
            "one": tensor("F16", [], 32, 34)}
    whole = file_of(good, bytes(range(34)))
    put("safetensors", "good", whole)
    put("safetensors", "cut", whole[:-5])
    put("safetensors", "no-tensors", file_of({}, b""))
    put("safetensors", "long-header", struct.pack("<Q", 1 << 40) + whole[8:])
    for name, t in {"overlap": tensor("F32", [2], 4, 12), "outside": tensor("F32", [2], 8, 1 << 40),
                    "wide": tensor("F32", [1 << 62, 4], 8, 16), "unknown-type": tensor("F3", [2], 8, 16),
                    "misaligned": tensor("F64", [1], 12, 20)}.items():
        put("safetensors", name, file_of({"a": tensor("F32", [2], 0, 8), "b": t}, bytes(20)))


def configs():
    for folder in sorted((HERE / "../../golden/model/hf").resolve().iterdir()):
        shutil.copyfile(folder / "config.json", HERE / "corpus/hf_config" / folder.name)
    base = json.loads((HERE / "../../golden/model/hf/llama3/config.json").read_text())
    for name, change in {"yarn": {"rope_scaling": {"rope_type": "yarn"}}, "quantised": {"quantization_config": {"bits": 4}},
                         "nested": {"text_config": base, "model_type": "other"}, "huge": {"hidden_size": 1e300},
                         "parameters": {"rope_parameters": base["rope_scaling"], "rope_theta": None}}.items():
        put("hf_config", name, json.dumps({**base, **change}).encode())
    put("hf_config", "list", b"[]")


(HERE / "corpus/hf_config").mkdir(parents=True, exist_ok=True)
safetensors()
configs()
