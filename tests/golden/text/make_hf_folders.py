#!/usr/bin/env python3
"""Makes the model folders in hf/ and hf_vectors.jsonl, {folder, add, text, ids, decoded}, judge: `tokenizers`.

    pip install tokenizers sentencepiece protobuf
    make_hf_folders.py

The folders have the shapes of those of known models, with tiny vocabularies. (Made with tokenizers 0.23.3.) They hold what
a tokenizer needs, no weights.
"""
import json
import pathlib

import make_tokenizer_vectors as tiny
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
SPECIAL = ["<|begin|>", "<|end|>", "<|im_start|>", "<|im_end|>"]


def special(text, **kw):
    return AddedToken(text, normalized=False, special=True, **kw)


def byte_model(size, ignore_merges=False):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = tiny.pre_tokenizer("smollm")
    t.train_from_iterator(
        tiny.CORPUS * 4,
        trainers.BpeTrainer(vocab_size=size, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False),
    )
    m = json.loads(t.to_str())["model"]
    return models.BPE(vocab=m["vocab"], merges=[tuple(x) for x in m["merges"]], ignore_merges=ignore_merges)


def char_model(byte_fallback, fuse_unk=True):
    """The SentencePiece vocabulary, with merges as transformers' converter writes them out."""
    pieces = [p for p in tiny.spm_proto().pieces if p.type != 4 and p.piece not in tiny.SPM_CONTROL[3:]]
    if not byte_fallback:
        pieces = [p for p in pieces if p.type != 6]
    ids = {p.piece: i for i, p in enumerate(pieces)}
    merges = []
    for p in pieces:
        local = [(p.piece[:i], p.piece[i:]) for i in range(1, len(p.piece)) if p.piece[:i] in ids and p.piece[i:] in ids]
        merges += [(*pair, p.score) for pair in sorted(local, key=lambda x: (ids[x[0]], ids[x[1]]))]
    merges = [(a, b) for a, b, s in sorted(merges, key=lambda x: -x[2])]
    return models.BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=fuse_unk, byte_fallback=byte_fallback)


def bos_template(t, bos, eos=None):
    kinds = [(s, t.token_to_id(s)) for s in (bos, eos) if s]
    single = f"{bos} $A {eos}" if eos else f"{bos} $A"
    return processors.TemplateProcessing(single=single, pair=single + " $B:1", special_tokens=kinds)


def spaced(strip):
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + ([decoders.Strip(content=" ", left=1)] if strip else []))


def smollm():
    t = Tokenizer(byte_model(400))
    t.pre_tokenizer = tiny.pre_tokenizer("smollm")
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([special(s) for s in SPECIAL])
    t.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("    ", normalized=False)])
    return t


def llama3():
    t = Tokenizer(byte_model(420, ignore_merges=True))
    t.pre_tokenizer = tiny.pre_tokenizer("llama-bpe")
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([special(s) for s in SPECIAL])
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), bos_template(t, "<|begin|>")])
    return t


def qwen2():
    t = Tokenizer(byte_model(380))
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = tiny.pre_tokenizer("qwen2")
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([special(s) for s in SPECIAL])
    t.add_tokens([AddedToken("<tool_call>", normalized=False)])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t


def qwen3():
    """As qwen2, with literal tokens that are not special."""
    t = qwen2()
    t.add_tokens([AddedToken(s, normalized=False) for s in ("<think>", "</think>", "</tool_call>")])
    return t


def tekken():
    """The special tokens have the first ids, the vocabulary those behind them."""
    names = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]", "<SPECIAL_7>"]
    m = json.loads(Tokenizer(byte_model(420)).to_str())["model"]
    vocab = {**{s: i for i, s in enumerate(names)}, **{s: i + len(names) for s, i in m["vocab"].items()}}
    t = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(x) for x in m["merges"]], ignore_merges=True))
    t.pre_tokenizer = tiny.pre_tokenizer("tekken")
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([special(s) for s in names])
    t.post_processor = bos_template(t, "<s>")
    return t


def gpt2_spaced():
    t = Tokenizer(byte_model(360))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([special(s) for s in SPECIAL])
    return t


def llama2():
    t = Tokenizer(char_model(True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = spaced(True)
    t.add_special_tokens([special(s) for s in ("<unk>", "<s>", "</s>")])
    t.add_special_tokens([special("<|im_start|>", rstrip=True), special("<|im_end|>", lstrip=True, rstrip=True)])
    t.add_tokens([AddedToken("<tool_call>", normalized=False, lstrip=True)])
    t.post_processor = bos_template(t, "<s>")
    return t


def mistral():
    t = Tokenizer(char_model(True))
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    t.decoder = spaced(True)
    t.add_special_tokens([special(s) for s in ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")])
    t.post_processor = bos_template(t, "<s>", "</s>")
    return t


def gemma():
    t = Tokenizer(char_model(True))
    t.normalizer = normalizers.Replace(" ", "▁")
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    t.decoder = spaced(False)
    t.add_special_tokens([special(s) for s in ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")])
    t.add_tokens([AddedToken(s, normalized=False) for s in ("▁▁", "\n\n", "<tool_call>")])
    t.post_processor = bos_template(t, "<s>")
    return t


def unknown():
    t = Tokenizer(char_model(False))
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True), pre_tokenizers.Digits(individual_digits=False)]
    )
    t.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    t.add_special_tokens([special("<|im_start|>"), special("<|im_end|>")])
    return t


def unknown_one_by_one():
    t = Tokenizer(char_model(False, fuse_unk=False))
    t.normalizer = normalizers.Replace(" ", "▁")
    t.pre_tokenizer = pre_tokenizers.Split(Regex(r"▁|\d"), "merged_with_next", invert=False)
    t.decoder = spaced(False)
    t.add_special_tokens([special("<|im_start|>"), special("<|im_end|>")])
    return t


# builder, config.json, tokenizer_config.json, other files
FOLDERS = {
    "smollm": (
        smollm,
        {"model_type": "llama", "max_position_embeddings": 2048, "vocab_size": 416, "eos_token_id": 401},
        {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": "{{ messages[0].content }}"},
        {"generation_config.json": json.dumps({"eos_token_id": [403, 401]})},
    ),
    "llama3": (
        llama3,
        {"model_type": "llama", "max_position_embeddings": 8192, "vocab_size": 424},
        {"bos_token": "<|begin|>", "eos_token": {"__type": "AddedToken", "content": "<|end|>", "special": True}, "chat_template": "ignored"},
        {"chat_template.jinja": "{{ bos_token }}{{ messages[0].content }}"},
    ),
    "qwen2": (
        qwen2,
        {"model_type": "qwen2", "max_position_embeddings": 32768},
        {"bos_token": None, "eos_token": "<|im_end|>", "add_bos_token": False,
         "chat_template": [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]},
        {},
    ),
    "gpt2_spaced": (gpt2_spaced, {"model_type": "gpt2", "n_positions": 1024}, {}, {}),
    "llama2": (
        llama2,
        {"model_type": "llama", "max_position_embeddings": 4096, "bos_token_id": 1, "eos_token_id": 2},
        {"add_bos_token": True, "add_eos_token": False},
        {"special_tokens_map.json": json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}})},
    ),
    "mistral": (mistral, {"model_type": "mistral", "max_position_embeddings": 4096}, {}, {}),
    "gemma": (
        gemma,
        {"model_type": "gemma3", "text_config": {"max_position_embeddings": 1024}, "vocab_size": 1},
        {"bos_token": "<s>", "eos_token": "</s>"},
        {},
    ),
    "qwen3": (
        qwen3,
        {"model_type": "qwen3", "max_position_embeddings": 40960, "eos_token_id": 383},
        {"add_bos_token": False, "bos_token": None, "eos_token": "<|im_end|>"},
        {"generation_config.json": json.dumps({"eos_token_id": [383, 381], "temperature": 0.6})},
    ),
    "tekken": (
        tekken,
        {"model_type": "mistral", "max_position_embeddings": 131072, "bos_token_id": 1, "eos_token_id": 2},
        {"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>"},
        {},
    ),
    "unknown": (unknown, {"model_type": "llama", "max_position_embeddings": 512}, {}, {}),
    "unknown_one_by_one": (unknown_one_by_one, {"model_type": "llama", "max_position_embeddings": 512}, {}, {}),
}

STRIPPED = [
    "a <|im_start|> b", "a<|im_end|>  \n b <|im_end|>c", "x  <tool_call>  y", "<|im_start|> \u00a0\u3000<|im_end|>",
    " <|im_start|><|im_end|> ", "<s>a</s> <s>", "<tool_call><tool_call> a", "a\n\nb\n\n\nc   d", "▁▁a▁b ▁",
    "<|begin|> a<|end|>", "ab<|im_end|>", "<unk> 页x页y z", "[INST] Hello McDonald's HTTPServer/\n\n[/INST]iPhone ÀÉ éÀb",
    "<think>\n\n</think>\n\nThe answer </tool_call>",
]


def main():
    lines = []
    for name, (build, config, tokenizer_config, others) in FOLDERS.items():
        folder = HERE / "hf" / name
        folder.mkdir(parents=True, exist_ok=True)
        t = build()
        j = json.loads(t.to_str())
        if name in ("llama2", "smollm"):  # as older versions of the library wrote them
            j["model"]["merges"] = [" ".join(m) for m in j["model"]["merges"]]
        (folder / "tokenizer.json").write_text(json.dumps(j, ensure_ascii=name == "gemma", separators=(",", ":")) + "\n", "utf-8")
        (folder / "config.json").write_text(json.dumps(config) + "\n")
        if tokenizer_config:
            (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config) + "\n")
        for other, text in others.items():
            (folder / other).write_text(text)
        texts = tiny.FIXED + STRIPPED + list(tiny.random_texts(25, 17))
        for i, text in enumerate(texts):
            add = i % 3 == 0
            ids = t.encode(text, add_special_tokens=add).ids
            line = {"folder": name, "add": add, "text": text, "ids": ids}
            decoded = t.decode(ids, skip_special_tokens=False)
            if decoded != text:
                line["decoded"] = decoded
            lines.append(line)
    tiny.write("hf_vectors.jsonl", lines)


main()
