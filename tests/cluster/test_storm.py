"""A small storm of clients that leave (tests/cluster/storm): everything comes back. tests/run --full has the large one."""
import os
import sys

STORM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "storm")

if __name__ == "__main__":
    os.execv(sys.executable, [sys.executable, STORM, "--requests", "300"])
