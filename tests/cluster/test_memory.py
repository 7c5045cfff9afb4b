"""What a node takes: its report adds up to what the kernel counts; and a second start reads packed weights."""
import os
import re
import unittest

import harness

# Beside weights and KV a node may have this much: activations, logits, code, stacks, buffers of the wire.
REST_BYTES = 200 << 20


def status_bytes(pid, key):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(rf"^{key}:\s*(\d+) kB", f.read(), re.M).group(1)) << 10


def has_sanitizer(pid):
    with open(f"/proc/{pid}/maps") as f:
        return bool(re.search(r"lib[at]san|libclang_rt", f.read()))


class Memory(unittest.TestCase):
    def test_report_adds_up_and_the_second_start_is_from_the_cache(self):
        with harness.Cluster(prefill=0, node_options=["--kv-memory", "128M"]) as c:
            c.complete(harness.prompt_of(600), 4)
            c.wait_idle()
            node = c.daemons["d0"]
            values = {r["key"]: float(r["value"]) for t in c.tables("nodes", "d0").values() for r in t if r.get("key", "").startswith("memory_")}
            weights, kv, scratch = (values[f"memory_{k}_bytes"] for k in ("weights", "kv", "scratch"))
            resident = 0

            def all_is_touched():
                nonlocal resident
                resident = status_bytes(node.process.pid, "VmRSS")
                return resident > weights + kv
            self.assertGreater(weights, 100_000)
            self.assertLessEqual(kv, 128 << 20)
            self.assertGreater(kv, 127 << 20)
            harness.wait_for("the memory of the pages to be touched", all_is_touched)
            if not has_sanitizer(node.process.pid):
                self.assertLess(resident, weights + kv + REST_BYTES)
                self.assertLess(scratch, REST_BYTES)
                # the peak of loading is no more than what stays
                self.assertLess(status_bytes(node.process.pid, "VmHWM"), weights + kv + REST_BYTES)
            harness.wait_for("the packed weights to be saved", lambda: "saved for the next start" in node.log())
            self.assertEqual(node.stop(), 0)
            harness.wait_for("the router to miss it", lambda: not [n for n in c.nodes() if n["state"] in ("ready", "up")])
            again = c.start_node("d0", "sluice-decode")
            c.wait_nodes(1)
            self.assertIn("weights_from=cache", again.log().split("node stops")[1])
            tokens, _ = c.complete(harness.prompt_of(40), 8)
            self.assertEqual(len(tokens), 8)


if __name__ == "__main__":
    unittest.main(verbosity=2)
