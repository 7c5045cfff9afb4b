"""A GGUF file of architecture llama (Mistral's too), qwen2, qwen3 or gemma3 as a transformers model in float32: the judge of the tests.

Uses the `gguf` package's own dequantisers, and undoes what the converter to GGUF did: the reordering of llama's q and k rows (it turns
rotation by halves, as transformers does it, into rotation of neighbouring pairs), and the one that gemma3's norms have added. Written for transformers 4.57."""

import numpy as np
import torch
import transformers
from gguf import GGUFReader, dequantize

NAMES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "attn_output": "self_attn.o_proj",
         "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
GEMMA_NAMES = dict(NAMES, post_attention_norm="post_attention_layernorm", ffn_norm="pre_feedforward_layernorm",
                   post_ffw_norm="post_feedforward_layernorm")
LAYERS_27B = 62  # of gemma3, which alone scales its scores by something else than its heads' size


def fields(reader):
    return {key: field.contents() for key, field in reader.fields.items()}


def by_halves(weight, n_heads):
    """Rows of each head from pair order (0, half, 1, half + 1, ...) to half order."""
    dim = weight.shape[0] // n_heads
    return weight.reshape(n_heads, dim // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def config_of(key, arch, tensors):
    def get(name, *default):
        return key.get(arch + "." + name, *default)

    heads, n_layers = get("attention.head_count"), get("block_count")
    window, theta = get("attention.sliding_window"), get("rope.freq_base", 10000.0)
    args = dict(
        vocab_size=tensors["token_embd.weight"].shape[0],
        hidden_size=get("embedding_length"),
        intermediate_size=get("feed_forward_length"),
        num_hidden_layers=n_layers,
        num_attention_heads=heads,
        num_key_value_heads=get("attention.head_count_kv"),
        head_dim=get("attention.key_length", get("embedding_length") // heads),
        max_position_embeddings=get("context_length"),
        rms_norm_eps=get("attention.layer_norm_rms_epsilon"),
        rope_theta=theta,
        tie_word_embeddings="output.weight" not in tensors,
        attn_implementation="eager",
    )
    if get("rope.scaling.type") == "linear":
        args["rope_scaling"] = {"rope_type": "linear", "factor": get("rope.scaling.factor")}
    if arch == "qwen2":
        return transformers.Qwen2Config(**args), transformers.Qwen2ForCausalLM
    if arch == "qwen3":
        return transformers.Qwen3Config(**args), transformers.Qwen3ForCausalLM
    if arch == "gemma3":
        pattern = get("attention.sliding_window_pattern", 6)
        scalar = args["hidden_size"] // heads if n_layers == LAYERS_27B else args["head_dim"]
        kinds = ["full_attention" if (i + 1) % pattern == 0 else "sliding_attention" for i in range(n_layers)]
        return transformers.Gemma3TextConfig(
            **args, sliding_window=window, layer_types=kinds, rope_local_base_freq=get("rope.freq_base_swa", 10000.0),
            query_pre_attn_scalar=scalar, hidden_activation="gelu_pytorch_tanh"), transformers.Gemma3ForCausalLM
    if window:
        return transformers.MistralConfig(**args, sliding_window=window), transformers.MistralForCausalLM
    return transformers.LlamaConfig(**args), transformers.LlamaForCausalLM


def load(path):
    reader = GGUFReader(path)
    key = fields(reader)
    arch = key["general.architecture"]
    tensors = {t.name: np.array(dequantize(t.data, t.tensor_type), dtype=np.float32) for t in reader.tensors}
    config, model_class = config_of(key, arch, tensors)
    state = {"model.embed_tokens.weight": tensors["token_embd.weight"], "model.norm.weight": tensors["output_norm.weight"],
             "lm_head.weight": tensors.get("output.weight", tensors["token_embd.weight"])}
    for name, value in tensors.items():
        if not name.startswith("blk."):
            continue
        _, layer, part, kind = name.split(".")
        if arch == "llama" and part in ("attn_q", "attn_k"):
            value = by_halves(value, config.num_attention_heads if part == "attn_q" else config.num_key_value_heads)
        state["model.layers.%s.%s.%s" % (layer, (GEMMA_NAMES if arch == "gemma3" else NAMES)[part], kind)] = value
    if arch == "gemma3":
        for name in state:
            if name.endswith("norm.weight"):
                state[name] = state[name] - 1
    model = model_class(config).float().eval()
    missing, unexpected = model.load_state_dict({k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in state.items()}, strict=False)
    assert not unexpected and not missing, (missing, unexpected)
    if "rope_freqs.weight" in tensors:
        model.model.rotary_emb.inv_freq /= torch.from_numpy(tensors["rope_freqs.weight"].copy())
    return model, key
