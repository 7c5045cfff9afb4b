#!/usr/bin/env python3
"""tests/lint/check_docs.py ROOT - docs/api.md says what the router does: its rows against the tables in the code.

Members of a request (router/api/openai_parse.c, responses_parse.c), paths and who may ask them (router/api/api.c), and headers.
Prints one line per fault and exits 1 when there is any.
"""
import os
import re
import sys

# what the row's first cell begins with, for each use in the code; all other rows are members that are read
USES = {"passed over": "IGNORED", "refused by name": "REFUSED"}
WHO = {"PUBLIC": "anyone", "ADMIN": "operators"}
ROUTE = re.compile(r'\{"(GET|POST)", "([^"]+)", \w+, \w+, ([^}]*)\}')


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def rows(text, title):
    """The cells of the tables under a heading, without their first two lines."""
    section = text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.split("\n") if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names(cell):
    return re.findall(r"`([^`]+)`", cell)


def differences(what, said, done):
    for name in sorted(set(said) | set(done)):
        if said.get(name) != done.get(name):
            yield f"docs/api.md: {what} {name}: the document says {said.get(name, 'nothing')}, the code {done.get(name, 'nothing')}."


def check_members(root, doc):
    for title, source in (("Members of a request", "openai_parse.c"), ("Responses", "responses_parse.c")):
        done = dict(re.findall(r'^    \{"(\w+)", (READ|IGNORED|REFUSED)\b', read(root, "router/api/" + source), re.M))
        said = {}
        for what, members in rows(doc, title):
            use = next((use for start, use in USES.items() if what.startswith(start)), "READ")
            values = r" \([^()]*\)"  # what a member may say
            said.update(dict.fromkeys(re.findall(r"`(\w+)`", re.sub(values, "", members)), use))
        yield from differences("member", said, done)


def check_paths(root, doc):
    done, said = {}, {}
    for method, path, flags in ROUTE.findall(read(root, "router/api/api.c")):
        done[f"{method} {path}"] = next((who for flag, who in WHO.items() if flag in flags), "clients")
    for path, methods, who, _ in rows(doc, "Paths"):
        plain = names(path)[0]
        plain = plain[3:] if plain.startswith("/v1/") else plain
        said.update({f"{method} {plain}": who for method in methods.split(", ")})
    return differences("path", said, done)


def check_headers(root, doc):
    code = read(root, "router/api/sluice_headers.c") + read(root, "router/api/slo_class.c")
    done = dict.fromkeys(re.findall(r'"(X-Sluice-[A-Za-z-]+)"', code), "it is read")
    said = {name: "it is read" for row in rows(doc, "Headers of Sluice") for name in names(row[0])}
    return differences("header", said, done)


def main():
    root = sys.argv[1]
    doc = read(root, "docs/api.md")
    faults = [fault for check in (check_members, check_paths, check_headers) for fault in check(root, doc)]
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
