"""A headless Chromium for tests, spoken to over a pipe: opens a page, evaluates in it, takes pictures. No driver, no package."""
import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

from harness import LIMIT_S


def chromium():
    """The program, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """with Browser() as b: b.go(url); b.eval("document.title")"""

    def __init__(self, width=1440, height=1000):
        self.folder = tempfile.mkdtemp(prefix="sluice-browser-")
        here_in, there_out = os.pipe()
        there_in, here_out = os.pipe()
        self.read, self.write = here_in, here_out
        options = ["--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage",
                   "--disable-background-networking", "--hide-scrollbars", f"--user-data-dir={self.folder}", f"--window-size={width},{height}"]
        # it wants to read from file 3 and to write to file 4
        start = ("import fcntl, os, sys; "
                 f"i, o = (fcntl.fcntl(f, fcntl.F_DUPFD, 10) for f in ({there_in}, {there_out})); "
                 "os.dup2(i, 3); os.dup2(o, 4); os.execv(sys.argv[1], sys.argv[1:])")
        self.process = subprocess.Popen([sys.executable, "-c", start, chromium(), *options], pass_fds=(there_in, there_out),
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(there_in)
        os.close(there_out)
        self.rest, self.n_calls, self.session, self.said = b"", 0, None, []
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(domain + ".enable")
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.read)
        os.close(self.write)
        shutil.rmtree(self.folder, ignore_errors=True)

    def message(self, end):
        while b"\0" not in self.rest:
            if not select.select([self.read], [], [], max(0, end - time.monotonic()))[0]:
                raise AssertionError("the browser does not answer")
            got = os.read(self.read, 1 << 20)
            if not got:
                raise AssertionError("the browser ended")
            self.rest += got
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **params):
        self.n_calls += 1
        what = {"id": self.n_calls, "method": method, "params": params}
        if self.session:
            what["sessionId"] = self.session
        os.write(self.write, json.dumps(what).encode() + b"\0")
        end = time.monotonic() + LIMIT_S
        while True:
            m = self.message(end)
            if m.get("id") == self.n_calls:
                if "error" in m:
                    raise AssertionError(f"{method}: {m['error']}")
                return m["result"]
            self.note(m)

    def note(self, m):
        """Errors of the page and all it asks for end up in said."""
        p = m.get("params", {})
        if m.get("method") == "Runtime.exceptionThrown":
            self.said.append(("error", json.dumps(p["exceptionDetails"])))
        elif m.get("method") == "Log.entryAdded" and p["entry"]["level"] == "error":
            self.said.append(("error", json.dumps(p["entry"])))
        elif m.get("method") == "Network.requestWillBeSent":
            self.said.append(("asked", p["request"]["url"]))

    def go(self, url):
        self.call("Page.navigate", url=url)

    def eval(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in r:
            raise AssertionError(f"{expression}: {json.dumps(r['exceptionDetails'])}")
        return r["result"].get("value")

    def size(self, width, height, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)

    def media(self, **features):
        """prefers_color_scheme="light" and the like."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": k.replace("_", "-"), "value": v} for k, v in features.items()])

    def key(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **({"text": key} if len(key) == 1 and kind == "keyDown" else {}))

    def picture(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
