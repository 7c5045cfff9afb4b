"""A real cluster on loopback for tests: starts the daemons, asks them things, stops them.

Every wait is for an event with a generous limit; nothing here depends on how fast the machine is, and no daemon takes a slow one for dead unless a
test says so. A test that needs a node in the middle of something holds it there (Cluster.hold). The binaries come from SLUICE_BIN; a failing start
shows the daemon's log. Nodes use the tiny random model unless a test brings its own.

Prices are measured: a test that depends on which nodes do the work names them (`at`).
"""
import atexit
import contextlib
import functools
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

BIN = os.environ.get("SLUICE_BIN", os.path.join(os.path.dirname(__file__), "..", "..", "build", "release", "bin"))
# The router keeps as many decision records of requests (SL_DECISIONS in router/place/decision.h; more only with --max-requests above it) and grows until
# it has had that many.
DECISION_RECORDS = 4096
# Limits are for a machine that hangs, not for a slow one: sanitizers, other work beside, a slow CPU, all three at once.
LIMIT_S = 300.0
LIMIT_MS = str(int(LIMIT_S * 1000))
# The daemons' own patience, the same. What a test gives comes later on the command line and wins.
PATIENT_ROUTER = ["--node-dead-ms", LIMIT_MS, "--node-stall-ms", LIMIT_MS, "--command-timeout-ms", "60000", "--drain-timeout-s", str(int(LIMIT_S))]
PATIENT_NODE = ["--peer-dead-ms", LIMIT_MS, "--peer-wait-ms", LIMIT_MS, "--stall-ms", LIMIT_MS, "--drain-ms", LIMIT_MS]

# Whoever uses this is ended by it as by ^C: with the default, its daemons would stay.
signal.signal(signal.SIGTERM, signal.default_int_handler)


@functools.cache
def shared_folder():
    """What the clusters of one test have in common, until it ends: models, and what nodes keep for their next start."""
    path = tempfile.mkdtemp(prefix="sluice-test-shared-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@functools.cache
def tiny_model(*options):
    path = os.path.join(shared_folder(), f"tiny{tiny_model.cache_info().misses}.gguf")
    subprocess.run([program("sluice-make-model"), "--preset", "tiny", "--out", path, *options], check=True, stdout=subprocess.DEVNULL)
    return path


def program(name):
    return os.path.join(BIN, name)


def at(d, p=None):
    """Headers that name the nodes of a request."""
    return {"X-Sluice-Decode-Node": d, **({"X-Sluice-Prefill-Node": p} if p else {})}


def wait_for(what, condition, limit_s=LIMIT_S):
    """Polls condition() until it is true and returns its value."""
    end = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {limit_s:.0f} s in vain for: {what}")
        time.sleep(0.02)


class Daemon:
    """One process with its log; `prefix` runs it elsewhere (ip netns exec ...)."""

    def __init__(self, name, argv, folder, prefix=(), env=None):
        self.name = name
        self.log_path = os.path.join(folder, name + ".log")
        with open(self.log_path, "ab") as log:
            self.log_starts_at = log.tell()
            self.process = subprocess.Popen([*prefix, *argv], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                            env={**os.environ, **(env or {})})

    def log(self, of_this_life=False):
        with open(self.log_path, errors="replace") as f:
            f.seek(self.log_starts_at if of_this_life else 0)
            return f.read()

    def alive(self):
        return self.process.poll() is None

    def check_alive(self):
        if not self.alive():
            raise AssertionError(f"{self.name} ended with status {self.process.returncode}:\n{self.log()[-3000:]}")
        return True

    def kill(self, sig=signal.SIGKILL):
        self.process.send_signal(sig)

    def wait(self, limit_s=LIMIT_S):
        return self.process.wait(limit_s)

    def stop(self):
        """SIGTERM and wait; returns the exit status."""
        if self.alive():
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"{self.name} did not stop at SIGTERM:\n{self.log()[-2000:]}")


def router_ports(router):
    """(register, event, HTTP) of a router that listens on port 0, the kernel's choice, so that nobody can have taken them: the log tells."""
    ready = wait_for("the router to be ready", lambda: router.check_alive() and re.search(
        r"register=\S*tcp://\S*:(\d+) events=\S*tcp://\S*:(\d+)(?s:.*)router ready listen=\S+ port=(\d+) ", router.log(True)))
    return tuple(map(int, ready.groups()))


class Cluster:
    """with Cluster() as c: one router, prefill node p0, decode node d0."""

    def __init__(self, prefill=1, decode=1, router_options=(), node_options=(), model=None, model_options=(), hosts=None, hold=None, secret=False,
                 routers=("router",), each=None, keys=()):
        self.folder = tempfile.mkdtemp(prefix="sluice-test-")
        self.n_prefill, self.n_decode = prefill, decode
        self.router_options, self.node_options = list(router_options), list(node_options)
        self.model = model
        self.model_options = list(model_options)
        # name of a daemon -> (address, command prefix); loopback when it is not there
        self.hosts = hosts or {}
        # name of a node -> after how many results (prompt chunks and tokens) its engine stands still until release()
        self.hold = hold or {}
        # all daemons prove one cluster secret
        self.secret = ["--cluster-secret-file", self.write_secret("secret")] if secret else []
        self.routers = routers
        # name of a daemon -> options of its own
        self.each = each or {}
        # API keys that routers know; the first one is every request's that brings none
        self.headers = {"Authorization": f"Bearer {next(iter(keys))}"} if keys else {}
        if keys:
            self.router_options += ["--api-key-file", self.write_keys(keys)]
        self.daemons = {}
        # name of a router -> (register, event, HTTP), and how often it has come up and gone: odd while it lives
        self.ports, self.lives = {}, dict.fromkeys(routers, 0)

    def write_secret(self, name):
        """A new cluster secret in a file."""
        path = os.path.join(self.folder, name)
        with open(path, "w", opener=lambda p, flags: os.open(p, flags, 0o600)) as f:
            f.write(os.urandom(32).hex() + "\n")
        return path

    def write_keys(self, keys):
        """API keys that are named like themselves."""
        path = os.path.join(self.folder, "keys")
        with open(path, "w", opener=lambda p, flags: os.open(p, flags, 0o600)) as f:
            f.writelines(f"{k}:{k}\n" for k in keys)
        return path

    def host(self, name):
        return self.hosts.get(name, ("127.0.0.1", ()))

    def __enter__(self):
        try:
            if self.model is None:
                self.model = tiny_model(*self.model_options)
            self.address, _ = self.host("router")
            self.admin = self.admin_of("router")
            for name in self.routers:
                self.start_router(name)
            for i in range(self.n_prefill):
                self.start_node(f"p{i}", "sluice-prefill")
            for i in range(self.n_decode):
                self.start_node(f"d{i}", "sluice-decode")
            self.wait_nodes(self.n_prefill + self.n_decode)
            return self
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(self, *_):
        problems = []
        for d in reversed(list(self.daemons.values())):
            with contextlib.suppress(ProcessLookupError):
                try:
                    d.stop()
                except AssertionError as e:
                    problems.append(str(e))
            text = d.log()
            for mark in ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "runtime error:", "WARNING: ThreadSanitizer",
                         "assertion failed"):
                if mark in text:
                    problems.append(f"{d.name}: {text[text.index(mark):][:6000]}")
        shutil.rmtree(self.folder, ignore_errors=True)
        if problems:
            raise AssertionError("\n".join(problems))

    def admin_of(self, router):
        return f"ipc://{self.folder}/{router}.sock"

    def start_router(self, name="router"):
        """Also again: then it has the ports that it had."""
        address, prefix = self.host("router")
        register, event, http = self.ports.get(name, (0, 0, 0))
        # who waits at the router for its turn depends on measured prices; a test that wants it says so
        at_once = [] if "--hold-ms" in self.router_options else ["--hold-ms", "0"]
        argv = [program("sluice-router"), "--listen", f"{address}:{http}", "--model", self.model, "--served-model-name", "tiny", "--register-url",
                f"tcp://{address}:{register}", "--event-url", f"tcp://{address}:{event}", "--admin-url", self.admin_of(name), *PATIENT_ROUTER, *at_once,
                *self.secret, *self.router_options, *self.each.get(name, ())]
        self.daemons[name] = Daemon(name, argv, self.folder, prefix)
        self.ports[name] = router_ports(self.daemons[name])
        self.lives[name] += 1
        if name == "router":
            self.register_port, self.event_port, self.http_port = self.ports[name]
            self.url = f"http://{address}:{self.http_port}"

    def kill_router(self, name="router"):
        self.lives[name] += 1
        self.daemons[name].kill(signal.SIGKILL)
        self.daemons[name].wait()

    def start_node(self, name, which, options=(), env=None):
        address, prefix = self.host(name)
        router, _ = self.host("router")
        hold = ["--fault-hold-after", str(self.hold[name])] if name in self.hold else []
        at = ",".join(f"tcp://{router}:{self.ports[r][0]}" for r in self.routers)
        argv = [program(which), "--name", name, "--routers", at, "--model", self.model,
                "--threads", "1", "--listen", f"tcp://{address}:0", "--transfer-listen", f"{address}:0", "--kv-memory", "16M", "--page-tokens",
                "16", "--cache-dir", os.path.join(shared_folder(), "cache"), *PATIENT_NODE, *hold, *self.secret,
                *self.node_options, *self.each.get(name, ()), *options]
        self.daemons[name] = Daemon(name, argv, self.folder, prefix, env)
        return self.daemons[name]

    def start_tls_node(self, name, which, options):
        """A node whose control sockets speak TLS, to localhost by name."""
        argv = [program(which), "--name", name, "--routers", f"tls+tcp://localhost:{self.register_port}", "--model", self.model, "--threads", "1", "--listen",
                "tls+tcp://localhost:0", "--kv-memory", "16M", "--page-tokens", "16", "--cache-dir", os.path.join(shared_folder(), "cache"), *PATIENT_NODE, *options]
        self.daemons[name] = Daemon(name, argv, self.folder)
        return self.daemons[name]

    def release(self, name):
        """A node that is held goes on."""
        self.daemons[name].kill(signal.SIGUSR1)

    def wait_nodes(self, n, router=None):
        def ready():
            for d in self.daemons.values():
                d.check_alive()
            return len([x for x in self.nodes(router) if x["state"] in ("ready", "up")]) >= n

        wait_for(f"{n} nodes to be ready", ready)

    # ---- asking ----

    def open(self, path, body=None, headers=None, method=None, limit_s=LIMIT_S):
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", **self.headers, **(headers or {})},
                                         method=method)
        return urllib.request.urlopen(request, timeout=limit_s)

    def get(self, path, quiet=False):
        """The answer as bytes; None when quiet and there is none."""
        try:
            with self.open(path) as r:
                return r.read()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            if quiet:
                return None
            raise

    def status(self, path, body=None, headers=None, method=None):
        """(HTTP status, parsed JSON or None, headers)"""
        try:
            with self.open(path, body, headers, method) as r:
                text, status, h = r.read(), r.status, r.headers
        except urllib.error.HTTPError as e:
            text, status, h = e.read(), e.code, e.headers
        try:
            return status, json.loads(text), h
        except ValueError:
            return status, None, h

    def complete(self, prompt, max_tokens=16, mode=None, headers=None, **extra):
        """A whole completion that runs to max_tokens: (token ids, document)."""
        h = dict(headers or {})
        if mode:
            h["X-Sluice-Mode"] = mode
        body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "min_tokens": max_tokens, "ignore_eos": True,
                "temperature": 0.8, "seed": 7, "return_token_ids": True, **extra}
        status, doc, _ = self.status("/v1/completions", body, h)
        if status != 200:
            raise AssertionError(f"status {status}: {doc}")
        return doc["choices"][0]["token_ids"], doc

    def stream(self, prompt, max_tokens=16, mode=None, headers=None, **extra):
        """A generator of the chunks of a streamed completion."""
        h = dict(headers or {})
        if mode:
            h["X-Sluice-Mode"] = mode
        body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "min_tokens": max_tokens, "ignore_eos": True,
                "temperature": 0.8, "seed": 7, "return_token_ids": True, "stream": True, **extra}
        with self.open("/v1/completions", body, h) as r:
            for line in r:
                if line.startswith(b"data: [DONE]"):
                    return
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])

    def ctl(self, *args, check=True, router=None):
        admin = self.admin_of(router) if router else self.admin
        r = subprocess.run([program("sluicectl"), "--router", admin, "--timeout", str(LIMIT_S), *args, "-o", "json"], capture_output=True, text=True)
        if check and r.returncode != 0:
            raise AssertionError(f"sluicectl {' '.join(args)} ended with {r.returncode}: {r.stdout}{r.stderr}")
        return r

    def tables(self, *args, router=None):
        """{title: [row as dict]} of a sluicectl command."""
        doc = json.loads(self.ctl(*args, router=router).stdout)
        tables = doc["tables"] if isinstance(doc, dict) else doc
        return {t["title"]: [dict(zip(t["columns"], row)) for row in t["rows"]] for t in tables}

    def nodes(self, router=None):
        r = self.ctl("nodes", check=False, router=router)
        if r.returncode != 0:
            return []
        return self.tables("nodes", router=router)["nodes"]

    def record(self, request_id, whole=True):
        """The decision record as it is when both nodes have reported, which may be after the answer; not whole: as it is now."""

        def read():
            record = {row["key"]: row["value"] for row in self.tables("explain", request_id)["record"]}
            return record if not whole or "-" not in (record["prefill_chunks_P"], record["prefill_chunks_D"]) else None

        return wait_for(f"the nodes' reports on {request_id}", read)

    def every_pair_meets(self):
        """Any node has sent pages to any other: no more connections than there are then are ever needed."""
        for p, d in itertools.permutations((n for n in self.daemons if n not in self.routers), 2):
            def met():
                salt = f"{p}-{d}-{time.monotonic()}"
                status, doc, _ = self.status("/v1/completions", {"model": "tiny", "prompt": prompt_of(40), "max_tokens": 2, "cache_salt": salt}, {
                    "X-Sluice-Mode": "pd", **at(d, p)})
                return status == 200 and self.record(doc["id"])["pages_received"] not in ("0", "-")

            wait_for(f"pages to travel from {p} to {d}", met)

    def wait_idle(self):
        """No request runs anywhere, no transfer is open, and every page of every node is free or cached."""

        def idle():
            rows = self.nodes()
            return rows and all(r["running"] == "0" and r["waiting"] == "0" and r["transfers"] == "0" and
                                r["pages_free"] == r["pages"] for r in rows)

        wait_for("all nodes to be idle with all pages free or cached", idle)

    def wait_none_open(self, router=None):
        """Idle nodes, and a router that has no request open."""
        self.wait_idle()
        wait_for("the router to have no request open", lambda: not [
            r for r in self.tables("requests", "0", router=router)["requests"] if r["state"] in ("placed", "streaming", "waiting")])


def prompt_of(n, seed=1, vocab=512, first=16):
    """n token ids, the same for the same seed."""
    x, out = seed * 2654435761 % 2**32, []
    for _ in range(n):
        x = (1664525 * x + 1013904223) % 2**32
        out.append(first + (x >> 8) % (vocab - first))
    return out
