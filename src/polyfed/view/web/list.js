// The list of runs: search, tags, sorting, groups, a choice. Rows are changed where they stand, so that focus stays.
import { ago, lasted, made, measured, shown, state } from "./parts.js";

const COLUMNS = [
  { key: "name", label: "Run", of: (row) => row.id },
  { key: "state", label: "State", of: (row) => ({ running: 0, stopped: 1, broken: 2, done: 3 })[row.state] },
  { key: "round", label: "Round", of: (row) => (row.rounds ? row.round / row.rounds : row.round || 0), number: true },
  { key: "algorithm", label: "Algorithm", of: (row) => tag(row, "algorithm"), second: true },
  { key: "data", label: "Data", of: (row) => tag(row, "data") || tag(row, "experiment"), aside: true },
  { key: "seed", label: "Seed", of: (row) => Number(tag(row, "seed") || -1), number: true, aside: true },
  { key: "loss", label: "Mean loss", of: (row) => row.loss, number: true },
  { key: "value", label: "Mean metric", of: (row) => row.value, number: true, aside: true },
  { key: "seconds", label: "Took", of: (row) => row.seconds, number: true, aside: true },
  { key: "changed", label: "Changed", of: (row) => row.changed, number: true, down: true, aside: true },
];
const looks = (column) => ["number", "aside", "second"].filter((name) => column[name]).join(" ");
const FACETS = ["state", "algorithm", "data", "engine", "seed"];
const VALUES = 8; // of a facet that are buttons; the search finds the others
const tag = (row, key) => (key === "state" ? row.state : (row.tags || {})[key] || "");

export class List {
  constructor(chosen) {
    this.rows = new Map();
    this.groups = new Map();
    this.lines = new Map(); // elements by id
    this.bodies = new Map();
    this.closed = new Set();
    this.filters = new Map(); // facet -> value
    this.words = "";
    this.sort = { key: "changed", down: true };
    this.selected = new Set();
    this.chosen = chosen;
    this.table = document.getElementById("list");
    this.head();
    const search = document.getElementById("search");
    search.addEventListener("input", () => {
      this.words = search.value;
      this.draw();
    });
    setInterval(() => this.lines.forEach((line, id) => this.rows.has(id) && this.time(line, this.rows.get(id))), 30000);
  }

  told(change) {
    if (change.whole) {
      this.rows.clear();
      this.groups.clear();
    }
    for (const id of change.gone) {
      this.rows.delete(id);
      this.groups.delete(id);
    }
    for (const row of change.rows) {
      row.words = [row.id, row.state, ...Object.values(row.tags || {})].join(" ").toLowerCase();
      this.rows.set(row.id, row);
      if (this.lines.has(row.id)) this.fill(this.lines.get(row.id), row);
    }
    for (const group of change.groups) this.groups.set(group.id, group);
    for (const id of [...this.lines.keys()]) if (!this.rows.has(id)) this.lines.delete(id);
    this.draw();
  }

  select(ids) {
    const before = this.selected;
    this.selected = new Set(ids);
    for (const id of new Set([...before, ...ids])) if (this.lines.has(id)) this.mark(this.lines.get(id), id);
    this.headings();
  }

  // ---- what is shown, and in which order

  matches(row) {
    for (const [facet, value] of this.filters) if (tag(row, facet) !== value) return false;
    return this.words
      .toLowerCase()
      .split(/\s+/)
      .filter(Boolean)
      .every((word) => {
        const [, facet, value] = /^(\w+):(.+)$/.exec(word) || [];
        return facet && FACETS.concat("experiment", "model").includes(facet)
          ? tag(row, facet).toLowerCase().startsWith(value)
          : row.words.includes(word);
      });
  }

  ordered(rows) {
    const column = COLUMNS.find(({ key }) => key === this.sort.key);
    const missing = (value) => value === null || value === undefined || value === "";
    const names = new Intl.Collator("en", { numeric: true });
    return rows
      .map((row) => [column.of(row), row])
      .sort(([a, one], [b, other]) => {
        if (missing(a) !== missing(b)) return missing(a) ? 1 : -1; // what is not known is last either way
        const by = missing(a) ? 0 : typeof a === "number" ? a - b : names.compare(a, b);
        return (this.sort.down ? -by : by) || names.compare(one.id, other.id);
      })
      .map(([, row]) => row);
  }

  draw() {
    const found = this.ordered([...this.rows.values()].filter((row) => this.matches(row)));
    const active = document.activeElement;
    const parts = new Map();
    for (const row of found) {
      if (!parts.has(row.group)) parts.set(row.group, []);
      parts.get(row.group).push(row);
    }
    if (!this.words && !this.filters.size) for (const id of this.groups.keys()) if (!parts.has(id)) parts.set(id, []);
    const bodies = [...parts].map(([id, rows]) => this.body(id, rows));
    if (bodies.some((body, i) => this.table.tBodies[i] !== body) || bodies.length !== this.table.tBodies.length) {
      this.table.replaceChildren(this.table.caption, this.table.tHead, ...bodies);
    }
    this.headings();
    this.facets(found);
    const said = `${found.length === this.rows.size ? "" : `${found.length} of `}${this.rows.size} runs`;
    const count = document.getElementById("count");
    if (count.textContent !== said) count.textContent = said;
    if (active && active !== document.activeElement && active.isConnected) active.focus({ preventScroll: true });
  }

  body(id, rows) {
    if (!this.bodies.has(id)) this.bodies.set(id, made("tbody"));
    const body = this.bodies.get(id);
    body.rows_ = rows;
    const lines = this.closed.has(id) ? [] : rows.map((row) => this.line(row));
    const wanted = id === "" ? lines : [this.heading(body, id), ...lines];
    if (wanted.length !== body.children.length || wanted.some((line, i) => body.children[i] !== line))
      body.replaceChildren(...wanted);
    return body;
  }

  // ---- heads

  head() {
    const cells = COLUMNS.map((column) => {
      const button = made("button", { type: "button" }, column.label);
      button.addEventListener("click", () => {
        this.sort = { key: column.key, down: this.sort.key === column.key ? !this.sort.down : Boolean(column.down) };
        this.sorted();
        this.draw();
      });
      return made("th", { scope: "col", className: looks(column), "data-key": column.key }, button);
    });
    this.table.tHead.append(
      made("tr", {}, made("th", { scope: "col" }, made("span", { className: "unseen" }, "Chosen")), ...cells),
    );
    this.sorted();
  }

  sorted() {
    for (const cell of this.table.tHead.querySelectorAll("th[data-key]")) {
      if (cell.dataset.key === this.sort.key)
        cell.setAttribute("aria-sort", this.sort.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
  }

  heading(body, id) {
    if (!body.heading) {
      const box = made("input", { type: "checkbox" });
      box.addEventListener("change", () =>
        this.chosen(
          this.with(
            body.rows_.map((row) => row.id),
            box.checked,
          ),
        ),
      );
      const fold = made("button", { type: "button", className: "fold" });
      fold.addEventListener("click", () => {
        this.closed.has(id) ? this.closed.delete(id) : this.closed.add(id);
        this.draw();
      });
      const about = made("span", { className: "soft" });
      const open = made(
        "a",
        { className: "explore", href: `#${new URLSearchParams([["front", id]])}` },
        "Explore the front",
      );
      body.heading = made(
        "tr",
        { className: "group" },
        made("td", {}, box),
        made("th", { colSpan: COLUMNS.length, scope: "rowgroup" }, fold, " ", about, " ", open),
      );
      Object.assign(body.heading, { box, fold, about, open });
    }
    return body.heading;
  }

  headings() {
    for (const [id, { heading, rows_: rows }] of this.bodies) {
      const group = this.groups.get(id);
      if (!heading || !group) continue;
      const many = rows.filter((row) => this.selected.has(row.id)).length;
      heading.box.checked = many > 0 && many === rows.length;
      heading.box.indeterminate = many > 0 && many < rows.length;
      heading.box.disabled = !rows.length;
      heading.box.setAttribute("aria-label", `Choose all runs of ${group.name}`);
      heading.fold.setAttribute("aria-expanded", String(!this.closed.has(id)));
      heading.fold.textContent = id === "." ? group.name : id;
      heading.about.textContent = [group.kind, `${rows.length} runs`, group.state, group.why]
        .filter(Boolean)
        .join(", ");
      heading.open.hidden = group.kind !== "front" || Boolean(group.why);
    }
  }

  facets(found) {
    const box = document.getElementById("facets");
    const parts = FACETS.map((facet) => {
      const counts = new Map();
      const all = new Set([...this.rows.values()].map((row) => tag(row, facet)).filter(Boolean));
      for (const row of found) if (tag(row, facet)) counts.set(tag(row, facet), (counts.get(tag(row, facet)) || 0) + 1);
      const values = [...counts].sort(([, a], [, b]) => b - a).slice(0, VALUES);
      return all.size < 2 ? null : { facet, values };
    }).filter(Boolean);
    const drawn = JSON.stringify([parts, [...this.filters]]);
    if (box.drawn === drawn) return;
    const focused =
      document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.tag : undefined;
    box.drawn = drawn;
    box.replaceChildren(
      ...parts.map(({ facet, values }) =>
        made(
          "span",
          { className: "facet" },
          made("span", { className: "soft" }, facet),
          ...values.map(([value, many]) => this.chip(facet, value, many)),
        ),
      ),
    );
    if (focused)
      [...box.querySelectorAll("button")].filter((one) => one.dataset.tag === focused).forEach((one) => one.focus());
  }

  chip(facet, value, many) {
    const on = this.filters.get(facet) === value;
    const button = made(
      "button",
      { type: "button", "aria-pressed": String(on), "data-tag": `${facet}:${value}` },
      value,
      made("span", { className: "soft" }, ` ${many}`),
    );
    button.addEventListener("click", () => {
      on ? this.filters.delete(facet) : this.filters.set(facet, value);
      this.draw();
    });
    return button;
  }

  // ---- rows

  with(ids, yes) {
    const found = new Set(this.selected);
    for (const id of ids) yes ? found.add(id) : found.delete(id);
    return [...found];
  }

  line(row) {
    let line = this.lines.get(row.id);
    if (!line) {
      const box = made("input", { type: "checkbox", "aria-label": `Choose ${row.id}` });
      box.addEventListener("change", () => this.chosen(this.with([row.id], box.checked)));
      const name = made(
        "a",
        { href: `#${new URLSearchParams([["run", row.id]])}` },
        row.group && row.id !== "."
          ? row.id.slice(row.group === "." ? 0 : row.group.length + 1)
          : row.id === "."
            ? row.name
            : row.id,
      );
      const cells = COLUMNS.slice(1).map((column) => made("td", { className: looks(column) }));
      line = made("tr", {}, made("td", {}, box), made("th", { scope: "row" }, name), ...cells);
      Object.assign(line, { box, by: Object.fromEntries(COLUMNS.slice(1).map((column, i) => [column.key, cells[i]])) });
      line.dataset.run = row.id;
      this.lines.set(row.id, line);
      this.fill(line, row);
      this.mark(line, row.id);
    }
    return line;
  }

  mark(line, id) {
    line.box.checked = this.selected.has(id);
    line.classList.toggle("chosen", this.selected.has(id));
  }

  fill(line, row) {
    const cells = line.by;
    cells.state.replaceChildren(state(row.state));
    const done = row.rounds ? Math.min(1, (row.round || 0) / row.rounds) : 0;
    const bar =
      row.rounds && row.state !== "done" && done < 1
        ? made("progress", { max: 1, value: done, "aria-label": "rounds done" })
        : null;
    cells.round.replaceChildren(
      `${row.round ?? "–"}${row.rounds && row.rounds !== row.round ? ` / ${row.rounds}` : ""}`,
      ...(bar ? [bar] : []),
    );
    cells.algorithm.textContent = tag(row, "algorithm") || "–";
    cells.data.textContent = tag(row, "data") || tag(row, "experiment") || "–";
    cells.seed.textContent = tag(row, "seed") || "–";
    cells.loss.textContent = shown(row.loss);
    cells.loss.title = Object.entries(row.losses || {})
      .map(([name, loss]) => `${name}: ${shown(loss)}`)
      .join("\n");
    cells.value.replaceChildren(
      ...(row.metric ? [made("span", { className: "soft" }, `${row.metric} `), measured(row.metric, row.value)] : ["–"]),
    );
    cells.seconds.textContent = lasted(row.seconds);
    this.time(line, row);
    line.querySelector("th .why")?.remove();
    if (row.why) line.querySelector("th").append(made("span", { className: "why" }, row.why));
  }

  time(line, row) {
    const said = ago(row.changed);
    if (line.by.changed.textContent !== said) {
      line.by.changed.replaceChildren(
        made(
          "time",
          {
            dateTime: new Date(row.changed * 1000).toISOString(),
            title: new Date(row.changed * 1000).toLocaleString(),
          },
          said,
        ),
      );
    }
  }
}
