// Tables as files for other programs, made in the browser from what the page holds.

// A cell; one that a spreadsheet would take for a formula is marked as text.
function cell(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function download(name, heads, rows) {
  const text = [heads, ...rows].map(row => row.map(cell).join(",")).join("\n") + "\n";
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], {type: "text/csv"}));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function csvOfRuns() {
  const names = Object.keys(PAGE.heads.runs);
  download("runs.csv", names, PAGE.rows.map(row => names.map(name => row[name])));
}

// Of the runs that are shown, in full precision.
function csvOfRounds() {
  const names = PAGE.runs[0].curves.columns;
  const rows = [...state.runs].sort((a, b) => a - b).flatMap(i => {
    const run = PAGE.runs[i];
    return Array.from(run.column.x_round, (_, t) => [run.name, ...names.map(name => run.column[name][t])]);
  });
  download("rounds.csv", ["run", ...names.map(name => name.replace("x_", ""))], rows);
}

function csvOfClients() {
  const run = PAGE.runs[state.run];
  const names = Object.keys(run.table);
  download("clients.csv", names, run.ids.map((_, i) => names.map(name => run.table[name][i])));
}

// Of the chosen run: 6 digits, as its curves are in single precision.
async function csvOfCurves() {
  const run = PAGE.runs[state.run];
  await unpackClients(run);
  const names = Object.keys(run.client);
  const six = value => Number.isNaN(value) ? NaN : +value.toPrecision(6);
  const rows = run.ids.flatMap((k, i) =>
    Array.from(run.column.x_round, (round, t) => [k, round, ...names.map(name => six(run.client[name][i][t]))]));
  download("clients-rounds.csv", ["client", "round", ...names], rows);
}
