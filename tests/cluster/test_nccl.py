"""Pages over NCCL, which is the fake of tests/support/fake_nccl on host memory: the same tokens as over UCX, another transport refused in words, a
prefill node that is killed or hangs in a transfer noticed, and no page lost."""
import os
import signal
import unittest

from harness import BIN, Cluster, at, prompt_of, wait_for
from streams import Background, errors_of, tokens_of

FAKE = {"LD_LIBRARY_PATH": os.path.join(BIN, "..", "fake_nccl")}
NCCL = ["--transfer-transport", "nccl"]
# Chunks of one page, of which P makes fewer than the longer prompt has.
PAGE = {"X-Sluice-Chunk": "16"}
HOLD, PROMPT_TOKENS = 16, 400
FIRST_TOKENS, FIRST_PAGES = 150, 10  # of the request that pairs the nodes
# A node that hangs is seen after this; the other, the only place, may be slow.
FAST_BEATS = ["--heartbeat-ms", "50", "--node-dead-ms", "15000"]


def link(c, p, d):
    """What p last reported of its link to d; nodes report with their heartbeats."""
    return next((r for r in c.tables("links")["links"] if (r["prefill"], r["decode"]) == (p, d)), {"state": "none", "pages_sent": "0"})


class Nccl(unittest.TestCase):
    def start(self, c, ucx):
        for i in range(2 if ucx else 1):
            options, env = (NCCL, FAKE) if i == 0 else ([], None)
            c.start_node(f"p{i}", "sluice-prefill", options, env)
            c.start_node(f"d{i}", "sluice-decode", options, env)
        c.wait_nodes(4 if ucx else 2)

    def lose_p0(self, c, sig):
        prompt = prompt_of(PROMPT_TOKENS, 2)
        want, _ = c.complete(prompt, 16, "colocated", at("d0"), cache_salt="base")
        wait_for("p0 to report the pages so far", lambda: int(link(c, "p0", "d0")["pages_sent"]) == FIRST_PAGES)
        stream = Background(c.stream(prompt, 16, "pd", {**PAGE, **at("d0", "p0")}, cache_salt="lost"))
        wait_for("pages to travel", lambda: int(link(c, "p0", "d0")["pages_sent"]) > FIRST_PAGES)
        c.daemons["p0"].kill(sig)
        chunks = stream.result()
        self.assertEqual(errors_of(chunks), [])
        self.assertEqual(tokens_of(chunks), want)
        self.assertGreater(int(c.record(chunks[0]["id"], whole=False)["recovered_tokens"]), 0)
        wait_for("d0 to say that p0 is lost", lambda: "peer lost peer=p0" in c.daemons["d0"].log())
        if sig == signal.SIGSTOP:
            c.daemons["p0"].kill(signal.SIGCONT)
        else:
            c.daemons["p0"].wait()
        wait_for("d0 to have all pages free or cached", lambda: [
            r for r in c.nodes() if r["node"] == "d0" and r["pages_free"] == r["pages"] and r["transfers"] == "0"])

    def test_tokens_are_equal_to_ucx_and_a_killed_peer_is_noticed(self):
        with Cluster(prefill=0, decode=0, router_options=FAST_BEATS, hold={"p0": HOLD}) as c:
            self.start(c, ucx=True)
            prompt = prompt_of(FIRST_TOKENS)
            answers = [c.complete(prompt, 12, "pd", {**PAGE, **at(f"d{i}", f"p{i}"), "X-Sluice-Digest": "1"}, cache_salt=str(i)) for i in (0, 1)]
            self.assertEqual(answers[0][0], answers[1][0])
            self.assertEqual(answers[0][1]["sluice"]["digests"], answers[1][1]["sluice"]["digests"])
            for _, doc in answers:
                self.assertEqual(c.record(doc["id"])["pages_received"], str(FIRST_PAGES))
            for i, transport in enumerate(("nccl", "ucx tcp")):
                row = wait_for(f"p{i} to report its link", lambda: int(link(c, f"p{i}", f"d{i}")["pages_sent"]) and link(c, f"p{i}", f"d{i}"))
                self.assertEqual(row["transport"], transport)
            # P over ucx, D over nccl: P sends its token, and the link says why no page follows
            mixed = c.stream(prompt, 12, "pd", at("d0", "p1"), cache_salt="mixed")
            request = next(mixed)["id"]
            refused = wait_for("the mixed pair to be refused", lambda: link(c, "p1", "d0")["state"] == "refused" and link(c, "p1", "d0"))
            self.assertEqual(refused["why"], "transfer_transport differs: nccl at d0, ucx at p1")
            # d0 is through with it at once, unless p1 came before d0 had admitted it: then it waits as long as a test's patience is
            c.ctl("cancel", request, check=False)
            list(mixed)
            c.wait_idle()
            self.lose_p0(c, signal.SIGKILL)

    def test_a_hung_peer_is_noticed(self):
        with Cluster(prefill=0, decode=0, router_options=FAST_BEATS, node_options=["--peer-dead-ms", "15000", "--peer-heartbeat-ms", "200"],
                     hold={"p0": HOLD}) as c:
            self.start(c, ucx=False)
            c.complete(prompt_of(FIRST_TOKENS), 2, "pd", {**PAGE, **at("d0", "p0")}, cache_salt="pair")
            self.lose_p0(c, signal.SIGSTOP)


if __name__ == "__main__":
    unittest.main(verbosity=2)
