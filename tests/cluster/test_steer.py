"""sluicectl on a cluster that runs: what it changes at nodes takes effect, what it shows is what there is."""
import unittest

from harness import Cluster, prompt_of, wait_for


def by_key(rows):
    return {r["key"]: r["value"] for r in rows}


class Steer(unittest.TestCase):
    def test_nodes_change_while_they_run_and_refuse_what_cannot(self):
        with Cluster() as c:
            c.ctl("node", "set", "p0", "chunk_tokens", "32")
            self.assertEqual(by_key(c.tables("config", "show", "p0")["config"])["chunk_tokens"], "32")
            self.assertEqual(by_key(c.tables("config", "show", "p0")["config"])["pace"], "-")
            _, doc = c.complete(prompt_of(96), 4, "pd")
            record = c.record(doc["id"])
            self.assertEqual((record["P"], record["prefill_chunks_P"], record["largest_chunk_P"]), ("p0", "3", "32"))
            for key, value, word in (("page_tokens", "32", "these can"), ("chunk_tokens", "many", "expected"), ("roles", "cook", "expected"),
                                     ("chunk_stretch", "0.5", "expected")):
                r = c.ctl("node", "set", "p0", key, value, check=False)
                self.assertEqual(r.returncode, 1, r.stdout)
                self.assertIn(word, r.stdout)
            self.assertEqual(by_key(c.tables("config", "show", "p0")["config"])["roles"], "prefill,decode")
            c.ctl("node", "roles", "p0", "prefill")
            wait_for("the router to hear of it", lambda: [r["permits"] for r in c.nodes() if r["node"] == "p0"] == ["prefill"])
            c.ctl("node", "roles", "p0", "both")
            wait_for("the router to hear of it", lambda: [r["permits"] for r in c.nodes() if r["node"] == "p0"] == ["prefill+decode"])
            self.assertIn("chunk_tokens = 32 was asked for", [r["text"] for r in c.tables("events", "100")["events"]])

    def test_what_is_shown_is_what_there_is(self):
        with Cluster() as c:
            c.ctl("mode", "hybrid")
            c.ctl("split", "64")
            _, doc = c.complete(prompt_of(150), 6)
            record = c.record(doc["id"])
            self.assertEqual((record["mode"], record["s"]), ("hybrid", "64"))
            c.ctl("split", "auto")
            self.assertEqual(by_key(c.tables("split")["split"]), {"split": "auto"})
            spans = c.tables("trace", doc["id"])["trace"]
            for lane, what in (("router", "placed"), (record["P"], "chunk"), (record["P"], "transfer"), (record["D"], "receive"), (record["D"], "chunk"),
                               (record["D"], "decode")):
                self.assertTrue([s for s in spans if s["lane"] == lane and s["what"] == what], (lane, what, spans))
            for lane in (record["P"], record["D"]):  # the tokens of a lane's chunks are those it computed
                computed = sum(int(s["detail"].split()[0]) for s in spans if s["lane"] == lane and s["what"] == "chunk")
                self.assertEqual(computed, 64 if lane == record["P"] else 150 - 64)
            self.assertEqual(len(c.tables("trace", doc["id"])["tokens"]), 6)
            self.assertEqual(c.tables("leases")["leases"], [])
            pages = c.tables("pages")["pages"]
            self.assertEqual({r["node"] for r in pages}, {r["node"] for r in c.nodes()})
            self.assertTrue(all(r["in_use"] == "0" for r in pages), pages)
            self.assertEqual(c.tables("slo")["slo"][0]["ended"], "1")
            self.assertEqual(by_key(c.tables("config", "show")["config"])["served_model_name"], "tiny")
            self.assertEqual({r["node"] for r in c.tables("links", "retest")["retest"]}, {r["node"] for r in c.nodes()})
            wait_for("the link to be up", lambda: [r["state"] for r in c.tables("links")["links"]] == ["up"])
            c.wait_idle()


if __name__ == "__main__":
    unittest.main(verbosity=2)
