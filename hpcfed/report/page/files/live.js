// A page that is served: it asks for what has changed, and shows it without losing what is chosen.

const EVERY = 2000; // milliseconds between an answer and the next question

function follow() {
  showLive(PAGE.live);
  setTimeout(ask, EVERY);
}

async function ask() {
  let answer;
  try {
    const reply = await fetch(`changes/${PAGE.live.version}`, {cache: "no-store"});
    if (!reply.ok) throw new Error(reply.statusText);
    answer = await reply.json();
  } catch {
    $("asked").textContent = "no answer: hpcfed watch has ended; this is what it said last";
    return;
  }
  if (answer.data && !await update(answer.data)) return;
  PAGE.live = answer.live;
  showLive(answer.live);
  if (!answer.live.over) setTimeout(ask, EVERY);
}

function node(name, text, kind = "") {
  const made = document.createElement(name);
  made.textContent = text;
  made.className = kind;
  return made;
}

// How each run stands; all words are set as text.
function showLive({runs, over}) {
  $("live-runs").replaceChildren(...runs.map(run => {
    const card = node("div", "", "card");
    const bar = card.appendChild(node("div", "", "bar"));
    bar.appendChild(node("div", "")).style.width = `${100 * run.share}%`;
    if (run.title) card.prepend(node("b", run.title));
    card.append(node("p", run.line));
    if (run.warnings.length) {
      const more = run.warnings.length > 1 ? ` (${run.warnings.length} in all)` : "";
      card.append(node("p", `warning: ${run.warnings.at(-1)}${more}`, "warning"));
    }
    return card;
  }));
  $("asked").textContent = over ? "finished; hpcfed watch has ended" : `as of ${new Date().toLocaleTimeString()}`;
}

// Other numbers in the place of those that the page has; whether the page can show them. One of other parts (the first
// run has begun, or another metric is shown) is loaded anew.
async function update(data) {
  if (!PAGE.runs.length || data.metric !== PAGE.metric || !data.runs.length) {
    location.reload();
    return false;
  }
  const old = new Map(PAGE.runs.map(run => [run.name, run]));
  const ticked = new Set([...state.runs].map(i => PAGE.runs[i].name));
  const chosen = PAGE.runs[state.run];
  const clients = new Set([...state.clients].map(k => chosen.ids[k]));
  const [all, zoom] = [isWhole(), [model("x").start, model("x").end]];
  await Promise.all(data.runs.map(unpackRun));
  Object.assign(PAGE, {rows: data.rows, runs: data.runs, methods: data.methods});
  state.runs = new Set([...PAGE.runs.keys()].filter(i => ticked.has(PAGE.runs[i].name) || !old.has(PAGE.runs[i].name)));
  showSeeds();
  runsTable.replace(PAGE.rows, state.runs);
  fill($("run"), PAGE.runs.map((run, i) => [i, run.name]));
  await keepChosen(chosen.name, clients);
  for (const part of ["above", "below"]) if (data[part] !== PAGE[part]) replaceSections(part, data[part]);
  Object.assign(PAGE, {above: data.above, below: data.below});
  $("resolution").textContent = data.resolution;
  drawAll();
  if (all) wholeX();
  else setX(...zoom);
  return true;
}

// The run and the clients that were chosen, where they are still there.
async function keepChosen(name, clients) {
  const i = PAGE.runs.findIndex(run => run.name === name);
  state.run = Math.max(i, 0);
  $("run").value = state.run;
  const run = PAGE.runs[state.run];
  state.clients = new Set([...run.ids.keys()].filter(k => i >= 0 && clients.has(run.ids[k])));
  if (state.clients.size) await unpackClients(run);
  clientsTable.replace(rowsOf(run), state.clients);
  const kind = $("architecture").value;
  showRun();
  $("architecture").value = [...$("architecture").options].some(one => one.value === kind) ? kind : "";
  filterClients();
}

// Sections that the server has made: their words are escaped there, and no script in them would run.
function replaceSections(part, text) {
  const made = new DOMParser().parseFromString(text, "text/html").body;
  const open = [...$(part).querySelectorAll("section")].filter(one => one.querySelector("details[open]")).map(one => one.id);
  for (const details of made.querySelectorAll("details"))
    details.open = open.includes(details.closest("section").id);
  const scrolled = [scrollX, scrollY];
  const before = $(part).offsetHeight;
  $(part).replaceChildren(...made.childNodes);
  showMetric();
  // what is looked at stays where it is when a part above it grows
  if ($(part).getBoundingClientRect().top < 0 && part === "above")
    scrollTo(scrolled[0], scrolled[1] + $(part).offsetHeight - before);
}

function isWhole() {
  const range = model("x");
  return range.start === 0 && range.end === whole.end;
}
