// Tables whose columns sort at a click or a key, and whose rows can be filtered and ticked.

class Table {
  // heads: name -> [text, kind]. rows: objects by name. ticked: set of positions of rows. colour: of a row, or nothing.
  constructor(element, heads, rows, ticked, changed, colour = null) {
    Object.assign(this, {element, heads, rows, ticked, changed, colour});
    this.order = rows.map((_, i) => i);
    this.by = null;
    this.up = true;
    this.keep = () => true;
    this.build();
  }

  build() {
    const head = this.element.createTHead().insertRow();
    this.all = tick_box("all rows that are shown", event => this.tickAll(event.target.checked));
    head.appendChild(document.createElement("th")).append(this.all);
    for (const [name, [text, kind]] of Object.entries(this.heads)) {
      const th = head.appendChild(document.createElement("th"));
      th.scope = "col";
      th.dataset.name = name;
      th.className = kind;
      const button = th.appendChild(document.createElement("button"));
      button.textContent = text;
      button.addEventListener("click", () => this.sort(name));
    }
    this.body = this.element.createTBody();
    this.lines = this.rows.map((row, i) => this.line(row, i));
    this.show();
  }

  // Other rows in the same order and filter, where they can be: ticked is a set of their positions.
  replace(rows, ticked) {
    const focus = this.body.contains(document.activeElement)
      ? this.lines.findIndex(tr => tr.contains(document.activeElement)) : -1;
    Object.assign(this, {rows, ticked});
    this.lines = rows.map((row, i) => this.line(row, i));
    this.order = rows.map((_, i) => i);
    this.arrange();
    if (focus >= 0) this.lines[focus]?.querySelector("input").focus();
  }

  line(row, i) {
    const tr = document.createElement("tr");
    const box = tick_box(`show ${Object.values(row)[0]}`, event => {
      event.target.checked ? this.ticked.add(i) : this.ticked.delete(i);
      this.changed();
      this.marks();
    });
    const first = tr.appendChild(document.createElement("td"));
    first.append(box);
    if (this.colour) first.append(this.colour(i));
    for (const [name, [, kind]] of Object.entries(this.heads)) {
      const td = tr.insertCell();
      td.textContent = shown(row[name], kind);
      td.className = kind;
    }
    return tr;
  }

  sort(name) {
    this.up = this.by === name ? !this.up : this.heads[name][1] === "text";
    this.by = name;
    this.arrange();
    for (const th of this.element.tHead.querySelectorAll("th[data-name]"))
      th.ariaSort = th.dataset.name === name ? (this.up ? "ascending" : "descending") : "none";
  }

  // The rows in the order of the column that was clicked.
  arrange() {
    if (this.by !== null) this.order.sort(this.comparison(this.by));
    this.show();
  }

  comparison(name) {
    const value = i => this.rows[i][name];
    const sign = this.up ? 1 : -1;
    const absent = i => value(i) === null; // these come last, either way
    const compare = (a, b) => typeof value(a) === "string" ? value(a).localeCompare(value(b)) : value(a) - value(b);
    return (a, b) => absent(a) - absent(b) || (absent(a) ? 0 : sign * compare(a, b)) || a - b;
  }

  filter(keep) {
    this.keep = keep;
    this.show();
  }

  visible() {
    return this.order.filter(i => this.keep(this.rows[i], this.lines[i].textContent));
  }

  show() {
    this.body.replaceChildren(...this.visible().map(i => this.lines[i]));
    this.marks();
  }

  tickAll(yes) {
    for (const i of this.visible()) yes ? this.ticked.add(i) : this.ticked.delete(i);
    this.changed();
    this.marks();
  }

  marks() {
    this.lines.forEach((tr, i) => { tr.querySelector("input").checked = this.ticked.has(i); });
    const visible = this.visible();
    this.all.checked = visible.length > 0 && visible.every(i => this.ticked.has(i));
    this.all.indeterminate = !this.all.checked && visible.some(i => this.ticked.has(i));
  }
}

function tick_box(label, changed) {
  const box = document.createElement("input");
  box.type = "checkbox";
  box.ariaLabel = label;
  box.addEventListener("change", changed);
  return box;
}
