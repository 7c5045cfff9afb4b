#!/usr/bin/env python3
"""tests/lint/check_faults.py ROOT BUILD | --self-test - docs/faults.md has a row for each of the 84 faults, and the tests that it names exist.

A name in backticks with a dot is a ctest (a part of one's last name will not do); words joined by underscores beside it are the first words of a test
function. BUILD is the build tree, whose ctest lists the tests; what not every build has (FILES) is known by its file.
"""
import os
import re
import subprocess
import sys

N_FAULTS = 84
KINDS = ("unit", "cluster", "sim", "spin", "fuzz", "golden", "lint")
# Under tests: stories that a build with sanitizers leaves out, what an engine alone does not have.
FILES = {"cluster": "cluster/test_{}.py", "spin": "spin/{}.pml", "fuzz": "fuzz/{}/fuzz_{}.c"}


def rows_of(text):
    return [(int(n), here) for n, _, here in re.findall(r"^\| (\d+) \| (.*?) \| (.*) \|$", text, re.M)]


def exists(name, ctests, files):
    kind, *words = name.split(".")
    if kind not in FILES:
        return name in ctests
    return FILES[kind].count("{}") == len(words) and FILES[kind].format(*words) in files


def check(text, ctests, functions, files):
    rows = rows_of(text)
    if [n for n, _ in rows] != list(range(1, N_FAULTS + 1)):
        yield f"docs/faults.md: rows {[n for n, _ in rows]}, expected 1 to {N_FAULTS}"
    for n, here in rows:
        if not here.strip():
            yield f"docs/faults.md: fault {n} has neither a test nor a reason"
        for name in re.findall(r"`((?:%s)\.[\w.]+)`" % "|".join(KINDS), here):
            if not exists(name, ctests, files):
                yield f"docs/faults.md: fault {n} names {name}, which is no test"
        for case in re.findall(r"\b[a-z0-9]+(?:_[a-z0-9]+)+\b", re.sub(r"`[^`]*`", "", here)):
            if not any(re.match(rf"(?:test_|case_)?{case}", f) for f in functions):
                yield f"docs/faults.md: fault {n} names the case {case}, which begins no test function's name"


def files_under(folder):
    return {os.path.relpath(os.path.join(where, name), folder) for where, _, names in os.walk(folder) for name in names}


def functions_in(folder, files):
    out = set()
    for name in files:
        if name.endswith((".c", ".py")):
            with open(os.path.join(folder, name), errors="replace") as f:
                out.update(re.findall(r"^(?:static )?void (\w+)\(|^ *def (test_\w+)\(", f.read(), re.M))
    return {a or b for a, b in out}


def ctests_of(build):
    listed = subprocess.run(["ctest", "--test-dir", build, "-N"], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"Test +#\d+: (\S+)", listed))


def self_test():
    good = "".join(f"| {n} | f | `unit.a.b` one_two_three |\n" for n in range(1, N_FAULTS + 1))
    other = [good.replace("`unit.a.b`", f"`{name}`", 1) for name in ("cluster.s", "fuzz.a.b", "spin.p", "cluster.x", "fuzz.a.x", "fuzz.b", "spin.x")]
    files = {"cluster/test_s.py", "fuzz/a/fuzz_b.c", "spin/p.pml"}
    cases = ((good, 0), (good.replace("| 7 |", "| 8 |", 1), 1), (good.replace("`unit.a.b`", "`unit.a.c`", 1), 1),
             (good.replace("one_two_three", "two_three_four", 1), 1), (good.replace("`unit.a.b` one_two_three", "", 1), 1),
             (good.replace("one_two_three", "one_two", 1), 0), (good.replace("one_two_three", "two_three", 1), 1),
             *zip(other, (0, 0, 0, 1, 1, 1, 1)))
    return [f"self-test: case {i} gave {found}" for i, (text, n) in enumerate(cases)
            for found in [list(check(text, {"unit.a.b"}, {"test_one_two_three_four"}, files))] if len(found) != n]


def main():
    if sys.argv[1:] == ["--self-test"]:
        faults = self_test()
    elif len(sys.argv) == 3:
        with open(os.path.join(sys.argv[1], "docs", "faults.md")) as f:
            text = f.read()
        tests = os.path.join(sys.argv[1], "tests")
        files = files_under(tests)
        faults = list(check(text, ctests_of(sys.argv[2]), functions_in(tests, files), files))
    else:
        sys.exit("usage: check_faults.py ROOT BUILD | --self-test")
    for line in faults:
        print(line)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
