// What is chosen on the page, and what follows from it.

const PAGE = JSON.parse(document.getElementById("data").textContent);
const state = {x: "round", runs: new Set(PAGE.runs.keys()), run: 0, clients: new Set(), thick: [],
  seeds: false, averaged: null}; // whether seeds of a method are averaged, and whether that was asked for
const $ = id => document.getElementById(id);

function dark() {
  return matchMedia("(prefers-color-scheme: dark)").matches !== document.documentElement.classList.contains("other");
}

function swatch({colour, dash}) {
  const mark = document.createElement("span");
  mark.className = `swatch ${dash}`;
  mark.style.borderColor = colour;
  return mark;
}

function swatchOf(i) {
  return swatch(lookOf(i));
}

function repaint() {
  document.documentElement.classList.toggle("dark", dark());
  if (!PAGE.runs.length) return;
  runsTable.lines.forEach((tr, i) => tr.querySelector(".swatch").replaceWith(swatchOf(i)));
  paint();
  drawAll();
}

let runsTable;
let clientsTable;

function openRuns() {
  runsTable = new Table($("runs"), PAGE.heads.runs, PAGE.rows, state.runs, drawAll, swatchOf);
  $("filter-runs").addEventListener("input", event => runsTable.filter(holds(event.target.value)));
  fill($("run"), PAGE.runs.map((run, i) => [i, run.name]));
  $("run").addEventListener("change", event => { chooseRun(+event.target.value); drawAll(); });
}

// Whether a row has these words.
function holds(words) {
  const wanted = words.toLowerCase().split(/\s+/);
  return (_, text) => wanted.every(word => text.toLowerCase().includes(word));
}

function fill(select, options) {
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
}

// Another run whose clients are looked at; its curves are for who calls.
function chooseRun(i) {
  state.run = i;
  state.clients.clear();
  const run = PAGE.runs[i];
  $("clients").replaceChildren();
  clientsTable = new Table($("clients"), PAGE.heads.clients, rowsOf(run), state.clients, drawClients);
  showRun();
}

// The rows of a run's clients.
function rowsOf(run) {
  return run.ids.map((_, k) => Object.fromEntries(Object.keys(run.table).map(name => [name, run.table[name][k]])));
}

// What the chosen run has beside its table of clients and its curves.
function showRun() {
  const run = PAGE.runs[state.run];
  const kinds = [...new Set(run.table.architecture ?? [])].sort();
  fill($("architecture"), [["", "all"], ...kinds.map(kind => [kind, kind])]);
  $("some").textContent = run.some;
  $("with-clients").hidden = !run.ids.length;
}

async function drawClients() {
  await unpackClients(PAGE.runs[state.run]);
  drawAll();
}

function filterClients() {
  const [kind, has] = [$("architecture").value, holds($("filter-clients").value)];
  clientsTable.filter((row, text) => (!kind || row.architecture === kind) && has(row, text));
}

function openControls() {
  fill($("x"), Object.entries(PAGE.x).filter(([name]) => hasX(name)).map(([name, [text]]) => [name, text]));
  $("x").addEventListener("change", event => chooseX(event.target.value));
  $("all").addEventListener("click", wholeX);
  for (const id of ["from", "to"]) $(id).addEventListener("change", () => setX(+$("from").value, +$("to").value));
  const range = model("x");
  const told = () => {
    $("from").value = +range.start.toPrecision(6);
    $("to").value = +(range.end === whole.end ? whole.last : range.end).toPrecision(6);
  };
  $("seeds").addEventListener("change", event => { state.seeds = state.averaged = event.target.checked; repaint(); });
  range.properties.start.change.connect(told);
  range.properties.end.change.connect(told);
  $("filter-clients").addEventListener("input", filterClients);
  $("architecture").addEventListener("change", filterClients);
  for (const make of [csvOfRuns, csvOfRounds, csvOfClients, csvOfCurves]) $(make.name).addEventListener("click", make);
  $("metric")?.addEventListener("change", () => { showMetric(); dispatchEvent(new Event("resize")); });
}

// Comparison, tables by architecture and curves of the chosen metric; those of the others are hidden.
function showMetric() {
  const chosen = $("metric")?.value ?? PAGE.metrics[0];
  for (const part of document.querySelectorAll("[data-metric]")) part.hidden = part.dataset.metric !== chosen;
}

function openGround() {
  $("ground").addEventListener("click", () => { document.documentElement.classList.toggle("other"); repaint(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
}

// Seeds of a method are averaged, where it has several that are finished, unless that was unticked.
function showSeeds() {
  const several = PAGE.methods.some(one => one.runs.length > 1);
  $("seeds-label").hidden = !several;
  state.seeds = several && (state.averaged ?? true);
  $("seeds").checked = state.seeds;
}

// Whether any run has such an x that is not 0 all the time.
function hasX(name) {
  return name === "round" || PAGE.runs.some(run => run.column[`x_${name}`].some(value => value > 0));
}

// On paper: all parts open, and charts as pictures, which fit any width; there is no time to draw them anew.
function openPrint() {
  const undo = [];
  addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("details:not([open])")) {
      part.open = true;
      undo.push(() => { part.open = false; });
    }
    for (const [id, element] of Object.entries(PAGE.charts.roots)) {
      const picture = Bokeh.index[id].export("png").canvas;
      picture.className = "picture";
      $(element).after(picture);
      undo.push(() => picture.remove());
    }
  });
  addEventListener("afterprint", () => undo.splice(0).forEach(step => step()));
}

async function start() {
  document.documentElement.classList.toggle("dark", dark());
  openGround();
  if (PAGE.runs.length) await openAll(); // none on a page that is served before a run has begun
  if (PAGE.live) follow();
  document.documentElement.dataset.ready = "yes";
}

async function openAll() {
  await Promise.all(PAGE.runs.map(unpackRun));
  await openCharts();
  showSeeds();
  openRuns();
  openControls();
  paint();
  chooseRun(0);
  chooseX("round");
  openPrint();
}

start().catch(error => {
  $("failed").hidden = false;
  $("failed").textContent += ` (${error.message})`;
  throw error;
});
