"""The fixture's format, little endian:

    char magic[8] = "SLTEACH1"
    u32 n_texts, n_positions, n_top, n_vocab
    u32 tokens[n_texts][n_positions]                 what the model is fed
    per text and position, of the distribution after that token:
        u32 id[n_top]                                by falling probability
        f32 logprob[n_top]
        f32 log_tail                                 log of the mass of all other tokens

Divergence used everywhere (here, make_llama_kl.py, test_smollm2.c): KL(teacher || other) over the n_top tokens and one bucket for the
rest. Grouping can only make it smaller, equally for every model it is applied to."""

import struct

import numpy as np

MAGIC = b"SLTEACH1"


def write(path, n_vocab, tokens, ids, logprobs, log_tail):
    n_texts, n_positions, n_top = ids.shape
    with open(path, "wb") as f:
        f.write(MAGIC + struct.pack("<4I", n_texts, n_positions, n_top, n_vocab))
        f.write(tokens.astype("<u4").tobytes())
        for t in range(n_texts):
            for p in range(n_positions):
                f.write(ids[t, p].astype("<u4").tobytes() + logprobs[t, p].astype("<f4").tobytes())
                f.write(struct.pack("<f", log_tail[t, p]))


def read(path):
    data = open(path, "rb").read()
    assert data[:8] == MAGIC
    n_texts, n_positions, n_top, n_vocab = struct.unpack("<4I", data[8:24])
    at = 24 + 4 * n_texts * n_positions
    tokens = np.frombuffer(data[24:at], dtype="<u4").reshape(n_texts, n_positions)
    record = np.dtype([("id", "<u4", n_top), ("logprob", "<f4", n_top), ("log_tail", "<f4")])
    return n_vocab, tokens, np.frombuffer(data[at:], dtype=record).reshape(n_texts, n_positions)


def log_softmax(logits):
    x = logits.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def divergence(record, logits):
    """Mean over positions of one text; logits [n_positions, n_vocab]."""
    other = log_softmax(logits)
    total = 0
    for p in range(len(record)):
        mine, q = record["logprob"][p].astype(np.float64), other[p, record["id"][p]]
        tail_p = float(record["log_tail"][p])
        tail_q = np.log(max(1 - np.exp(q).sum(), 1e-30))
        total += (np.exp(mine) * (mine - q)).sum() + np.exp(tail_p) * (tail_p - tail_q)
    return total / len(record)
