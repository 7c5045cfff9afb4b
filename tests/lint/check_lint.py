#!/usr/bin/env python3
"""tests/lint/check_lint.py ROOT - the rules of the tree that a compiler does not check.

Layers by #include lines, unique file names, banned calls, file length, include guards, left-over notes. Reads the
.c, .h and .cu files that are not build output. Prints one line per fault, FILE:LINE: sentence, and exits 1 when there
is any. --self-test runs the checks over small made-up trees and fails when one of them misses its fault.
"""
import os
import re
import sys

MAX_LINES = 900
SOURCE_TOPS = ("common", "kernels", "router", "prefill_node", "decode_node", "tests")

# The layers, lowest first: a folder includes itself and the lines above its own, never a neighbour in its line.
LAYERS = (
    ("common/base",),
    ("common/wire", "common/text", "kernels", "common/kv", "common/grammar"),
    ("common/model", "common/sched", "common/transfer"),
    ("common/engine",),
    ("common/node",),
    ("prefill_node", "decode_node"),
)
ALLOWED = {folder: sum(LAYERS[:i], ()) for i, folders in enumerate(LAYERS) for folder in folders}
# Beside the layers: the router sees no pages and no engine, sluicectl nothing but the wire.
ALLOWED["router"] = ("common/base", "common/wire", "common/text", "common/grammar", "common/sched", "common/kv/kv_hash.h")
ALLOWED["router/ctl"] = ("common/base", "common/wire")
# Both programs offer both duties: their mains, and nothing else, know the other folder.
ALLOWED["prefill_node/main.c"] = ALLOWED["prefill_node"] + ("prefill_node", "decode_node")
ALLOWED["decode_node/main.c"] = ALLOWED["decode_node"] + ("prefill_node", "decode_node")
PROTO_HEADER = "proto/sluice.pb-c.h"
PROTO_USERS = ("common/wire", "common/node", "prefill_node", "decode_node", "router")

BANNED = ("strcpy", "strcat", "sprintf", "vsprintf", "strtok", "atoi", "atol", "atoll", "gets", "alloca")
RAW_MEMORY = ("malloc", "calloc", "realloc", "free")
RAW_MEMORY_HOME = "common/base/mem.c"
NOTES = re.compile(r"\b(TODO|FIXME|XXX)\b")

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
CALL = re.compile(r"(?<![\w.>])(%s)\s*\(" % "|".join(BANNED + RAW_MEMORY))
LITERAL_OR_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def under(path, folder):
    return path == folder or path.startswith(folder + "/")


def code_only(text):
    """The text with comments and literals blanked, lines kept."""
    return LITERAL_OR_COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def layer_of(path):
    fits = [folder for folder in ALLOWED if under(path, folder)]
    return max(fits, key=len) if fits else None


def check_includes(path, text):
    layer = layer_of(path)
    for number, line in enumerate(text.split("\n"), 1):
        m = INCLUDE.match(line)
        if not m:
            continue
        target = m.group(1)
        if target == PROTO_HEADER:
            if not under(path, "tests") and not any(under(path, u) for u in PROTO_USERS):
                yield number, f"{target} belongs to the wire and to those who convert messages"
            continue
        if not any(under(target, top) for top in SOURCE_TOPS):
            yield number, f'"{target}" is not written from the repo root'
            continue
        if layer is None:  # tests may look at everything
            continue
        if under(target, "tests"):
            yield number, f"{target}: only tests include tests"
            continue
        if under(target, layer) and (layer != "router" or not under(target, "router/ctl")):
            continue
        if not any(under(target, a) for a in ALLOWED[layer]):
            yield number, f"{layer} may not include {target} (layers: docs/architecture.md)"


def check_calls(path, text):
    for number, line in enumerate(code_only(text).split("\n"), 1):
        for m in CALL.finditer(line):
            name = m.group(1)
            if name in BANNED:
                yield number, f"{name}() is banned: it has no bound or no error"
            elif path != RAW_MEMORY_HOME:
                yield number, f"{name}() outside {RAW_MEMORY_HOME}: use sl_xalloc, sl_try_alloc, sl_free"


def check_guard(path, text):
    if not path.endswith(".h"):
        return
    # file names are unique in the tree, so a guard that ends with the name is
    name = re.sub(r"[^A-Za-z0-9]", "_", os.path.basename(path)).upper()
    directives = [line.split() for line in code_only(text).split("\n") if line.startswith("#")]
    m = directives and re.fullmatch(r"#ifndef (SLUICE_(\w+_)?%s)" % name, " ".join(directives[0]))
    if not m or len(directives) < 3 or directives[1] != ["#define", m.group(1)] or directives[-1][0] != "#endif":
        yield 1, f"the include guard must be SLUICE_..._{name}"


def check_file(path, text):
    yield from check_includes(path, text)
    yield from check_calls(path, text)
    yield from check_guard(path, text)
    n_lines = text.count("\n")
    if n_lines > MAX_LINES:
        yield n_lines, f"{n_lines} lines; {MAX_LINES} at most: look for two ideas in it"
    for number, line in enumerate(text.split("\n"), 1):
        if NOTES.search(line):
            yield number, "a note to do it later; do it or file an issue"


def check_names(paths):
    seen = {}
    for path in sorted(paths):
        name = os.path.basename(path)
        if name == "main.c" or not path.endswith((".c", ".h", ".cu")):
            continue
        if name in seen:
            yield path, 1, f"the name {name} is taken by {seen[name]}"
        seen.setdefault(name, path)


def check_tree(files):
    """files: path -> text. Yields 'FILE:LINE: sentence'."""
    for path in sorted(files):
        for number, sentence in check_file(path, files[path]):
            yield f"{path}:{number}: {sentence}"
    for path, number, sentence in check_names(files):
        yield f"{path}:{number}: {sentence}"


def read_tree(root):
    files = {}
    for top in SOURCE_TOPS:
        for folder, subfolders, names in os.walk(os.path.join(root, top)):
            subfolders[:] = [s for s in subfolders if not s.startswith((".", "build"))]
            for name in names:
                if name.endswith((".c", ".h", ".cu")):
                    full = os.path.join(folder, name)
                    with open(full, encoding="utf-8") as f:
                        files[os.path.relpath(full, root).replace(os.sep, "/")] = f.read()
    return files


def header(path, body=""):
    guard = "SLUICE_" + re.sub(r"[^A-Za-z0-9]", "_", path).upper()
    return f"/* h */\n#ifndef {guard}\n#define {guard}\n{body}\n#endif\n"


def self_test():
    good = [
        {"common/kv/a.c": '#include "common/base/err.h"\n#include "common/kv/a.h"\n', "common/kv/a.h": header("common/kv/a.h")},
        {"router/flow/a.c": '#include "common/kv/kv_hash.h"\n#include "router/place/b.h"\n#include "proto/sluice.pb-c.h"\n'},
        {"router/ctl/a.c": '#include "common/wire/w.h"\n#include "router/ctl/b.h"\n'},
        {"decode_node/main.c": '#include "common/node/n.h"\n', "prefill_node/main.c": '#include "common/engine/e.h"\n'},
        {"common/engine/a.c": '#include "common/model/m.h"\n', "common/model/b.c": '#include "kernels/backend.h"\n'},
        {"tests/unit/a.c": '#include "router/flow/x.h"\n#include "tests/support/s.h"\n'},
        {"common/base/mem.c": "void f(void)\n{\n    free(malloc(1));\n}\n"},
        {"common/kv/a.c": '/* calls free() */\nconst char *s = "sprintf(";\nint x = o->free(1) + sl_free(2) + my.realloc(3);\n'},
        {"common/kv/a.c": "\n" * MAX_LINES},
    ]
    bad = [
        ({"common/base/a.c": '#include "common/wire/w.h"\n'}, "common/base/a.c:1: common/base may not include"),
        ({"common/kv/a.c": '\n#include "common/text/t.h"\n'}, "common/kv/a.c:2: common/kv may not include"),
        ({"common/engine/a.c": '#include "common/node/n.h"\n'}, "common/engine may not include"),
        ({"common/node/a.c": '#include "decode_node/d.h"\n'}, "common/node may not include"),
        ({"router/flow/a.c": '#include "common/kv/kv_pool.h"\n'}, "router may not include"),
        ({"router/flow/a.c": '#include "router/ctl/c.h"\n'}, "router may not include"),
        ({"router/ctl/a.c": '#include "router/flow/f.h"\n'}, "router/ctl may not include"),
        ({"router/ctl/a.c": '#include "common/text/t.h"\n'}, "router/ctl may not include"),
        ({"common/kv/a.c": '#include "a.h"\n'}, "not written from the repo root"),
        ({"common/kv/a.c": '#include "tests/support/s.h"\n'}, "only tests include tests"),
        ({"common/engine/a.c": '#include "proto/sluice.pb-c.h"\n'}, "belongs to the wire"),
        ({"common/kv/a.c": "", "kernels/cpu/a.c": ""}, "the name a.c is taken by common/kv/a.c"),
        ({"common/kv/a.h": header("common/kv/b.h")}, "guard must be SLUICE_..._A_H"),
        ({"common/kv/a.h": "#pragma once\n"}, "guard must be"),
        ({"common/kv/a.h": "#ifndef SLUICE_A_H\n#define SLUICE_B_H\n#endif\n"}, "guard must be"),
        ({"common/kv/a.h": "#ifndef A_H\n#define A_H\n#endif\n"}, "guard must be"),
        ({"common/kv/a.c": '#include "kernels/backend.h"\n'}, "common/kv may not include"),
        ({"common/sched/a.c": '#include "common/model/m.h"\n'}, "common/sched may not include"),
        ({"common/kv/a.c": "\n" * (MAX_LINES + 1)}, "901 lines"),
        ({"common/kv/a.c": "/* TO" + "DO */\n"}, "a note to do it later"),
        ({"common/kv/a.c": "// one ' quote\nint x = free (p);\n"}, "common/kv/a.c:2: free() outside"),
        ({"common/kv/a.c": "#define F(p) free(p)\n"}, "free() outside"),
        ({"tests/unit/a.c": "int x = malloc(1);\n"}, "malloc() outside"),
    ]
    bad += [({"common/kv/a.c": f"int x = {name}(a);\n"}, f"{name}() is banned") for name in BANNED]
    faults = []
    for tree in good:
        for line in check_tree(tree):
            faults.append(f"self-test: wrongly reported: {line}")
    for tree, expected in bad:
        lines = list(check_tree(tree))
        if len(lines) != 1 or expected not in lines[0]:
            faults.append(f"self-test: expected one line with '{expected}', got {lines}")
    return faults


def main():
    if sys.argv[1:] == ["--self-test"]:
        faults = self_test()
    elif len(sys.argv) == 2:
        files = read_tree(sys.argv[1])
        faults = list(check_tree(files)) if files else [f"{sys.argv[1]}: no sources found"]
    else:
        sys.exit("usage: check_lint.py ROOT | --self-test")
    for line in faults:
        print(line)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
