"""The life of a cluster on three booted machines, told in order: each story finds what the one before left. Started by tests/deploy/run;
`tests/deploy/run boot install_by_the_guide power_loss` tells only these.

Commands of an operator come out of docs/operations.md (guide.py). A story fails when something is wrong, not when it is slow: times are measured, printed
beside their bars, and kept in results.json.
"""
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.error

from client import Client, Streams
from guide import Guide
from harness import prompt_of
from machines import Machine, make_bridge, wait_for

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
N_STREAMS, STREAM_TOKENS = 4, 250
ON_D0 = {"X-Sluice-Mode": "pd", "X-Sluice-Prefill-Node": "p0", "X-Sluice-Decode-Node": "d0"}
PREFILL, DECODE, ROUTER = "sluice-prefill@0", "sluice-decode@0", "sluice-router"


class Life:
    def __init__(self, root, model, out):
        self.out = out
        self.guide = Guide(os.path.join(TOP, "docs", "operations.md"))
        self.folder = tempfile.mkdtemp(prefix="machines-", dir=out)
        make_bridge()
        binds = {os.path.join(out, "packages"): "/packages", os.path.join(out, "packages-before"): "/packages-before",
                 model: "/var/lib/sluice/models/model.gguf"}
        self.a, self.b, self.c = self.machines = [Machine(name, i + 1, root, self.folder, binds) for i, name in enumerate("abc")]
        self.client = Client("http://10.0.0.1:8000")
        self.measured = []

    def close(self):
        for m in self.machines:
            with contextlib.suppress(subprocess.CalledProcessError):
                m.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- words ----

    def measure(self, what, seconds, bar=None):
        self.measured.append({"what": what, "seconds": round(seconds, 2), "bar_s": bar})
        print(f"      {what}: {seconds:.1f} s" + (f" (bar: {bar} s{'' if seconds <= bar else ', MISSED'})" if bar else ""), flush=True)

    def guided(self, machine, name, folder="/packages"):
        return machine.run(f"cd {folder}\n" + self.guide.commands(name))

    def nodes(self):
        """{name: row} of those that are up."""
        doc = json.loads(self.a.run("sluicectl nodes -o json || true") or "{}")
        rows = [dict(zip(t["columns"], row)) for t in doc.get("tables", []) if t["title"] == "nodes" for row in t["rows"]]
        return {r["node"]: r for r in rows if r["state"] == "up"}

    def wait_nodes(self, *names):
        wait_for(f"the nodes {names} to be up", lambda: set(names) <= set(self.nodes()))

    def serves(self, mode="pd"):
        return self.client.tokens(prompt_of(40, 99), 4, {"X-Sluice-Mode": mode})

    def wait_serving(self):
        def serves():
            try:
                return self.serves()
            except urllib.error.HTTPError as e:
                if e.code != 503:  # nobody to prefill or decode yet
                    raise AssertionError(f"status {e.code}: {e.read()[:500]}")
            except OSError:
                return None

        wait_for("an answer in mode pd", serves)

    def wait_replaced(self, machine, unit, pid):
        """Until another process is the unit's, and systemd has it as started."""
        wait_for(f"{unit} to be started again", lambda: machine.property(unit, "MainPID") not in ("0", pid) and machine.property(unit, "ActiveState") == "active")

    # ---- stories, in order ----

    def boot(self):
        for m in self.machines:
            self.measure(f"boot of {m.name}", m.boot())
        assert "0 received" not in self.a.run("timeout 20 bash -c 'exec 3<>/dev/tcp/10.0.0.3/22; head -c 7 <&3'"), "the machines do not reach each other"

    def install_by_the_guide(self):
        """The version before, on a clean Debian, until the first answer."""
        a, b, c, before = self.a, self.b, self.c, "/packages-before"
        started = time.monotonic()
        self.guided(a, "install-router", before)
        a.set("/etc/sluice/router.conf", **self.guide.keys("/etc/sluice/router.conf"))
        self.guided(a, "start-router", before)
        for m, duty in ((b, "prefill"), (c, "decode")):
            conf = f"/etc/sluice/{duty}-0.conf"
            self.guided(m, "install-node", before)
            # less than the default: three machines share what one has
            m.set(conf, **self.guide.keys(conf), kv_memory="256M", drain_ms="300")
            self.guided(m, f"start-{duty}", before)
        self.wait_nodes("p0", "d0")
        self.wait_serving()
        self.measure("from the first apt-get to the first answer, three machines", time.monotonic() - started, 60)
        for m, unit in ((a, ROUTER), (b, PREFILL), (c, DECODE)):
            m.run(f"systemd-analyze security --threshold=15 {unit}")

    def look_and_ask_by_the_guide(self):
        said = self.guided(self.a, "look")
        assert re.search(r"\b0 differences", said), said
        self.guided(self.a, "ask")
        self.guided(self.a, "run")
        self.guided(self.a, "sizing")
        self.guided(self.a, "tuning")
        assert 'sluice_node_up{node="d0"} 1' in self.guided(self.a, "metrics")
        for m in self.machines:
            self.guided(m, "watch")
        assert self.c.property(DECODE, "StatusText") == "serving"

    def keys_and_reload(self):
        a = self.a
        key = re.search(r"^sk-\S+", self.guided(a, "keys-file"), re.M).group()
        a.set("/etc/sluice/router.conf", **self.guide.keys("/etc/sluice/router.conf", 1))
        a.run("systemctl restart sluice-router")
        self.client.key = key
        self.wait_nodes("p0", "d0")
        assert self.client.status("/v1/models") == 200
        next_key = a.run("sed -i /^alice/d /etc/sluice/api-keys; sluicectl keys add alice /etc/sluice/api-keys 2> /dev/null").strip()
        self.guided(a, "reload")
        wait_for("the old key to be refused", lambda: self.client.status("/v1/models") == 401)
        self.client.key = next_key
        assert self.client.status("/v1/models") == 200
        pid = a.property(ROUTER, "MainPID")
        a.run("echo 'api_threats = 2' >> /etc/sluice/router.conf; ! systemctl reload sluice-router")
        assert a.property(ROUTER, "MainPID") == pid, "a wrong file must not stop what runs"
        assert "the nearest is api_threads" in a.run("journalctl -u sluice-router -p err --no-pager")
        a.run("sed -i /api_threats/d /etc/sluice/router.conf; systemctl reload sluice-router")

    def cluster_secret_by_the_guide(self):
        self.guided(self.a, "secret-make")
        secret = "/etc/credstore/sluice.cluster-secret"
        text = self.a.run(f"cat {secret}").strip()
        for m in (self.b, self.c):
            m.run(f"install -d -m 700 /etc/credstore; umask 077; echo {text} > {secret}")
        for m in self.machines:
            self.guided(m, "secret-restart")
        self.wait_nodes("p0", "d0")
        self.wait_serving()

    def wrong_configuration_is_not_started_again(self):
        c = self.c
        c.run("systemctl stop sluice-decode@0; cp -p /etc/sluice/decode-0.conf /root; echo 'thread = 1' >> /etc/sluice/decode-0.conf; ! systemctl start sluice-decode@0")
        assert c.property(DECODE, "ExecMainStatus") == "78" and c.property(DECODE, "ActiveState") == "failed"
        c.run("cp -p /root/decode-0.conf /etc/sluice; systemctl start sluice-decode@0; ! systemctl start sluice-decode@7")
        self.wait_nodes("d0")

    def killed_daemons_are_back(self):
        for m, unit, node in ((self.c, DECODE, "d0"), (self.b, PREFILL, "p0"), (self.a, ROUTER, None)):
            pid = m.property(unit, "MainPID")
            started = time.monotonic()
            m.run(f"kill -9 {pid}")
            self.wait_replaced(m, unit, pid)
            self.measure(f"kill -9 of {unit} until it is started again", time.monotonic() - started, 5)
            self.wait_nodes(*([node] if node else ["p0", "d0"]))
        self.wait_serving()

    def watchdog_kills_a_wedged_engine(self):
        c = self.c
        c.write("/etc/systemd/system/sluice-decode@0.service.d/watchdog.conf", "[Service]\nWatchdogSec=4\n")
        c.run("cp -p /etc/sluice/decode-0.conf /root; echo 'fault_wedge_step = 1' >> /etc/sluice/decode-0.conf; systemctl daemon-reload; systemctl restart sluice-decode@0; "
              "cp -p /root/decode-0.conf /etc/sluice")
        self.wait_nodes("d0", "p0")
        pid, prompt = c.property(DECODE, "MainPID"), prompt_of(80, 5)
        want = self.client.tokens(prompt, 8, {"X-Sluice-Mode": "colocated", "X-Sluice-Decode-Node": "p0"})
        started = time.monotonic()
        assert self.client.tokens(prompt, 8, {"X-Sluice-Mode": "colocated", "X-Sluice-Decode-Node": "d0"}) == want
        self.measure("a request on an engine that hangs, until its last token came from elsewhere", time.monotonic() - started)
        self.wait_replaced(c, DECODE, pid)
        assert "Watchdog timeout" in c.run("journalctl -u sluice-decode@0 --no-pager")
        assert "the step in flight makes no progress" in c.run("journalctl -u sluice-decode@0 -p err --no-pager")
        c.run("rm -r /etc/systemd/system/sluice-decode@0.service.d; systemctl daemon-reload; systemctl restart sluice-decode@0")
        self.wait_nodes("d0")

    def stop_under_load_loses_no_stream(self):
        with Streams(self.client, N_STREAMS, STREAM_TOKENS, ON_D0) as s:
            running = s.running()
            started = time.monotonic()
            self.c.run("systemctl stop sluice-decode@0")
            self.measure(f"systemctl stop with {running} streams", time.monotonic() - started, 60)
            moved = s.running()
            assert moved, "the streams ended before the stop: nothing was shown"
            print(f"      {moved} streams went on elsewhere", flush=True)
        self.c.run("systemctl start sluice-decode@0")
        self.wait_nodes("d0")

    def drained_node_finishes_what_it_has(self):
        with Streams(self.client, N_STREAMS, 60, ON_D0):
            self.a.run("sluicectl drain d0")
        wait_for("nothing to run on d0", lambda: '"running"' in self.a.run("sluicectl nodes -o json") and self.row("d0")["running"] == "0")
        self.serves("colocated")
        self.a.run("sluicectl undrain d0")
        self.wait_nodes("d0")

    def row(self, name):
        doc = json.loads(self.a.run("sluicectl nodes -o json"))
        return next(dict(zip(t["columns"], r)) for t in doc["tables"] if t["title"] == "nodes" for r in t["rows"] if name in r)

    def power_loss(self):
        with Streams(self.client, N_STREAMS, STREAM_TOKENS, ON_D0) as s:
            self.c.lose_power()
            assert s.running(), "the streams ended before the power was lost: nothing was shown"
        started = time.monotonic()
        self.measure("boot of c after the power came back", self.c.boot())
        self.wait_nodes("d0")
        self.measure("power back until the node serves again", time.monotonic() - started)
        self.serves()

    def upgrade_one_machine_at_a_time(self):
        with Streams(self.client, N_STREAMS, STREAM_TOKENS, ON_D0):
            for m, node in ((self.b, "p0"), (self.c, "d0")):
                self.guided(m, "upgrade-node")
                self.wait_nodes(node)
                assert m.run("dpkg-query -W -f '${Version}' sluice-node") == self.version()
                self.serves()
        self.guided(self.a, "upgrade-router")
        self.wait_nodes("p0", "d0")
        self.serves()
        assert self.b.run("cat /etc/sluice/prefill-0.conf").count("name = p0") == 1, "an upgrade must keep the configuration"

    def version(self):
        return self.a.run("sluice-router --version").split()[1]

    def remove(self):
        for m in self.machines:
            self.guided(m, "remove")
            left = m.run("dpkg -l 'sluice-*' 2>/dev/null | grep '^ii' || true; find /etc /lib/systemd /usr/bin /var/cache -name '*sluice?*'; pgrep -u sluice -l || true")
            assert not left, f"left on {m.name}: {left}"

    def install_many_machines_over_ssh(self):
        """deploy/install-cluster on the machines, clean again: the difference shown, made, gone; then a change of one key, by a run that ends before the
        restart and by the next one."""
        home = os.path.join(self.folder, "operator")
        os.makedirs(os.path.join(home, "bin"))
        key = os.path.join(home, "key")
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        with open(key + ".pub") as f:
            public = f.read()
        for m in self.machines:
            m.write("/root/.ssh/authorized_keys", public, 0o600)
        ssh = os.path.join(home, "bin", "ssh")
        with open(ssh, "w") as f:
            f.write(f"#!/bin/sh\nexec /usr/bin/ssh -q -i {key} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \"$@\"\n")
        os.chmod(ssh, 0o755)
        cut = os.path.join(home, "bin", "ssh-cut")
        with open(cut, "w") as f:
            f.write("#!/bin/sh\ncase $* in *'systemctl restart'*) exit 255 ;; esac\nexec ssh \"$@\"\n")
        os.chmod(cut, 0o755)
        os.symlink(os.path.join(TOP, "deploy"), os.path.join(home, "deploy"))
        inventory = os.path.join(home, "inventory")
        with open(os.path.join(TOP, "deploy", "inventory.example")) as f:
            # the machines have the model, which is mounted there
            text = f.read().replace("model = model.gguf\n", "").replace("build/packages", os.path.join(self.out, "packages")).replace("1G", "256M")
        with open(inventory, "w") as f:
            f.write(text)

        def operator(script):
            r = subprocess.run(["sh", "-ec", script], cwd=home, env={**os.environ, "PATH": f"{home}/bin:{os.environ['PATH']}"}, capture_output=True, text=True)
            assert r.returncode == 0, f"{script}\nended with {r.returncode}: {r.stdout[-3000:]}{r.stderr[-2000:]}"
            return r.stdout

        dry = "deploy/install-cluster --dry-run inventory"
        said = operator(dry)
        assert "package sluice-router: not there -> " in said and not self.a.run("dpkg -l 'sluice-*' 2>/dev/null | grep '^ii' || true"), said
        started = time.monotonic()
        operator(self.guide.commands("install-cluster"))
        self.client.key = None
        self.wait_nodes("p0", "d0")
        self.wait_serving()
        self.measure("install-cluster, until the first answer", time.monotonic() - started)
        assert operator(dry) == "0 differences\n" and operator("deploy/install-cluster inventory") == "all is as wanted\n"
        with open(inventory, "a") as f:
            f.write("page_tokns = 16\n")
        pid = self.c.property(DECODE, "MainPID")
        assert "+page_tokns = 16" in operator(dry)
        said = operator("! deploy/install-cluster inventory 2>&1")
        assert "the nearest is page_tokens" in said and self.c.property(DECODE, "MainPID") == pid, said
        with open(inventory, "w") as f:
            f.write(text + "max_waiting = 77\n")
        said = operator("! deploy/install-cluster --ssh 'ssh-cut -o BatchMode=yes -l root' inventory")
        assert "+max_waiting = 77" in said and self.c.property(DECODE, "MainPID") == pid, said
        restart = f"10.0.0.3: unit {DECODE}: restart\n"
        assert operator(dry) == restart + "1 differences\n" and operator("deploy/install-cluster inventory") == restart + "1 changes made\n"
        assert operator("deploy/install-cluster inventory") == "all is as wanted\n"
        self.wait_nodes("p0", "d0")
        assert self.c.property(DECODE, "MainPID") != pid
        self.wait_serving()

    STORIES = (boot, install_by_the_guide, look_and_ask_by_the_guide, keys_and_reload, cluster_secret_by_the_guide,
               wrong_configuration_is_not_started_again, killed_daemons_are_back,
               watchdog_kills_a_wedged_engine, stop_under_load_loses_no_stream, drained_node_finishes_what_it_has, power_loss, upgrade_one_machine_at_a_time, remove,
               install_many_machines_over_ssh)


def main(root, model, out, *only):
    life = Life(root, model, out)
    results, failed = [], 0
    life.guide.commands("packages")  # tests/deploy/run did
    try:
        for story in [s for s in Life.STORIES if not only or s.__name__ in only]:
            name, started = story.__name__, time.monotonic()
            print(f"[....] {name}", flush=True)
            try:
                story(life)
                results.append({"story": name, "ok": True, "seconds": round(time.monotonic() - started, 1)})
                print(f"[ ok ] {name} ({time.monotonic() - started:.0f} s)", flush=True)
            except Exception:
                failed += 1
                results.append({"story": name, "ok": False})
                traceback.print_exc()
                print(f"[FAIL] {name}", flush=True)
                break  # the ones that follow start from where this one was to end
        if not failed and not only and life.guide.left:
            failed += 1
            print(f"[FAIL] blocks of the guide that no story runs: {sorted(life.guide.left)}")
    finally:
        with open(os.path.join(out, "results.json"), "w") as f:
            json.dump({"stories": results, "measured": life.measured}, f, indent=1)
        if failed:
            for m in life.machines:
                if m.leader:
                    with contextlib.suppress(Exception):
                        print(f"--- {m.name}\n" + m.run("journalctl -u 'sluice*' -n 30 --no-pager -o cat", check=False))
        life.close()
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
