"""Booted Debian machines on a bridge: systemd-nspawn containers over one shared root.

The caller is in mount and network name spaces of its own (tests/deploy/run), so that all mounts, interfaces and machines go when it ends. Each machine
has its own network name space, an overlay over the root as its disk, which a loss of power leaves as it was, and the address 10.0.0.N.
"""
import os
import re
import shutil
import subprocess
import time

import harness

LIMIT_S = 300.0  # for a machine that hangs, not for a slow one
BRIDGE = "10.0.0.254"
# A machine sees the /sys of where systemd-nspawn ran, and UCX finds interfaces by /sys/class/net: it has to be that of the machine's own network.
OWN_SYSFS = "d=$(mktemp -d) && mount --rbind /sys/fs/cgroup $d && mount -t sysfs sysfs /sys && mount --rbind $d /sys/fs/cgroup && umount -l $d && rmdir $d && "


def sh(*argv, **more):
    return subprocess.run(argv, check=True, **more)


def wait_for(what, condition):
    return harness.wait_for(what, condition, LIMIT_S)


def make_bridge():
    os.makedirs("/run/netns", exist_ok=True)
    sh("mount", "-t", "tmpfs", "none", "/run/netns")
    sh("ip", "link", "set", "lo", "up")
    sh("ip", "link", "add", "br0", "type", "bridge")
    sh("ip", "addr", "add", f"{BRIDGE}/24", "dev", "br0")
    sh("ip", "link", "set", "br0", "up")


class Machine:
    def __init__(self, name, number, root, folder, binds):
        self.name, self.address, self.folder = name, f"10.0.0.{number}", os.path.join(folder, name)
        self.binds = binds  # outside path -> inside path, read-only
        self.nspawn = self.leader = None
        for sub in ("disk/up", "disk/work", "root"):
            os.makedirs(os.path.join(self.folder, sub))
        self.root = os.path.join(self.folder, "root")
        disk = os.path.join(self.folder, "disk")
        sh("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={root},upperdir={disk}/up,workdir={disk}/work", self.root)
        self.write("/etc/hostname", name + "\n")
        self.write("/etc/machine-id", os.urandom(16).hex() + "\n")
        os.makedirs(self.path("/var/log/journal"), exist_ok=True)
        sh("ip", "netns", "add", name)
        sh("ip", "link", "add", f"v-{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
        sh("ip", "link", "set", f"v-{name}", "master", "br0", "up")
        for line in ("link set lo up", f"addr add {self.address}/24 dev eth0", "link set eth0 up"):
            sh("ip", "-n", name, *line.split())

    # ---- its disk ----

    def path(self, inside):
        return self.root + inside

    def write(self, inside, text, mode=0o644):
        os.makedirs(os.path.dirname(self.path(inside)), exist_ok=True)
        with open(self.path(inside), "w") as f:
            f.write(text)
        os.chmod(self.path(inside), mode)

    def set(self, inside, **values):
        """Sets keys of a config file as a person would: the line that is there, commented out or not, gets the value."""
        with open(self.path(inside)) as f:
            text = f.read()
        for key, value in values.items():
            text, n = re.subn(rf"^#?{key} =.*$", f"{key} = {value}", text, flags=re.M)
            if n != 1:
                text += f"{key} = {value}\n"
        self.write(inside, text)

    # ---- power ----

    def boot(self):
        """Until systemd says that all is up; returns the seconds."""
        started = time.monotonic()
        binds = [f"--bind-ro={outside}:{inside}" for outside, inside in self.binds.items()]
        with open(os.path.join(self.folder, "console.log"), "ab") as log:
            self.nspawn = subprocess.Popen(["nsenter", f"--net=/run/netns/{self.name}", "unshare", "--mount", "--propagation", "private", "sh", "-c",
                                            OWN_SYSFS + 'exec "$@"', "sh", "systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--boot",
                                            "--console=pipe", f"--machine={self.name}", "-D", self.root, *binds],
                                           stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.leader = wait_for(f"systemd of {self.name}", self.find_leader)
        wait_for(f"{self.name} to be up", lambda: self.run("systemctl is-system-running", check=False).strip() in ("running", "degraded"))
        return time.monotonic() - started

    def find_leader(self):
        if self.nspawn.poll() is not None:
            raise AssertionError(f"systemd-nspawn ended with {self.nspawn.returncode}; see {self.folder}/console.log")
        below = [self.nspawn.pid]
        for pid in below:
            with open(f"/proc/{pid}/task/{pid}/children") as f:
                below += [int(x) for x in f.read().split()]
            with open(f"/proc/{pid}/comm") as f:
                if f.read().strip() == "systemd":
                    return pid
        return None

    def lose_power(self):
        """All of its processes end at once; its disk stays."""
        os.kill(self.leader, 9)
        self.nspawn.wait()
        self.nspawn = self.leader = None

    def close(self):
        if self.nspawn:
            self.lose_power()
        sh("umount", self.root)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- its shell ----

    def run(self, script, check=True):
        """What the script prints on standard output; fails with all it said when it ends badly."""
        r = subprocess.run(["nsenter", "-t", str(self.leader), "-a", "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root",
                            "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "bash", "-c", f"cd /root\n{script}"],
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=4 * LIMIT_S)
        if check and r.returncode != 0:
            raise AssertionError(f"on {self.name}: {script}\nended with {r.returncode}: {r.stdout[-2000:]}{r.stderr[-2000:]}")
        return r.stdout

    def property(self, unit, name):
        return self.run(f"systemctl show -P {name} {unit}").strip()
