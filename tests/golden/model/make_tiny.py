#!/usr/bin/env python3
"""Writes tiny_NAME.bin: logits of transformers in float32 for random models that sluice-make-model writes.

    make_tiny.py build/bin/sluice-make-model tests/golden/model [NAME...]

The models are those of the table in test_tiny.c (same names, same options). Format, little endian:

    char magic[8] = "SLTINY01"
    u32 crc32 of the model file, n_positions, n_kept, n_vocab
    u32 tokens[n_positions], kept[n_kept]          positions whose logits follow
    f32 logits[n_kept][n_vocab]"""

import os
import struct
import subprocess
import sys
import tempfile
import zlib

import numpy as np
import torch

from gguf_hf import load

KEPT = [0, 1, 2, 15, 16, 31, 63, 64, 65, 99]
KEPT_LONG = [999, 2047, 2048, 3000]
KEPT_WINDOW = [0, 1, 31, 32, 33, 69, 70, 71, 128, 299]  # around the windows below and the blocks of attention

MODELS = {
    "llama_f32": "--type f32 --embed-type f32",
    "llama_q4_1": "--type q4_1 --embed-type q8_0",
    "llama_untied_q4_0": "--type q4_0 --embed-type f16 --untied --kv-heads 1 --seed 2",
    "qwen2_bf16": "--arch qwen2 --type bf16 --embed-type q4_1 --seed 3",
    "qwen2_untied_q8_0": "--arch qwen2 --type q8_0 --embed-type bf16 --untied --kv-heads 4 --seed 4",
    "llama_factors": "--type f16 --embed-type q4_0 --rope-factors --seed 5",
    "llama_linear": "--type f32 --embed-type f32 --rope-linear 4 --seed 6",
    "llama_q5": "--type q5_0 --embed-type q5_1 --head-dim 32 --seed 8",
    "llama_k": "--type q4_k --embed-type q6_k --override ffn_down.weight=q5_k --override 1.attn_v.weight=q6_k"
               " --layers 2 --d-model 256 --head-dim 64 --ff 512 --seed 9",
    "qwen3_f32": "--arch qwen3 --type f32 --embed-type f32 --head-dim 32 --seed 10",
    "qwen3_q8_0": "--arch qwen3 --type q8_0 --embed-type q8_0 --untied --seed 11",
    "mistral_f32": "--type f32 --embed-type f32 --untied --window 70 --seed 12",
    "gemma3_f32": "--arch gemma3 --type f32 --embed-type f32 --layers 5 --head-dim 32 --kv-heads 1 --rope-theta 1000000"
                  " --window 32 --window-pattern 3 --seed 13",
    "gemma3_linear": "--arch gemma3 --type q8_0 --embed-type q8_0 --layers 4 --rope-theta 1000000 --rope-linear 8"
                     " --window 70 --window-pattern 2 --seed 14",
    "llama_long": "--type q4_1 --embed-type q8_0 --rope-theta 100000 --seed 7",
}


def main():
    tool, out, *names = sys.argv[1:]
    for name, options in MODELS.items():
        if names and name not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.gguf")
            subprocess.run([tool, "--out", path] + options.split(), check=True)
            crc = zlib.crc32(open(path, "rb").read())
            model, _ = load(path)
        n_vocab = model.config.vocab_size
        kept = KEPT_LONG if name == "llama_long" else KEPT_WINDOW if "--window" in options else KEPT
        tokens = np.array([(i * i * 31 + i * 7 + 5) % n_vocab for i in range(kept[-1] + 1)], dtype="<u4")
        with torch.no_grad():
            logits = model(torch.from_numpy(tokens.astype(np.int64)[None]), use_cache=False).logits[0].numpy()
        with open(os.path.join(out, "tiny_%s.bin" % name), "wb") as f:
            f.write(b"SLTINY01" + struct.pack("<4I", crc, len(tokens), len(kept), n_vocab))
            f.write(tokens.tobytes() + np.array(kept, dtype="<u4").tobytes() + logits[kept].astype("<f4").tobytes())
        print(name, "spread of the logits %.2f, top tokens %s" % (logits.std(), logits.argmax(axis=1)[-8:]))


main()
