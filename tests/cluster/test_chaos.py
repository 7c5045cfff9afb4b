"""One seed of chaos: twenty seconds of faults under load, on wires that can be cut where that is possible. Correctness is judged, not speed."""
import os
import sys

import wires

CHAOS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "chaos")

if __name__ == "__main__":
    os.execv(sys.executable, [sys.executable, CHAOS, "--seeds", "1", "--first-seed", "6", "--seconds", "20", *(["--netns"] if wires.available() else [])])
