"use strict";
// Asks for the runs' numbers again and again, and draws them; all texts are set as text, none as HTML.
const EVERY = 2000;  // milliseconds
const WIDTH = 400, WIDE = 1200, HEIGHT = 220, LEFT = 42, RIGHT = 12, TOP = 10, BOTTOM = 36;
const DARK = matchMedia("(prefers-color-scheme: dark)").matches;
const DASHES = { solid: "", dashed: "8 4", dotted: "2 3", dashdot: "8 3 2 3" };
const PIECE = 12;  // of a curve that is equal to another one: they take turns
let colours, phases, dashes;  // for this ground, as the answer has them
const SVG = "http://www.w3.org/2000/svg";

function html(name, text = "", kind = "", ...inner) {
  const node = document.createElement(name);
  node.textContent = text;
  if (kind) node.className = kind;
  node.append(...inner);
  return node;
}

function svg(name, attributes = {}, text = "") {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  return node;
}

function ticks(low, high, n) {  // round numbers from low to high, about n of them
  const raw = (high - low || 1) / n, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(x => x * power).find(x => x >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(+(i * step).toPrecision(10));
  return found;
}

function frame(label, height, x, y, xname, width = WIDTH) {  // an SVG with both axes; y: null where rows have names of their own
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const floor = height - BOTTOM;
  for (const t of x.ticks) {
    drawn.append(svg("line", { x1: x.at(t), x2: x.at(t), y1: floor, y2: floor + 4, class: "axis" }),
                 svg("text", { x: x.at(t), y: floor + 17, "text-anchor": "middle" }, String(t)));
  }
  for (const t of y ? y.ticks : []) {
    drawn.append(svg("line", { x1: LEFT, x2: width - RIGHT, y1: y.at(t), y2: y.at(t), class: "axis" }),
                 svg("text", { x: LEFT - 6, y: y.at(t) + 4, "text-anchor": "end" }, String(t)));
  }
  drawn.append(svg("line", { x1: LEFT, x2: width - RIGHT, y1: floor, y2: floor, class: "axis" }),
               svg("text", { x: (LEFT + width) / 2, y: height - 4, "text-anchor": "middle" }, xname));
  return drawn;
}

function scale(low, high, from, to, marks) {
  const span = high - low || 1;
  return { at: value => from + (value - low) / span * (to - from), ticks: marks };
}

function around(low, high, n) {  // round numbers, about n of them, the first not above low and the last not below high
  const few = ticks(low, high, n);
  const step = few.length > 1 ? few[1] - few[0] : high - low || 1;
  const first = Math.floor(low / step + 1e-9), last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => +((first + i) * step).toPrecision(10));
}

function bounds(s) {  // of the band: accuracies are shares
  return s.mean.map((m, i) => s.std ? [Math.max(0, m - s.std[i]), Math.min(1, m + s.std[i])] : [m, m]);
}

function dashed(series) {  // how each line is dashed; equal ones, of which one would hide the others, take turns
  const same = s => series.filter(o => String(o.mean) === String(s.mean) && String(o.rounds) === String(s.rounds));
  return series.map(s => {
    const group = same(s);
    return group.length > 1
      ? { "stroke-dasharray": `${PIECE} ${PIECE * (group.length - 1)}`, "stroke-dashoffset": -PIECE * group.indexOf(s) }
      : DASHES[s.dash] ? { "stroke-dasharray": DASHES[s.dash] } : {};
  });
}

function curves(series, what, width = WIDTH) {  // lines over rounds: [{name, rounds, mean, std, colour, dash}]
  const all = series.flatMap(bounds).flat();
  let low = Math.min(...all), high = Math.max(...all);
  if (high - low < 1e-3) { low -= 0.05; high += 0.05; }
  const first = Math.min(...series.map(s => s.rounds[0])), last = Math.max(...series.map(s => s.rounds.at(-1)));
  const whole = ticks(first, last, 6).filter(Number.isInteger);
  const x = scale(first, last, LEFT, width - RIGHT, whole.length ? whole : [first]);
  const marks = around(low, high, 5);
  const y = scale(marks[0], marks.at(-1), HEIGHT - BOTTOM, TOP, marks);
  const drawn = frame(what, HEIGHT, x, y, "round", width);
  const dash = dashed(series);
  series.forEach((s, n) => {
    const ends = bounds(s), upper = s.rounds.map((t, i) => [x.at(t), y.at(ends[i][1])]);
    const lower = s.rounds.map((t, i) => [x.at(t), y.at(ends[i][0])]).reverse();
    if (s.std) drawn.append(svg("polygon", { points: [...upper, ...lower].join(" "), fill: s.colour, opacity: 0.18 }));
    const points = s.rounds.map((t, i) => [x.at(t), y.at(s.mean[i])]);
    drawn.append(points.length > 1
      ? svg("polyline", { points: points.join(" "), fill: "none", stroke: s.colour, "stroke-width": 2, ...dash[n] })
      : svg("circle", { cx: points[0][0], cy: points[0][1], r: 4, fill: s.colour }));
  });
  return hovered(drawn, series, x, width);
}

function hovered(drawn, series, x, width) {  // the numbers of the round under the pointer, below the picture
  const mark = svg("line", { y1: TOP, y2: HEIGHT - BOTTOM, class: "mark", visibility: "hidden" });
  const said = html("p", "\u00a0", "pale");
  drawn.append(mark);
  drawn.addEventListener("pointermove", event => {
    const box = drawn.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * width;
    const near = series.map(s => s.rounds.reduce((a, t, i) => Math.abs(x.at(t) - at) < Math.abs(x.at(s.rounds[a]) - at) ? i : a, 0));
    const t = series[0].rounds[near[0]];
    mark.setAttribute("x1", x.at(t));
    mark.setAttribute("x2", x.at(t));
    mark.setAttribute("visibility", "visible");
    said.textContent = `round ${t}: ` + series.map((s, i) => (series.length > 1 ? s.name + " " : "") + s.mean[near[i]].toFixed(4)
      + (s.std ? ` (std ${s.std[near[i]].toFixed(4)})` : "")).join(", ");
  });
  drawn.addEventListener("pointerleave", () => { mark.setAttribute("visibility", "hidden"); said.textContent = "\u00a0"; });
  return html("div", "", "", drawn, said);
}

function strips(run) {  // a dot a client, a row an architecture, a stroke at the mean
  const kinds = [...new Set(run.kinds)], row = 34, height = kinds.length * row + TOP + BOTTOM;
  const x = scale(0, 1, LEFT, WIDTH - RIGHT, [0, 0.2, 0.4, 0.6, 0.8, 1]);
  const drawn = frame("accuracy of each client by architecture", height, x, null, "test accuracy of a client");
  kinds.forEach((kind, r) => {
    const values = run.clients.filter((v, i) => run.kinds[i] === kind && v !== null), y = TOP + r * row;
    drawn.append(svg("text", { x: LEFT, y: y + 11 }, kind));
    for (const v of values) drawn.append(svg("circle", { cx: x.at(v), cy: y + 22, r: 4, fill: colours[0], opacity: 0.45 }));
    const mean = x.at(values.reduce((a, b) => a + b, 0) / values.length);
    if (values.length) drawn.append(svg("line", { x1: mean, x2: mean, y1: y + 14, y2: y + 30, stroke: colours[1], "stroke-width": 2.5 }));
  });
  return drawn;
}

function bars(run) {  // seconds of a round by phase, a bar a rank
  const names = Object.keys(run.phases), ranks = run.phases[names[0]].length, row = ranks > 16 ? 10 : 20;
  const totals = Array.from({ length: ranks }, (_, r) => names.reduce((sum, name) => sum + run.phases[name][r], 0));
  const height = ranks * row + TOP + BOTTOM, most = Math.max(...totals);
  const x = scale(0, most, LEFT, WIDTH - RIGHT, ticks(0, most, 5));
  const drawn = frame("seconds of a round by phase and rank", height, x, null, "seconds a round, mean of the last rounds");
  for (let r = 0; r < ranks; r++) {
    let from = 0;
    const y = TOP + r * row;
    if (row > 12 || r % 8 === 0) drawn.append(svg("text", { x: LEFT - 6, y: y + row / 2 + 4, "text-anchor": "end" }, r));
    for (const name of names) {
      const to = from + run.phases[name][r];
      drawn.append(svg("rect", { x: x.at(from), y: y + 1, width: x.at(to) - x.at(from), height: row - 2, fill: phases[name] }));
      from = to;
    }
  }
  return html("div", "", "", drawn, key(names.map(name => [name, phases[name]])));
}

function key(entries) {  // [name, colour], of a line its dash too
  return html("div", "", "key", ...entries.map(([name, colour, dash]) => {
    const mark = html("i", "", dash ? `line ${dash}` : "");
    mark.style[dash ? "borderColor" : "background"] = colour;
    return html("span", "", "", mark, document.createTextNode(name));
  }));
}

function figure(title, drawn, kind = "") { return html("figure", "", kind, html("h3", title), drawn); }

function card(run) {
  const done = html("div");
  done.style.width = `${100 * run.share}%`;
  const node = html("section", "", "card", html("h2", run.title || run.name), html("p", run.told, "pale"),
                    html("div", "", "bar", done));
  if (run.warnings.length) node.append(html("p", `warning: ${run.warnings.at(-1)}`, "warning"));
  const charts = html("div", "", "charts");
  if (run.mean.length) {
    const line = { name: run.name, rounds: run.evaluated, mean: run.mean, std: run.std, colour: colours[0] };
    charts.append(figure("test accuracy, mean and std over clients", curves([line], "test accuracy over rounds")),
                  figure("test accuracy of each client, and means", strips(run)));
  }
  if (Object.keys(run.phases).length) charts.append(figure("seconds of a round by rank", bars(run)));
  node.append(charts);
  return node;
}

function together(runs) {  // all curves in one picture
  const lines = runs.filter(run => run.mean.length).map((run, i) => (
    { name: run.name, rounds: run.evaluated, mean: run.mean, colour: colours[i % colours.length],
      dash: dashes[Math.floor(i / colours.length) % dashes.length] }));
  if (runs.length < 2 || !lines.length) return [];
  return [html("section", "", "card", figure("test accuracy, mean over clients", curves(lines, "test accuracy of all runs", WIDE), "wide"),
               key(lines.map(line => [line.name, line.colour, line.dash])))];
}

async function look() {
  const said = document.getElementById("said");
  let answer;
  try {
    const reply = await fetch("numbers", { cache: "no-store" });
    if (!reply.ok) throw new Error(reply.statusText);
    answer = await reply.json();
  } catch {
    said.textContent = "no answer: hpcfed watch has ended; this is what it said last";
    return;
  }
  colours = answer.colours.map(([light, dark]) => DARK ? dark : light);
  dashes = answer.dashes;
  phases = Object.fromEntries(Object.entries(answer.phases).map(([name, i]) => [name, colours[i]]));
  document.getElementById("runs").replaceChildren(...together(answer.runs), ...answer.runs.map(card));
  said.textContent = answer.over ? "finished; hpcfed watch has ended" : `as of ${new Date().toLocaleTimeString()}`;
  if (!answer.over) setTimeout(look, EVERY);
}

look();
