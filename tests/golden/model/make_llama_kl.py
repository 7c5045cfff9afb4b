#!/usr/bin/env python3
"""Writes smollm2_llama_kl.txt: llama.cpp's mean divergence from the teacher on the same file, for comparison.

    make_llama_kl.py SmolLM2-135M-Instruct.Q4_1.gguf smollm2_teacher.bin smollm2_llama_kl.txt

Needs llama-cpp-python and numpy. Each text is one batch from an empty context, with llama.cpp's defaults (KV in f16)."""

import sys

import llama_cpp
import numpy as np

import teacher_file


def main():
    n_vocab, tokens, records = teacher_file.read(sys.argv[2])
    model = llama_cpp.Llama(sys.argv[1], n_ctx=128, n_batch=128, n_threads=2, logits_all=True, verbose=False)
    kl, agree = [], 0
    for t in range(len(tokens)):
        model.reset()
        model.eval([int(x) for x in tokens[t]])
        logits = np.array(model.scores[: len(tokens[t])], dtype=np.float32)
        assert logits.shape == (len(tokens[t]), n_vocab)
        kl.append(teacher_file.divergence(records[t], logits))
        agree += int((logits.argmax(axis=1) == records["id"][t][:, 0]).sum())
    with open(sys.argv[3], "w") as f:
        f.write("mean_kl %.6e\n" % np.mean(kl))
        f.write("top_token_agrees %d of %d\n" % (agree, tokens.size))
        f.write("llama_cpp_python %s\n" % llama_cpp.__version__)
    print(open(sys.argv[3]).read(), ["%.4g" % k for k in kl])


main()
