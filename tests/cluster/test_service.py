"""What a service manager sees: ready and status by notification, a watchdog that a hanging engine does not feed, reload at SIGHUP, --check-config."""
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

import harness
from harness import program, wait_for

WATCHDOG_US = 2_000_000


class Manager:
    """The socket that NOTIFY_SOCKET names, and all lines that came by it. A thread reads, as a full socket holds its writers up."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.heard = []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        while data := self.socket.recv(4096):
            self.heard += data.decode().split("\n")

    def env(self):
        return {"NOTIFY_SOCKET": self.path, "WATCHDOG_USEC": str(WATCHDOG_US)}

    def wait(self, line):
        return wait_for(f"the notification {line}", lambda: line in self.heard)

    def say(self, data):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.sendto(data, self.path)

    def count(self, line):
        """How often the line came until now: what was sent before this call is counted."""
        self.say(b"counted")
        self.wait("counted")
        at = self.heard.index("counted")
        self.heard[at] = ""
        return self.heard[:at].count(line)

    def close(self):
        self.say(b"")
        self.reader.join()
        self.socket.close()


class Service(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.model = self.path("tiny.gguf")
        subprocess.run([program("sluice-make-model"), "--preset", "tiny", "--out", self.model], check=True, stdout=subprocess.DEVNULL)
        self.manager = Manager(self.folder)
        self.addCleanup(self.manager.close)
        self.http = self.register = 0

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w") as f:
            f.write(text)
        return self.path(name)

    def start(self, which, config, env=None):
        d = harness.Daemon(which, [program(which), "--config", config], self.folder, env=env)
        self.addCleanup(lambda: d.alive() and (d.kill(), d.wait()))
        return d

    def start_router(self, config, env=None):
        router = self.start("sluice-router", config, env)
        self.register, _, self.http = harness.router_ports(router)
        return router

    def router_text(self, **more):
        options = {"listen": "127.0.0.1:0", "model": self.model, "register_url": "tcp://127.0.0.1:0",
                   "admin_url": f"ipc://{self.path('r.sock')}", "served_model_name": "tiny", **more}
        return "[router]\n" + "".join(f"{k} = {v}\n" for k, v in options.items())

    def node_text(self, **more):
        options = {"name": "d0", "routers": f"tcp://127.0.0.1:{self.register}", "model": self.model, "kv_memory": "4M", "cache_dir": "none", **more}
        return "[node]\n" + "".join(f"{k} = {v}\n" for k, v in options.items())

    def ask(self, path, key=None, body=None):
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}{path}", json.dumps(body).encode() if body else None, headers)
        try:
            with urllib.request.urlopen(request, timeout=harness.LIMIT_S) as r:
                return r.status
        except urllib.error.HTTPError as e:
            return e.code

    def a_node_that_hangs(self, **keys):
        """A client waits for its first step, which never ends."""
        self.start_router(self.write("router.conf", self.router_text()))
        node = self.start("sluice-decode", self.write("node.conf", self.node_text(fault_wedge_step=1, **keys)), self.manager.env())
        self.manager.wait("READY=1")
        wait_for("the router to be ready", lambda: self.ask("/health") == 200)
        body = {"model": "tiny", "prompt": [17, 18, 19], "max_tokens": 4}
        client = subprocess.Popen(["curl", "-s", "-o", "/dev/null", "-H", "Content-Type: application/json", "-d", json.dumps(body),
                                   f"http://127.0.0.1:{self.http}/v1/completions"])
        self.addCleanup(lambda: (client.kill(), client.wait()))
        wait_for("the node to see that it hangs", lambda: "the step in flight makes no progress" in node.log())
        return node

    def test_an_engine_that_hangs_does_not_feed_the_watchdog(self):
        node = self.a_node_that_hangs()
        self.assertTrue([x for x in self.manager.heard if x.startswith("STATUS=loading the model, ")], self.manager.heard)
        self.manager.wait("WATCHDOG=1")
        complaints = lambda: node.log().count("the step in flight makes no progress")
        fed = self.manager.count("WATCHDOG=1")
        wait_for("two more looks", lambda: complaints() >= 3)
        self.assertEqual(self.manager.count("WATCHDOG=1"), fed)
        # the stop says what it waits for, and a second signal is enough for it
        node.kill(signal.SIGTERM)
        wait_for("the stop", lambda: "STOPPING=1" in self.manager.heard)
        node.kill(signal.SIGTERM)
        self.assertEqual(node.wait(), 1)
        self.assertIn("the step in flight did not end, its device hangs; the node ends without it", node.log())
        self.assertNotIn("s more for it", node.log())

    def test_a_stop_of_a_node_that_hangs_says_what_it_waits_for(self):
        node = self.a_node_that_hangs(drain_ms=1)
        node.kill(signal.SIGTERM)
        wait_for("the sentence", lambda: "s more for it, unless another signal comes" in node.log())
        node.kill(signal.SIGTERM)
        self.assertEqual(node.wait(), 1)
        self.assertIn("the step in flight did not end, its device hangs; the node ends without it", node.log())

    def test_the_router_tells_its_state(self):
        router = self.start_router(self.write("router.conf", self.router_text()), self.manager.env())
        self.manager.wait("READY=1")
        self.manager.wait("WATCHDOG=1")
        wait_for("a status", lambda: [x for x in self.manager.heard if x.startswith("STATUS=") and len(x) > 10])
        self.assertEqual(router.stop(), 0)
        self.manager.wait("STOPPING=1")

    def test_reload_takes_new_keys_and_tells_what_needs_a_restart(self):
        keys = self.write("keys", "alice:sk-old\n")
        config = self.write("router.conf", self.router_text(api_key_file=keys))
        router = self.start_router(config, self.manager.env())
        self.manager.wait("READY=1")
        self.assertEqual((self.ask("/v1/models", "sk-old"), self.ask("/v1/models", "sk-new")), (200, 401))
        self.write("keys", "# none left\n")
        router.kill(signal.SIGHUP)
        wait_for("the refusal", lambda: "the reload changed nothing: " in router.log())
        self.assertEqual(self.ask("/v1/models", "sk-old"), 200)
        self.write("keys", "alice:sk-new\n")
        self.write("router.conf", self.router_text(api_key_file=keys, max_requests=7, log_level="debug"))
        router.kill(signal.SIGHUP)
        wait_for("the reload", lambda: "<6>reloaded" in router.log())
        self.assertEqual((self.ask("/v1/models", "sk-old"), self.ask("/v1/models", "sk-new")), (401, 200))
        self.assertIn("only a restart changes key=max_requests", router.log())
        self.assertIn("the reload changed an option key=log_level", router.log())
        self.manager.wait("RELOADING=1")

    def test_reload_of_a_node(self):
        self.write("node.conf", self.node_text())
        node = self.start("sluice-decode", self.path("node.conf"), self.manager.env())
        self.manager.wait("READY=1")
        self.write("node.conf", self.node_text(drain_ms="soon"))
        node.kill(signal.SIGHUP)
        wait_for("the refusal", lambda: "the reload changed nothing: " in node.log())
        self.write("node.conf", self.node_text(drain_ms=5, kv_memory="8M"))
        node.kill(signal.SIGHUP)
        wait_for("the reload", lambda: "the reload changed an option key=drain_ms" in node.log())
        wait_for("the warning", lambda: "only a restart changes key=kv_memory" in node.log())
        self.assertEqual(node.stop(), 0)

    def reload_asked_for_while_it_loads(self, which, config):
        with open(config) as f:
            model = next(line.split(" = ")[1].strip() for line in f if line.startswith("model = "))
        d = self.start(which, config, self.manager.env())

        def loads():
            with open(f"/proc/{d.process.pid}/maps") as f:
                return model in f.read() or not d.check_alive()

        wait_for("the model to be read, or the end of that", lambda: loads() or "READY=1" in self.manager.heard)
        d.kill(signal.SIGHUP)
        self.manager.wait("READY=1")
        self.manager.wait("RELOADING=1")
        self.assertEqual(d.stop(), 0)

    def test_a_reload_asked_for_while_it_loads_comes_after_that(self):
        self.reload_asked_for_while_it_loads("sluice-router", self.write("router.conf", self.router_text()))
        self.manager.heard.clear()
        self.start_router(self.path("router.conf"))
        self.reload_asked_for_while_it_loads("sluice-decode", self.write("node.conf", self.node_text()))

    def test_files_that_never_end_or_never_begin_hold_no_reload_up(self):
        keys = self.write("keys", "alice:sk-old\n")
        config = self.write("router.conf", self.router_text(api_key_file=keys))
        router = self.start_router(config, self.manager.env())
        node = self.start("sluice-decode", self.write("node.conf", self.node_text()), self.manager.env())
        wait_for("the node to be ready", lambda: self.manager.heard.count("READY=1") >= 2)
        refusals = lambda d: d.log().count("the reload changed nothing: ")
        for daemon, path in ((router, keys), (router, config), (node, self.path("node.conf"))):
            with open(path) as f:
                text = f.read()
            for bad in (lambda: os.mkfifo(path), lambda: os.mkdir(path), lambda: os.symlink("/dev/zero", path), lambda: self.huge(path), lambda: None):
                os.unlink(path)
                bad()
                before = refusals(daemon)
                daemon.kill(signal.SIGHUP)
                wait_for("the refusal", lambda: refusals(daemon) > before)
                if os.path.isdir(path):
                    os.rmdir(path)
                self.write(path, text) if not os.path.lexists(path) else os.replace(self.write("new", text), path)
        self.assertEqual(self.ask("/v1/models", "sk-old"), 200)
        self.assertEqual((node.stop(), router.stop()), (0, 0))

    def huge(self, path):
        with open(path, "w") as f:
            f.truncate(1 << 40)

    def test_keys_come_as_a_credential(self):
        os.mkdir(self.path("credentials"))
        self.write("credentials/sluice.api-keys", "sk-secret\n")
        config = self.write("router.conf", self.router_text())
        self.start_router(config, {**self.manager.env(), "CREDENTIALS_DIRECTORY": self.path("credentials")})
        self.manager.wait("READY=1")
        self.assertEqual((self.ask("/v1/models"), self.ask("/v1/models", "sk-secret")), (401, 200))

    def test_a_log_that_nobody_reads_any_more_ends_nothing(self):
        for which, text in (("sluice-router", self.router_text()), ("sluice-decode", self.node_text(routers="tcp://127.0.0.1:1"))):
            self.manager.heard.clear()
            reader, log = os.pipe()
            daemon = subprocess.Popen([program(which), "--config", self.write("x.conf", text)], stderr=log, stdin=subprocess.DEVNULL,
                                      env={**os.environ, **self.manager.env()})
            self.addCleanup(lambda p=daemon: p.poll() is None and (p.kill(), p.wait()))
            os.close(log)
            self.manager.wait("READY=1")
            os.close(reader)
            daemon.send_signal(signal.SIGTERM)
            self.assertEqual(daemon.wait(harness.LIMIT_S), 0, which)

    def test_check_config_checks_and_ends(self):
        for which, text in (("sluice-router", self.router_text()), ("sluice-prefill", self.node_text()), ("sluice-decode", self.node_text())):
            for wrong, status in (("", 0), ("log_levle = info\n", 78)):
                r = subprocess.run([program(which), "--config", self.write("x.conf", text + wrong), "--check-config"], capture_output=True,
                                   text=True, timeout=harness.LIMIT_S)
                self.assertEqual(r.returncode, status, r.stderr)
                self.assertEqual("the nearest is log_level" in r.stderr, status != 0, r.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
