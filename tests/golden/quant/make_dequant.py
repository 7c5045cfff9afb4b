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
# Type, values and bytes of a block, where its scales lie.
BLOCKS = {
    "q4_0": (T.Q4_0, 32, 18, [0]), "q4_1": (T.Q4_1, 32, 20, [0, 2]), "q8_0": (T.Q8_0, 32, 34, [0]),
    "f16": (T.F16, 1, 2, []), "bf16": (T.BF16, 1, 2, []),
    "q5_0": (T.Q5_0, 32, 22, [0]), "q5_1": (T.Q5_1, 32, 24, [0, 2]), "q4_K": (T.Q4_K, 256, 144, [0, 2]),
    "q5_K": (T.Q5_K, 256, 176, [0, 2]), "q6_K": (T.Q6_K, 256, 210, [208]),
}

for name, (kind, values, size, scales) in BLOCKS.items():
    for case in range(5):
        if scales:
            blocks = 3 if values == 32 else 2
            data = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
            for at in scales:
                scale = rng.normal(0, 3e-6 if case == 4 else 0.05, blocks).astype(np.float16)
                data[:, at : at + 2] = scale.view(np.uint8).reshape(blocks, 2)
            n = values * blocks
        else:
            n = 40
            floats = rng.normal(0, 1e-6 if case == 4 else 1.0, n).astype(np.float32)
            data = quants.quantize(floats, kind).view(np.uint8)
        flat = data.reshape(-1)
        if name == "f16":
            out = flat.view(np.float16).astype(np.float32)
        else:
            out = quants.dequantize(flat, kind).astype(np.float32).reshape(-1)
        print(json.dumps({"type": name, "n": n, "hex": flat.tobytes().hex(), "f32": [float(v) for v in out]}))
