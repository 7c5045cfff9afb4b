// ui.js - the page: figures, tables and the time line out of data.js. All text goes in as text, never as HTML.
import { Data } from "./data.js";
import { Timeline } from "./timeline.js";

const MODES = {
  pd: "pd: prompts run on prefill nodes (amber), their pages travel to a decode node (green), and decode steps (blue) stay short and even.",
  colocated: "colocated: chunks of prompts (amber) ride on the decode rows (blue) of the same step, as many tokens as keep the step within its time.",
  hybrid: "hybrid: each prompt is split where it is cheapest: its beginning on a prefill node (amber), the rest as chunks beside decode rows (amber on blue).",
};
const SILENT_S = 2; // less is no news: nodes report every second
const MAX_NAME = 18; // characters
const MAX_PROBLEMS = 8; // the worst come first
const MAX_ROWS = 300; // of a table; a page is no place for more

const $ = (id) => document.getElementById(id);

function el(tag, properties = {}, ...children) {
  const e = Object.assign(document.createElement(tag), properties);
  e.append(...children);
  return e;
}

// ---- numbers ----

const number = (s) => {
  const v = parseFloat(s);
  return Number.isFinite(v) ? v : 0;
};

/** 3 digits and a letter: 7.31, 48.2, 512, 1.2k, 3.4M. */
function short(v) {
  if (!Number.isFinite(v)) return "–";
  for (const [unit, letter] of [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (Math.abs(v) >= unit) return (v / (letter === "k" ? 1e3 : unit)).toPrecision(3) + letter;
  return v >= 100 || Number.isInteger(v) ? v.toFixed(0) : v >= 10 ? v.toFixed(1) : v.toFixed(2);
}
/** A long name by its two ends: those of a cluster often begin alike. */
const ends = (name) => (name.length > MAX_NAME ? `${name.slice(0, MAX_NAME / 2 - 1)}…${name.slice(-MAX_NAME / 2)}` : name);
const given = (cell) => (cell === "-" ? "–" : cell);
const share = (a, b) => (b > 0 ? `${Math.round((100 * a) / b)} %` : "–");

function bytes(mb) {
  return mb >= 1000 ? `${short(mb / 1000)} GB/s` : `${short(mb)} MB/s`;
}

// ---- tables ----

/** columns: [[head, class, cell(row) -> text or element]]. Only what changed is touched: a selection stays. */
function fill(table, columns, rows, none, more = 0) {
  const shown = rows.slice(0, MAX_ROWS);
  more += rows.length - shown.length;
  if (!table.tHead) {
    const head = table.createTHead().insertRow();
    for (const [name, cls] of columns) head.append(el("th", { scope: "col", className: cls, textContent: name }));
    table.createTBody();
  }
  const body = table.tBodies[0];
  const notes = !shown.length ? [none] : more > 0 ? [`and ${more.toLocaleString("en")} more; sluicectl shows them`] : [];
  while (body.rows.length > shown.length + notes.length) body.deleteRow(-1);
  shown.forEach((row, i) => {
    const tr = rowAt(body, i, columns.length);
    tr.className = row.over ? "over" : "";
    columns.forEach(([, cls, cell], k) => setCell(tr.cells[k], cls, cell(row)));
  });
  notes.forEach((note, i) => {
    const tr = rowAt(body, shown.length + i, 1);
    tr.className = "";
    setCell(tr.cells[0], "none", note);
    tr.cells[0].colSpan = columns.length;
  });
}

/** The i-th row with n cells. */
function rowAt(body, i, n) {
  const tr = body.rows[i] ?? body.insertRow();
  if (tr.cells.length !== n) tr.replaceChildren(...Array.from({ length: n }, () => el("td")));
  return tr;
}

function setCell(td, cls, value) {
  const what = cls + (typeof value === "string" ? value : value.outerHTML); // to compare only
  if (td.what === what) return;
  td.what = what;
  td.className = cls;
  td.replaceChildren(value);
  if (cls === "t" && typeof value === "string") td.title = value;
}

const known = new Set(["up", "draining", "stalled", "dead", "testing", "degraded", "down", "refused", "error", "waiting", "streaming", "placed", "over", "info", "note", "warning"]);
const state = (name, as = name) => el("span", { className: `state ${known.has(as) ? as : ""}`, textContent: name });

function meter(part, text, second) {
  const box = el("span", { className: second === undefined ? "meter" : "meter split" });
  for (const p of second === undefined ? [part] : [part, second]) {
    const bar = el("i");
    bar.style.width = `${Math.max(0, Math.min(1, p || 0)) * 100}%`;
    box.append(bar);
  }
  const both = el("span");
  both.append(box, text);
  return both;
}

function steps(node) {
  const r = data.recent(node);
  return { ...r, ms: r.steps ? r.ms / r.steps : NaN, predicted: r.steps ? r.predicted / r.steps : NaN };
}

const named = (name) => el("span", { title: name, textContent: ends(given(name)) });
const silent = (n) => /[mh]/.test(n.heard) || number(n.heard) >= SILENT_S;

const NODES = [
  ["node", "t", (n) => named(n.node)],
  ["state", "", (n) => state(silent(n) ? `${n.state}, silent for ${n.heard}` : n.state, n.state)],
  ["duty", "", (n) => (n.permits === "prefill+decode" ? `${n.prefers} (both)` : n.permits)],
  ["KV pages in use", "", (n) => meter(1 - number(n.pages_free) / number(n.pages), `${short(number(n.pages) - number(n.pages_free))} of ${short(number(n.pages))}`)],
  ["running", "n", (n) => n.running],
  ["waiting", "n", (n) => n.waiting],
  ["prompt queue", "n", (n) => short(number(n.queued_tokens))],
  ["rows", "n", (n) => n.rows],
  ["tokens/s", "n", (n) => short(data.rates(n.node).decode)],
  ["prompt tokens/s", "n", (n) => short(data.rates(n.node).prompt)],
  ["step / predicted", "n", (n) => (n.steps.steps ? `${short(n.steps.ms)} / ${short(n.steps.predicted)} ms` : "–")],
  ["mixed steps", "n", (n) => share(n.steps.mixed, n.steps.steps)],
  ["transfers", "n", (n) => n.transfers],
  ["boot", "", (n) => n.boot.slice(0, 8)],
  ["backend", "t", (n) => `${n.backend}, ${n.threads} threads`],
];
const REQUESTS = [
  ["request", "t", (r) => r.id],
  ["state", "", (r) => state(r.state, r.over ? (r.state === "error" ? "error" : "over") : r.state)],
  ["mode", "", (r) => given(r.mode)],
  ["prefill", "t", (r) => named(r.P)],
  ["split s", "", (r) => (r.s === "-" ? "–" : meter(number(r.s) / number(r.prompt_tokens), `${r.s} of ${r.prompt_tokens}`, 1 - number(r.s) / number(r.prompt_tokens)))],
  ["decode", "t", (r) => named(r.D)],
  ["tokens", "n", (r) => r.tokens],
  ["age", "n", (r) => r.age],
];
const LINKS = [
  ["from", "t", (l) => named(l.prefill)],
  ["to", "t", (l) => named(l.decode)],
  ["state", "", (l) => state(l.state)],
  ["rate", "n", (l) => (l.mb_per_s === "-" ? "–" : bytes(number(l.mb_per_s)))],
  ["latency", "n", (l) => (l.latency_us === "-" ? "–" : `${short(number(l.latency_us))} µs`)],
  ["pages sent", "n", (l) => short(number(l.pages_sent))],
  ["rejects", "n", (l) => short(number(l.rejects))],
  ["why", "w", (l) => (l.why === "-" ? "" : l.why)],
];

const EVENTS = [
  ["time UTC", "", (e) => e.time.slice(11, 19)],
  ["", "", (e) => state(e.level)],
  ["of", "t", (e) => named(e.of)],
  ["what", "w", (e) => e.text],
];

// ---- the page ----

const data = new Data(onChange);
const timeline = new Timeline(data, {
  line: $("line"), lanes: $("lanes"), canvas: $("canvas"), tip: $("tip"), empty: $("empty"), span: $("span"), pause: $("pause"),
});
$("in").addEventListener("click", () => timeline.zoom(-1));
$("out").addEventListener("click", () => timeline.zoom(1));
$("key").addEventListener("submit", (e) => {
  e.preventDefault();
  data.useKey($("key-text").value);
});

function onChange(what) {
  if (what === "link") showLink();
  else if (what === "state") showState();
  else if (timeline.still.matches) timeline.draw();
}

function showLink() {
  const { state: s, text } = data.link;
  $("live").dataset.state = s === "live" || s === "wait" ? s : "lost";
  $("live").textContent = s === "lost" ? "connection lost" : s === "key" ? "no key" : text;
  $("lost").hidden = s !== "lost";
  if ($("lost").textContent !== text) $("lost").textContent = text;
  $("key").hidden = s !== "key";
  $("key-says").textContent = s === "key" ? text : "";
  document.body.classList.toggle("stale", s === "lost" || s === "key");
}

function inOrder(nodes) {
  const rank = (n) => (n.prefers === "prefill" ? 0 : 1);
  return nodes.sort((a, b) => rank(a) - rank(b) || a.node.localeCompare(b.node, "en", { numeric: true }));
}

function showState() {
  const t = data.state.tables;
  const pairs = Object.fromEntries((t.status ?? []).map((r) => [r.key, r.value]));
  const nodes = inOrder(t.nodes ?? []);
  for (const n of nodes) n.steps = steps(n.node);
  $("model").textContent = $("model").title = data.state.model ?? "";
  $("mode").textContent = pairs.mode ?? "";
  $("says").textContent = $("says").title = data.state.text ?? "";
  $("hint").textContent = `${MODES[pairs.mode] ?? ""} The height of a bar is the square root of what ran, decode rows and prompt tokens each to their own scale.`;
  showTiles(nodes, pairs);
  timeline.setNodes(nodes.map((n) => ({ name: n.node, label: ends(n.node), detail: detail(n), dead: n.state === "dead" })));
  $("canvas").setAttribute("aria-label", nodes.map((n) => `${n.node}, ${n.state}: ${detail(n)}`).join(". ") || "No node has registered.");
  if (timeline.end === null && timeline.still.matches) timeline.draw();
  fill($("nodes"), NODES, nodes, "No node has registered at this router.");
  fill($("links"), LINKS, t.links ?? [], "No pair of nodes has met yet; links are tested when a prefill node first sends to a decode node.");
  fill($("events"), EVENTS, (t.events ?? []).reverse(), "Nothing has happened yet.");
  showProblems(t.problems ?? []);
  const requests = t.requests ?? [];
  for (const r of requests) r.over = !["placed", "streaming", "waiting", "ending"].includes(r.state);
  const open = ["placed", "streaming", "waiting", "ending"].reduce((n, k) => n + number(pairs[`requests_${k}`]), 0);
  fill($("requests"), REQUESTS, requests, "No request yet.", Math.max(0, open - requests.filter((r) => !r.over).length));
}

function showProblems(problems) {
  const what = JSON.stringify(problems);
  if ($("problems").what === what) return;
  $("problems").what = what;
  $("problems").hidden = !problems.length;
  $("problems").replaceChildren(
    ...problems.slice(0, MAX_PROBLEMS).map((p) =>
      el("li", { className: known.has(p.level) ? p.level : "" }, el("b", { textContent: p.level }), `${p.problem} `, el("span", { textContent: p.do })),
    ),
  );
}

function detail(n) {
  if (n.state !== "up") return n.state;
  const s = n.steps, rates = data.rates(n.node);
  if (!s.steps) return `${n.prefers}, idle`;
  const parts = [];
  if (s.decode) parts.push(`${short(rates.decode)} tok/s`);
  if (s.prompt) parts.push(`${short(rates.prompt)} prompt/s`);
  return parts.join(", ") || n.prefers;
}

function showTiles(nodes, pairs) {
  const sum = { prompt: 0, decode: 0 }, all = data.recent();
  for (const n of nodes) {
    const r = data.rates(n.node);
    sum.prompt += r.prompt;
    sum.decode += r.decode;
  }
  const pages = number(pairs.decode_pages);
  $("t-decode").textContent = short(sum.decode);
  $("t-prompt").textContent = short(sum.prompt);
  $("t-requests").textContent = `${short(number(pairs.requests_placed) + number(pairs.requests_streaming))}, ${short(number(pairs.requests_waiting))}`;
  $("t-kv").textContent = share(pages - number(pairs.decode_pages_free), pages);
  $("t-mixed").textContent = share(all.beside, all.prompt);
  $("t-error").textContent = all.steps ? (all.predicted / all.ms).toFixed(2) : "–";
  $("t-nodes").textContent = `${pairs.nodes_up ?? 0} of ${nodes.length}`;
}

data.start();
timeline.run();
// for tests: what is on the screen, without looking at pixels
globalThis.sluice = { data, timeline };
