"""Service classes: chosen by header or default, told in the record, refused when no node can give the times wished for."""
import unittest

from harness import Cluster, prompt_of

# An hour is met by every machine, and a millisecond for 3000 tokens by none.
CLASSES = "chat ttft_ms=3600000 tpot_ms=3600000, hurried ttft_ms=1, default priority=3"


class Classes(unittest.TestCase):
    def test_classes_are_chosen_recorded_and_refused(self):
        with Cluster(prefill=0, router_options=["--slo-classes", CLASSES, "--slo-miss", "refuse"]) as c:
            want = None
            for headers, name, wishes in (({"X-Sluice-Class": "chat"}, "chat", "met"), ({}, "default", "none"),
                                          ({"X-Sluice-Tpot-Ms": "3600000"}, "default", "met")):
                tokens, doc = c.complete(prompt_of(40), 8, headers=headers)
                record = c.record(doc["id"])
                self.assertEqual((record["class"], record["wishes"]), (name, wishes))
                want = want or tokens
                self.assertEqual(tokens, want)
            body = {"model": "tiny", "prompt": prompt_of(3000), "max_tokens": 4}
            status, doc, headers = c.status("/v1/completions", body, {"X-Sluice-Class": "hurried"})
            self.assertEqual(status, 429, doc)
            self.assertGreaterEqual(int(headers["Retry-After"]), 1)
            status, doc, _ = c.status("/v1/completions", body, {"X-Sluice-Class": "fast"})
            self.assertEqual(status, 400)
            self.assertIn("chat, hurried, default", doc["error"]["message"])
            c.wait_idle()
            metrics = c.get("/metrics").decode()
            self.assertIn('sluice_slo_requests_total{class="chat",outcome="met"} 1', metrics)
            self.assertIn('sluice_slo_requests_total{class="hurried",outcome="missed"} 1', metrics)
            c.wait_idle()

    def test_relegated_requests_are_served_and_counted(self):
        with Cluster(prefill=0, router_options=["--slo-classes", CLASSES, "--slo-miss", "relegate"]) as c:
            _, doc = c.complete(prompt_of(3000), 8, headers={"X-Sluice-Class": "hurried"})
            self.assertEqual(c.record(doc["id"])["wishes"], "missed")
            self.assertIn('sluice_slo_relegated_total{class="hurried"} 1', c.get("/metrics").decode())
            c.wait_idle()


if __name__ == "__main__":
    unittest.main(verbosity=2)
