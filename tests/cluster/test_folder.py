"""A Hugging Face folder is served like the GGUF file it could have become: the same answers, in every mode."""
import os
import subprocess
import tempfile
import unittest

import harness
from harness import Cluster, at, prompt_of

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "What would people make of the first 12 words?"}],
        "max_tokens": 24, "temperature": 0.8, "seed": 5}


def answers(model):
    """The chat's text, and the tokens and digests of a completion in each mode."""
    with Cluster(model=model) as c:
        status, chat, _ = c.status("/v1/chat/completions", CHAT)
        assert status == 200, chat
        found = [chat["choices"][0]["message"]["content"], chat["usage"]]
        for mode in ("colocated", "pd"):
            tokens, doc = c.complete(prompt_of(70), 12, mode, {"X-Sluice-Digest": "1", **at("d0")}, cache_salt=mode)
            found += [tokens, doc["sluice"]["digests"], c.record(doc["id"])["pages_received"]]
        c.wait_idle()
        return found


class Folder(unittest.TestCase):
    def test_a_folder_answers_as_its_file_does(self):
        with tempfile.TemporaryDirectory(prefix="sluice-test-") as work:
            file, folder = os.path.join(work, "tiny.gguf"), os.path.join(work, "tiny")
            subprocess.run([harness.program("sluice-make-model"), "--type", "bf16", "--embed-type", "bf16", "--out", file], check=True)
            subprocess.run([harness.program("sluice-gguf-to-hf"), file, folder, "bf16", "0"], check=True)
            got, want = answers(folder), answers(file)
            self.assertEqual(got, want)
            self.assertTrue(got[0])
            self.assertEqual(got[2 + 2], "0")
            self.assertEqual(got[2 + 5], "5")


if __name__ == "__main__":
    unittest.main(verbosity=2)
