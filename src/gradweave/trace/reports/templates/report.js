"use strict";
(() => {
  // ---- data and small tools -------------------------------------------------------------------------------------------
  const data = JSON.parse(document.getElementById("gradweave-data").textContent);
  const root = document.getElementById("report");
  const tip = document.getElementById("tip");
  const state = { wrapper: 0, plan: 0, step: 0, allRanks: false };
  const MOST_RANKS = 16;

  const node = (make) => (tag, attrs = {}, ...children) => {
    const element = make(tag);
    for (const [key, value] of Object.entries(attrs)) {
      if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
      else if (value === true) element.setAttribute(key, "");
      else if (value !== false && value != null) element.setAttribute(key, value);
    }
    element.append(...children.flat(Infinity).filter((child) => child != null));
    return element;
  };
  const h = node((tag) => document.createElement(tag));
  const s = node((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag));

  const fixed = (value, digits) => (value == null ? "–" : value.toFixed(digits));
  const digitsOf = (value) => (Math.abs(value) >= 100 ? 1 : 2);
  const size = (bytes) => {
    let value = bytes, unit = 0;
    while (value >= 1024 && unit < 3) { value /= 1024; unit += 1; }
    return `${value.toFixed(unit ? 1 : 0)} ${["B", "KiB", "MiB", "GiB"][unit]}`;
  };
  const lookup = (path) => path.split(".").reduce((at, key) => (at == null ? null : at[key]), data);
  // Every number on the page that stands in the JSON carries its path, so that it can be checked against it.
  const num = (path, digits) => {
    const value = lookup(path);
    if (value == null) return h("span", {}, "–");
    const places = digits ?? digitsOf(value);
    return h("span", { "data-key": path, "data-digits": places }, fixed(value, places));
  };
  const wrapper = () => data.wrappers[state.wrapper];
  const wrapperKey = () => `wrappers.${state.wrapper}`;
  const plan = () => wrapper().plans[state.plan];
  const planKey = (index = state.plan) => `${wrapperKey()}.plans.${index}`;
  const pairs = (ends) => ends.map((last, k) => `[${k ? ends[k - 1] + 1 : 0}, ${last}]`);
  const planText = (ends, most = 6) => {
    const all = pairs(ends);
    if (!all.length) return "unknown";
    return all.length <= most ? all.join(" ") : `${all[0]} … ${all[all.length - 1]} (${all.length} segments)`;
  };
  const median = (values) => { const v = [...values].sort((a, b) => a - b); return v.length % 2 ? v[(v.length - 1) / 2] : (v[v.length / 2 - 1] + v[v.length / 2]) / 2; };

  // Steps of the chosen wrapper: rows of every rank together, step time of the slowest rank.
  const steps = () => {
    const found = new Map();
    wrapper().iterations.forEach((row, index) => {
      const entry = found.get(row.step) ?? { step: row.step, plan: row.plan_index, counts: row.counts, rows: [], time: 0, exposed: 0 };
      entry.rows.push({ ...row, key: `${wrapperKey()}.iterations.${index}` });
      entry.time = Math.max(entry.time, row.iteration_ms);
      entry.exposed = Math.max(entry.exposed, row.exposed_ms);
      found.set(row.step, entry);
    });
    return [...found.values()].sort((a, b) => a.step - b.step);
  };
  const stepsOfPlan = () => { const mine = steps().filter((entry) => entry.plan === state.plan); return mine.length ? mine : steps(); };
  const medianStep = () => {
    const mine = stepsOfPlan().filter((entry) => entry.counts);
    // typical in step time and in exposed time, so that the picture agrees with the cards above it
    const time = median(mine.map((entry) => entry.time)), exposed = median(mine.map((entry) => entry.exposed));
    const far = (entry) => Math.abs(entry.time - time) + Math.abs(entry.exposed - exposed);
    return mine.reduce((best, entry) => (far(entry) < far(best) ? entry : best)).step;
  };

  // ---- head, cards, scenario ------------------------------------------------------------------------------------------
  const header = () => {
    const w = wrapper();
    const fact = (name, value) => h("li", {}, `${name} `, h("b", {}, value));
    const known = { model: 1, tuner: 1 };
    return h("header", {},
      h("p", { class: "brand" }, "Gradweave iteration report"),
      h("h1", {}, w.meta.model ?? w.label),
      h("ul", { class: "facts" },
        w.meta.model ? fact("wrapper", w.label) : null,
        fact("ranks", w.ranks.length === w.world_size ? String(w.world_size) : `${w.ranks.length} of ${w.world_size}`),
        fact("backend", w.backend), fact("group", w.group), fact("gradients", `${w.gradients}, ${size(w.bytes)}`),
        Object.entries(w.meta).filter(([name]) => !known[name]).map(([name, value]) => fact(name, value))),
      data.notes.map((note) => h("p", { class: "note" }, note)));
  };

  const cards = () => {
    const key = planKey(), p = plan();
    const card = (kind, name, value, unit, more) => h("div", { class: `card ${kind}` },
      h("div", { class: "name" }, name), h("div", { class: "value" }, value, " ", h("small", {}, unit)), h("div", { class: "more" }, more));
    const quartiles = (name) => ["quartiles ", num(`${key}.${name}.q1`), " to ", num(`${key}.${name}.q3`)];
    const bound = p.bound.exposed_ms;
    return h("div", { class: "cards" },
      card("", "Step time, median", num(`${key}.iteration_ms.median`), "ms", quartiles("iteration_ms")),
      card("exposed", "Exposed communication", num(`${key}.exposed_ms.median`), "ms", [num(`${key}.exposed_pct`, 1), " % of the step"]),
      card("hidden", "Hidden communication", num(`${key}.hidden_pct`, 1), "%", [num(`${key}.hidden_ms.median`), " of ", num(`${key}.communication_ms.median`), " ms"]),
      card("", "Lower bound on exposed, estimated", num(`${key}.bound.exposed_ms`), bound == null ? "" : "ms", bound == null ? `unknown: ${p.bound.reason}` : p.bound.basis));
  };

  const scenario = () => {
    const found = plan().scenario;
    if (!found) {
      const said = plan().verdict, colon = said.indexOf(": "), [title, text] = [said.slice(0, colon), said.slice(colon + 2)];
      return h("div", { class: "panel scenario calm" }, h("h2", {}, title), h("p", {}, text[0].toUpperCase() + text.slice(1)));
    }
    const call = found.plan ? h("p", {}, h("code", {}, `set_split_strategy_by_idx([${found.plan.join(", ")}])`)) : null;
    return h("div", { class: "panel scenario" },
      h("h2", {}, found.number == null ? found.title : `Scenario ${found.number}: ${found.title}`),
      h("p", {}, found.symptom), h("p", {}, found.advice), call);
  };

  const tuner = () => (wrapper().meta.tuner ? section("What the tuner did", null, h("div", { class: "panel" },
    h("ol", {}, wrapper().meta.tuner.split("\n").map((line) => h("li", {}, line))))) : null);

  // Every plan of every wrapper, so that runs under several labels can be compared; the row chosen fills the page.
  const plansTable = () => {
    const all = data.wrappers.flatMap((w, wi) => w.plans.map((p, pi) => ({ w, wi, p, pi, key: `wrappers.${wi}.plans.${pi}` })));
    if (all.length < 2) return null;
    const several = data.wrappers.length > 1;
    const row = ({ w, wi, p, pi, key }) => {
      const on = wi === state.wrapper && pi === state.plan, pick = (keep) => choosePlan(pi, wi, keep);
      const radio = h("input", { type: "radio", name: "plan", checked: on, onchange: () => pick(true) });
      return h("tr", { class: `pick${on ? " on" : ""}`, onclick: () => pick(false) },
        h("td", {}, h("label", {}, radio, several ? w.label : planText(p.plan, 3))), several ? h("td", { class: "left" }, planText(p.plan, 3)) : null,
        h("td", { class: "left" }, p.overlap ? "overlapped" : "serial"), h("td", {}, String(p.steps.length)), h("td", {}, num(`${key}.iteration_ms.median`)),
        h("td", { class: "exposed" }, num(`${key}.exposed_ms.median`)), h("td", {}, num(`${key}.exposed_pct`, 1)),
        h("td", {}, meter(p.hidden_pct), num(`${key}.hidden_pct`, 1)), h("td", {}, num(`${key}.bound.exposed_ms`)));
    };
    const names = [...(several ? ["wrapper", ["segment index list"]] : ["segment index list"]), ["mode"], "steps", "step ms", "exposed ms", "exposed %", "hidden %", "bound ms (estimate)"];
    return section("Plans", null, h("div", { class: "panel" }, scroller(table(names, all.map(row)))));
  };

  const meter = (share) => (share == null ? null : h("span", { class: "meter", "aria-hidden": "true" }, h("i", { style: `width:${share}%` })));
  const table = (names, rows) => h("table", {}, h("thead", {}, h("tr", {}, names.map((name) =>
    Array.isArray(name) ? h("th", { class: "left", scope: "col" }, name[0]) : h("th", { scope: "col" }, name)))), h("tbody", {}, rows));
  const scroller = (inner) => h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table, scrolls sideways" }, inner);
  const section = (title, tools, ...body) => h("section", {}, h("div", { class: "head" }, h("h2", {}, title), tools), ...body);

  // ---- timeline -------------------------------------------------------------------------------------------------------
  const ticks = (from, to, most) => {
    const raw = (to - from) / Math.max(1, most), power = 10 ** Math.floor(Math.log10(raw));
    const gap = [1, 2, 5, 10].map((m) => m * power).find((g) => g >= raw);
    const list = [];
    for (let k = Math.ceil(from / gap); k * gap <= to; k += 1) list.push(k * gap);
    return { list, digits: Math.max(0, -Math.floor(Math.log10(gap) + 1e-9)) };
  };

  const describe = (title, ...lines) => ({ title, lines: lines.filter(Boolean) });
  const item = (info, ...marks) => s("g", {
    class: "item", tabindex: 0, role: "img", "aria-label": [info.title, ...info.lines].join(", "),
    onpointerenter: (event) => showTip(info, event.currentTarget), onpointerleave: hideTip,
    onfocus: (event) => showTip(info, event.currentTarget), onblur: hideTip, onclick: (event) => showTip(info, event.currentTarget),
  }, ...marks);

  const rectangle = (scale, from, to, y, height, kind) => {
    const x = scale(from);
    return s("rect", { class: kind, x: x.toFixed(2), y, width: Math.max(0.75, scale(to) - x).toFixed(2), height, rx: 2 });
  };
  const inside = (scale, from, to, y, text, kind) => (scale(to) - scale(from) > text.length * 7 + 8
    ? s("text", { class: kind, x: (scale(from) + scale(to)) / 2, y, "text-anchor": "middle" }, text) : null);

  const phases = (row) => {
    const out = [], f = (value) => `${fixed(value, digitsOf(value))} ms`;
    const add = (name, from, to, kind, ink, ...more) => { if (to > from) out.push({ name, from, to, kind, ink, info: describe(`${name}: ${f(to - from)}`, `rank ${row.rank}, ${f(from)} to ${f(to)}`, ...more) }); };
    const commEnd = row.bp_end_ms + row.tail_ms;
    if (row.data_wait_ms != null) add("data wait", -row.data_wait_ms, 0, "wait", "in-light");
    if (row.fp_end_ms == null) add("forward and backward", 0, row.bp_end_ms, "backward", "in-dark");
    else { add("forward", 0, row.fp_end_ms, "forward", "in-light"); add("backward", row.fp_end_ms, row.bp_end_ms, "backward", "in-dark"); }
    add("optimizer", commEnd, row.iteration_end_ms, "optimizer", "in-dark", "and all else until the iteration ends");
    return out;
  };

  const collectiveInfo = (row, c) => {
    const f = (value) => fixed(value, digitsOf(value)), queued = c.effective_start_ms - c.start_ms;
    return describe(`${c.kind} ${c.segment + 1}: ${f(c.hidden_ms + c.exposed_ms)} ms`, `rank ${row.rank}, gradients ${c.first} to ${c.last}`,
      `${size(c.bytes)} (${c.bytes} bytes), ${c.dtype}`, `${f(c.effective_start_ms)} to ${f(c.end_ms)} ms`,
      queued > 0.005 ? `launched at ${f(c.start_ms)} ms, queued ${f(queued)} ms` : null,
      `hidden ${f(c.hidden_ms)} ms, exposed ${f(c.exposed_ms)} ms`);
  };

  const rankLanes = (row, scale, y, lane) => {
    const offset = row.offset_ms ?? 0, at = (t) => scale(t + offset), parts = [], low = y + lane + 4, mid = (top) => top + lane / 2 + 4.5;
    const [x0, x1] = scale.range;
    parts.push(s("rect", { class: "lane", x: x0, y, width: x1 - x0, height: lane, rx: 2 }), s("rect", { class: "lane", x: x0, y: low, width: x1 - x0, height: lane, rx: 2 }));
    const tailEnd = row.bp_end_ms + row.tail_ms;
    if (row.tail_ms > 0) {
      const text = `exposed tail ${fixed(row.tail_ms, 1)} ms`, short = `${fixed(row.tail_ms, 1)} ms`;
      const info = describe(text, `rank ${row.rank}: from the end of backward to the end of the last collective`);
      parts.push(item(info, s("rect", { class: "band mark", x: at(row.bp_end_ms), y, width: Math.max(0.75, at(tailEnd) - at(row.bp_end_ms)), height: 2 * lane + 4 })),
        inside(at, row.bp_end_ms, tailEnd, mid(y), text, "in-band") ?? inside(at, row.bp_end_ms, tailEnd, mid(y), short, "in-band"));
    }
    for (const phase of phases(row)) {
      parts.push(item(phase.info, rectangle(at, phase.from, phase.to, y, lane, `${phase.kind} mark`)), inside(at, phase.from, phase.to, mid(y), phase.name, phase.ink));
    }
    for (const c of row.collectives) {
      const cut = Math.min(Math.max(row.bp_end_ms, c.effective_start_ms), c.end_ms), marks = [];
      if (cut > c.effective_start_ms) marks.push(rectangle(at, c.effective_start_ms, cut, low, lane, "hiddenfill mark"));
      if (c.end_ms > cut) marks.push(rectangle(at, cut, c.end_ms, low, lane, "exposedfill mark"), rectangle(at, cut, c.end_ms, low, lane, "stripe"));
      parts.push(item(collectiveInfo(row, c), ...marks), inside(at, c.effective_start_ms, c.end_ms, mid(low), String(c.segment + 1), cut < (c.effective_start_ms + c.end_ms) / 2 ? "in-dark on-exposed" : "in-dark"));
    }
    parts.push(s("line", { class: "bpline", x1: at(row.bp_end_ms), x2: at(row.bp_end_ms), y1: y - 3, y2: low + lane + 3 }));
    return parts;
  };

  const stripes = () => s("defs", {}, s("pattern", { id: "stripe", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    s("rect", { width: 1.6, height: 6, fill: "#fff", "fill-opacity": 0.3 })));

  const drawTimeline = (width) => {
    const entry = steps().find((each) => each.step === state.step), narrow = width < 620;
    const rows = state.allRanks ? entry.rows : entry.rows.slice(0, MOST_RANKS);
    const from = Math.min(...rows.map((row) => (row.offset_ms ?? 0) - (row.data_wait_ms ?? 0)));
    const to = Math.max(...rows.map((row) => (row.offset_ms ?? 0) + Math.max(row.iteration_end_ms, row.bp_end_ms + row.tail_ms)));
    const left = narrow ? 2 : 76, right = width - 12, lane = 24, pitch = 2 * lane + 4 + (narrow ? 34 : 18), top = narrow ? 22 : 6;
    const scale = (t) => left + ((t - from) / Math.max(1e-9, to - from)) * (right - left);
    scale.range = [left, right];
    const height = top + rows.length * pitch + 24, axis = height - 26, marks = ticks(from, to, (right - left) / (narrow ? 64 : 90));
    const grid = marks.list.map((t) => [s("line", { class: "grid", x1: scale(t), x2: scale(t), y1: 0, y2: axis }),
      s("text", { x: scale(t), y: axis + 17, "text-anchor": scale(t) > right - 24 ? "end" : scale(t) < left + 12 ? "start" : "middle" }, t.toFixed(marks.digits) + (t === marks.list[marks.list.length - 1] ? " ms" : ""))]);
    return s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `Timeline of step ${entry.step}` }, stripes(), grid,
      rows.map((row, k) => {
        const y = top + k * pitch;
        const label = narrow ? s("text", { class: "rank", x: 2, y: y - 7 }, `rank ${row.rank}`) : [s("text", { class: "rank", x: 2, y: y + 16 }, `rank ${row.rank}`), s("text", { x: 2, y: y + lane + 20 }, "all-reduce")];
        return [label, rankLanes(row, scale, y, lane)].flat();
      }));
  };

  const legend = () => h("ul", { class: "legend", "aria-label": "Legend" }, [["wait", "data wait"], ["forward", "forward"], ["backward", "backward"], ["hiddenfill", "all-reduce, hidden"],
    ["exposedfill", "all-reduce, exposed", true], ["optimizer", "optimizer"], ["band", "exposed tail"]].map(([kind, name, striped]) => h("li", {},
    s("svg", { viewBox: "0 0 18 12", "aria-hidden": "true" }, s("rect", { class: kind, width: 18, height: 12, rx: 2, style: kind === "band" ? "opacity:.3" : null }), striped ? s("rect", { class: "stripe", width: 18, height: 12 }) : null), name)),
  h("li", {}, s("svg", { viewBox: "0 0 18 12", "aria-hidden": "true" }, s("line", { class: "bpline", x1: 9, x2: 9, y1: 0, y2: 12 })), "end of backward"));

  const drawStrip = (width) => {
    const all = steps(), height = 64, slot = width / all.length, counted = all.filter((entry) => entry.counts).map((entry) => entry.time);
    const most = Math.max(...counted) * 1.08, up = (v) => Math.min(1, v / most) * height;
    const bar = Math.max(1, Math.min(30, slot - (slot > 4 ? 1.5 : 0.25)));
    const bars = all.map((entry, k) => {
      const x = k * slot + (slot - bar) / 2, total = up(entry.time), exposed = Math.min(total, up(entry.exposed)), on = entry.step === state.step;
      const info = describe(`step ${entry.step}: ${fixed(entry.time, 2)} ms`, `exposed ${fixed(entry.exposed, 2)} ms`, entry.counts ? null : "not counted: warm-up or a change of plan", entry.time > most ? "taller than drawn" : null);
      const shade = s("g", { class: `step${on ? " on" : ""}${entry.counts ? "" : " warm"}`, onclick: () => chooseStep(entry.step), onpointerenter: (event) => showTip(info, event.currentTarget), onpointerleave: hideTip },
        s("rect", { class: "back", x: k * slot, y: 0, width: slot, height: height + 6 }), s("rect", { class: "rest", x, y: height - total, width: bar, height: Math.max(0, total - exposed) }),
        s("rect", { class: "exposedfill", x, y: height - exposed, width: bar, height: exposed }), on ? s("rect", { class: "cursor", x, y: height + 2, width: bar, height: 3 }) : null);
      const change = k && all[k - 1].plan !== entry.plan && entry.plan != null ? s("line", { class: "bpline", x1: k * slot, x2: k * slot, y1: 0, y2: height + 6 }) : null;
      return [shade, change];
    });
    return s("svg", { class: "strip", width, height: height + 24, viewBox: `0 0 ${width} ${height + 24}`, role: "img", "aria-label": `Step time and exposed time of ${all.length} iterations` }, bars.flat(),
      s("text", { x: 0, y: height + 21 }, `step ${all[0].step}`), all.length > 1 ? s("text", { x: width, y: height + 21, "text-anchor": "end" }, `step ${all[all.length - 1].step}`) : null);
  };

  const controls = () => {
    const mine = steps(), at = mine.findIndex((entry) => entry.step === state.step), go = (by) => chooseStep(mine[at + by].step);
    return h("div", { class: "bar controls" },
      h("button", { type: "button", "aria-label": "Previous iteration", disabled: at <= 0, onclick: () => go(-1) }, "‹"),
      h("select", { "aria-label": "Iteration", onchange: (event) => chooseStep(Number(event.target.value)) },
        mine.map((entry) => h("option", { value: entry.step, selected: entry.step === state.step }, `step ${entry.step}${entry.counts ? "" : " (not counted)"}`))),
      h("button", { type: "button", "aria-label": "Next iteration", disabled: at >= mine.length - 1, onclick: () => go(1) }, "›"),
      h("button", { type: "button", disabled: state.step === medianStep(), onclick: () => chooseStep(medianStep()) }, "Typical"));
  };

  const stepLine = () => {
    const entry = steps().find((each) => each.step === state.step), slow = entry.rows.reduce((a, b) => (b.exposed_ms > a.exposed_ms ? b : a));
    const several = entry.rows.length > 1;
    return h("p", { class: "hint top", "aria-live": "polite" }, `Step ${entry.step}`, state.step === medianStep() ? " (the most typical)" : "", `, ${entry.rows[0].overlap ? "overlapped" : "serial"}: `,
      num(`${slow.key}.iteration_ms`), " ms, of which ", num(`${slow.key}.exposed_ms`), " ms exposed", several ? ` (rank ${slow.rank}, the most exposed)` : "", ".");
  };

  const timeline = () => {
    const holder = h("div", { id: "timeline", tabindex: -1 }), strip = h("div", {});
    const draw = () => { const width = Math.max(280, holder.clientWidth); holder.replaceChildren(drawTimeline(width)); strip.replaceChildren(drawStrip(width)); };
    const ranks = steps()[0].rows.length;
    const more = ranks > MOST_RANKS && !state.allRanks ? h("button", { type: "button", class: "controls", onclick: () => { state.allRanks = true; render(); } }, `Show all ${ranks} ranks`) : null;
    redraw = draw;
    return section("Timeline", controls(), h("div", { class: "panel" }, stepLine(), holder, more, legend()),
      h("p", { class: "hint screen" }, "Point at, tap or tab to a bar for its details; ← and → change the iteration."),
      h("div", { class: "panel", style: "margin-top:12px" }, h("h2", {}, "Every iteration"), h("p", { class: "hint top" }, "Step time of the slowest rank, its exposed part in colour; a dashed line is a change of plan, pale bars are not counted (warm-up, or the step in which the plan changed)."), strip));
  };

  // ---- tables ---------------------------------------------------------------------------------------------------------
  const segments = () => {
    const p = plan(), several = wrapper().ranks.length > 1, key = (k, name) => `${planKey()}.segments.${k}.${name}`;
    const names = ["segment", "indices", "bytes", "share %", "start ms", "time ms", "hidden %", "exposed ms", "transfer ms", ...(several ? ["wait ms"] : []), "bus GB/s", ...(several ? ["late rank"] : [])];
    const late = (seg) => (seg.late_rank == null ? (seg.ranks_alternate ? "ranks alternate" : "–") : `${seg.late_rank} (+${fixed(seg.lateness_ms.median, 2)} ms)`);
    return section("Segments", null, h("div", { class: "panel" }, scroller(table(names, p.segments.map((seg, k) => h("tr", {},
      h("td", {}, String(seg.index + 1)), h("td", {}, `${seg.first}–${seg.last}`), h("td", { title: `${seg.bytes} bytes` }, size(seg.bytes)),
      h("td", {}, h("span", { class: "meter share", "aria-hidden": "true" }, h("i", { style: `width:${seg.share_pct}%` })), num(key(k, "share_pct"), 1)),
      h("td", {}, num(key(k, "start_ms.median"))), h("td", {}, num(key(k, "duration_ms.median"))), h("td", {}, meter(seg.hidden_pct), num(key(k, "hidden_pct"), 1)),
      h("td", { class: "exposed" }, num(key(k, "exposed_ms.median"))), h("td", {}, num(key(k, "transfer_ms"))), several ? h("td", {}, num(key(k, "wait_ms.median"))) : null,
      h("td", {}, num(key(k, "bus_gb_per_s"), 2)), several ? h("td", {}, late(seg)) : null)))),
    h("p", { class: "hint" }, "Medians over the counted iterations and all ranks, which do not add up; start counts from the start of forward; transfer is time without waiting for late ranks.")));
  };

  const ranksTable = () => (plan().per_rank.length < 2 ? null : section("Ranks", null, h("div", { class: "panel" }, scroller(table(["rank", "step ms", "forward and backward ms", "exposed ms", "data wait ms"],
    plan().per_rank.map((row, k) => h("tr", {}, h("td", {}, String(row.rank)), ["iteration_ms", "fp_to_bp_ms"].map((name) => h("td", {}, num(`${planKey()}.per_rank.${k}.${name}.median`))),
      h("td", { class: "exposed" }, num(`${planKey()}.per_rank.${k}.exposed_ms.median`)), h("td", {}, num(`${planKey()}.per_rank.${k}.data_wait_ms.median`)))))))));

  const iterationsTable = () => {
    const rows = stepsOfPlan().flatMap((entry) => entry.rows), last = Math.max(-1, ...rows.flatMap((row) => row.collectives.map((c) => c.segment)));
    const shown = last < 4 ? [...Array(last + 1).keys()] : [0, last];
    const names = ["step", "rank", "data_wait", "fp_start", "bp_end", ...shown.flatMap((k) => [`allreduce${k + 1}_start`, `allreduce${k + 1}_end`]), "iteration_end", "exposed"];
    const at = (row, segment, name) => { const k = name === "end_ms" ? row.collectives.findLastIndex((c) => c.segment === segment) : row.collectives.findIndex((c) => c.segment === segment); return k < 0 ? h("span", {}, "–") : num(`${row.key}.collectives.${k}.${name}`); };
    return h("section", {}, h("details", {}, h("summary", {}, `Iteration trace (${rows.length} rows)`), h("div", { class: "panel" }, h("p", { class: "hint top" }, "ms from fp_start", last < 4 ? "." : `; first and last segment (${last - 1} more between).`),
      scroller(table(names, rows.map((row) => h("tr", { class: row.counts ? "" : "warm" }, h("td", {}, String(row.step)), h("td", {}, String(row.rank)), h("td", {}, num(`${row.key}.data_wait_ms`)), h("td", {}, "0.00"),
        h("td", {}, num(`${row.key}.bp_end_ms`)), shown.flatMap((k) => [h("td", {}, at(row, k, "start_ms")), h("td", {}, at(row, k, "end_ms"))]), h("td", {}, num(`${row.key}.iteration_end_ms`)), h("td", { class: "exposed" }, num(`${row.key}.exposed_ms`)))))))));
  };

  const terms = () => h("section", {}, h("details", {}, h("summary", {}, "How to read this"), h("div", { class: "panel" }, h("dl", { class: "terms" }, [
    ["hidden", "communication while forward or backward runs on the same rank: it costs no time of its own"],
    ["exposed", "communication outside of it: the step is longer by it"],
    ["exposed tail", "from the end of backward to the end of the last collective, gaps included"],
    ["time", "from effective start to end; collectives of a rank share one channel in order of launch, so one starts when the one before has ended"],
    ["transfer and wait", "the shortest time over the ranks is the transfer; what a rank takes longer it waits for the last to come"],
    ["late rank", "the rank that came last in at least two thirds of the steps, and by how much (median); otherwise ranks alternate"],
    ["bus GB/s", "2(p-1)/p times bytes by transfer time: comparable over numbers of ranks"],
    ["lower bound", "exposed time is at least max over k of r_k + alpha + beta (S_n - S_(k-1)), less the end of backward, for every split of whole gradients in this order. It is an estimate: the ready times r are medians, and alpha and beta are fitted to all messages of the run between these ranks"],
    ["what counts", "medians leave steps 0 and 1 out (warm-up), and a single step between two plans, unless there is nothing else"],
  ].map(([name, text]) => [h("dt", {}, name), h("dd", {}, text)])))));

  // ---- hover, keys, drawing -------------------------------------------------------------------------------------------
  const showTip = (info, target) => {
    tip.replaceChildren(h("b", {}, info.title), ...info.lines.map((line) => h("div", {}, line)));
    tip.hidden = false;
    const box = target.getBoundingClientRect(), mine = tip.getBoundingClientRect(), page = document.documentElement.clientWidth;
    const x = Math.min(Math.max(8, box.left + Math.min(box.width, page) / 2 - mine.width / 2), page - mine.width - 8);
    const below = box.bottom + 8 + mine.height < window.innerHeight || box.top - mine.height - 8 < 0;
    tip.style.left = `${x + window.scrollX}px`;
    tip.style.top = `${(below ? box.bottom + 8 : box.top - mine.height - 8) + window.scrollY}px`;
  };
  const hideTip = () => { tip.hidden = true; };
  let redraw = () => {};
  const choosePlan = (index, wrapperIndex, keepFocus) => {
    if (wrapperIndex !== state.wrapper) state.allRanks = false;
    state.wrapper = wrapperIndex; state.plan = index; state.step = medianStep(); render();
    if (keepFocus) root.querySelector("input[name=plan]:checked")?.focus();
  };
  const chooseStep = (step) => {
    const entry = steps().find((each) => each.step === step), focused = document.activeElement?.getAttribute("aria-label");
    state.step = step;
    if (entry.plan != null) state.plan = entry.plan;
    render();
    if (focused) root.querySelector(`.controls [aria-label="${focused}"]`)?.focus();
  };
  const render = () => {
    hideTip();
    const open = [...root.querySelectorAll("details")].map((each) => each.open), [x, y] = [window.scrollX, window.scrollY];
    root.replaceChildren(...[header(), h("section", {}, cards(), scenario()), plansTable(), tuner(), timeline(), segments(), ranksTable(), iterationsTable(), terms(),
      h("footer", {}, "Made by Gradweave", wrapper().meta.gradweave ? ` ${wrapper().meta.gradweave}` : "", ". All figures are in the data block of this file.")].filter(Boolean));
    root.querySelectorAll("details").forEach((each, k) => { each.open = open[k] ?? false; });
    redraw();
    window.scrollTo(x, y);
  };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hideTip();
    if (!["ArrowLeft", "ArrowRight"].includes(event.key) || event.altKey || event.ctrlKey || event.metaKey || event.target.closest?.("select, input, .scroll")) return;
    const all = steps(), to = all[all.findIndex((entry) => entry.step === state.step) + (event.key === "ArrowLeft" ? -1 : 1)];
    if (to) { event.preventDefault(); chooseStep(to.step); }
  });
  let drawnAt = window.innerWidth;
  window.addEventListener("resize", () => { if (drawnAt !== window.innerWidth) { drawnAt = window.innerWidth; hideTip(); redraw(); } });
  window.addEventListener("beforeprint", () => { root.querySelectorAll("details").forEach((each) => { if (each.querySelectorAll("tr").length < 80) each.open = true; }); });
  if (data.wrappers.length) choosePlan(data.wrappers[0].plans.length - 1, 0, false);
  else root.append(h("p", {}, "No iteration was recorded."));
})();
