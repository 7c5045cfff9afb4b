"""The operations guide as a script: its code blocks by name, and which of them have run.

A block is indented by four blanks under a comment that says what to do with it: <!-- run: NAME --> commands of a shell, <!-- conf: FILE --> keys to set.
"""
import re

BLOCK = re.compile(r"<!-- (\w+): (\S+) -->\n\n((?:(?:    .*)?\n)+)")
CODE = re.compile(r"^    \S", re.M)


class Guide:
    def __init__(self, path):
        with open(path) as f:
            text = f.read()
        self.blocks = [(kind, name, [line[4:] for line in body.split("\n") if line.strip()]) for kind, name, body in BLOCK.findall(text)]
        self.left = {(kind, name) for kind, name, _ in self.blocks}
        n_named = sum(len(lines) for _, _, lines in self.blocks)
        assert n_named == len(CODE.findall(text)), f"{path}: every code block needs a line <!-- run: NAME --> or <!-- conf: FILE --> above it"

    def commands(self, name):
        self.left.discard(("run", name))
        return next("\n".join(["set -e", *lines]) for kind, n, lines in self.blocks if (kind, n) == ("run", name))

    def keys(self, path, at=0):
        """The keys of the at-th block for a file."""
        self.left.discard(("conf", path))
        found = [lines for kind, name, lines in self.blocks if (kind, name) == ("conf", path)]
        return dict(re.split(r" *= *", line, maxsplit=1) for line in found[at])
