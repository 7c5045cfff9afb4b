"""One seed of chaos: twenty seconds of faults under load, on wires that can be cut where that is possible. Correctness is judged, not speed."""
import os
import sys

import wires
from chaos_judge import sanitized
from harness import BIN

# Drain, both routers killed and started again, resets, wires of pages and of control cut, a slow one, roles, a node killed; on loopback a router killed, one
# that sleeps, SIGHUP, drain, roles, a node killed and started at once, one that gets SIGTERM. Little room everywhere.
SEED = 21
# A machine may be slow, but whoever refuses nearly everything is broken. Sanitizers make daemons so slow that no share can be demanded.
MIN_FINISHED = 0.0 if sanitized(os.path.realpath(BIN)) else 0.5
CHAOS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "chaos")

if __name__ == "__main__":
    os.execv(sys.executable, [sys.executable, CHAOS, "--seeds", "1", "--first-seed", str(SEED), "--seconds", "20", "--min-finished", str(MIN_FINISHED),
                              *(["--netns"] if wires.available() else [])])
