"""Network namespaces as hosts: every byte between router, prefill and decode node crosses a bridge; then the wire between P and D is cut; load
comes from two of them at once."""
import json
import os
import socket
import subprocess
import sys
import unittest

import wires
from harness import Cluster, Daemon, program, prompt_of, wait_for

# Of the measuring of a new link: SL_XFER_PROBE_BYTES of common/transfer/xfer.h.
PROBE_BYTES = 2 << 20
WIRES = wires.Wires(("router", "p0", "d0"), two_cards=("p0", "d0"))


class Hosts(unittest.TestCase):
    def test_firewall_lets_members_in_and_nobody_else(self):
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "network", "sluice.nft")) as f:
            rules = f.read().replace("10.0.0.0/24", WIRES.address("p0"))
        self.assertIn(WIRES.address("p0"), rules)
        d0, p0 = (["ip", "netns", "exec", WIRES.namespace(name)] for name in ("d0", "p0"))
        subprocess.run([*d0, "nft", "-f", "-"], input=rules, text=True, check=True)
        listener = subprocess.Popen([*d0, sys.executable, "-c", "import socket, time; s = socket.create_server(('', 7201)); print(flush=True); time.sleep(1e6)"],
                                    stdout=subprocess.PIPE)
        try:
            listener.stdout.readline()
            address = (WIRES.address("d0"), 7201)
            subprocess.run([*p0, sys.executable, "-c", f"import socket; socket.create_connection({address})"], check=True)
            with self.assertRaises(TimeoutError):  # dropped: however long one waits
                socket.create_connection(address, timeout=1)
        finally:
            listener.kill()
            listener.wait()
            subprocess.run([*d0, "nft", "delete", "table", "inet", "sluice"], check=True)

    def test_modes_are_equal_over_a_network(self):
        with Cluster(hosts=WIRES.hosts(), secret=True) as c:
            self.assertEqual(c.status("/metrics")[0], 403)  # from another host, and no key is asked for
            answers = [c.complete(prompt_of(150), 12, mode, {"X-Sluice-Digest": "1", **headers}, cache_salt=str(i))
                       for i, (mode, headers) in enumerate([("colocated", {}), ("pd", {}), ("hybrid", {"X-Sluice-Split": "64"})])]
            for tokens, doc in answers[1:]:
                self.assertEqual(tokens, answers[0][0])
                self.assertEqual(doc["sluice"]["digests"], answers[0][1]["sluice"]["digests"])
            self.assertEqual(c.record(answers[1][1]["id"])["pages_received"], "10")
            c.wait_idle()

    def test_pages_take_the_card_that_the_node_listens_on(self):
        with Cluster(prefill=0, decode=0, hosts=WIRES.hosts()) as c:
            before = [WIRES.sent_bytes("p0", eth) for eth in ("eth0", "eth1")]
            for name, which in (("p0", "sluice-prefill"), ("d0", "sluice-decode")):
                c.start_node(name, which, ["--transfer-listen", f"{WIRES.address(name, card=1)}:0"])
            c.wait_nodes(2)
            _, doc = c.complete(prompt_of(400), 4, "pd")
            pages = int(c.record(doc["id"])["pages_received"])
            self.assertEqual(pages, 25)
            # the measuring of the link alone is more than that; it goes on beside the request
            wait_for("the link to be measured", lambda: WIRES.sent_bytes("p0", "eth1") - before[1] > PROBE_BYTES)
            self.assertLess(WIRES.sent_bytes("p0", "eth0") - before[0], PROBE_BYTES)  # heartbeats and tokens

    def test_cut_between_p_and_d_the_answer_is_the_same(self):
        with Cluster(hosts=WIRES.hosts(), router_options=["--heartbeat-ms", "100"],
                     node_options=["--peer-dead-ms", "800", "--peer-heartbeat-ms", "100", "--peer-wait-ms", "3000"]) as c:
            want, _ = c.complete(prompt_of(150), 12, "colocated", cache_salt="base")
            c.complete(prompt_of(20), 2, "pd", cache_salt="pair")
            WIRES.cut("pages", wires.both_ways("p0", "d0"))
            got, doc = c.complete(prompt_of(150), 12, "pd", cache_salt="cut")
            self.assertEqual(got, want)
            self.assertEqual(c.record(doc["id"])["finish"], "length")
            WIRES.heal()

            def healed():
                tokens, again = c.complete(prompt_of(150), 12, "pd", cache_salt=f"healed{healed.n}")
                healed.n += 1
                self.assertEqual(tokens, want)
                return c.record(again["id"])["pages_received"] == "10"

            healed.n = 0
            wait_for("pages to travel again", healed)
            c.wait_idle()

    def test_load_from_two_hosts_is_one_report(self):
        with Cluster(hosts=WIRES.hosts(), router_options=["--open-admin", "true"]) as c:
            agents = [f"{WIRES.address(name)}:7070" for name in ("p0", "d0")]
            for name, listen in zip(("p0", "d0"), agents):
                a = Daemon(f"agent-{name}", [program("sluice-bench"), "agent", "--listen", listen, "--url", c.url], c.folder, c.host(name)[1])
                c.daemons[a.name] = a
                wait_for("the agent to listen", lambda: a.check_alive() and "listening on" in a.log())
            report = os.path.join(c.folder, "compare.json")
            r = subprocess.run([program("sluice-bench"), "compare", "--url", c.url, "--agents", ",".join(agents), "--requests", "8", "--rounds", "1",
                                "--prompt-tokens", "20:60", "--output-tokens", "4:8", "--json", report], capture_output=True, text=True)
            self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
            with open(report) as f:
                doc = json.load(f)
            self.assertEqual([a["requests"] for a in doc["agents"]], [12, 12])
            for a in doc["agents"]:  # hosts of one machine: their clocks are the same
                self.assertLessEqual(abs(a["offset_us"]), a["offset_error_us"])


if __name__ == "__main__":
    if wires.inside():
        unittest.main(verbosity=2)
    if not wires.available():
        print("skipped: network namespaces need root, ip, nft and tc")
        sys.exit(wires.SKIPPED)
    sys.exit(wires.run_inside(WIRES))
