"""A router dies: its clients hear it at once, nodes give its work up and keep serving other routers, and join it again when it is back."""
import time
import unittest

from harness import PATIENT_ROUTER, Cluster, Daemon, at, program, prompt_of, router_ports, wait_for
from streams import Background, errors_of, tokens_of


class RouterLost(unittest.TestCase):
    def lose(self, c, node):
        """A stream from a node that is held is cut by the router's death; returns when its client knows."""
        stream = Background(c.stream(prompt_of(40), 400, "pd", at(node, "p0"), cache_salt="lost"))
        wait_for("tokens to come", lambda: len(stream.chunks) > 5)
        c.kill_router()
        stream.thread.join(120)
        self.assertFalse(stream.running(), "the client hangs")
        return tokens_of(stream.chunks)

    def test_restarted_router_is_joined_again_and_nothing_of_the_former_is_left(self):
        with Cluster(hold={"d0": 10}) as c:
            self.assertLess(len(self.lose(c, "d0")), 400)
            c.release("d0")
            c.start_router()
            ready = time.monotonic()
            c.wait_nodes(2)
            print(f"both nodes joined {time.monotonic() - ready:.2f} s after the router was ready", flush=True)
            c.wait_idle()
            want, _ = c.complete(prompt_of(40), 20, "colocated", cache_salt="base")
            self.assertEqual(c.complete(prompt_of(40), 20, "pd", cache_salt="again")[0], want)
            c.wait_idle()

    def test_the_other_router_s_stream_goes_on(self):
        with Cluster(prefill=0, decode=0, hold={"d0": 20, "d1": 20}) as c:
            admin = f"ipc://{c.folder}/other.sock"
            other = Daemon("other", [program("sluice-router"), "--listen", f"{c.address}:0", "--model", c.model, "--served-model-name", "tiny",
                                     "--register-url", f"tcp://{c.address}:0", "--event-url", f"tcp://{c.address}:0", "--admin-url", admin,
                                     *PATIENT_ROUTER, "--hold-ms", "0"], c.folder)
            register, _, http = router_ports(other)
            both = f"tcp://{c.address}:{c.register_port},tcp://{c.address}:{register}"
            c.start_node("p0", "sluice-prefill", ["--routers", both])
            for name in ("d0", "d1"):
                c.start_node(name, "sluice-decode", ["--routers", both])
            c.wait_nodes(3)
            first = (c.url, c.admin)
            c.url, c.admin = f"http://{c.address}:{http}", admin
            c.daemons["other"] = other
            c.wait_nodes(3)
            want, _ = c.complete(prompt_of(60), 400, "colocated", at("p0"), cache_salt="base")
            stays = Background(c.stream(prompt_of(60), 400, "pd", at("d0", "p0"), cache_salt="stays"))
            wait_for("tokens to come", lambda: len(stays.chunks) > 5)
            kept = (c.url, c.admin)
            c.url, c.admin = first
            self.lose(c, "d1")
            c.url, c.admin = kept
            del c.daemons["router"]
            for name in ("d0", "d1"):
                c.release(name)
            chunks = stays.result()
            self.assertEqual(errors_of(chunks), [])
            self.assertEqual(tokens_of(chunks), want)
            c.wait_idle()


if __name__ == "__main__":
    unittest.main(verbosity=2)
