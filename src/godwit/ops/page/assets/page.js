"use strict";
// The page: sections of a run, drawn from values. Text of a run is only ever set as text.

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const page = { series: {}, points: 0, step: 1, shown: null, frozen: null, asked: 0 };
const report = $("report") ? JSON.parse($("report").textContent) : null;

// -- making elements ------------------------------------------------------------------------------

function el(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "class") made.className = value;
    else if (name === "title") made.title = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null).map((child) => child instanceof Node ? child : String(child)));
  return made;
}

function svg(tag, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== null) made.textContent = text;
  return made;
}

function fill(id, ...children) { $(id).replaceChildren(...children); }
function nothing(id, text) { fill(id, el("p", { class: "empty" }, text)); }

function table(id, head, rows, numeric = []) {
  const cls = (at) => numeric.includes(at) ? { class: "n" } : {};
  const top = el("tr", {}, ...head.map((name, at) => el("th", { scope: "col", ...cls(at) }, name)));
  const body = rows.map(({ cells, open }) => el("tr", open ? { class: "open" } : {}, ...cells.map((cell, at) => el("td", cls(at), cell))));
  fill(id, el("table", {}, el("thead", {}, top), el("tbody", {}, ...body)));
}

// -- numbers with units ---------------------------------------------------------------------------

const known = (value) => typeof value === "number" && Number.isFinite(value);
function short(value, digits = 3) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return `${(value / 1e9).toPrecision(digits)} G`;
  if (size >= 1e6) return `${(value / 1e6).toPrecision(digits)} M`;
  if (size >= 1e4) return `${(value / 1e3).toPrecision(digits)} k`;
  if (size >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(digits)));
}
function millis(ms) {
  if (!known(ms)) return "–";
  if (ms < 1000) return `${Number(ms.toPrecision(3))} ms`;
  if (ms < 120e3) return `${Number((ms / 1e3).toPrecision(3))} s`;
  if (ms < 7200e3) return `${Number((ms / 60e3).toPrecision(3))} min`;
  if (ms < 48 * 3600e3) return `${Number((ms / 3600e3).toPrecision(3))} h`;
  return ms < 2 * 365.25 * 864e5 ? `${Number((ms / 864e5).toPrecision(3))} days` : `${Math.round(ms / 864e5 / 365.25)} years`;
}
function bytes(count) {
  if (!known(count)) return "–";
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (count < 1024) return `${unit === "B" ? count : count.toFixed(1)} ${unit}`;
    count /= 1024;
  }
  return `${count.toFixed(1)} TiB`;
}
const percent = (share) => known(share) ? `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %` : "–";
const two = (number) => String(number).padStart(2, "0");
function clock(seconds) {
  const at = new Date(seconds * 1e3);
  return Number.isNaN(at.getTime()) ? "–" : `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}
function day(seconds) {
  const at = new Date(seconds * 1e3);
  return Number.isNaN(at.getTime()) ? "–" : `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(seconds)}`;
}
const when = (seconds) => el("span", { class: "t" }, clock(seconds));
const many = (count, noun) => `${short(count)} ${noun}${count === 1 ? "" : "s"}`;

// -- what is shown: now, or an earlier epoch ------------------------------------------------------

const column = (name) => page.series[name] || [];
const indexOf = (epoch) => { let at = 0; column("epoch").forEach((e, i) => { if (e <= epoch) at = i; }); return at; };
const until = (list, key = "epoch") => page.frozen === null ? list : list.filter((one) => one[key] <= page.frozen);
const cursor = () => page.points ? (page.frozen === null ? page.points - 1 : indexOf(page.frozen)) : -1;

function scrub(at) {
  page.frozen = at >= page.points - 1 ? null : column("epoch")[at];
  if (page.frozen === null) { page.shown = null; drawAll(); return; }
  const epoch = page.frozen, asked = ++page.asked;
  const show = (frame) => { if (asked === page.asked && page.frozen === epoch) { page.shown = frame; drawAll(); } };
  if (report) {
    const frames = report.frames.filter((frame) => frame.now.epoch <= epoch);
    const frame = frames.length ? frames[frames.length - 1] : report.frames[0];
    show({ now: frame.now, heat: report.heats[frame.heat] });
    return;
  }
  drawTime();
  fetch(`frame?epoch=${epoch}`).then((answer) => answer.ok ? answer.json() : Promise.reject(answer.status)).then(show)
    .catch(() => { $("moment").textContent = "that epoch cannot be read: the server is gone"; });
}
const now = () => (page.shown ? page.shown.now : page.now) || null;
const heat = () => (page.shown ? page.shown.heat : page.heat) || null;

// -- headline -------------------------------------------------------------------------------------

function drawRun() {
  const run = page.run, at = cursor();
  if (!run) return;
  document.title = `${run.flow} · Godwit`;
  $("flow").textContent = run.flow;
  const state = $("state");
  state.textContent = run.state;
  state.className = `state ${run.state === "stopped" ? "ended" : ["failed", "died", "out of reach"].includes(run.state) ? "alarm" : ""}`;
  const notes = [run.why, run.lost ? `entries of the journal that its writer dropped: ${run.lost}` : ""].filter(Boolean);
  $("why").hidden = !notes.length;
  $("why").textContent = notes.join("; ");
  const figure = (name, value, unit = "") => el("div", {}, el("dt", {}, name), el("dd", {}, value, unit ? el("small", {}, ` ${unit}`) : null));
  const get = (name) => at >= 0 ? column(name)[at] : null;
  const latest = (name) => { for (let i = at; i >= 0; i--) if (known(column(name)[i])) return column(name)[i]; return null; };
  const shown = now();
  // The same figures as at the edges of the graph, where there are any.
  const behind = shown ? shown.sources.map((source) => source.behind).filter(known) : [];
  const backlog = behind.length ? behind.reduce((a, b) => a + b, 0) : latest("backlog");
  const requests = shown ? Object.entries(shown.requests) : [];
  fill("headline",
    figure("epoch", at >= 0 ? String(shown && page.frozen === null ? shown.epoch : get("epoch")) : "–"),
    figure("source rows", short(page.frozen === null ? run.rowsPerS : rate(at)), "rows/s"),
    figure("latency, median", millis(latest("p50_ms"))),
    figure("latency, p99", millis(latest("p99_ms"))),
    figure("epoch takes", millis(get("took_ms"))),
    figure("backlog", short(backlog), known(backlog) ? "rows" : ""),
    figure("executors", short(get("executors"))),
    figure("state", bytes(latest("state_bytes")), shown && shown.tableBytes ? `${bytes(shown.tableBytes)} in tables, ${short(shown.evicted)} key groups evicted, ${short(shown.fetched)} keys fetched` : ""),
    ...(requests.length ? [figure("requests to the store", short(requests.reduce((sum, [, count]) => sum + count, 0)), requests.map(([kind, count]) => `${count} ${kind}`).join(", "))] : []));
  $("foot").textContent = run.measured ? `The controller measured last: ${run.measured}` : "";
}

function rate(at) {
  const times = column("at_s");
  if (at < 0) return null;
  const span = at > 0 ? times[at] - times[at - 1] : column("busy_s")[at];
  return span > 0 ? column("rows_in")[at] / span : null;
}

function drawTime() {
  const slider = $("slider"), at = cursor();
  slider.disabled = page.points < 2;
  slider.max = Math.max(page.points - 1, 0);
  if (page.frozen === null || document.activeElement !== slider) slider.value = Math.max(at, 0);
  $("live").setAttribute("aria-pressed", String(page.frozen === null));
  $("live").textContent = report || (page.run && ["stopped", "failed", "died"].includes(page.run.state)) ? "End" : "Live";
  const said = at < 0 ? "no epoch yet" : `epoch ${column("epoch")[at]} · ${day(column("at_s")[at])}`;
  $("moment").textContent = said;
  slider.setAttribute("aria-valuetext", said);
}

// -- the graph of the flow ------------------------------------------------------------------------

function drawGraph() {
  const graph = page.graph, shown = now();
  if (!graph || !graph.operators.length) { nothing("graph", "The flow is drawn once the journal tells of it: after the first epoch of a run."); return; }
  const id = (kind, name) => `${kind} ${name}`;
  const nodes = new Map();
  const add = (kind, name, more = {}) => nodes.set(id(kind, name), { kind, name, level: 0, ...more });
  graph.sources.forEach((name) => add("source", name));
  graph.operators.forEach((node) => add("operator", node.name, node));
  graph.sinks.forEach((node) => add("sink", node.name, node));
  const edges = graph.edges.map((edge) => ({ ...edge, a: nodes.get(id(...edge.from)), b: nodes.get(id(...edge.to)) })).filter((e) => e.a && e.b);
  const seen = new Map();
  const visit = (node) => {  // edges that lead back are drawn below, and give no level
    seen.set(node, "open");
    for (const edge of edges) if (edge.a === node) { edge.back = seen.get(edge.b) === "open"; if (!seen.has(edge.b)) visit(edge.b); }
    seen.set(node, "done");
  };
  for (const node of nodes.values()) if (!seen.has(node)) visit(node);
  for (let moved = true; moved;) {
    moved = false;
    for (const { a, b, back } of edges) if (!back && b.level <= a.level) { b.level = a.level + 1; moved = true; }
  }
  const W = 196, H = 62, GAP = 132, ROW = 84, levels = [];
  for (const node of nodes.values()) (levels[node.level] ||= []).push(node);
  levels.forEach((level, x) => {
    if (x) {  // beside what feeds them, so that edges cross less
      const weight = (node) => { const of = edges.filter((e) => e.b === node); return of.reduce((sum, e) => sum + e.a.y, 0) / (of.length || 1); };
      level.sort((one, other) => weight(one) - weight(other));
    }
    level.forEach((node, y) => { node.x = x * (W + GAP) + 4; node.y = y * ROW + 8; });
  });
  const height = Math.max(...levels.map((level) => level.length)) * ROW, width = levels.length * (W + GAP) - GAP + 8;
  for (const level of levels) { const free = (height - level.length * ROW) / 2; level.forEach((node) => { node.y += free; }); }
  const under = edges.some((edge) => edge.back) ? 46 : 0;
  const drawing = svg("svg", { width, height: height + under, viewBox: `0 0 ${width} ${height + under}`, role: "img", "aria-label": `Flow of ${graph.sources.length} sources, ${graph.operators.length} operators and ${graph.sinks.length} sinks` });
  for (const edge of edges) {
    const { rows, behind } = flowing(edge, shown);
    const [x1, y1, x2, y2] = edge.back ? [edge.a.x + W / 2, edge.a.y + H, edge.b.x + W / 2, edge.b.y + H] : [edge.a.x + W, edge.a.y + H / 2, edge.b.x, edge.b.y + H / 2], middle = (x1 + x2) / 2;
    const bow = edge.back ? `${x1},${height + 30} ${x2},${height + 30}` : `${middle},${y1} ${middle},${y2}`;
    const path = svg("path", { class: rows ? "edge" : "edge still", "stroke-width": 1.2 + Math.min(5, Math.log10(1 + (rows || 0))), d: `M${x1},${y1} C${bow} ${x2},${y2}` });
    path.append(svg("title", {}, edge.exchange ? "rows are sent to the lanes that own their keys" : "rows stay in the lane"));
    drawing.append(path);
    if (known(rows)) drawing.append(svg("text", { class: "label", x: middle, y: edge.back ? height + 12 : (y1 + y2) / 2 - 6 }, `${short(rows)} rows`));
    if (behind) drawing.append(svg("text", { class: "label backlog", x: middle, y: (y1 + y2) / 2 + 14 }, `${short(behind)} behind`));
  }
  for (const node of nodes.values()) {
    const group = svg("g", { class: node.kind });
    group.append(svg("title", {}, [node.name, node.does, node.keys && node.keys.length ? `by ${node.keys.join(", ")}` : "", node.takes && node.takes !== "results" ? `takes rows that were ${node.takes}` : ""].filter(Boolean).join("\n")));
    group.append(svg("rect", { class: "node", x: node.x, y: node.y, width: W, height: H, rx: node.kind === "operator" ? 9 : 24 }));
    group.append(svg("text", { class: "name", x: node.x + 14, y: node.y + 22 }, cut(node.name, 24)));
    const lines = node.kind === "operator" ? [cut(node.does || "", 30), stateOf(node, shown)] : [node.kind === "source" ? "source" : `sink${node.takes && node.takes !== "results" ? ` of rows ${node.takes}` : ""}`];
    lines.filter(Boolean).forEach((line, at) => group.append(svg("text", { x: node.x + 14, y: node.y + 38 + 15 * at }, line)));
    drawing.append(group);
  }
  fill("graph", drawing);
}
const cut = (text, length) => text.length > length ? `${text.slice(0, length - 1)}…` : text;

function stateOf(node, shown) {
  if (!shown) return "";
  const sizes = node.components.map((name) => shown.stateBytes[name]).filter(known);
  const size = sizes.length ? `state ${bytes(sizes.reduce((a, b) => a + b, 0))}` : "";
  return node.components.length > 1 || !page.run.keyGroups ? size : `${size}${size ? ", " : ""}${page.run.keyGroups} key groups`;
}

function flowing(edge, shown) {
  if (!shown) return {};
  if (edge.from[0] === "source") {
    const only = page.graph.sources.length === 1, of = shown.sources.find((source) => source.name === edge.from[1]) || (only && shown.sources.length === 1 ? shown.sources[0] : null);
    const rows = shown.sourceRows[edge.from[1]];
    return { rows: known(rows) ? rows : only ? shown.rowsIn : 0, behind: of ? of.behind : null };
  }
  if (edge.to[0] === "sink") return { rows: shown.sinkRows[edge.to[1]] || 0 };
  const parts = (node) => node.parts || [node.name], inner = shown.edgeRows.filter(([a, b]) => parts(edge.a).includes(a) && parts(edge.b).includes(b));
  return { rows: inner.reduce((sum, [, , rows]) => sum + rows, 0) };
}

// -- figures over time ----------------------------------------------------------------------------

function chart(id, lines, { format, marks = [], empty, tall = false }) {
  const host = $(id), times = column("at_s");
  const shown = lines.map((line) => ({ ...line, values: line.values || column(line.key) })).filter((line) => line.values.some(known));
  if (!shown.length) { nothing(id, empty); return; }
  const W = Math.max(host.clientWidth, 280), H = tall ? 224 : 152, L = 58, R = 10, T = marks.length ? 20 : 8, B = 20;
  const t0 = times[0], t1 = times[times.length - 1], top = Math.max(...shown.flatMap((line) => line.values.filter(known))) || 1;
  const x = (s) => t1 > t0 ? L + (s - t0) / (t1 - t0) * (W - L - R) : (L + W - R) / 2;
  const y = (v) => H - B - v / top * (H - T - B);
  const drawing = svg("svg", { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img" });
  const last = shown.map((line) => { const of = line.values.filter(known); return `${line.label}: last ${format(of[of.length - 1])}, greatest ${format(Math.max(...of))}`; });
  drawing.setAttribute("aria-label", last.join("; "));
  for (const share of [0, 0.5, 1]) {
    drawing.append(svg("line", { class: "axis", x1: L, x2: W - R, y1: y(top * share), y2: y(top * share) }));
    drawing.append(svg("text", { x: L - 6, y: y(top * share) + 4, "text-anchor": "end" }, share ? format(top * share) : "0"));
  }
  for (const [at, anchor] of t1 > t0 ? [[t0, "start"], [(t0 + t1) / 2, "middle"], [t1, "end"]] : [[t0, "middle"]]) drawing.append(svg("text", { x: x(at), y: H - 5, "text-anchor": anchor }, clock(at)));
  shown.forEach((line) => {
    let path = "", pen = "M";
    line.values.forEach((value, at) => { if (known(value)) { path += `${pen}${x(times[at]).toFixed(1)},${y(value).toFixed(1)}`; pen = "L"; } });
    drawing.append(svg("path", { class: line.cls, d: path }));
    if (line.values.filter(known).length < 60) line.values.forEach((value, at) => { if (known(value)) drawing.append(svg("circle", { class: line.cls.replace("s", "d"), cx: x(times[at]), cy: y(value), r: 2.2 })); });
  });
  let flagged = -Infinity;
  marks.forEach((mark) => {
    if (mark.atS < t0 || mark.atS > t1) return;
    const at = x(mark.atS), group = svg("g");
    group.append(svg("title", {}, mark.line), svg("line", { class: "decision", x1: at, x2: at, y1: T, y2: H - B }));
    if (at - flagged > 20) {
      group.append(svg("circle", { class: "flag", cx: at, cy: 10, r: 8.5 }), svg("text", { class: "flagtext", x: at, y: 14 }, String(mark.number)));
      flagged = at;
    }
    drawing.append(group);
  });
  const at = cursor();
  if (page.frozen !== null && at >= 0) drawing.append(svg("line", { class: "cursor", x1: x(times[at]), x2: x(times[at]), y1: T, y2: H - B }));
  const reading = el("div", { class: "read" });
  const nearest = (event) => {
    const box = drawing.getBoundingClientRect(), s = t0 + ((event.clientX - box.left) / box.width * W - L) / (W - L - R) * (t1 - t0);
    return times.reduce((best, time, i) => Math.abs(time - s) < Math.abs(times[best] - s) ? i : best, 0);
  };
  const tell = (i) => { reading.textContent = i < 0 ? "" : `epoch ${column("epoch")[i]}, ${clock(times[i])}: ${shown.map((line) => `${line.label} ${format(line.values[i])}`).join(", ")}`; };
  tell(at);
  drawing.addEventListener("pointermove", (event) => tell(nearest(event)));
  drawing.addEventListener("pointerleave", () => tell(cursor()));
  drawing.addEventListener("click", (event) => scrub(nearest(event)));
  const legend = el("div", { class: "legend" }, ...shown.map((line) => {
    const sample = svg("svg", { viewBox: "0 0 28 10", "aria-hidden": "true" });
    sample.append(svg("path", { class: line.cls, d: "M0,5 L28,5" }));
    return el("span", {}, sample, line.label);
  }));
  host.replaceChildren(legend, drawing, reading);
}

function drawCharts() {
  const decisions = (page.decisions || []).map((one, at) => ({ ...one, number: at + 1 })).filter((one) => WEIGHTY.has(one.kind));
  chart("latency", [{ key: "p99_ms", label: "p99", cls: "s0" }, { key: "p50_ms", label: "median", cls: "s1" }],
    { format: millis, marks: decisions, tall: true, empty: "No row's latency is known yet: it is measured when an epoch with rows has been delivered." });
  const rates = column("rows_in").map((_, at) => rate(at));
  chart("rows", [{ values: rates, label: "source rows a second", cls: "s0" }], { format: short, empty: "No epoch has been committed yet." });
  chart("epochs", [{ key: "took_ms", label: page.step > 1 ? `longest of ${page.step} epochs` : "epoch", cls: "s0" }, { key: "commit_ms", label: "commit", cls: "s1" }], { format: millis, empty: "No epoch has been committed yet." });
  chart("backlog", [{ key: "backlog", label: "rows behind", cls: "s0" }], { format: short, empty: "No source says how far behind the query is." });
  chart("bytes", [{ key: "state_bytes", label: "state", cls: "s0" }, { key: "written_bytes", label: page.step > 1 ? `written in ${page.step} epochs` : "written by an epoch", cls: "s1" }], { format: bytes, empty: "Nothing has been written yet." });
  const shown = now(), phases = shown ? Object.entries(shown.phasesMs) : [];
  $("phases").textContent = phases.length ? `Epoch ${shown.epoch}: ${phases.map(([name, ms]) => `${name} ${millis(ms)}`).join(", ")}` : "";
}

// -- decisions, movements, events -----------------------------------------------------------------

const WEIGHTY = new Set(["ScaledOut", "ScaledIn", "ScalingRefused", "RebalancingStarted", "LanesBalanced", "HotKeySpread", "WindowStateChosen", "ScalingStarted", "ScalingFinished", "ScalingFailed"]);

function drawDecisions() {
  const later = (one) => page.frozen !== null && one.judged !== null && one.judged > page.frozen;
  const rows = until((page.decisions || []).map((one, at) => ({ ...one, number: at + 1, ...(later(one) ? { measured: null, verdict: "", story: one.story.filter(([name]) => name !== "came" && name !== "better") } : {}) })));
  if (!rows.length) { nothing("decisions", "No decision so far. Without control=gw.Control(...) nobody decides; with it, a decision needs a few epochs of measurement."); return; }
  const value = (one, name) => known(one[name]) ? (one.figure === "load distance" ? percent(one[name]) : short(one[name])) : "–";
  table("decisions", ["", "time", "decision and its reason", "expected", "came", "verdict"], rows.reverse().map((one) => ({
    cells: [one.number, when(one.atS), el("span", {}, el("span", { class: "tag" }, words(one.kind)), ` ${one.line}`, story(one)),
      el("span", { title: one.figure }, known(one.before) ? `${value(one, "before")} → ${value(one, "expected")}` : value(one, "expected")),
      el("span", { title: one.figure }, value(one, "measured")), one.verdict ? el("span", { class: one.verdict === "no help" ? "tag alarm" : "tag" }, one.verdict) : "–"],
  })), [0, 3, 4]);
}
// The story of a decision, as `godwit why` has it.
function story({ story: lines }) {
  return lines.length ? el("details", {}, el("summary", {}, "why"), el("dl", {}, ...lines.flatMap(([name, line]) => [el("dt", {}, name), el("dd", {}, line)]))) : "";
}
const words = (kind) => kind.replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase();

function drawMovements() {
  const rows = until(page.movements || [], "began_epoch").map((one) => page.frozen !== null && one.ended_epoch > page.frozen ? { ...one, ended_s: null, ended: "", moved: null } : one);
  const shown = now();
  if (!rows.length) { nothing("moves", "Nothing has moved. Key groups move when you or the controller ask for it, or when an executor is lost."); return; }
  table("moves", ["began", "component", "how", "key groups", "state", "took", "pause, predicted", "actual"], rows.reverse().map((one) => {
    const open = one.ended_s === null;
    return { open, cells: [clock(one.began_s), one.component, el("span", { class: one.strategy === "recovery" ? "tag alarm" : "tag" }, one.strategy),
      open ? `${known(one.moved) && one.moved ? `${one.moved} of ` : ""}${one.moves}, ${shown ? shown.inFlight : 0} in flight` : one.ended === "finished" ? one.moved || one.moves : `${one.moved} of ${one.moves}, ${one.ended}`,
      one.state_bytes ? bytes(one.state_bytes) : "–", open ? "under way" : millis(1e3 * (one.ended_s - one.began_s)),
      known(one.predicted_s) ? millis(1e3 * one.predicted_s) : "–", known(one.pause_s) ? millis(1e3 * one.pause_s) : "–"] };
  }), [3, 4, 5, 6, 7]);
}

function drawEvents() {
  const shown = now(), end = shown && page.frozen !== null ? shown.atS : Infinity;
  const rows = (page.events || []).filter((one) => one.atS <= end);
  if (!rows.length) { nothing("events", "No event in sight."); return; }
  table("events", ["time", "event"], rows.reverse().map((one) => ({ cells: [clock(one.atS), el("span", {}, el("span", { class: /Lost|Failed|Suspended|LeftOut|Unreadable|Held/.test(one.kind) ? "tag alarm" : "tag" }, words(one.kind)), ` ${one.line}`)] })));
}

// -- executors and the heat map -------------------------------------------------------------------

function drawExecutors() {
  const shown = now();
  if (!shown || !shown.executors.length) { nothing("executors", "No executor has been told of yet."); return; }
  const index = (one) => one.busy_ms / Math.max(one.lanes, 1), most = Math.max(...shown.executors.map(index)) || 1, all = shown.executors.reduce((sum, one) => sum + one.busy_ms, 0) || 1;
  table("executors", ["executor", "state", "lanes", "key groups", "busy", "share", "load of a lane"], shown.executors.map((one) => {
    const bar = el("span", { class: "load", title: `${millis(index(one))} of a lane` });
    bar.style.width = `${(6 * index(one) / most).toFixed(2)}rem`;
    const over = ["stopped", "failed", "died"].includes(page.run.state) && page.frozen === null;
    const state = one.lost ? "lost" : over ? "gone" : one.draining ? "draining" : "works";
    return { cells: [one.name, el("span", { class: one.lost ? "tag alarm" : "tag" }, state), one.lanes, short(one.key_groups), millis(one.busy_ms), percent(one.busy_ms / all), bar] };
  }), [2, 3, 4, 5]);
  if (shown.executorsLeftOut) $("executors").append(el("p", { class: "quiet" }, `and ${many(shown.executorsLeftOut, "executor")} with less load`));
}

const raw = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
const heatmap = { cells: [], at: 0, component: null };

function drawHeat() {
  const map = heat(), choice = $("component"), canvas = $("heat");
  const components = map ? map.components : [];
  choice.disabled = !components.length;
  const names = components.map((one) => one.name);
  if (names.join("\n") !== [...choice.options].map((option) => option.value).join("\n")) choice.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
  if (!names.includes(heatmap.component)) heatmap.component = names[0] || null;
  choice.value = heatmap.component || "";
  canvas.hidden = !components.length;
  if (!components.length) { heatmap.cells = []; $("cell").textContent = "Where key groups are is told after the first epoch of a run."; return; }
  const of = components.find((one) => one.name === heatmap.component);
  $("ramp-end").textContent = map.epochs ? `${millis(of.maxMs)} an epoch` : "";
  const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(name).trim();
  const [low, high] = ["--low", "--high"].map((name) => colour(name).match(/[0-9a-f]{2}/gi).map((pair) => parseInt(pair, 16)));
  const LABEL = 132, ROW = of.rows.length > 40 ? 12 : 20, W = Math.max(canvas.parentElement.clientWidth - 30, 240), H = of.rows.length * ROW + 2, scale = window.devicePixelRatio || 1;
  const most = Math.max(1, ...of.rows.map((row) => raw(row.heat).length)), cell = Math.min((W - LABEL) / most, 28);
  canvas.width = W * scale; canvas.height = H * scale; canvas.style.height = `${H}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = `${ROW > 12 ? 12 : 10}px system-ui, sans-serif`;
  pen.textBaseline = "middle";
  heatmap.cells = [];
  of.rows.forEach((row, at) => {
    const y = at * ROW + 1, levels = raw(row.heat), flags = raw(row.flags), first = new Uint16Array(raw(row.first).buffer);
    pen.fillStyle = colour("--quiet");
    pen.fillText(cut(`${row.executor}${row.lane === null ? "" : ` · lane ${row.lane}`}`, 20), 0, y + ROW / 2);
    levels.forEach((level, i) => {
      const share = level / 255, x = LABEL + i * cell;
      pen.fillStyle = `rgb(${low.map((v, n) => Math.round(v + (high[n] - v) * share)).join(",")})`;
      pen.fillRect(x, y, Math.max(cell - 1, 0.8), ROW - 2);
      if (flags[i]) { pen.strokeStyle = colour("--alarm"); pen.lineWidth = 2; pen.strokeRect(x + 1, y + 1, Math.max(cell - 3, 1), ROW - 4); }
      heatmap.cells.push({ x, y, w: cell, h: ROW, row, i, first: first[i], size: Math.floor((i + 1) * row.keyGroups / levels.length) - Math.floor(i * row.keyGroups / levels.length), ms: of.maxMs * share * share, moving: flags[i] });
    });
  });
  const measured = map.epochs ? `loads of the last ${many(map.epochs, "epoch")} that were summed up` : "no loads yet: the journal sums them up every 16 epochs with rows, so cells show only where key groups are";
  const rest = of.rowsLeftOut ? `; ${many(of.rowsLeftOut, "row")} with less load not drawn` : "";
  canvas.setAttribute("aria-label", `Heat map of ${of.keyGroups} key groups of ${of.name} on ${of.rows.length} lanes; arrow keys read its cells`);
  heatmap.said = `${short(of.keyGroups)} key groups, ${measured}${rest}.`;
  if (document.activeElement !== canvas) $("cell").textContent = heatmap.said;
}

function tellCell(cell) {
  if (!cell) { $("cell").textContent = heatmap.said || ""; return; }
  const groups = cell.size > 1 ? `${cell.size} key groups from ${cell.first} on` : `key group ${cell.first}`;
  $("cell").textContent = `${cell.row.executor}${cell.row.lane === null ? "" : `, lane ${cell.row.lane}`} (busy ${millis(cell.row.loadMs)} an epoch with ${many(cell.row.keyGroups, "key group")}): ${groups}, ${millis(cell.ms)} an epoch${cell.size > 1 ? " each" : ""}${cell.moving ? ", being copied to another executor" : ""}`;
}

// -- keys, watermarks, rows left out --------------------------------------------------------------

function drawLists() {
  const shown = now();
  const hot = shown ? Object.entries(shown.hotKeys).flatMap(([operator, keys]) => Object.entries(keys).map(([key, share]) => ({ cells: [operator, key, percent(share)] }))) : [];
  if (hot.length) table("hot", ["operator", "key", "share of its rows"], hot, [2]);
  else nothing("hot", "No key had more rows than a lane's share in this epoch.");
  const marks = shown ? Object.entries(shown.watermarks) : [];
  if (marks.length) table("watermarks", ["of the rows of", "watermark", "behind the epoch's end"], marks.map(([name, at]) => ({ cells: [name, day(at), millis(Math.max(0, 1e3 * (shown.atS - at)))] })), [2]);
  else nothing("watermarks", "No operator of this flow uses event time, or no row had one yet.");
  const left = shown ? shown.leftOut : [];
  const reasons = { late: "late: all their windows were closed", ahead: "too far ahead of the clock", untimed: "without an event time", rejected: "refused by the sink's check", unreadable: "could not be read", failed: "a function failed for them" };
  if (left.length) table("left", ["where", "why", "rows in all"], left.map(([where, reason, rows]) => ({ cells: [where, reasons[reason] || reason, short(rows)] })), [2]);
  else nothing("left", "Every row that was read was processed.");
}

// -- taking changes -------------------------------------------------------------------------------

function take(sections) {
  for (const [name, values] of Object.entries(sections)) if (!["series", "frames", "heats"].includes(name)) page[name] = values;
  if (sections.series) {
    const { from, step, columns } = sections.series;
    for (const [name, values] of Object.entries(columns)) page.series[name] = (page.series[name] || []).slice(0, from).concat(values);
    page.points = page.series.epoch.length;
    page.step = step;
  }
  drawAll();
}

let due = false;
function drawAll() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    for (const draw of [drawRun, drawTime, drawGraph, drawCharts, drawDecisions, drawHeat, drawExecutors, drawMovements, drawLists, drawEvents]) {
      try { draw(); } catch (error) { console.error(error); }  // one figure is not worth the others
    }
    document.documentElement.dataset.epoch = page.now ? page.now.epoch : "";
  });
}

$("slider").addEventListener("input", (event) => scrub(Number(event.target.value)));
$("live").addEventListener("click", () => scrub(page.points - 1));
$("component").addEventListener("change", (event) => { heatmap.component = event.target.value; drawHeat(); });
$("theme").addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches, root = document.documentElement;
  root.dataset.theme = (root.dataset.theme || (dark ? "dark" : "light")) === "dark" ? "light" : "dark";
  drawAll();
});
$("heat").addEventListener("pointermove", (event) => {
  const box = event.target.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  tellCell(heatmap.cells.find((cell) => x >= cell.x && x < cell.x + cell.w && y >= cell.y && y < cell.y + cell.h));
});
$("heat").addEventListener("pointerleave", () => tellCell(null));
$("heat").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 64, ArrowUp: -64, Home: -Infinity, End: Infinity }[event.key];
  if (step === undefined || !heatmap.cells.length) return;
  event.preventDefault();
  let at = Math.max(0, Math.min(heatmap.cells.length - 1, heatmap.at + step));
  if (Math.abs(step) === 64) {
    const here = heatmap.cells[heatmap.at] || heatmap.cells[0], rows = [...new Set(heatmap.cells.map((cell) => cell.row))];
    const row = rows[Math.max(0, Math.min(rows.length - 1, rows.indexOf(here.row) + Math.sign(step)))];
    at = heatmap.cells.findIndex((cell) => cell.row === row && cell.i >= Math.min(here.i, raw(row.heat).length - 1));
  }
  heatmap.at = Math.max(at, 0);
  tellCell(heatmap.cells[heatmap.at]);
});
let resized = 0;
addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(drawAll, 100); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

if (report) {
  $("save").hidden = true;
  take(report);
} else {
  const feed = new EventSource("feed");
  let lost = false;
  feed.addEventListener("page", (event) => { if (lost) { lost = false; page.series = {}; } take(JSON.parse(event.data)); });
  feed.addEventListener("error", () => {
    lost = true;
    $("state").textContent = "no answer from the server; it is asked again";
    $("state").className = "state alarm";
  });
  drawAll();
}
