// What was chosen: one run, or several compared. Figures are changed where they stand as rounds come.
import { ask, drawing, facts, lasted, made, measured, shown, state, swap, table, toCopy } from "./parts.js";

const AGAIN = 1000; // milliseconds between questions at least, and four times what the last answer took

export class Chosen {
  constructor(place, list, ids) {
    Object.assign(this, { place, list, ids, cards: new Map(), next: 0, waiting: false, over: false });
    this.top = made("div");
    this.figures = made("div", { className: "cards" });
    this.tools = made("div", { className: "controls tools", hidden: true });
    this.axis = made("select");
    this.axis.addEventListener("change", () => this.lines().forEach((card) => card.change({ axis: this.axis.value })));
    this.objective = made("input", { type: "search", placeholder: "all" });
    this.objective.addEventListener("input", () => this.paged().forEach((card) => card.search(this.objective.value)));
    this.tools.append(made("label", {}, "Against ", this.axis), made("label", {}, "Objective ", this.objective));
    this.below = made("div");
    place.replaceChildren(this.top, this.tools, this.figures, this.below);
    this.top.append(made("p", { className: "soft", role: "status" }, "Reading …"));
    this.refresh();
  }

  // Some of its runs have changed.
  told(ids) {
    if (ids.some((id) => this.ids.includes(id))) this.refresh();
  }

  end() {
    this.over = true;
  }

  async refresh() {
    if (this.waiting || this.over) return;
    this.waiting = true;
    const pause = this.next - Date.now();
    if (pause > 0)
      await new Promise((done) => {
        setTimeout(done, pause);
      });
    const versions = this.versions();
    let took = 0;
    try {
      const began = Date.now();
      const answer = ask(
        "api/runs",
        this.ids.map((id) => ["run", id]),
      ).then((told) => {
        took = Date.now() - began;
        return told;
      });
      const [told, draw] = await Promise.all([answer, drawing()]);
      if (!this.over) await this.show(told, draw);
    } catch (error) {
      if (!this.over) swap(this.top, made("p", { className: "why", role: "alert" }, error.message));
    }
    this.next = Date.now() + Math.max(AGAIN, 4 * took);
    this.waiting = false;
    if (versions !== this.versions()) this.refresh(); // more came in the meantime
  }

  lines() {
    return [...this.cards.values()].filter((card) => card.figure.kind === "lines");
  }

  paged() {
    return [...this.cards.values()].filter((card) => card.page);
  }

  // One horizontal axis for all figures, and a search where there are more objectives than are drawn at once.
  choices() {
    const axes = new Map(
      this.lines()
        .flatMap((card) => card.figure.x || [])
        .map((axis) => [axis.key, axis.label]),
    );
    if ([...this.axis.options].map((option) => option.value).join() !== [...axes.keys()].join()) {
      const before = this.axis.value;
      this.axis.replaceChildren(...[...axes].map(([key, label]) => new Option(label, key, false, key === before)));
    }
    const many = this.paged().length;
    this.axis.closest("label").hidden = axes.size < 2;
    this.objective.closest("label").hidden = !many;
    this.tools.hidden = axes.size < 2 && !many;
  }

  versions() {
    return this.ids
      .map((id) => this.list.rows.get(id))
      .map((row) => `${row?.version} ${row?.state}`)
      .join();
  }

  async show(told, draw) {
    const open = this.below.querySelector("details")?.open;
    const none = !told.figures.length && told.runs.length > 0;
    swap(
      this.top,
      ...(told.runs.length === 1 ? this.one(told) : this.several(told)),
      ...told.skipped.map(({ why, commands }) =>
        made("div", {}, made("p", { className: "why" }, why), this.commands(commands)),
      ),
      none ? made("p", { className: "soft" }, "No round is done yet: figures come with the first.") : null,
    );
    const wanted = new Set(told.figures.map((figure) => figure.key));
    for (const [key, card] of this.cards)
      if (!wanted.has(key)) {
        card.remove();
        this.cards.delete(key);
      }
    let last = null;
    for (const figure of told.figures) {
      const shape = JSON.stringify([figure.kind, figure.x, figure.panels, figure.y, figure.notes, figure.about]);
      let card = this.cards.get(figure.key);
      if (card && card.shape === shape) await card.update(figure);
      else {
        const fresh = draw.card(figure, this.axis.value ? { axis: this.axis.value } : {});
        fresh.shape = shape;
        if (card) card.replaceWith(fresh);
        else if (last) last.after(fresh);
        else this.figures.prepend(fresh);
        this.cards.set(figure.key, fresh);
        card = fresh;
      }
      last = card;
    }
    this.choices();
    swap(this.below, ...this.settings(told, open));
  }

  one(told) {
    const [run] = told.runs;
    const row = this.list.rows.get(run.id) || {};
    const tags = row.tags || {};
    const pairs = [
      ["State", state(run.state)],
      ["Rounds", `${run.round} of ${run.rounds || run.round}`],
      ["Algorithm", tags.algorithm || "–"],
      ["Data", tags.data || tags.experiment || "–"],
      ["Engine", tags.engine || "–"],
      ["Seed", tags.seed || "–"],
      ["Clients asked", shown(run.asked)],
      ...(row.seconds ? [["Took", lasted(row.seconds)]] : []),
    ];
    return [
      made("h2", {}, run.name),
      facts(pairs),
      this.commands(run.commands),
      run.model ? made("p", { className: "soft" }, "Model: ", made("code", {}, run.model)) : null,
    ].filter(Boolean);
  }

  several(told) {
    if (!told.runs.length) return [made("h2", {}, "Nothing to show")];
    const rows = told.runs.map((run) => {
      const row = this.list.rows.get(run.id) || {};
      return [
        made("a", { href: `#${new URLSearchParams([["run", run.id]])}` }, run.name),
        state(run.state),
        `${run.round} of ${run.rounds || run.round}`,
        shown(row.loss),
        row.metric ? `${row.metric} ${measured(row.metric, row.value)}` : "–",
      ];
    });
    const parts = [
      made("h2", {}, `${told.runs.length} runs compared`),
      table("The runs at their last evaluation", ["Run", "State", "Rounds", "Mean loss", "Mean metric"], rows),
    ];
    parts.push(
      this.commands([{ what: "See them as one file", command: told.report }]),
      this.differences(told.settings),
    );
    return parts;
  }

  differences({ runs, rows, differing }) {
    if (this.differ === undefined) this.differ = differing.length <= 4;
    if (!differing.length) return made("p", { className: "soft" }, "All of their settings are the same.");
    const found = rows.filter(([key]) => differing.includes(key));
    const details = made(
      "details",
      { open: this.differ },
      made("summary", {}, `${found.length} settings differ`),
      table(
        "The settings that differ",
        ["Setting", ...runs],
        found.map(([key, values]) => [key, ...values.map((value) => value || "–")]),
      ),
    );
    details.addEventListener("toggle", () => {
      this.differ = details.open;
    });
    return details;
  }

  settings({ settings, runs }, open) {
    if (runs.length !== 1) return [];
    const details = made("details", { open: Boolean(open) }, made("summary", {}, "All settings"));
    details.append(
      table(
        "The resolved experiment",
        ["Setting", "Value"],
        settings.rows.map(([key, [value]]) => [key, value]),
      ),
    );
    return [details];
  }

  commands(commands) {
    return made("div", { className: "commands" }, ...commands.map(({ what, command }) => toCopy(what, command)));
  }
}
