"""A GGUF file of architecture llama, qwen2 or qwen3 as a transformers model in float32: the judge of the tests.

Uses the `gguf` package's own dequantisers, and undoes the reordering of q and k rows that the llama converter applies (it turns
rotation by halves, as transformers does it, into rotation of neighbouring pairs). Written for a transformers from before Qwen3: its model is put together from Llama's, which
rotates by halves too, with transformers' norm over each head behind the q and k projections."""

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm


def fields(reader):
    return {key: field.contents() for key, field in reader.fields.items()}


def by_halves(weight, n_heads):
    """Rows of each head from pair order (0, half, 1, half + 1, ...) to half order."""
    dim = weight.shape[0] // n_heads
    return weight.reshape(n_heads, dim // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def set_head_dim(model, head_dim, theta):
    """The config of this version of transformers knows heads of the width divided by their number only."""
    for layer in model.model.layers:
        a = layer.self_attn
        a.head_dim = head_dim
        a.q_proj = torch.nn.Linear(a.hidden_size, a.num_heads * head_dim, bias=a.q_proj.bias is not None)
        a.k_proj = torch.nn.Linear(a.hidden_size, a.num_key_value_heads * head_dim, bias=a.k_proj.bias is not None)
        a.v_proj = torch.nn.Linear(a.hidden_size, a.num_key_value_heads * head_dim, bias=a.v_proj.bias is not None)
        a.o_proj = torch.nn.Linear(a.num_heads * head_dim, a.hidden_size, bias=False)
    for module in model.modules():
        if hasattr(module, "inv_freq"):
            module.inv_freq = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)


def add_head_norm(projection, weight, eps):
    norm = LlamaRMSNorm(len(weight), eps)
    norm.weight = torch.nn.Parameter(torch.from_numpy(weight.copy()))

    def hook(module, args, output):
        return norm(output.view(*output.shape[:-1], -1, len(weight))).view(output.shape)

    projection.register_forward_hook(hook)


def load(path):
    reader = GGUFReader(path)
    key = fields(reader)
    arch = key["general.architecture"]
    tensors = {t.name: np.array(dequantize(t.data, t.tensor_type), dtype=np.float32) for t in reader.tensors}
    heads, kv_heads = key[arch + ".attention.head_count"], key[arch + ".attention.head_count_kv"]
    head_dim = key.get(arch + ".attention.key_length", key[arch + ".embedding_length"] // heads)
    config_class, model_class = (Qwen2Config, Qwen2ForCausalLM) if arch == "qwen2" else (LlamaConfig, LlamaForCausalLM)
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
    head_norms = []
    for name, value in tensors.items():
        if not name.startswith("blk."):
            continue
        _, layer, part, kind = name.split(".")
        if part in ("attn_q_norm", "attn_k_norm"):
            head_norms.append((int(layer), part[5] + "_proj", value))
            continue
        if arch == "llama" and part in ("attn_q", "attn_k"):
            value = by_halves(value, heads if part == "attn_q" else kv_heads)
        state["model.layers.%s.%s.%s" % (layer, names[part], kind)] = value
    model = model_class(config).float().eval()
    if heads * head_dim != config.hidden_size:
        set_head_dim(model, head_dim, config.rope_theta)
    for layer, projection, weight in head_norms:
        add_head_norm(getattr(model.model.layers[layer].self_attn, projection), weight, config.rms_norm_eps)
    missing, unexpected = model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in state.items()}, strict=False)
    assert not unexpected and not [m for m in missing if "rotary" not in m], (missing, unexpected)
    if "rope_freqs.weight" in tensors:
        for module in model.modules():
            if hasattr(module, "inv_freq"):
                module.inv_freq /= torch.from_numpy(tensors["rope_freqs.weight"].copy())
    return model, key
