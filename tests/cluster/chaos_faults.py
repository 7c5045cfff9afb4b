"""What chaos does to a cluster: a table of faults, and a schedule of them that is a pure function of the seed.

At any time one node of each kind at least is left in peace, so that every request can be served.
"""
import random
import signal
import subprocess
import time
from dataclasses import dataclass

from wires import both_ways

MODES = ("pd", "colocated", "hybrid")
LONGEST_NAP_S = 4.0
ENDS_S = 10.0  # after a SIGTERM
ROUTERS_HOST = "router"  # of all of them
PROGRAMS = {"p": "sluice-prefill", "d": "sluice-decode"}


@dataclass(frozen=True)
class Event:
    at_s: float
    kind: str
    node: str  # empty: of no node
    lasts_s: float

    def __str__(self):
        return f"{self.at_s:.1f} s {self.kind} {self.node} for {self.lasts_s:.1f} s"


@dataclass(frozen=True)
class Stage:
    """What faults act on."""
    cluster: object
    load: object
    wires: object  # None on loopback
    rng: object


def others(stage, node):
    return [n for n in stage.cluster.daemons if n != node and n not in stage.cluster.routers]


def kill(stage, e):
    daemon = stage.cluster.daemons[e.node]
    daemon.kill(signal.SIGKILL)
    daemon.wait()


def start_again(stage, e):
    stage.cluster.start_node(e.node, PROGRAMS[e.node[0]])


def kill_and_start(stage, e):
    """It is back before anybody has missed it."""
    kill(stage, e)
    start_again(stage, e)


def end_and_start(stage, e):
    """SIGTERM: what runs there has --drain-ms. One that stalls is killed, as systemd does."""
    daemon = stage.cluster.daemons[e.node]
    daemon.kill(signal.SIGTERM)
    try:
        daemon.wait(ENDS_S)
    except subprocess.TimeoutExpired:
        kill(stage, e)
    start_again(stage, e)


def kill_router(stage, e):
    """Its clients ask in vain until it is back; those of the other one notice nothing."""
    name = stage.rng.choice(stage.cluster.routers)
    stage.cluster.kill_router(name)
    stage.cluster.start_router(name)


def nap(stage, e):
    """A router stands still, mostly for longer than nodes believe in it, and goes on."""
    daemon = stage.cluster.daemons[stage.rng.choice(stage.cluster.routers)]
    daemon.kill(signal.SIGSTOP)
    time.sleep(stage.rng.uniform(0.2, LONGEST_NAP_S))
    daemon.kill(signal.SIGCONT)


def reload(stage, e):
    for name in stage.cluster.routers:
        stage.cluster.daemons[name].kill(signal.SIGHUP)


def freeze(stage, e):
    stage.cluster.daemons[e.node].kill(signal.SIGSTOP)


def thaw(stage, e):
    stage.cluster.daemons[e.node].kill(signal.SIGCONT)


def ctl(*words):
    """A command that may be refused: the node may be given up at the moment."""
    return lambda stage, e: stage.cluster.ctl(*words, *([e.node] if e.node else []), check=False, router=stage.rng.choice(stage.cluster.routers))


def one_duty(stage, e):
    """The one that it does not prefer."""
    stage.cluster.ctl("node", "roles", e.node, "decode" if e.node[0] == "p" else "prefill", check=False)


def both_duties(stage, e):
    stage.cluster.ctl("node", "roles", e.node, "both", check=False)


def switch_mode(stage, e):
    """Of one router alone."""
    stage.cluster.ctl("mode", stage.rng.choice(MODES), router=stage.rng.choice(stage.cluster.routers))


def cancel(stage, e):
    asking = stage.load.some_open(stage.rng)
    if asking and asking.answer.id:
        stage.cluster.ctl("cancel", asking.answer.id, check=False, router=asking.router)


def leave(stage, e):
    asking = stage.load.some_open(stage.rng)
    if asking:
        asking.leave()


def cut(ways):
    """ways(stage, node): the (from, to) that are dropped."""
    return lambda stage, e: stage.wires.cut(e.node, ways(stage, e.node))


def join(stage, e):
    stage.wires.join(e.node)


def slow(stage, e):
    stage.wires.slow(e.node, stage.rng.choice(("1mbit", "4mbit", "20mbit")))


def quick(stage, e):
    stage.wires.quick(e.node)


def reset(stage, e):
    """All connections of a node end in the middle of what they carry."""
    stage.wires.reset(e.node)


def nothing(stage, e):
    pass


@dataclass(frozen=True)
class Fault:
    begin: object
    end: object
    hurts: bool = True  # a node of its own, for as long as it lasts
    needs_wires: bool = False


FAULTS = {
    "kill": Fault(kill, start_again),
    "restart": Fault(kill_and_start, nothing),
    "term": Fault(end_and_start, nothing),
    "router": Fault(kill_router, nothing, hurts=False),
    "nap": Fault(nap, nothing, hurts=False),
    "reload": Fault(reload, nothing, hurts=False),
    "stop": Fault(freeze, thaw),
    "drain": Fault(ctl("drain"), ctl("undrain")),
    "roles": Fault(one_duty, both_duties),
    "mode": Fault(switch_mode, nothing, hurts=False),
    "cancel": Fault(cancel, nothing, hurts=False),
    "leave": Fault(leave, nothing, hurts=False),
    "cut": Fault(cut(lambda s, n: [w for o in (*others(s, n), ROUTERS_HOST) for w in both_ways(n, o)]), join, needs_wires=True),
    "cut_from": Fault(cut(lambda s, n: [(n, o) for o in (*others(s, n), ROUTERS_HOST)]), join, needs_wires=True),
    "cut_to": Fault(cut(lambda s, n: [(o, n) for o in (*others(s, n), ROUTERS_HOST)]), join, needs_wires=True),
    "cut_pages": Fault(cut(lambda s, n: [w for o in others(s, n) for w in both_ways(n, o)]), join, needs_wires=True),
    "cut_control": Fault(cut(lambda s, n: both_ways(n, ROUTERS_HOST)), join, needs_wires=True),
    "slow": Fault(slow, quick, needs_wires=True),
    "reset": Fault(reset, nothing, needs_wires=True),
}


def schedule(seed, seconds, nodes, with_wires):
    """Events every 1 to 3.5 s, in the order of their beginnings."""
    rng = random.Random(f"{seed}-schedule")
    kinds = [k for k, f in FAULTS.items() if with_wires or not f.needs_wires]
    events, busy, t = [], {}, rng.uniform(0.5, 2.0)
    while t < seconds:
        kind = rng.choice(kinds)
        lasts = rng.uniform(0.3, 6.0)
        peaceful = [n for n in nodes if busy.get(n, 0.0) <= t]
        allowed = [n for n in peaceful if sum(m[0] == n[0] for m in peaceful) > 1]
        if not FAULTS[kind].hurts:
            events.append(Event(t, kind, "", 0.0))
        elif allowed:
            node = rng.choice(allowed)
            # A node that was hurt needs a while to be back.
            busy[node] = t + lasts + 3.0
            events.append(Event(t, kind, node, lasts))
        t += rng.uniform(1.0, 3.5)
    return events


def in_time(events):
    """(second, event, begins) of all beginnings and ends."""
    return sorted([(e.at_s, e, True) for e in events] + [(e.at_s + e.lasts_s, e, False) for e in events], key=lambda x: (x[0], x[1].node, not x[2]))
