// data.js - what the router told: asks for it again and again, keeps the last minute of steps, and counts.
//
// Times are the router's, in seconds since its start. Nothing here touches the page.

const STEPS_MS = 400; // between questions for steps
const STATE_MS = 1000; // and for nodes, links and requests
const KEEP_S = 75; // of steps
const KEEP_STEPS = 24000; // of one node
const RATE_S = 4; // over which rates are told
const DELAYS = 12; // answers that tell how far behind the picture has to be
const SILENT_S = 10; // a node not heard for longer is not waited for
const TIMEOUT_MS = 8000; // an answer that takes longer counts as none

export class Data {
  constructor(changed) {
    this.changed = changed; // called with "steps", "state" or "link"
    this.after = 0;
    this.lanes = new Map(); // node -> lane
    this.transfers = [];
    this.state = null;
    this.link = { state: "wait", text: "connecting" };
    this.key = sessionStorage.getItem("sluice-key") || "";
    this.clock = null; // router's seconds less this page's
    this.delay = 0;
    this.delays = [];
    this.failures = 0;
    this.wakes = new Map(); // of loop: ends its wait
  }

  start() {
    this.loop("steps", STEPS_MS, () => this.askSteps());
    this.loop("state", STATE_MS, () => this.askState());
  }

  useKey(key) {
    this.key = key;
    sessionStorage.setItem("sluice-key", key);
    for (const wake of this.wakes.values()) wake();
  }

  /** The router's time now, or null before its first answer. */
  now() {
    return this.clock === null ? null : performance.now() / 1000 + this.clock;
  }

  async loop(name, everyMs, ask) {
    for (;;) {
      let waitMs = everyMs;
      try {
        if (!document.hidden) {
          if (await ask()) waitMs = 0;
          this.heard();
          this.changed(name);
        }
      } catch (e) {
        waitMs = Math.min(1000 * 2 ** Math.min(this.failures, 3), 5000);
        this.failed(e, waitMs);
      }
      await new Promise((done) => {
        setTimeout(done, waitMs);
        this.wakes.set(name, done);
      });
    }
  }

  heard() {
    this.failures = 0;
    if (this.link.state !== "live") this.tell("live", "live");
  }

  failed(error, waitMs) {
    this.failures++;
    if (error.status === 401) this.tell("key", this.key ? "That is not a key of this router." : "This router asks for an API key.");
    else if (error.status === 403) this.tell("key", error.message); // a key, or a client, that is no operator's
    else if (error.status) this.tell("lost", `The router answers ${error.status}: ${error.message} Trying again every ${Math.ceil(waitMs / 1000)} s.`);
    else this.tell("lost", `The router does not answer. What you see is old; trying again every ${Math.ceil(waitMs / 1000)} s.`);
  }

  tell(state, text) {
    this.link = { state, text };
    this.changed("link");
  }

  async get(path) {
    const stop = new AbortController();
    const timer = setTimeout(() => stop.abort(), TIMEOUT_MS);
    try {
      const headers = this.key ? { Authorization: `Bearer ${this.key}` } : {};
      const answer = await fetch(path, { headers, cache: "no-store", signal: stop.signal });
      if (!answer.ok) {
        const body = await answer.json().catch(() => ({}));
        throw Object.assign(new Error(String(body?.error?.message ?? "")), { status: answer.status });
      }
      return await answer.json();
    } finally {
      clearTimeout(timer);
    }
  }

  async askState() {
    const doc = await this.get("state");
    const tables = {};
    for (const t of doc.tables) tables[t.title] = t.rows.map((row) => Object.fromEntries(t.columns.map((c, i) => [c, row[i]])));
    this.state = { ...doc, tables };
  }

  /** True when more is waiting. */
  async askSteps() {
    const doc = await this.get(`steps/${this.after}`);
    const now = doc.now_us / 1e6;
    const ahead = now - performance.now() / 1000;
    if (this.clock !== null && ahead < this.clock - 2) this.forget(); // another router's life, or a page that slept
    // the answer that was under way for the least time tells best; clocks may drift
    this.clock = this.clock === null || ahead > this.clock ? ahead : this.clock + (ahead - this.clock) * 0.02;
    this.after = doc.next;
    this.noteDelay(now, doc.lanes);
    const lanes = doc.lanes.map((l) => this.lane(l.node));
    doc.lanes.forEach((l, i) => this.count(lanes[i], l));
    for (const [i, start, took, predicted, decode, draft, prompt, prompts] of doc.steps) {
      const from = start / 1e6;
      lanes[i].steps.push({ from, to: from + took / 1e6, took: took / 1e3, predicted: predicted / 1e3, decode, draft, prompt, prompts });
    }
    for (const [from, to, start, end, pages, request] of doc.transfers)
      this.transfers.push({ from: lanes[from].node, to: lanes[to].node, start: start / 1e6, end: end / 1e6, pages, request });
    this.prune(now);
    return doc.more;
  }

  /** How far behind what is known is: of the node that was heard least lately, at its worst in the last few answers. */
  noteDelay(now, lanes) {
    const ages = lanes.map((l) => now - l.told_us / 1e6).filter((age) => age < SILENT_S);
    this.delays = [...this.delays.slice(1 - DELAYS), Math.max(0, ...ages)];
    this.delay = Math.max(...this.delays);
  }

  forget() {
    this.lanes.clear();
    this.transfers = [];
    this.clock = null;
  }

  lane(node) {
    let lane = this.lanes.get(node);
    if (!lane) this.lanes.set(node, (lane = { node, steps: [], sums: [] }));
    return lane;
  }

  count(lane, told) {
    const last = lane.sums.at(-1);
    if (last && told.uptime_us < last.at * 1e6) lane.sums = []; // the node started anew
    if (!last || told.uptime_us > last.at * 1e6) lane.sums.push({ at: told.uptime_us / 1e6, prompt: told.prompt_tokens, decode: told.decode_tokens });
    while (lane.sums.length > 2 && lane.sums.at(-1).at - lane.sums[1].at > RATE_S) lane.sums.shift();
  }

  prune(now) {
    const old = now - KEEP_S;
    for (const lane of this.lanes.values()) {
      let n = Math.max(0, lane.steps.length - KEEP_STEPS);
      while (n < lane.steps.length && lane.steps[n].to < old) n++;
      if (n > 500 || n === lane.steps.length) lane.steps.splice(0, n); // now and then: it moves all the others
    }
    if (this.transfers.length > 4000 || (this.transfers.length && this.transfers[0].end < old - 20))
      this.transfers = this.transfers.filter((t) => t.end >= old).slice(-2000);
  }

  /** Tokens per second that a node computes and generates. */
  rates(node) {
    const sums = this.lanes.get(node)?.sums ?? [];
    if (sums.length < 2) return { prompt: 0, decode: 0 };
    const a = sums[0], b = sums.at(-1), dt = b.at - a.at;
    return { prompt: (b.prompt - a.prompt) / dt, decode: (b.decode - a.decode) / dt };
  }

  /** Of the steps of one node (all: no name) that ended in the last RATE_S seconds told of. */
  recent(node) {
    const out = { steps: 0, ms: 0, predicted: 0, decode: 0, draft: 0, prompt: 0, beside: 0, mixed: 0 };
    for (const lane of node === undefined ? this.lanes.values() : [this.lanes.get(node) ?? { steps: [] }]) {
      const since = (this.now() ?? 0) - RATE_S - 1;
      for (let i = lane.steps.length - 1; i >= 0 && lane.steps[i].to > since; i--) {
        const s = lane.steps[i];
        out.steps++;
        out.ms += s.took;
        out.predicted += s.predicted;
        out.decode += s.decode;
        out.draft += s.draft;
        out.prompt += s.prompt;
        if (s.decode && s.prompt) {
          out.beside += s.prompt;
          out.mixed++;
        }
      }
    }
    return out;
  }
}
