"""Drafts change no token, no digest and no log-probability, in any mode; records and metrics tell of them."""
import unittest

from harness import Cluster, prompt_of

# A text of three letters, which looks up well.
LETTERS = {"logit_bias": {"70": 30, "80": 30, "90": 30}}


class Speculation(unittest.TestCase):
    def answer(self, c, mode, speculation, **extra):
        headers = {"X-Sluice-Digest": "1", "X-Sluice-Speculation": speculation}
        if mode == "hybrid":
            headers["X-Sluice-Split"] = "48"
        tokens, doc = c.complete(prompt_of(100), 40, mode, headers, cache_salt=mode + speculation + str(extra), logprobs=2,
                                 **{**LETTERS, **extra})
        return (tokens, doc["sluice"]["digests"], doc["choices"][0]["logprobs"]), c.record(doc["id"])

    def test_tokens_digests_and_logprobs_are_the_same_with_and_without(self):
        with Cluster() as c:
            for extra in ({"temperature": 0}, {"temperature": 0.8, "presence_penalty": 0.4, "repetition_penalty": 1.1}):
                want, record = self.answer(c, "colocated", "off", **extra)
                self.assertEqual(record["drafted_tokens"], "0")
                drafted = accepted = 0
                for mode in ("colocated", "pd", "hybrid"):
                    for speculation in ("4", "31", "auto"):
                        got, record = self.answer(c, mode, speculation, **extra)
                        self.assertEqual(want, got, (mode, speculation, extra))
                        drafted += int(record["drafted_tokens"])
                        accepted += int(record["accepted_tokens"])
                self.assertGreater(accepted, 0)
                self.assertGreater(drafted, accepted)
            c.wait_idle()

    def test_stream_tells_every_token_once_and_in_order_and_nonsense_is_refused(self):
        with Cluster() as c:
            ask = dict(LETTERS, temperature=0.8)
            want, _ = c.complete(prompt_of(60), 40, "colocated", {"X-Sluice-Speculation": "off"}, **ask)
            for mode in ("colocated", "pd"):
                got = []
                for chunk in c.stream(prompt_of(60), 40, mode, {"X-Sluice-Speculation": "8"}, cache_salt=mode, **ask):
                    for choice in chunk["choices"]:
                        got += choice.get("token_ids") or []
                self.assertEqual(want, got)
            for value in ("32", "-1", "maybe"):
                status, doc, _ = c.status("/v1/completions", {"model": "tiny", "prompt": [50], "max_tokens": 1},
                                          {"X-Sluice-Speculation": value})
                self.assertEqual(status, 400)
                self.assertIn("X-Sluice-Speculation", doc["error"]["message"])
            c.wait_idle()


if __name__ == "__main__":
    unittest.main(verbosity=2)
