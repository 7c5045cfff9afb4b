"""The cluster secret with real daemons: who knows it serves, who does not is told so in one sentence, at both ends."""
import unittest

import harness
from harness import at, prompt_of, wait_for


class Secrets(unittest.TestCase):
    def test_nodes_without_the_secret_stay_outside(self):
        with harness.Cluster(secret=True) as c:
            router = c.daemons["router"]
            # one after the other: what repeats every second is logged once a second
            stranger = c.start_node("stranger", "sluice-decode", ["--cluster-secret-file", c.write_secret("other")])
            wait_for("both ends to name the other secret", lambda: "sealed with another cluster secret" in router.log() and
                     "the other program has none or another; give both the same cluster_secret_file" in stranger.log())
            stranger.stop()
            forgetful = c.start_node("forgetful", "sluice-decode", ["--cluster-secret-file", ""])
            missing = "proves no cluster secret and this program asks for it; set cluster_secret_file at the sender"
            wait_for("both ends to name the secret that is missing", lambda: missing in router.log() and missing in forgetful.log())
            self.assertEqual({n["node"] for n in c.nodes()}, {"p0", "d0"})
            # those who know it move pages, with the answer of one node alone
            prompt = prompt_of(70)
            alone, _ = c.complete(prompt, mode="colocated", headers=at("d0"))
            apart, _ = c.complete(prompt, mode="pd", headers={**at("d0", "p0"), "X-Sluice-No-Cache": "1"})
            self.assertEqual(alone, apart)

    def test_router_without_the_secret_serves_nobody_who_has_one(self):
        with harness.Cluster(prefill=0, decode=0) as c:
            node = c.start_node("d0", "sluice-decode", ["--cluster-secret-file", c.write_secret("secret")])
            wait_for("both ends to say so", lambda: "this program has none; set cluster_secret_file here too" in c.daemons["router"].log() and
                     "the answer proves no cluster secret" in node.log())
            self.assertEqual(c.nodes(), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
