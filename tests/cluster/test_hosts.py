"""Three network namespaces as three hosts: every byte between router, prefill and decode node crosses a bridge; then the wire between P and D is cut;
load comes from two of them at once.

Needs root and ip(8); skipped without. The test runs itself again inside a fourth namespace, so that nothing is put into the host's.
"""
import json
import os
import shutil
import subprocess
import sys
import unittest

INSIDE = "SLUICE_TEST_IN_NAMESPACE"
PREFIX = f"sl{os.environ.get(INSIDE) or os.getpid()}"
NAMES = ("client", "router", "p0", "d0")


def ip(*args, check=True):
    return subprocess.run(["ip", *args], check=check, capture_output=True, text=True)


def address(name):
    return f"10.77.0.{NAMES.index(name) + 1}"


def set_up():
    """One namespace a host, and a fifth that holds the bridge."""
    wire = f"{PREFIX}-wire"
    ip("netns", "add", wire)
    ip("-n", wire, "link", "add", "br0", "type", "bridge")
    ip("-n", wire, "link", "set", "br0", "up")
    for name in NAMES:
        ns = f"{PREFIX}-{name}"
        ip("netns", "add", ns)
        ip("-n", ns, "link", "set", "lo", "up")
        ip("-n", ns, "link", "add", "eth0", "type", "veth", "peer", "name", name, "netns", wire)
        ip("-n", wire, "link", "set", name, "master", "br0", "up")
        ip("-n", ns, "addr", "add", f"{address(name)}/24", "dev", "eth0")
        ip("-n", ns, "link", "set", "eth0", "up")


def tear_down():
    for name in (*NAMES, "wire"):
        ip("netns", "del", f"{PREFIX}-{name}", check=False)


class Hosts(unittest.TestCase):
    def cluster(self, **options):
        from harness import Cluster
        hosts = {n: (address(n), ("ip", "netns", "exec", f"{PREFIX}-{n}")) for n in NAMES[1:]}
        return Cluster(hosts=hosts, **options)

    def test_modes_are_equal_over_a_network(self):
        from harness import prompt_of
        with self.cluster() as c:
            answers = [c.complete(prompt_of(150), 12, mode, {"X-Sluice-Digest": "1", **headers}, cache_salt=str(i))
                       for i, (mode, headers) in enumerate([("colocated", {}), ("pd", {}), ("hybrid", {"X-Sluice-Split": "64"})])]
            for tokens, doc in answers[1:]:
                self.assertEqual(tokens, answers[0][0])
                self.assertEqual(doc["sluice"]["digests"], answers[0][1]["sluice"]["digests"])
            self.assertEqual(c.record(answers[1][1]["id"])["pages_received"], "10")
            c.wait_idle()

    def test_cut_between_p_and_d_the_answer_is_the_same(self):
        from harness import prompt_of, wait_for
        with self.cluster(router_options=["--heartbeat-ms", "100"],
                          node_options=["--peer-dead-ms", "800", "--peer-heartbeat-ms", "100", "--peer-wait-ms", "3000"]) as c:
            want, _ = c.complete(prompt_of(150), 12, "colocated", cache_salt="base")
            c.complete(prompt_of(20), 2, "pd", cache_salt="pair")
            rule = "add table bridge cut; add chain bridge cut f { type filter hook forward priority 0; }; " \
                   "add rule bridge cut f iifname p0 oifname d0 drop; add rule bridge cut f iifname d0 oifname p0 drop"
            subprocess.run(["ip", "netns", "exec", f"{PREFIX}-wire", "nft", rule], check=True)
            got, doc = c.complete(prompt_of(150), 12, "pd", cache_salt="cut")
            self.assertEqual(got, want)
            self.assertEqual(c.record(doc["id"])["finish"], "length")
            subprocess.run(["ip", "netns", "exec", f"{PREFIX}-wire", "nft", "flush ruleset"], check=True)

            def healed():
                tokens, again = c.complete(prompt_of(150), 12, "pd", cache_salt=f"healed{healed.n}")
                healed.n += 1
                self.assertEqual(tokens, want)
                return c.record(again["id"])["pages_received"] == "10"

            healed.n = 0
            wait_for("pages to travel again", healed)
            c.wait_idle()

    def test_load_from_two_hosts_is_one_report(self):
        from harness import Daemon, program, wait_for
        with self.cluster() as c:
            for name in ("p0", "d0"):
                a = Daemon(f"agent-{name}", [program("sluice-bench"), "agent", "--listen", f"{address(name)}:7070", "--url", c.url],
                           c.folder, c.host(name)[1])
                c.daemons[a.name] = a
                wait_for("the agent to listen", lambda: a.check_alive() and "listening on" in a.log())
            report = os.path.join(c.folder, "compare.json")
            r = subprocess.run([program("sluice-bench"), "compare", "--url", c.url, "--agents", f"{address('p0')}:7070,{address('d0')}:7070",
                                "--requests", "8", "--rounds", "1", "--prompt-tokens", "20:60", "--output-tokens", "4:8", "--json", report],
                               capture_output=True, text=True)
            self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
            with open(report) as f:
                doc = json.load(f)
            self.assertEqual([a["requests"] for a in doc["agents"]], [12, 12])
            for a in doc["agents"]:  # hosts of one machine: their clocks are the same
                self.assertLessEqual(abs(a["offset_us"]), a["offset_error_us"])


def main():
    if os.environ.get(INSIDE):
        unittest.main(verbosity=2)
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("nft") or ip("netns", "add", f"{PREFIX}-try", check=False).returncode:
        print("skipped: network namespaces need root, ip and nft")
        sys.exit(77)
    ip("netns", "del", f"{PREFIX}-try")
    try:
        set_up()
        status = subprocess.run(["ip", "netns", "exec", f"{PREFIX}-client", sys.executable, *sys.argv],
                                env={**os.environ, INSIDE: str(os.getpid())}).returncode
    finally:
        tear_down()
    sys.exit(status)


if __name__ == "__main__":
    main()
