"""/ui in a real browser: what it shows of a cluster at work, hostile names, a lost connection, the keyboard, many nodes."""
import json
import os
import tempfile
import threading
import unittest

from browser import Browser, chromium
from harness import Cluster, prompt_of, wait_for

EVIL = "<img src=x onerror=globalThis.evil=1>"
SHOWN = "<img src…s.evil=1>"  # long names are shown by their two ends

# A cluster of 64 nodes with long and hostile names and huge numbers, in the place of a router.
MANY = """
const columns = "node,state,prefers,permits,running,waiting,rows,queued_tokens,pages_free,pages,cached_pages,transfers,step_error,threads,cpus,backend,heard,boot"
  .split(",");
const names = Array.from({length: 64}, (_, i) => "n".repeat(50) + "-" + i);
names[2] = "<img src=x onerror=globalThis.evil=1>";
const rows = names.map((n, i) => [n, ["up", "up", "dead", "stalled"][i % 4], i % 2 ? "decode" : "prefill", "prefill+decode", "1234567", "9".repeat(12),
  "64", "9".repeat(15), "5", "9".repeat(15), "-", "0", "3%", "256", "-", "avx512", "12h30m", "0123456789abcdef"]);
const request = [names[2], "streaming", "hybrid", names[0], "99999", names[1], "1", "100000", "12345", "1.0s"];
let steps = 0;
globalThis.fetch = async (path) => {
  const now = Math.round(performance.now() * 1000) + 60e6, answer = {now_us: now, lost: false, more: false, next: ++steps, transfers: []};
  answer.lanes = names.map((node) => ({node, prompt_tokens: steps * 1e15, decode_tokens: steps * 1e12, uptime_us: now, told_us: now}));
  answer.steps = names.flatMap((_, i) => Array.from({length: 40}, (_, k) => [i, now - 400000 + k * 10000, 9000, 8000, i % 2 ? 64 : 0, 0, i % 3 ? 512 : 0, 1]));
  const state = {text: "Ready", model: "m".repeat(100), tables: [{title: "nodes", columns, rows}, {title: "links", columns: [], rows: []},
    {title: "requests", columns: "id,state,mode,P,s,D,attempts,prompt_tokens,tokens,age".split(","), rows: Array(500).fill(request)},
    {title: "status", columns: ["key", "value"], rows: [["mode", "hybrid"], ["nodes_up", "32"], ["requests_streaming", "1000000"]]}]};
  return {ok: true, json: async () => (String(path).includes("steps") ? answer : state)};
};
"""


@unittest.skipUnless(chromium(), "chromium is not here")
class Ui(unittest.TestCase):
    def setUp(self):
        self.errors = []

    def load(self, c, stop):
        """Answers in every mode, one after another, beside others."""
        k = 0
        while not stop.is_set():
            k += 1
            try:
                c.complete(prompt_of(60 + k % 3 * 100, seed=threading.get_ident() % 1000 + k), 24, mode=("pd", "colocated", "hybrid")[k % 3])
            except BaseException as e:
                self.errors.append(e)
                raise

    def picture(self, b, name):
        if os.environ.get("SLUICE_UI_PICTURES"):
            b.picture(os.path.join(os.environ["SLUICE_UI_PICTURES"], name + ".png"))

    def check_page(self, c, b):
        def text(selector):
            return b.eval(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''")

        def cells(table):
            return b.eval(f"[...document.querySelectorAll('#{table} tbody tr')].map(r => [...r.cells].map(x => x.textContent))")

        wait_for("the nodes", lambda: {r[0]: r[1] for r in cells("nodes") if len(r) > 1} == {"p0": "up", "d0": "up"})
        self.assertEqual(text("#mode"), "colocated")
        self.assertIn("2 of 2 nodes up", text("#says"))
        self.assertEqual(text("#t-nodes"), "2 of 2")
        wait_for("steps of both kinds and mixed ones", lambda: b.eval(
            "(() => { const all = [...sluice.data.lanes.values()].flatMap(l => l.steps);"
            " return all.some(s => s.decode && !s.prompt) && all.some(s => s.prompt && !s.decode) && all.some(s => s.prompt && s.decode) })()"))
        wait_for("transfers", lambda: b.eval("sluice.data.transfers.some(t => t.from === 'p0' && t.to === 'd0' && t.pages > 0)"))
        wait_for("bars to be drawn", lambda: b.eval("sluice.timeline.drawn") > 0)
        wait_for("blue and amber on the canvas", lambda: b.eval(
            "(() => { const g = sluice.timeline.ui.canvas, d = g.getContext('2d').getImageData(0, 0, g.width, g.height).data; let blue = 0, amber = 0;"
            " for (let i = 0; i < d.length; i += 4) { if (d[i+2] > d[i] + 60) blue++; if (d[i] > d[i+2] + 60) amber++; } return blue > 50 && amber > 50 })()"))
        wait_for("a request with its placement", lambda: any("colocated" in r and "d0" in r for r in cells("requests")))
        wait_for("the link", lambda: any(r[:3] == ["p0", "d0", "up"] for r in cells("links")))
        wait_for("rates", lambda: text("#t-decode") not in ("–", "0"))
        self.assertEqual(b.eval("[...document.querySelectorAll('#lanes b')].map(x => x.textContent)"), ["p0", "d0"])
        self.picture(b, "cluster")

    def check_keyboard(self, b):
        b.eval("document.getElementById('line').focus()")
        b.key(" ")
        self.assertEqual(b.eval("document.getElementById('pause').getAttribute('aria-pressed')"), "true")
        span, end = b.eval("sluice.timeline.span"), b.eval("sluice.timeline.end")
        b.key("+")
        b.key("ArrowLeft")
        self.assertLess(b.eval("sluice.timeline.span"), span)
        self.assertLess(b.eval("sluice.timeline.end"), end)
        b.key("End")
        self.assertIsNone(b.eval("sluice.timeline.end"))

    def check_lost_connection(self, b):
        def live():
            return b.eval("document.getElementById('live').dataset.state")

        network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        errors = len([s for s in b.said if s[0] == "error"])
        b.call("Network.emulateNetworkConditions", offline=True, **network)
        wait_for("the page to say that the connection is lost", lambda: live() == "lost" and
                 "does not answer" in b.eval("document.getElementById('lost').innerText"))
        b.call("Network.emulateNetworkConditions", offline=False, **network)
        wait_for("the page to go on", lambda: live() == "live" and b.eval("document.getElementById('lost').hidden"))
        self.assertEqual(errors, 0, b.said)

    def check_many(self, c, b):
        b.call("Page.addScriptToEvaluateOnNewDocument", source=MANY)
        b.go(c.url + "/ui/")
        wait_for("64 lanes", lambda: b.eval("document.querySelectorAll('#lanes li').length") == 64)
        wait_for("their steps", lambda: b.eval("globalThis.sluice?.timeline.drawn ?? 0") > 1000)
        for width in (1440, 700, 360):
            b.size(width, 900)
            self.assertEqual(b.eval("document.documentElement.scrollWidth"), width, "the page is wider than the window")
        for table in ("lanes", "nodes", "requests"):
            self.assertIn(SHOWN if table != "requests" else EVIL, b.eval(f"document.getElementById('{table}').textContent"))
        self.assertIsNone(b.eval("globalThis.evil ?? null"))
        self.assertEqual(b.eval("document.querySelectorAll('main img').length"), 0)
        self.assertIn("and 999,700 more", b.eval("document.getElementById('requests').textContent"))
        b.size(1440, 1000)
        b.eval("sluice.timeline.draw()")
        self.picture(b, "many")

    def test_page_shows_a_cluster_at_work(self):
        with Cluster(router_options=["--mode", "colocated"]) as c, Browser() as b:
            stop = threading.Event()
            threads = [threading.Thread(target=self.load, args=(c, stop)) for _ in range(3)]
            for t in threads:
                t.start()
            try:
                b.go(c.url + "/ui")
                self.check_page(c, b)
            finally:
                stop.set()
                for t in threads:
                    t.join()
            self.assertEqual(self.errors, [])
            self.check_keyboard(b)
            self.check_lost_connection(b)
            asked = {url for what, url in b.said if what == "asked"}
            self.assertEqual([url for url in asked if not url.startswith((c.url + "/ui", "data:"))], [], "only the router is asked")
            self.check_many(c, b)

    def test_page_asks_for_the_key_that_the_router_wants(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("me:sk-right\n")
            keys.flush()
            with Cluster(prefill=0, decode=0, router_options=["--api-key-file", keys.name]) as c, Browser() as b:
                def asks():
                    return b.eval("document.getElementById('key').hidden ? null : document.getElementById('key-says').textContent")

                def give(key):
                    b.eval(f"document.getElementById('key-text').value = '{key}', document.getElementById('key').requestSubmit()")

                b.go(c.url + "/ui/")
                wait_for("the page to ask", lambda: asks() == "This router asks for an API key.")
                give("sk-wrong")
                wait_for("the page to ask again", lambda: asks() == "That is not a key of this router.")
                b.eval("sluice.data.failed({status: 403, message: 'This is for operators.'}, 1000)")
                self.assertEqual(asks(), "This is for operators.")
                give("sk-right")
                wait_for("the page to show the cluster", lambda: asks() is None and "No node" in b.eval("document.getElementById('nodes').textContent"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
