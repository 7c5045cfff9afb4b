"""One seed of chaos: twenty seconds of faults under load, on wires that can be cut where that is possible. Correctness is judged, not speed."""
import os
import sys

import wires
from chaos_judge import sanitized
from harness import BIN

# A node is killed, one restarted, a router killed, a wire cut in one direction, connections reset, modes and roles switched; on loopback kills,
# restarts, a SIGTERM, a drain, routers killed, a cancel and a client that leaves.
SEED = 258
# A machine may be slow, but whoever refuses nearly everything is broken. Sanitizers make daemons so slow that no share can be demanded.
MIN_FINISHED = 0.0 if sanitized(os.path.realpath(BIN)) else 0.5
CHAOS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "chaos")

if __name__ == "__main__":
    os.execv(sys.executable, [sys.executable, CHAOS, "--seeds", "1", "--first-seed", str(SEED), "--seconds", "20", "--min-finished", str(MIN_FINISHED),
                              *(["--netns"] if wires.available() else [])])
