#!/usr/bin/env python3
"""Writes smollm2_perplexity.txt: the loss of transformers in float32 on texts of this repository as they are now.

    make_perplexity.py SmolLM2-135M-Instruct.Q4_1.gguf smollm2_perplexity.txt LICENSE docs/architecture.md docs/adding-a-model.md docs/models.md

The texts, one behind the other, are cut into windows of equal length, each a sequence of its own. Lines: the window in tokens; the mean loss over all predicted
tokens (nats); the number of tokens; the tokens."""

import sys

import numpy as np
import torch

import teacher_file
from gguf_hf import load
from make_teacher import tokenizer_of

WINDOW = 384
MAX_WINDOWS = 16  # with 4 the mean loss of an equally good model moves by some 0.2 % from one rounding to another


def main():
    model, key = load(sys.argv[1])
    tokens = tokenizer_of(key).encode("\n".join(open(name).read() for name in sys.argv[3:])).ids
    n = min(len(tokens) // WINDOW, MAX_WINDOWS)
    tokens = np.array(tokens[: n * WINDOW]).reshape(n, WINDOW)
    losses = []
    for row in tokens:
        with torch.no_grad():
            lp = teacher_file.log_softmax(model(torch.tensor(row[None]), use_cache=False).logits[0].numpy())
        losses += list(-lp[np.arange(WINDOW - 1), row[1:]])
    with open(sys.argv[2], "w") as f:
        f.write("window %d\nmean_loss %.8f\ntokens %d\n" % (WINDOW, np.mean(losses), tokens.size))
        for i in range(0, tokens.size, 24):
            f.write(" ".join(str(t) for t in tokens.flat[i : i + 24]) + "\n")
    print("%d windows, mean loss %.6f, perplexity %.4f" % (n, np.mean(losses), np.exp(np.mean(losses))))


if __name__ == "__main__":
    main()
