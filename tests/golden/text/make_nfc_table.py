#!/usr/bin/env python3
"""Writes common/text/nfc_table.h from Python's unicodedata (run with a Python of Unicode 14, as 3.11)."""
import pathlib
import sys
import unicodedata

assert unicodedata.unidata_version == "14.0.0", unicodedata.unidata_version
OUT = pathlib.Path(__file__).parents[3] / "common" / "text" / "nfc_table.h"
ALL = [c for c in range(sys.maxunicode + 1) if not 0xD800 <= c <= 0xDFFF and not 0xAC00 <= c <= 0xD7A3]


def canonical(c):
    d = unicodedata.decomposition(chr(c))
    return [int(x, 16) for x in d.split()] if d and not d.startswith("<") else None


decomposition = {c: canonical(c) for c in ALL if canonical(c)}
composed = {tuple(d): c for c, d in decomposition.items() if len(d) == 2 and unicodedata.normalize("NFC", chr(c)) == chr(c)}
classes = {c: unicodedata.combining(chr(c)) for c in ALL if unicodedata.combining(chr(c))}
seconds = {pair[1] for pair in composed}
careful = set(classes) | seconds | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
careful |= {c for c in decomposition if unicodedata.normalize("NFC", chr(c)) != chr(c)}


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
    "/* common/text/nfc_table.h - canonical decompositions, compositions and combining classes of Unicode 14.",
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
