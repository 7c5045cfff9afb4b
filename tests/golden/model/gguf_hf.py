"""A GGUF file of architecture llama or qwen2 as a transformers model in float32: the judge of the tests.

Uses the `gguf` package's own dequantisers, and undoes the reordering of q and k rows that the llama converter applies (it turns
rotation by halves, as transformers does it, into rotation of neighbouring pairs)."""

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM


def fields(reader):
    return {key: field.contents() for key, field in reader.fields.items()}


def by_halves(weight, n_heads):
    """Rows of each head from pair order (0, half, 1, half + 1, ...) to half order."""
    dim = weight.shape[0] // n_heads
    return weight.reshape(n_heads, dim // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def load(path):
    reader = GGUFReader(path)
    key = fields(reader)
    arch = key["general.architecture"]
    tensors = {t.name: np.array(dequantize(t.data, t.tensor_type), dtype=np.float32) for t in reader.tensors}
    heads, kv_heads = key[arch + ".attention.head_count"], key[arch + ".attention.head_count_kv"]
    head_dim = key.get(arch + ".attention.key_length", key[arch + ".embedding_length"] // heads)
    assert heads * head_dim == key[arch + ".embedding_length"], "this version of transformers derives head_dim from the width"
    config_class, model_class = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}[arch]
    config = config_class(
        vocab_size=tensors["token_embd.weight"].shape[0],
        hidden_size=key[arch + ".embedding_length"],
        intermediate_size=key[arch + ".feed_forward_length"],
        num_hidden_layers=key[arch + ".block_count"],
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=key[arch + ".context_length"],
        rms_norm_eps=key[arch + ".attention.layer_norm_rms_epsilon"],
        rope_theta=key[arch + ".rope.freq_base"],
        tie_word_embeddings="output.weight" not in tensors,
        attn_implementation="eager",
    )
    if key.get(arch + ".rope.scaling.type") == "linear":
        config.rope_scaling = {"type": "linear", "factor": key[arch + ".rope.scaling.factor"]}
    state = {"model.embed_tokens.weight": tensors["token_embd.weight"], "model.norm.weight": tensors["output_norm.weight"]}
    state["lm_head.weight"] = tensors.get("output.weight", tensors["token_embd.weight"])
    names = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
             "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    for name, value in tensors.items():
        if not name.startswith("blk."):
            continue
        _, layer, part, kind = name.split(".")
        if arch == "llama" and part in ("attn_q", "attn_k"):
            value = by_halves(value, heads if part == "attn_q" else kv_heads)
        state["model.layers.%s.%s.%s" % (layer, names[part], kind)] = value
    model = model_class(config).float().eval()
    missing, unexpected = model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in state.items()}, strict=False)
    assert not unexpected and not [m for m in missing if "rotary" not in m], (missing, unexpected)
    if "rope_freqs.weight" in tensors:
        for module in model.modules():
            if hasattr(module, "inv_freq"):
                module.inv_freq /= torch.from_numpy(tensors["rope_freqs.weight"].copy())
    return model, key
