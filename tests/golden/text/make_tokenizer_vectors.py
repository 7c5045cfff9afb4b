#!/usr/bin/env python3
"""Makes vocabularies and vectors with Hugging Face's `tokenizers` and Google's `sentencepiece` as the judges.

    pip install tokenizers sentencepiece protobuf gguf
    make_tokenizer_vectors.py [SmolLM2-135M-Instruct.gguf]

tiny_vocab.json, tiny_vectors.jsonl (byte-level BPE, `tokenizers`), tiny_spm.json, spm_vectors.jsonl (SentencePiece) and,
with the model file, smollm2_vectors.jsonl. The vocabularies are trained here, on the text below. The seeds are fixed: the
same versions write the same files (made with tokenizers 0.23.3, sentencepiece 0.2.3).
"""
import io
import json
import pathlib
import random
import re
import sys
import unicodedata

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
USER_DEFINED = ["<tool_call>", "    "]

CORPUS = [
    "A node that prefers prefill computes the prompt in chunks and pushes each finished page to the node that decodes.",
    "Pages are placed by their owner; nobody writes into the memory of another. When a page is late it is dropped.",
    "The router picks a split: zero keeps the whole request on one node, the length of the prompt separates the two.",
    "for (size_t i = 0; i < n; i++) {\n    sum += values[i];\n    if (sum > limit)\n        return false;\n}\n",
    "It's what they've said: we'll see, I'm sure you'd agree, don't you? She isn't here, he's there.",
    "Der Knoten rechnet den Anfang, überträgt die Seiten und prüft größere Mengen; danach fließt der Text weiter.",
    "Le nœud précédent a déjà envoyé les pages; c'est l'heure d'écrire la réponse, mot après mot.",
    "分离预填充和解码可以减少延迟。页面由接收方放置。你好，世界！",
    "Токены идут один за другим, и ни один не теряется.",
    "12 pages, 345 tokens, 6789 bytes; 3.14 and 2.71; version 0.1.0 of 2024-05-06 at 07:08:09.",
    "https://example.org/path?query=value&other=1#part   \t tabs\tand   spaces \n\n\nnew lines\r\n",
    "{\"role\": \"user\", \"content\": \"Hello!\"} [1, 2, 3] <b>bold</b> a_b_c CamelCase UPPER lower",
]

ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BEFORE = r"[^\r\n\p{L}\p{N}]?"
PATTERNS = {
    "qwen2": ENGLISH + "|" + BEFORE + r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES,
    "qwen35": ENGLISH + "|" + BEFORE + r"[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + SPACES,
    "llama-bpe": ENGLISH + "|" + BEFORE + r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES,
    "tekken": f"{BEFORE}{UPPER}*{LOWER}+|{BEFORE}{UPPER}+{LOWER}*" + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES,
}


def pre_tokenizer(name):
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if name == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name == "smollm":
        return pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
        )
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERNS[name]), "isolated"), byte_level])


def build(vocab, merges, pre, control, user_defined):
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre in ("llama-bpe", "tekken")))
    if pre.startswith("qwen"):
        t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizer(pre)
    t.decoder = decoders.ByteLevel()
    if user_defined:
        t.add_tokens([AddedToken(s, normalized=False) for s in user_defined])
    if control:
        t.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in control])
    return t


FIXED = [
    "", " ", "  ", "   ", "\n", "\n\n", " \n", "\t", "\r\n", "a", " a", "a ", "  a", "a  b", "a   1", "1  a", "  1  2  ",
    "Hello, world!", "Hello world! 123", "  multiple   spaces", "Café déjà vu.", "The capital of France is", "12345678",
    "3.14159, 1e-5, 0x1F", "½ ² ⅷ ٣ 四 ①", "I'm you're we've he'd she'll it's don't", "I'M YOU'RE WE'VE IT'S DON'T",
    "'S 'ſ 'K", "naïve Straße ǅ Ǆ", "你好，世界！这是一个测试。", "こんにちは世界", "Привет, мир", "שלום עולם", "مرحبا بالعالم",
    "🙂", "👩‍👩‍👧‍👦 family", "e\u0301 combining", "\u00a0nbsp\u2003em\u3000ideographic\u180emongolian\u200bzero",
    "\u0085next\u2028line\u2029para", "a\x00b", "tab\tand\ttabs", "line\r\nline\rline\n", "trailing \n\n  ", "=== --- ***",
    "foo_bar(baz[0], \"x\") // c", "    if (x) {\n        return;\n    }\n", "<|im_start|>user\nHi<|im_end|>\n",
    "<|im_start|", "x<tool_call>y</tool_call>", "<|endoftext|><|endoftext|>", "<<|im_end|>>", "a" * 100, " " * 100,
    "ab" * 60, "!" * 70, "\n" * 40, "9" * 40, "\ufffd", "\ue000\U000f0000", "𝒳𝓎 𝟙𝟚", "Ⅳ", "a\u0300\u0301b", "﷽", "q\u0307\u0323\u0301x", "\u1100\u1161\u11a8 \uac00\u11a8", "\u212b \u0958 \ufb1d",
    "HTTPServer fooBar ÀÉî x/y//\n", "हिन्दी में नमस्ते", "สวัสดี", "node, nodes and pages",
]
FIXED.append("\n".join(CORPUS[:8] + FIXED[20:34] + CORPUS[2:6] + FIXED[30:36]))  # long enough for words to be remembered
ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz ", "ABCdef '", " \t\n\r\u00a0\u2003\u3000", "0123456789²½٣", ".,;:!?-_()[]{}<>|/\\\"'`~@#$%^&*+=",
    "äöüßéèñçøåœ", "你好世界分离页面", "приветмир", "🙂🚀🎉\u200d\ufe0f", "'s't're've'm'll'd'S'T", "\u0301\u0300\u0308",
]


def random_texts(n, seed):
    rng = random.Random(seed)
    for _ in range(n):
        parts = []
        for _ in range(rng.randint(1, 8)):
            chars = rng.choice(ALPHABETS)
            if rng.random() < 0.3:
                words = rng.choice(CORPUS).split(" ")
                at = rng.randrange(len(words))
                parts.append(" ".join(words[at : at + rng.randint(1, 6)]))
            else:
                parts.append("".join(rng.choice(chars) for _ in range(rng.randint(1, 8))))
        yield "".join(parts)


def vectors(make, pres, n_random, seed):
    """Lines {pre, special, text, ids}: special says whether control tokens are recognised."""
    for pre in pres:
        for special in (False, True):
            t = make(pre, special)
            texts = list(FIXED) + list(random_texts(n_random, seed))
            if special:
                texts = [s for s in FIXED if "<" in s] + [
                    a + rng_special + b
                    for (a, b), rng_special in zip(
                        zip(random_texts(8, seed + 1), random_texts(8, seed + 2)), CONTROL * 3
                    )
                ]
            for text in texts:
                line = {"pre": pre, "special": special, "text": text, "ids": t.encode(text, add_special_tokens=False).ids}
                if pre.startswith("qwen") and unicodedata.normalize("NFC", text) != text:
                    line["decoded"] = t.decode(line["ids"], skip_special_tokens=False)
                yield line


def write(name, lines):
    with open(HERE / name, "w", encoding="utf-8") as f:
        for line in lines:
            f.write(json.dumps(line, ensure_ascii=True, separators=(",", ":")) + "\n")


def tiny():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizer("smollm")
    t.train_from_iterator(
        CORPUS * 4,
        trainers.BpeTrainer(
            vocab_size=512,
            special_tokens=CONTROL,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    model = json.loads(t.to_str())["model"]
    vocab, merges = model["vocab"], [tuple(m) for m in model["merges"]]
    tokens = [s for s, _ in sorted(vocab.items(), key=lambda kv: kv[1])]
    types = [3 if s in CONTROL else 1 for s in tokens]
    for s in USER_DEFINED:
        tokens.append(s)
        types.append(4)
    with open(HERE / "tiny_vocab.json", "w", encoding="utf-8") as f:
        json.dump(
            {"model": "gpt2", "tokens": tokens, "types": types, "merges": [" ".join(m) for m in merges],
             "bos_id": 1, "eos_id": 2, "unk_id": 0},
            f, ensure_ascii=True, separators=(",", ":"),
        )
        f.write("\n")
    vocab = {s: i for i, s in enumerate(tokens) if types[i] == 1 or s in CONTROL}

    def make(pre, special):
        return build(vocab, merges, pre, CONTROL if special else [], USER_DEFINED)

    write("tiny_vectors.jsonl", vectors(make, ["smollm", "gpt-2", *PATTERNS], 60, 1))


SPM_CONTROL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
SPM_USER_DEFINED = ["<tool_call>", "▁▁", "▁▁▁", "\t\t"]


def spm_proto():
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 4),
        model_writer=out,
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        character_coverage=0.98,
        control_symbols=SPM_CONTROL[3:],
        user_defined_symbols=SPM_USER_DEFINED,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        num_threads=1,
        minloglevel=2,
    )
    return sentencepiece_model_pb2.ModelProto.FromString(out.getvalue())


def spm_odd(proto):
    """Scores that many tokens share, and letters that are no tokens though tokens have them."""
    for p in proto.pieces:
        if p.type == 1:
            p.score = round(p.score / 40)
            if len(p.piece) == 1 and p.piece in "ehä,页":
                p.piece = f"<gone {ord(p.piece)}>"


def spm_processor(proto, prefix, hide_user_defined=False, bytes_too=True):
    m = sentencepiece_model_pb2.ModelProto.FromString(proto.SerializeToString())
    m.normalizer_spec.add_dummy_prefix = prefix
    m.trainer_spec.byte_fallback = bytes_too
    for p in m.pieces:
        if hide_user_defined and p.type == 4:
            p.piece = "\x01" + p.piece  # literal tokens were cut out before
        if not bytes_too and p.type == 6:
            p.type = 5
    return sentencepiece.SentencePieceProcessor(model_proto=m.SerializeToString())


def spm():
    """spm: a space in front of each text between literal tokens, as llama.cpp and tokenizer.json have it. spm-plain: none.
    spm-odd: the odd vocabulary. spm-unk: without byte tokens."""
    proto = spm_proto()
    odd = sentencepiece_model_pb2.ModelProto.FromString(proto.SerializeToString())
    spm_odd(odd)
    tokens = [p.piece.replace("▁", " ") if p.type == 4 else p.piece for p in proto.pieces]
    with open(HERE / "tiny_spm.json", "w", encoding="utf-8") as f:
        json.dump(
            {"model": "llama", "tokens": tokens, "types": [p.type for p in proto.pieces],
             "scores": [p.score for p in proto.pieces], "bos_id": 1, "eos_id": 2, "unk_id": 0,
             "odd": {"tokens": [t if p.type == 4 else p.piece for t, p in zip(tokens, odd.pieces)],
                     "scores": [p.score for p in odd.pieces]}},
            f, ensure_ascii=True, separators=(",", ":"),
        )
        f.write("\n")
    ids = {s: i for i, s in enumerate(tokens)}
    user_defined = [s.replace("▁", " ") for s in SPM_USER_DEFINED]
    lines = []

    def pieces(text, literals):
        pattern = "|".join(re.escape(s) for s in sorted(literals, key=len, reverse=True))
        return [s for s in re.split(f"({pattern})", text) if s]

    def add(pre, special, text, judged, decoded=None):
        line = {"pre": pre, "special": special, "text": text, "ids": judged}
        if pre == "spm-unk":
            line["decoded"] = None  # what is unknown is lost
        elif decoded is not None and decoded != text:
            line["decoded"] = decoded
        lines.append(line)

    texts = FIXED + list(random_texts(90, 11))
    in_parts = spm_processor(proto, True, hide_user_defined=True)
    in_parts_plain = spm_processor(proto, False, hide_user_defined=True)
    plain = spm_processor(proto, False)
    for special in (False, True):
        literals = user_defined + (SPM_CONTROL if special else [])
        for text in texts:
            if special and "<" not in text:
                continue
            parts = pieces(text, literals)
            spaced = "".join(p if p in literals else " " + p for p in parts)
            add("spm", special, text, sum(([ids[p]] if p in literals else in_parts.encode(p) for p in parts), []),
                spaced[1:] if spaced[:1] == " " else spaced)
            if special:
                add("spm-plain", True, text,
                    sum(([ids[p]] if p in literals else in_parts_plain.encode(p) for p in parts), []))
    for text in texts:
        add("spm-plain", False, text, plain.encode(text))
    judge = spm_processor(odd, False)
    for text in texts:
        add("spm-odd", False, text, judge.encode(text))
    judge = spm_processor(odd, False, bytes_too=False)
    for text in texts:
        if not any(s in text for s in user_defined):
            add("spm-unk", False, text, judge.encode(text))
    write("spm_vectors.jsonl", lines)


def smollm2(path):
    import gguf

    fields = gguf.GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    vocab = {s: i for i, s in enumerate(tokens)}
    control = [s for s, k in zip(tokens, types) if k == 3]

    def make(pre, special):
        return build(vocab, merges, pre, control if special else [], [])

    write("smollm2_vectors.jsonl", vectors(make, ["smollm"], 250, 7))


if __name__ == "__main__":
    tiny()
    spm()
    if len(sys.argv) > 1:
        smollm2(sys.argv[1])
