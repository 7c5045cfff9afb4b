"""The cluster secret with real daemons: who knows it serves, who does not is told so in one sentence, at both ends. And the keys of clients."""
import os
import subprocess
import tempfile
import unittest

import harness
from harness import at, program, prompt_of, wait_for


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


def add_key(path, name, limits=""):
    """A new key in the file, by sluicectl."""
    key = subprocess.run([program("sluicectl"), "keys", "add", name, path], check=True, capture_output=True, text=True).stdout.strip()
    with open(path, "a+") as f:
        f.seek(f.tell() - 1)
        f.truncate()
        f.write(f" {limits}\n")
    return key


class Keys(unittest.TestCase):
    def test_keys_are_hashed_limited_and_do_not_share_what_is_cached(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "keys")
            keys = {name: add_key(path, name, limits) for name, limits in
                    (("alice", ""), ("bob", ""), ("carol", "requests_per_minute=1 min_priority=0"), ("op", "admin=yes"))}
            with open(path) as f:
                stored = f.read()
            for key in keys.values():
                self.assertNotIn(key, stored)
            r = subprocess.run([program("sluicectl"), "keys", "check", path], input=keys["bob"] + "\n", capture_output=True, text=True)
            self.assertEqual((r.returncode, r.stdout), (0, "bob\n"), r.stderr)
            r = subprocess.run([program("sluicectl"), "keys", "check", path], input=keys["bob"][:-1] + "\n", capture_output=True, text=True)
            self.assertEqual(r.returncode, 1, r.stdout)
            listed = subprocess.run([program("sluicectl"), "keys", "list", path], check=True, capture_output=True, text=True).stdout
            self.assertRegex(listed, r"carol +hashed +requests_per_minute=1")
            with harness.Cluster(prefill=0, router_options=["--api-key-file", path, "--cache-per-key", "true", "--log-level", "trace"],
                                 node_options=["--log-level", "trace"]) as c:
                def as_key(name):
                    return {"Authorization": f"Bearer {keys[name]}"}

                # a salt of one's own does not reach another's cache
                def cached(name, **extra):
                    _, doc = c.complete("xyzzy and plugh, " * 20, 4, headers=as_key(name), **extra)
                    return doc["usage"]["prompt_tokens_details"]["cached_tokens"]

                self.assertEqual(cached("alice"), 0)
                self.assertGreater(cached("alice"), 0)
                self.assertEqual(cached("bob"), 0)
                self.assertEqual(cached("bob", cache_salt="alice"), 0)
                self.assertGreater(cached("bob"), 0)
                # limits
                c.complete([20, 21], 2, headers=as_key("carol"))
                body = {"model": "tiny", "prompt": [20, 21], "max_tokens": 2}
                status, doc, headers = c.status("/v1/completions", body, as_key("carol"))
                self.assertEqual(status, 429, doc)
                self.assertTrue(1 <= int(headers["Retry-After"]) <= 60)
                status, doc, _ = c.status("/v1/completions", {**body, "priority": -1}, as_key("carol"))
                self.assertEqual(status, 403, doc)
                # what is for operators
                for path_ in ("/metrics", "/load", "/sluice/v1/status"):
                    self.assertEqual(c.status(path_, headers=as_key("alice"))[0], 403)
                    self.assertEqual(c.status(path_, headers=as_key("op"))[0], 200)
                    self.assertEqual(c.status(path_)[0], 401)
                for d in c.daemons.values():
                    for text in ("xyzzy", "plugh", *keys.values()):
                        self.assertNotIn(text, d.log(), d.name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
