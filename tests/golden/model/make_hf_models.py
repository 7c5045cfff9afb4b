#!/usr/bin/env python3
"""Writes hf/NAME: random tiny models as transformers saves them (save_pretrained), each with the logits that transformers
computes from the saved folder in float32.

    make_hf_models.py [NAME...]

Needs torch, transformers (made with 4.51.3), tokenizers, numpy. logits.bin has the format of make_tiny.py with the CRC 0."""

import os
import pathlib
import struct
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HERE = pathlib.Path(__file__).parent
N_VOCAB = 320
N_POSITIONS = 100
KEPT = [0, 1, 2, 7, 15, 16, 23, 24, 25, 31, 40, 63, 64, 65, 99]
SHAPE = dict(vocab_size=N_VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256, bos_token_id=0, eos_token_id=1, attn_implementation="eager")

# name: (class, config, type of the weights, bytes of a shard)
MODELS = {
    "llama3": ("Llama", dict(tie_word_embeddings=False, rope_theta=500000.0,
                             rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                               original_max_position_embeddings=64)), "bfloat16", "30KB"),
    "llama_linear": ("Llama", dict(tie_word_embeddings=True, attention_bias=True, head_dim=16,
                                   rope_scaling=dict(rope_type="linear", factor=4.0)), "float16", None),
    "mistral": ("Mistral", dict(sliding_window=24, head_dim=8), "float32", None),
    "qwen2": ("Qwen2", dict(tie_word_embeddings=True), "bfloat16", None),
    "qwen3": ("Qwen3", dict(tie_word_embeddings=False, head_dim=16), "float32", "40KB"),
    "gemma3": ("Gemma3", dict(head_dim=16, num_hidden_layers=4, sliding_window=24, sliding_window_pattern=3, query_pre_attn_scalar=24,
                              rope_theta=100000.0, rope_local_base_freq=5000.0, rope_scaling=dict(rope_type="linear", factor=4.0),
                              pad_token_id=2), "bfloat16", "60KB"),
}


def randomise(model, seed):
    """Lively logits: transformers' own start values give nearly equal ones."""
    g = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        r = torch.randn(p.shape, generator=g)
        if p.dim() == 2:
            p.data = r * (1.0 if "embed" in name or "lm_head" in name else p.shape[1] ** -0.5)
        else:
            p.data = 0.2 * r + (1.0 if name.endswith("norm.weight") and "gemma" not in type(model).__name__.lower() else 0.0)


def write_tokenizer(folder):
    """Bytes and a few merges: what a folder must have; the test of the models does not read text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i + 2 for i, c in enumerate(letters)}
    vocab["<s>"], vocab["</s>"] = 0, 1
    merges = [(a, b) for a in "aeiou" for b in "nrst"]
    vocab.update({a + b: len(vocab) + i for i, (a, b) in enumerate(merges)})
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens(["<s>", "</s>"])
    t.save(str(folder / "tokenizer.json"), pretty=False)


def main():
    for seed, (name, (kind, config, dtype, shard)) in enumerate(MODELS.items(), 1):
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        folder = HERE / "hf" / name
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        model_class = getattr(transformers, kind + "ForCausalLM")
        model = model_class(getattr(transformers, kind + ("TextConfig" if kind == "Gemma3" else "Config"))(**{**SHAPE, **config}))
        randomise(model, seed)
        model.to(getattr(torch, dtype)).save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
        (folder / "generation_config.json").unlink(missing_ok=True)
        write_tokenizer(folder)
        judge = model_class(model_class.config_class.from_pretrained(folder, attn_implementation="eager")).float().eval()
        state = {k: v.float() for p in folder.glob("*.safetensors") for k, v in load_file(p).items()}
        missing, unexpected = judge.load_state_dict(state, strict=False)
        judge.tie_weights()
        assert not unexpected and set(missing) <= {"lm_head.weight"} and judge.config.tie_word_embeddings == bool(missing)
        tokens = np.array([(i * i * 31 + i * 7 + 5) % N_VOCAB for i in range(N_POSITIONS)], dtype="<u4")
        with torch.no_grad():
            logits = judge(torch.from_numpy(tokens.astype(np.int64)[None]), use_cache=False).logits[0].numpy()
        with open(folder / "logits.bin", "wb") as f:
            f.write(b"SLTINY01" + struct.pack("<4I", 0, N_POSITIONS, len(KEPT), N_VOCAB))
            f.write(tokens.tobytes() + np.array(KEPT, dtype="<u4").tobytes() + logits[KEPT].astype("<f4").tobytes())
        size = sum(os.path.getsize(p) for p in folder.iterdir())
        print(name, sorted(p.name for p in folder.iterdir()), size, "spread of the logits %.2f" % logits.std())


main()
