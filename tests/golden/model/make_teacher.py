#!/usr/bin/env python3
"""Writes smollm2_teacher.bin: what transformers in float32 predicts, teacher-forced, on the texts of texts.py.

    make_teacher.py SmolLM2-135M-Instruct.Q4_1.gguf smollm2_teacher.bin

Needs torch, transformers 4.57, gguf, tokenizers, numpy. The file is the one the quick start fetches; its tokens come from its own vocabulary
through the `tokenizers` package."""

import sys

import numpy as np
import tokenizers
import torch

import teacher_file
from gguf_hf import load
from texts import TEXTS

N_POSITIONS = 64
N_TOP = 64


def tokenizer_of(key):
    tokens, types = key["tokenizer.ggml.tokens"], key["tokenizer.ggml.token_type"]
    merges = [tuple(m.split(" ")) for m in key["tokenizer.ggml.merges"]]
    t = tokenizers.Tokenizer(tokenizers.models.BPE({s: i for i, s in enumerate(tokens)}, merges))
    pre = tokenizers.pre_tokenizers
    t.pre_tokenizer = pre.Sequence([pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)])
    t.add_special_tokens([s for s, kind in zip(tokens, types) if kind == 3])
    return t


def main():
    model, key = load(sys.argv[1])
    tokenizer = tokenizer_of(key)
    n_vocab = len(key["tokenizer.ggml.tokens"])
    tokens = np.zeros((len(TEXTS), N_POSITIONS), dtype=np.uint32)
    ids = np.zeros((len(TEXTS), N_POSITIONS, N_TOP), dtype=np.uint32)
    logprobs = np.zeros((len(TEXTS), N_POSITIONS, N_TOP), dtype=np.float64)
    log_tail = np.zeros((len(TEXTS), N_POSITIONS), dtype=np.float64)
    for t, text in enumerate(TEXTS):
        encoded = tokenizer.encode(text).ids
        assert len(encoded) >= N_POSITIONS, (t, len(encoded))
        tokens[t] = encoded[:N_POSITIONS]
        with torch.no_grad():
            logits = model(torch.tensor([encoded[:N_POSITIONS]]), use_cache=False).logits[0].numpy()
        lp = teacher_file.log_softmax(logits)
        ids[t] = np.argsort(-lp, axis=1, kind="stable")[:, :N_TOP]
        logprobs[t] = np.take_along_axis(lp, ids[t].astype(np.int64), axis=1)
        rest = np.exp(lp)
        np.put_along_axis(rest, ids[t].astype(np.int64), 0, axis=1)
        log_tail[t] = np.log(rest.sum(axis=1))
        print("%2d %3d tokens, loss %.3f" % (t, len(encoded), -lp[np.arange(N_POSITIONS - 1), tokens[t, 1:]].mean()))
    teacher_file.write(sys.argv[2], n_vocab, tokens, ids, logprobs, log_tail)


if __name__ == "__main__":
    main()
