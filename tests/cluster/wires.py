"""Network namespaces as hosts: one a name, joined by a bridge in one more. At the bridge wires are cut, one way or both, and made slow.

Needs root, ip(8) and nft(8). The program that wants them runs itself again inside the namespace `client`, so that nothing is put into the host's.
"""
import json
import os
import shutil
import subprocess
import sys

INSIDE = "SLUICE_TEST_IN_NAMESPACE"
SKIPPED = 77  # what ctest takes for "skipped"


def ip(*args, check=True):
    return subprocess.run(["ip", *args], check=check, capture_output=True, text=True)


class Wires:
    """The hosts "client" and `names`, 10.77.0.1 and up; those of `two_cards` have an eth1 in a second network, 10.78.0.1 and up, too."""

    def __init__(self, names, two_cards=()):
        self.tag = f"sl{os.environ.get(INSIDE) or os.getpid()}"
        self.names = ("client", *names)
        self.two_cards = two_cards
        self.cuts = {}
        self.slowed = set()

    def namespace(self, name):
        return f"{self.tag}-{name}"

    def address(self, name, card=0):
        return f"10.{77 + card}.0.{self.names.index(name) + 1}"

    def hosts(self):
        """As harness.Cluster takes them."""
        return {n: (self.address(n), ("ip", "netns", "exec", self.namespace(n))) for n in self.names[1:]}

    def set_up(self):
        ip("netns", "add", self.namespace("wire"))
        for name in self.names:
            ip("netns", "add", self.namespace(name))
            ip("-n", self.namespace(name), "link", "set", "lo", "up")
        self.join_by_bridge(0, self.names)
        if self.two_cards:
            self.join_by_bridge(1, self.two_cards)

    def join_by_bridge(self, card, names):
        bridge, eth = self.namespace("wire"), f"eth{card}"
        ip("-n", bridge, "link", "add", f"br{card}", "type", "bridge")
        ip("-n", bridge, "link", "set", f"br{card}", "up")
        for name in names:
            ns, port = self.namespace(name), f"{name}.{card}" if card else name
            ip("-n", ns, "link", "add", eth, "type", "veth", "peer", "name", port, "netns", bridge)
            ip("-n", bridge, "link", "set", port, "master", f"br{card}", "up")
            ip("-n", ns, "addr", "add", f"{self.address(name, card)}/24", "dev", eth)
            ip("-n", ns, "link", "set", eth, "up")

    def sent_bytes(self, name, eth):
        doc = json.loads(ip("-n", self.namespace(name), "-j", "-s", "link", "show", eth).stdout)
        return doc[0]["stats64"]["tx"]["bytes"]

    def tear_down(self):
        for name in (*self.names, "wire"):
            ip("netns", "del", self.namespace(name), check=False)

    def at_bridge(self, *argv, stdin=None):
        subprocess.run(["ip", "netns", "exec", self.namespace("wire"), *argv], check=True, input=stdin, text=True)

    def cut(self, key, ways):
        """Frames of each (from, to) are dropped until join(key)."""
        self.cuts[key] = list(ways)
        self.show_cuts()

    def join(self, key):
        self.cuts.pop(key, None)
        self.show_cuts()

    def show_cuts(self):
        """All of them anew, in one transaction."""
        rules = ["add table bridge cut", "delete table bridge cut", "add table bridge cut",
                 "add chain bridge cut f { type filter hook forward priority 0; }"]
        rules += [f"add rule bridge cut f iifname {a} oifname {b} drop" for ways in self.cuts.values() for a, b in ways]
        self.at_bridge("nft", "-f", "-", stdin="\n".join(rules) + "\n")

    def slow(self, name, rate):
        """What travels to `name` comes at no more than `rate` (tc's words) until quick(name)."""
        # The bucket and the queue are large beside a frame: a slow wire, not a lossy one.
        self.at_bridge("tc", "qdisc", "replace", "dev", name, "root", "tbf", "rate", rate, "burst", "32kb", "limit", "1mb")
        self.slowed.add(name)

    def quick(self, name):
        if name in self.slowed:
            self.slowed.remove(name)
            self.at_bridge("tc", "qdisc", "del", "dev", name, "root")

    def reset(self, name):
        """All TCP connections of `name` are ended at both sides at once, by a reset."""
        subprocess.run(["ip", "netns", "exec", self.namespace(name), "ss", "-K", "-t", "state", "connected"], check=True, capture_output=True)

    def heal(self):
        for key in list(self.cuts):
            self.join(key)
        for name in list(self.slowed):
            self.quick(name)


def both_ways(a, b):
    return [(a, b), (b, a)]


def available():
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("nft") or not shutil.which("tc"):
        return False
    name = f"sl{os.getpid()}-try"
    if ip("netns", "add", name, check=False).returncode:
        return False
    ip("netns", "del", name)
    return True


def inside():
    """Is this the run inside the namespace `client`?"""
    return INSIDE in os.environ


def run_inside(wires):
    """This program once more, among the hosts of `wires`; its exit status."""
    try:
        wires.set_up()
        return subprocess.run(["ip", "netns", "exec", wires.namespace("client"), sys.executable, *sys.argv],
                              env={**os.environ, INSIDE: str(os.getpid())}).returncode
    finally:
        wires.tear_down()
