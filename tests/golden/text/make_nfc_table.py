#!/usr/bin/env python3
"""Writes common/text/nfc_table.h and nfc_vectors.jsonl, from Python's unicodedata, less what Hugging Face's `tokenizers` does not know.

    pip install tokenizers

Models were trained with what that library does, and its tables are those of an old Unicode. (Made with Unicode 14 of
Python 3.11 and tokenizers 0.23.3.)
"""
import json
import pathlib
import random
import sys
import unicodedata

from tokenizers import normalizers

NFC, NFD = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
OUT = pathlib.Path(__file__).parents[3] / "common" / "text" / "nfc_table.h"
ALL = [c for c in range(sys.maxunicode + 1) if not 0xD800 <= c <= 0xDFFF and not 0xAC00 <= c <= 0xD7A3]


def canonical(c):
    d = unicodedata.decomposition(chr(c))
    known = d and not d.startswith("<") and NFD(chr(c)) != chr(c)
    return [int(x, 16) for x in d.split()] if known else None


def combining(c):
    """The class, 0 when the library does not move the character."""
    v = unicodedata.combining(chr(c))
    low, high = chr(0x334), chr(0x345)  # classes 1 and 240
    moves = NFD(chr(c) + low)[0] == low if v > 1 else NFD(high + chr(c))[-1] == high
    return v if moves else 0


decomposition = {c: canonical(c) for c in ALL if canonical(c)}
composed = {tuple(d): c for c, d in decomposition.items() if len(d) == 2 and NFC(chr(c)) == chr(c)}
classes = {c: combining(c) for c in ALL if unicodedata.combining(chr(c)) and combining(c)}
seconds = {pair[1] for pair in composed}
careful = set(classes) | seconds | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
careful |= {c for c in decomposition if NFC(chr(c)) != chr(c)}


def ranges(keys, value):
    out = []
    for c in sorted(keys):
        if out and out[-1][1] + 1 == c and out[-1][2] == value(c):
            out[-1][1] = c
        else:
            out.append([c, c, value(c)])
    return out


def rows(items):
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > 110:
            yield line
            line = "   "
        line += " " + item + ","
    yield line


def table(declaration, items):
    return [declaration + " = {", *rows(items), "};", ""]


text = [
    "/* common/text/nfc_table.h - canonical decompositions, compositions and combining classes.",
    " *",
    " * Written by tests/golden/text/make_nfc_table.py. Hangul syllables are computed, see nfc.c. */",
    "#ifndef SLUICE_COMMON_TEXT_NFC_TABLE_H",
    "#define SLUICE_COMMON_TEXT_NFC_TABLE_H",
    "",
    "#include <stdint.h>",
    "",
    "/* clang-format off */",
    "/* character, first and second (0 = none) of its decomposition; ascending */",
    *table("static const uint32_t nfc_decomposition[][3]",
           [f"{{{c:#x},{d[0]:#x},{d[1] if len(d) > 1 else 0:#x}}}" for c, d in sorted(decomposition.items())]),
    "/* rows of nfc_decomposition that compose again, by first and second */",
    *table("static const uint16_t nfc_composition[]",
           [str(sorted(decomposition).index(c)) for _, c in sorted(composed.items())]),
    "/* first and last character, combining class; ascending */",
    *table("static const uint32_t nfc_class[][3]", [f"{{{a:#x},{b:#x},{v}}}" for a, b, v in ranges(classes, classes.get)]),
    "/* first and last character of those that normalising may change or join to the one before; ascending */",
    *table("static const uint32_t nfc_careful[][2]", [f"{{{a:#x},{b:#x}}}" for a, b, _ in ranges(careful, lambda c: 0)]),
    "/* clang-format on */",
    "#endif",
]
OUT.write_text("\n".join(text) + "\n")

# {text, nfc}: marks in disorder, letters that decompose, jamo; short ones and a few long ones
rng = random.Random(3)
pool = [*map(chr, classes), *map(chr, decomposition), *map(chr, range(0x1100, 0x11FF)), "\uac00", "\uac01"] + list("aeioqAEO .") * 60
with open(pathlib.Path(__file__).parent / "nfc_vectors.jsonl", "w", encoding="utf-8") as f:
    for i in range(300):
        s = "".join(rng.choice(pool) for _ in range(rng.randint(1, 6) if i % 30 else 60))
        f.write(json.dumps({"text": s, "nfc": NFC(s)}, separators=(",", ":")) + "\n")
