// timeline.js - one lane per node, one bar per step: as wide as it took, decode rows below, guesses on them, prompt
// tokens on top. Page transfers are curves from lane to lane.
//
// Decode rows and prompt tokens each have their own scale (square root: 4 rows and 400 tokens are seen both). Where a
// step is narrower than a pixel, a column shows the most of what ran in it.

// The right edge stays behind what is known, so that what comes is not seen to come in lumps: so far at least, and so far
// beyond the delay of what came lately.
const LAG_MIN_S = 1, LAG_BEYOND_S = 0.5;
const SPANS_S = [0.25, 0.5, 1, 2, 4, 8, 15, 30, 60];
const TOP_PX = 26; // for the times
const DECODE_PART = 0.38, PROMPT_PART = 0.56; // of a lane's height at most
const TEXT_MIN_PX = 30; // a bar this wide has numbers in it
const STEPS_S = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20];

export class Timeline {
  constructor(data, ui) {
    this.data = data;
    this.ui = ui; // {line, lanes, canvas, tip, empty, span, pause}
    this.span = 4;
    this.lag = LAG_MIN_S;
    this.end = null; // seconds; null: follows now
    this.order = [];
    this.maxDecode = 4;
    this.maxPrompt = 64;
    this.hits = [];
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    this.readColours();
    matchMedia("(prefers-color-scheme: light)").addEventListener("change", () => {
      this.readColours();
      this.draw();
    });
    new ResizeObserver(() => this.draw()).observe(ui.canvas);
    ui.line.addEventListener("keydown", (e) => this.onKey(e));
    ui.canvas.addEventListener("pointermove", (e) => this.onPointer(e));
    ui.canvas.addEventListener("pointerleave", () => (ui.tip.hidden = true));
    ui.canvas.addEventListener("wheel", (e) => this.onWheel(e), { passive: false });
    ui.pause.addEventListener("click", () => this.setPaused(this.end === null));
    this.showSpan();
  }

  readColours() {
    const css = getComputedStyle(document.documentElement);
    this.colour = Object.fromEntries(
      ["decode", "draft", "prompt", "transfer", "predicted", "line", "dim", "text", "panel", "bad"].map((n) => [n, css.getPropertyValue(`--${n}`).trim()]),
    );
  }

  // ---- what is shown ----

  /** nodes: [{name, label, detail, dead}] in the order they are shown. */
  setNodes(nodes) {
    const key = JSON.stringify(nodes.map((n) => n.name));
    this.nodes = nodes;
    if (key !== this.key) {
      this.key = key;
      this.order = nodes.map((n) => n.name);
      this.ui.lanes.replaceChildren(
        ...nodes.map(() => {
          const item = document.createElement("li");
          item.append(document.createElement("b"), document.createElement("span"));
          return item;
        }),
      );
      this.place();
    }
    nodes.forEach((n, i) => {
      const item = this.ui.lanes.children[i];
      item.title = n.name;
      item.children[0].textContent = n.label;
      item.children[1].textContent = n.detail;
    });
  }

  place() {
    const n = Math.max(this.order.length, 1);
    this.lanePx = n <= 3 ? 104 : n <= 6 ? 84 : n <= 10 ? 62 : n <= 20 ? 40 : 26;
    this.ui.lanes.classList.toggle("small", this.lanePx < 60);
    const height = TOP_PX + n * this.lanePx + 4;
    this.ui.canvas.style.height = this.ui.lanes.style.height = `${height}px`;
    [...this.ui.lanes.children].forEach((item, i) => {
      item.style.top = `${TOP_PX + i * this.lanePx}px`;
      item.style.height = `${this.lanePx}px`;
    });
  }

  setPaused(paused) {
    this.end = paused ? this.liveEnd() : null;
    this.ui.pause.setAttribute("aria-pressed", String(paused));
    this.ui.pause.textContent = paused ? "Go on" : "Pause";
    this.draw();
  }

  zoom(by) {
    const at = SPANS_S.findIndex((s) => s >= this.span);
    this.span = SPANS_S[Math.min(Math.max(at + by, 0), SPANS_S.length - 1)];
    this.showSpan();
    this.draw();
  }

  showSpan() {
    this.ui.span.textContent = this.span < 1 ? `${this.span * 1000} ms` : `${this.span} s`;
  }

  pan(part) {
    if (this.end === null) this.setPaused(true);
    this.end = Math.min(this.end + part * this.span, this.liveEnd());
    this.draw();
  }

  onKey(e) {
    const act = {
      " ": () => this.setPaused(this.end === null), "+": () => this.zoom(-1), "=": () => this.zoom(-1), "-": () => this.zoom(1),
      ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2), End: () => this.setPaused(false),
    }[e.key];
    if (!act || e.ctrlKey || e.metaKey || e.altKey || e.target !== this.ui.line) return;
    e.preventDefault();
    act();
  }

  onWheel(e) {
    if (!e.ctrlKey && Math.abs(e.deltaX) <= Math.abs(e.deltaY)) return; // up and down scroll the page
    e.preventDefault();
    if (e.ctrlKey) this.zoom(Math.sign(e.deltaY));
    else this.pan(e.deltaX / 800);
  }

  onPointer(e) {
    const box = this.ui.canvas.getBoundingClientRect();
    const x = e.clientX - box.left, y = e.clientY - box.top;
    const lane = Math.floor((y - TOP_PX) / this.lanePx);
    const t = this.start + (x / box.width) * this.span;
    const text = this.describe(this.order[lane], t, this.span / box.width);
    this.ui.tip.hidden = !text;
    if (!text) return;
    this.ui.tip.textContent = text;
    this.ui.tip.style.left = `${Math.min(e.clientX + 14, innerWidth - 350)}px`;
    this.ui.tip.style.top = `${e.clientY + 14}px`;
  }

  describe(node, t, slack) {
    const steps = this.data.lanes.get(node)?.steps;
    if (!steps) return "";
    const s = steps[firstEnding(steps, t - slack)];
    if (!s || s.from > t + slack) return "";
    const parts = [`${node}: step of ${s.took.toFixed(2)} ms, predicted ${s.predicted.toFixed(2)} ms`];
    if (s.decode) parts.push(plural(s.decode, "decode row"));
    if (s.draft) parts.push(plural(s.draft, "speculative row"));
    if (s.prompt) parts.push(`${plural(s.prompt, "prompt token")} of ${plural(s.prompts, "prompt")}`);
    return parts.join("\n");
  }

  // ---- drawing ----

  liveEnd() {
    const wanted = Math.max(LAG_MIN_S, this.data.delay + LAG_BEYOND_S);
    this.lag += (wanted - this.lag) * 0.03; // no jumps
    return (this.data.now() ?? 0) - this.lag;
  }

  /** Draws again and again; less often where that takes long or the person wants no motion. */
  run() {
    let next = 0;
    const frame = (t) => {
      if (t >= next && this.end === null && !this.still.matches) {
        const before = performance.now();
        this.draw();
        next = t + (performance.now() - before) * 3;
      }
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  draw() {
    const { canvas } = this.ui, scale = devicePixelRatio || 1;
    const w = canvas.clientWidth, h = canvas.clientHeight;
    if (!w || !h || !this.lanePx) return;
    if (canvas.width !== Math.round(w * scale) || canvas.height !== Math.round(h * scale)) {
      canvas.width = Math.round(w * scale);
      canvas.height = Math.round(h * scale);
    }
    const g = canvas.getContext("2d");
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.clearRect(0, 0, w, h);
    const end = this.end ?? this.liveEnd();
    this.start = end - this.span;
    this.drawAxis(g, w, h, end);
    const seen = this.order.map((node) => this.visible(node));
    this.fitScales(seen);
    let n = 0;
    seen.forEach((steps, i) => {
      n += steps.length;
      this.drawLane(g, w, i, steps);
    });
    this.drawTransfers(g, w, end);
    this.drawn = n;
    this.ui.empty.hidden = [...this.data.lanes.values()].some((l) => l.steps.length);
  }

  visible(node) {
    const steps = this.data.lanes.get(node)?.steps ?? [];
    const from = firstEnding(steps, this.start);
    let to = from;
    while (to < steps.length && steps[to].from < this.start + this.span) to++;
    return steps.slice(from, to);
  }

  /** The scales follow what is seen, slowly down and at once up, so that bars do not jump. */
  fitScales(seen) {
    let decode = 4, prompt = 64;
    for (const steps of seen)
      for (const s of steps) {
        decode = Math.max(decode, s.decode + s.draft);
        prompt = Math.max(prompt, s.prompt);
      }
    this.maxDecode = Math.max(decode, this.maxDecode * 0.98);
    this.maxPrompt = Math.max(prompt, this.maxPrompt * 0.98);
  }

  x(t, w) {
    return ((t - this.start) / this.span) * w;
  }

  floor(lane) {
    return TOP_PX + (lane + 1) * this.lanePx - 3;
  }

  drawAxis(g, w, h, end) {
    const step = STEPS_S.find((s) => (s / this.span) * w >= 90) ?? 20;
    g.font = "11px system-ui, sans-serif";
    g.textBaseline = "middle";
    g.lineWidth = 1;
    for (let t = Math.ceil(this.start / step) * step; t <= end; t += step) {
      const x = Math.round(this.x(t, w)) + 0.5;
      g.strokeStyle = this.colour.line;
      g.beginPath();
      g.moveTo(x, TOP_PX - 6);
      g.lineTo(x, h);
      g.stroke();
      g.fillStyle = this.colour.dim;
      g.textAlign = x > w - 30 ? "right" : "center";
      g.fillText(clockText(t, step), x, TOP_PX / 2 - 3);
    }
    for (let i = 0; i < this.order.length; i++) {
      g.fillStyle = this.nodes[i].dead ? this.colour.bad : this.colour.line;
      g.fillRect(0, this.floor(i), w, 1);
    }
  }

  drawLane(g, w, lane, steps) {
    const floor = this.floor(lane), high = this.lanePx - 6;
    const column = { at: -1, decode: 0, draft: 0, prompt: 0 };
    const flush = () => {
      if (column.at >= 0) this.drawBar(g, column.at, 1, floor, high, column);
      column.at = -1;
      column.decode = column.draft = column.prompt = 0;
    };
    for (const s of steps) {
      const x0 = this.x(s.from, w), x1 = this.x(s.to, w);
      if (x1 - x0 < 1.5) {
        const at = Math.floor(x0);
        if (at !== column.at) flush();
        column.at = at;
        column.decode = Math.max(column.decode, s.decode);
        column.draft = Math.max(column.draft, s.draft);
        column.prompt = Math.max(column.prompt, s.prompt);
        continue;
      }
      flush();
      const top = this.drawBar(g, x0, Math.max(x1 - x0 - (x1 - x0 > 4 ? 1 : 0.25), 1), floor, high, s);
      if (x1 - x0 > 8) {
        g.globalAlpha = 0.75;
        g.fillStyle = this.colour.predicted;
        g.fillRect(x0, top - 3, Math.max(this.x(s.from + s.predicted / 1e3, w) - x0 - 1, 1), 1.25);
        g.globalAlpha = 1;
      }
    }
    flush();
  }

  /** Returns its upper edge. */
  drawBar(g, x, width, floor, high, s) {
    const rows = s.decode + s.draft;
    const low = rows ? Math.max(3, DECODE_PART * high * Math.sqrt(rows / this.maxDecode)) : 0;
    const draft = s.draft ? Math.max(2, (low * s.draft) / rows) : 0;
    const prompt = s.prompt ? Math.max(3, PROMPT_PART * high * Math.sqrt(s.prompt / this.maxPrompt)) : 0;
    let y = floor;
    for (const [colour, height, n] of [["decode", low - draft, s.decode], ["draft", draft, s.draft], ["prompt", prompt, s.prompt]]) {
      if (height <= 0) continue;
      y -= height;
      g.fillStyle = this.colour[colour];
      g.fillRect(x, y, width, height);
      if (width >= TEXT_MIN_PX && height >= 12) {
        g.fillStyle = this.colour.panel;
        g.font = "600 11px system-ui, sans-serif";
        g.textAlign = "center";
        g.fillText(String(n), x + width / 2, y + height / 2 + 0.5);
      }
    }
    return y;
  }

  drawTransfers(g, w, end) {
    const lanes = new Map(this.order.map((node, i) => [node, i]));
    const shown = this.data.transfers.filter((t) => t.end >= this.start && t.start <= end && lanes.has(t.from) && lanes.has(t.to));
    g.strokeStyle = g.fillStyle = this.colour.transfer;
    g.globalAlpha = shown.length > 60 ? 0.45 : 0.9;
    for (const t of shown) {
      const a = lanes.get(t.from), b = lanes.get(t.to);
      const x0 = this.x(t.start, w), x1 = this.x(t.end, w);
      const y0 = this.floor(a) + (a < b ? 1 : -this.lanePx * 0.5), y1 = this.floor(b) - (a < b ? this.lanePx * 0.62 : -1);
      const bend = (y1 - y0) * 0.7;
      g.lineWidth = Math.min(1 + Math.log2(1 + t.pages) * 0.3, 4);
      g.beginPath();
      g.moveTo(x0, y0);
      g.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1);
      g.stroke();
      g.beginPath();
      g.arc(x1, y1, 2.5 + g.lineWidth / 2, 0, 7);
      g.fill();
    }
    g.globalAlpha = 1;
  }
}

/** Index of the first step that ends after t; they are in order. */
function firstEnding(steps, t) {
  let lo = 0, hi = steps.length;
  while (lo < hi) {
    const mid = (lo + hi) >> 1;
    if (steps[mid].to <= t) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

function plural(n, what) {
  return `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
}

/** Seconds of the router's life as h:mm:ss, with decimals where the ticks need them. */
function clockText(t, step) {
  const digits = step >= 1 ? 0 : step >= 0.1 ? 1 : 2;
  const h = Math.floor(t / 3600), m = Math.floor(t / 60) % 60, s = (t % 60).toFixed(digits).padStart(digits ? 3 + digits : 2, "0");
  return h ? `${h}:${String(m).padStart(2, "0")}:${s}` : `${m}:${s}`;
}
