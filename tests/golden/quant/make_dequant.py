#!/usr/bin/env python3
"""Writes dequant.jsonl: random blocks and what the gguf package's quants module makes of them.

    pip install gguf numpy && python3 make_dequant.py > dequant.jsonl

Lines {type, n, hex, f32}; f32 is printed so that it reads back to the same double. The last case of a type has a scale that is
subnormal in float16.
"""
import json

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import quants

rng = np.random.default_rng(20240)
BYTES = {"q4_0": (T.Q4_0, 18, 1), "q4_1": (T.Q4_1, 20, 2), "q8_0": (T.Q8_0, 34, 1), "f16": (T.F16, 2, 0), "bf16": (T.BF16, 2, 0)}

for name, (kind, size, n_scales) in BYTES.items():
    for case in range(5):
        if n_scales:
            blocks = 3
            data = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
            for s in range(n_scales):
                scale = rng.normal(0, 3e-6 if case == 4 else 0.05, blocks).astype(np.float16)
                data[:, 2 * s : 2 * s + 2] = scale.view(np.uint8).reshape(blocks, 2)
            n = 32 * blocks
        else:
            n = 40
            values = rng.normal(0, 1e-6 if case == 4 else 1.0, n).astype(np.float32)
            data = quants.quantize(values, kind).view(np.uint8)
        flat = data.reshape(-1)
        if name == "f16":
            out = flat.view(np.float16).astype(np.float32)
        else:
            out = quants.dequantize(flat, kind).astype(np.float32).reshape(-1)
        print(json.dumps({"type": name, "n": n, "hex": flat.tobytes().hex(), "f32": [float(v) for v in out]}))
