// The charts: what is chosen, put into the sources of the Bokeh document that charts.py made.

const FEW = 30; // points of a curve that has dots
const BANDS = 4; // most runs that have a band
let bokeh; // the document
let whole = {}; // where the x axis ends when all is in view, and its last point

function model(name) {
  return bokeh.get_model_by_name(name);
}

async function openCharts() {
  const roots = PAGE.charts.roots;
  await Bokeh.embed.embed_items({page: PAGE.charts.document},
    [{docid: "page", roots, root_ids: Object.keys(roots)}]);
  bokeh = Bokeh.documents[0];
}

async function unpackRun(run) {
  const {columns, values} = run.curves;
  const numbers = await exact(values);
  const T = values.shape[1];
  run.column = Object.fromEntries(columns.map((name, i) => [name, numbers.subarray(i * T, (i + 1) * T)]));
}

async function unpackClients(run) {
  if (run.client) return;
  const packed = Object.entries(run.curves.clients);
  run.client = Object.fromEntries(await Promise.all(packed.map(async ([name, p]) => [name, await curves(p)])));
}

// Which of two colours is for this ground.
function colour(pair) {
  return pair[dark() ? 1 : 0];
}

// How a method or a run is drawn on this ground.
function look({look}) {
  return {colour: colour(look.colours), dash: look.dash};
}

// The method of each run: runs of one method differ in their seed alone.
function method(i) {
  return PAGE.methods.findIndex(one => one.runs.includes(i));
}

// How run i is drawn: with its own look, or with that of its method where seeds are averaged.
function lookOf(i) {
  return look(state.seeds ? PAGE.methods[method(i)] : PAGE.runs[i]);
}

// What is drawn thick: the ticked runs, or the mean of the ticked runs of each method.
function thick() {
  const ticked = [...state.runs].sort((a, b) => a - b);
  if (!state.seeds) return ticked.map(i => ({name: PAGE.runs[i].name, column: PAGE.runs[i].column, ...look(PAGE.runs[i])}));
  return PAGE.methods.flatMap(one => {
    const runs = one.runs.filter(i => state.runs.has(i)).map(i => PAGE.runs[i].column);
    const of = runs.length > 1 ? `${one.name}, mean of ${runs.length} seeds` : one.name;
    return runs.length ? [{name: of, column: averaged(runs), ...look(one)}] : [];
  });
}

// The mean of columns over the rounds that all runs have; a deviation is that of their means, the runs' seeds.
function averaged(runs) {
  if (runs.length === 1) return runs[0];
  const places = runs.map(column => new Map(Array.from(column.x_round, (round, t) => [round, t])));
  const rounds = Array.from(runs[0].x_round).filter(round => places.every(place => place.has(round)));
  const mean = values => values.reduce((a, b) => a + b, 0) / values.length;
  const at = name => rounds.map(round => runs.map((column, r) => column[name][places[r].get(round)]));
  return Object.fromEntries(Object.keys(runs[0]).map(name => {
    const rows = at(name);
    if (!name.endsWith("_std")) return [name, rows.map(mean)];
    const means = at(name.slice(0, -4));
    return [name, means.map(each => Math.sqrt(each.reduce((sum, m) => sum + (m - mean(each)) ** 2, 0) / (each.length - 1)))];
  }));
}

// Points of a curve without those that are not known.
function line(x, y) {
  const known = [...y.keys()].filter(t => Number.isFinite(y[t]) && Number.isFinite(x[t]));
  return {xs: known.map(t => x[t]), ys: known.map(t => y[t])};
}

function columns(rows, names) {
  return Object.fromEntries(names.map(name => [name, rows.map(row => row[name])]));
}

// Draw one thing over the chosen x: runs, their bands, and the chosen clients of the chosen run.
function draw(name) {
  const runs = state.thick;
  const lines = runs.map(run => ({...line(run.column[`x_${state.x}`], run.column[name]), colour: run.colour, dash: run.dash, name: run.name}));
  const one = PAGE.runs[state.run];
  const clients = one.client ? [...state.clients].map(k => ({
    ...line(one.column[`x_${state.x}`], one.client[name][k]), colour: lookOf(state.run).colour,
    name: `${one.name}, ${one.table.name?.[k] ?? `client ${one.ids[k]}`}`})) : [];
  model(`lines-${name}`).data = columns(lines, ["xs", "ys", "colour", "name", "dash"]);
  model(`clients-${name}`).data = columns(clients, ["xs", "ys", "colour", "name"]);
  model(`dots-${name}`).data = columns([...dots(lines, 6), ...dots(clients, 4)], ["x", "y", "colour", "size"]);
  const bands = runs.length > BANDS ? [] : runs.filter(run => run.column[`${name}_std`]).map(run => band(run, name));
  model(`bands-${name}`).data = columns(bands, ["xs", "ys", "colour"]);
  document.getElementById(`none-${name}`).hidden = [...lines, ...clients].some(one => one.xs.length);
}

function dots(lines, size) {
  return lines.filter(one => one.xs.length <= FEW)
    .flatMap(one => one.xs.map((x, i) => ({x, y: one.ys[i], colour: one.colour, size})));
}

// One standard deviation over clients around the mean.
function band(run, name) {
  const [x, mean, std] = [`x_${state.x}`, name, `${name}_std`].map(key => run.column[key]);
  const [high, low] = [1, -1].map(sign => line(x, mean.map((value, t) => Math.max(Math.min(0, value), value + sign * std[t]))));
  return {xs: [...high.xs, ...low.xs.reverse()], ys: [...high.ys, ...low.ys.reverse()], colour: run.colour};
}

function drawAll() {
  state.thick = thick();
  nameLines();
  for (const name of Object.keys(PAGE.y)) draw(name);
}

// What the lines are, where they are not all in the table of runs.
function nameLines() {
  document.getElementById("curves-legend").replaceChildren(...(state.seeds ? state.thick : []).map(one => {
    const item = document.createElement("li");
    item.append(swatch(one), one.name);
    return item;
  }));
}

// Another x: new labels, and all of it in view.
function chooseX(name) {
  state.x = name;
  const [text, unit] = PAGE.x[name];
  for (const [y, [what, yUnit]] of Object.entries(PAGE.y)) {
    const chart = model(y);
    chart.below[0].axis_label = unit ? `${text} (${unit})` : text;
    chart.below[0].formatter.doFormat = ticks => ticks.map(value => tick(value, unit));
    chart.left[0].formatter.doFormat = ticks => ticks.map(value => tick(value, yUnit));
    model(`hover-${y}`).tooltips = [["", "@name"], [text, "$snap_x{%.6g}"], [what, "$snap_y{%.4g}"]];
  }
  drawAll();
  wholeX();
}

function wholeX() {
  const ends = [...state.runs].map(i => PAGE.runs[i].column[`x_${state.x}`]).flatMap(x => [...x].filter(Number.isFinite));
  const last = ends.reduce((a, b) => Math.max(a, b), 0);
  whole = {end: 1.02 * last || 1, last}; // a little room beyond the last point, of which the field says nothing
  setX(0, whole.end);
}

function setX(from, to) {
  const range = model("x");
  range.setv({start: from, end: to});
  range.setv({reset_start: from, reset_end: to});
}

// Colours of axes and grids from the page's style.
function paint() {
  const style = getComputedStyle(document.body);
  const [ink, rule] = [style.color, getComputedStyle(document.querySelector("hr")).borderTopColor];
  for (const name of Object.keys(PAGE.y)) {
    const chart = model(name);
    for (const axis of [...chart.below, ...chart.left])
      axis.setv({axis_label_text_color: ink, major_label_text_color: ink, axis_line_color: rule, axis_label_text_font_style: "normal",
        major_tick_line_color: rule, minor_tick_line_color: null});
    for (const grid of chart.center) grid.grid_line_color = rule;
  }
}
