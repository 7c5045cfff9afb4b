"""What a process holds: descriptors and resident memory, before chaos and after it."""
import os
from collections import Counter

from harness import DECISION_RECORDS, wait_for

# What an allocator may keep.
HEAP_BYTES = 16 << 20
# A router also keeps the records of its last requests: struct sl_decision (10 KB) with the times between its tokens, its entry in a map.
RECORD_BYTES = 11 << 10


def n_descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def descriptors(pid):
    """What each one is, the same ones counted together."""
    kinds = Counter()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            kinds[os.readlink(f"/proc/{pid}/fd/{fd}")] += 1
        except FileNotFoundError:
            pass  # closed meanwhile
    return ", ".join(f"{n} x {what}" if n > 1 else what for what, n in sorted(kinds.items()))


def resident_bytes(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def sanitized(path):
    """A sanitizer keeps freed memory back on purpose."""
    return any(word in path for word in ("asan", "tsan"))


class Footprint:
    """Taken when every pair of nodes has met: no more connections than now are ever needed."""

    def __init__(self, cluster):
        self.pids = {n: d.process.pid for n, d in cluster.daemons.items()}
        self.descriptors = {n: n_descriptors(pid) for n, pid in self.pids.items()}
        self.resident = {n: resident_bytes(pid) for n, pid in self.pids.items()}

    def kind_most(self, name):
        """A restarted node is measured against the others of its kind."""
        return max(v for n, v in self.descriptors.items() if n[0] == name[0])

    def judge(self, cluster, n_asked, problems):
        """Adds a sentence for each process that holds more after n_asked requests; the resident memory before and after."""
        out = {}
        for name, d in cluster.daemons.items():
            pid = d.process.pid
            most = self.kind_most(name)
            try:
                wait_for(f"{name} to hold no more than {most} descriptors", lambda: n_descriptors(pid) <= most)
            except AssertionError as e:
                problems.append(f"{e}; it holds {n_descriptors(pid)}: {descriptors(pid)}")
            now = resident_bytes(pid)
            out[name] = [self.resident[name], now]
            same = pid == self.pids[name]
            may_grow = HEAP_BYTES + (min(n_asked, DECISION_RECORDS) * RECORD_BYTES if name in cluster.routers else 0)
            if same and now > self.resident[name] + may_grow and not sanitized(os.readlink(f"/proc/{pid}/exe")):
                problems.append(f"{name} grew from {self.resident[name]} to {now} bytes")
        return out
