// A front, to be explored: a slider over rounds replays it, a click shows a point, preferences lead to the nearest.
import { ask, drawing, facts, made, shown, state, table, toCopy } from "./parts.js";

const STEP = 90; // milliseconds of a round's step when it is replayed
const MARGIN = 0.08;
const TRAIL = 12; // rounds that a moving point leaves behind

export class Front {
  constructor(place, list, id) {
    Object.assign(this, { place, list, id, over: false, round: 0, picked: "", wish: {}, timer: 0, across: 0, up: 1 });
    place.replaceChildren(made("p", { className: "soft", role: "status" }, "Reading …"));
    this.refresh();
  }

  told(ids, groups) {
    if (groups.includes(this.id) || ids.some((id) => id.startsWith(this.id === "." ? "" : `${this.id}/`))) this.refresh();
  }

  end() { this.over = true; clearInterval(this.timer); }

  async refresh() {
    if (this.reading) { this.again = true; return; }
    this.reading = true;
    try {
      const [told, draw] = await Promise.all([ask("api/front", [["front", this.id]]), drawing()]);
      if (!this.over) await this.take(told, draw);
    } catch (error) {
      if (!this.over) this.place.replaceChildren(made("p", { className: "why", role: "alert" }, error.message));
    }
    await new Promise((done) => { setTimeout(done, 1000); });
    this.reading = false;
    if (this.again && !this.over) { this.again = false; this.refresh(); }
  }

  async take(told, draw) {
    const atEnd = !this.front || this.round >= this.last;
    Object.assign(this, { front: told, draw });
    this.points = told.points.map((point, index) => ({ ...point, index, track: told.tracks[point.id] }));
    this.last = Math.max(0, ...this.points.flatMap(({ track }) => (track ? track.rounds.slice(-1) : [])));
    if (atEnd) this.round = this.last;
    if (!this.plot) this.build();
    this.slider.max = String(Math.max(1, this.last));
    this.heads();
    await this.redraw();
    const { track, ...known } = this.points.find((point) => point.run === this.picked) || {};
    if (!this.picked) this.nearest();
    else if (this.known !== JSON.stringify(known)) this.show(this.picked);
    else this.weights();
  }

  // ---- parts

  build() {
    const { objectives } = this.front;
    this.facts = made("div");
    this.plot = made("div", { className: "plot", id: "front-plot" });
    this.slider = made("input", { type: "range", id: "front-round", min: "0", step: "1", "aria-describedby": "front-said" });
    this.slider.addEventListener("input", () => { this.stop(); this.at(Number(this.slider.value)); });
    this.said = made("output", { id: "front-said", htmlFor: "front-round" });
    this.play = made("button", { type: "button" }, "Replay");
    this.play.addEventListener("click", () => (this.timer ? this.stop() : this.start()));
    const replay = made("div", { className: "controls replay" }, this.play, made("label", { htmlFor: "front-round" }, "Round"), this.slider, this.said);
    this.point = made("div", { className: "card", id: "front-point", "aria-live": "polite" });
    this.choices = made("div");
    this.about = made("p", { className: "about" });
    const board = made("article", { className: "card" }, made("h3", {}, "The trade-off"), this.about, this.axes(), this.plot, replay, this.choices);
    const side = made("div", {}, this.preferences(objectives), this.point);
    this.place.replaceChildren(made("h2", {}, this.id === "." ? "The front" : this.id), this.facts, made("div", { className: "explorer" }, board, side));
  }

  axes() {
    const { objectives } = this.front;
    this.all = objectives.length > 3;
    if (objectives.length < 3) return null;
    const choose = (name, label) => {
      const select = made("select", {}, ...objectives.map((objective, i) => made("option", { value: String(i), selected: i === this[name] }, objective)));
      select.addEventListener("change", () => { this[name] = Number(select.value); this.redraw(); });
      return made("label", {}, label, select);
    };
    const pair = made("span", { className: "controls", hidden: this.all }, choose("across", "across"), choose("up", "up"));
    const button = made("button", { type: "button", "aria-pressed": String(this.all) }, "All objectives at once");
    button.addEventListener("click", () => {
      this.all = !this.all;
      button.setAttribute("aria-pressed", String(this.all));
      pair.hidden = this.all;
      this.redraw();
    });
    return made("div", { className: "controls" }, button, pair);
  }

  preferences(objectives) {
    this.wishes = objectives.map((name, i) => {
      const slider = made("input", { type: "range", min: "0", max: "100", value: "50", id: `wish-${i}`, "aria-describedby": `wished-${i}` });
      slider.addEventListener("input", () => this.nearest());
      return { name, slider, said: made("output", { id: `wished-${i}`, htmlFor: `wish-${i}` }) };
    });
    const rows = this.wishes.map(({ name, slider, said }, i) => made("div", { className: "wish" }, made("label", { htmlFor: `wish-${i}` }, name), slider, said));
    return made("fieldset", { className: "card wishes" }, made("legend", {}, "What matters how much"), made("div", { className: "wishgrid" }, ...rows), made("p", { className: "soft" }, "The nearest point is shown: the one whose largest loss, times its share, is least."));
  }

  heads() {
    const { front, points } = this;
    const done = points.filter((point) => point.state === "done").length;
    const pairs = [["Points", done === points.length ? String(done) : `${done} of ${points.length}`], ["Non-dominated", String(points.filter((point) => point.best).length)]];
    if (front.hypervolume !== null) pairs.push(["Hypervolume", shown(front.hypervolume)]);
    if (front.spacing !== null) pairs.push(["Spacing", shown(front.spacing)]);
    if (front.split) pairs.push(["Measured on", front.split]);
    this.facts.replaceChildren(facts(pairs));
    const head = ["Point", ...front.objectives.map((name) => `loss: ${name}`), "", "State"];
    const rows = points.map((point) => {
      const button = made("button", { type: "button", className: "plain", "data-point": point.run }, this.label(point));
      button.addEventListener("click", () => this.pick(point.run));
      return [button, ...front.objectives.map((name) => shown(point.losses[name])), point.best ? "non-dominated" : "", point.why || point.state];
    });
    const open = this.choices.querySelector("details")?.open ?? false;
    this.choices.replaceChildren(made("details", { open }, made("summary", {}, "All points as a table"), table("The points of the front", head, rows)));
  }

  label(point) {
    const words = Object.entries(point.preference).map(([name, value]) => `${name} ${shown(value)}`);
    return (words.length && words.length <= 4 ? words.join(", ") : point.run) + (point.kind === "scalarisation" ? " (scalarised)" : "");
  }

  // ---- where the points are after a round

  losses(point, round) {
    const { track } = point;
    if (!track || !track.rounds.length) return point.losses;
    const place = track.rounds.findLastIndex((one) => one <= round);
    return place < 0 ? {} : Object.fromEntries(Object.entries(track.losses).map(([name, values]) => [name, values[place]]));
  }

  places(round) {
    const { objectives } = this.front;
    const found = this.points.map((point) => ({ point, losses: objectives.map((name) => this.losses(point, round)[name] ?? NaN) }))
      .filter(({ losses }) => losses.every(Number.isFinite));
    const beats = (a, b) => a.every((value, i) => value <= b[i]) && a.some((value, i) => value < b[i]);
    return found.map((one) => ({ ...one, best: !found.some((other) => beats(other.losses, one.losses)) }));
  }

  figure() {
    const now = this.places(this.round);
    const ends = [...now, ...this.places(this.last)].map(({ losses }) => losses);
    const best = now.filter((one) => one.best).length;
    const beaten = best < now.length ? (this.all ? " (solid; the others are dashed)" : " (circles; the others are squares)") : "";
    const about = `After round ${this.round}, ${best} of ${now.length} points are not dominated${beaten}. `;
    return this.all ? this.parallel(now, ends, `${about}Better is upwards.`) : this.pairs(now, ends, `${about}Better is down and to the left.`);
  }

  range(ends, i) {
    const values = ends.map((losses) => losses[i]);
    const [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
    const room = (high - low) * MARGIN || Math.abs(high) * MARGIN || 1;
    return { low: low - room, high: high + room };
  }

  pairs(now, ends, about) {
    const { objectives } = this.front;
    const [across, up] = [this.across, objectives.length > 1 ? this.up : 0];
    const columns = [];
    const column = (values) => columns.push(values) - 1;
    const moving = now.filter(({ point }) => point.track && this.round < this.last); // the front itself is shown without
    const trails = moving.map(({ point }) => {
      const many = point.track.rounds.filter((round) => round <= this.round).length;
      const at = (i) => (point.track.losses[objectives[i]] || []).slice(Math.max(0, many - TRAIL), many);
      return { name: this.label(point), mode: "line", faint: true, colour: 5, x: { across: column(at(across)) }, y: at(up), ids: at(up).map(() => point.run) };
    });
    const marks = now.map(({ point, losses, best }) => ({ name: this.label(point), mode: "points", x: { across: column([losses[across]]) }, y: [losses[up]], ids: [point.run],
      ...(best ? { colour: 0 } : { colour: 1, marker: 1, faint: true }) }));
    return { key: "front", title: "The front", about, kind: "points", columns, series: [...trails, ...marks],
      x: [{ key: "across", label: `loss: ${objectives[across]}`, ...this.range(ends, across) }], y: { key: "up", label: `loss: ${objectives[up]}`, ...this.range(ends, up) } };
  }

  parallel(now, ends, about) {
    const { objectives } = this.front;
    const ranges = objectives.map((_, i) => this.range(ends, i));
    const series = now.map(({ point, losses, best }) => ({ name: this.label(point), colour: best ? 0 : 1, dash: best ? 0 : 1, faint: !best, mode: "line", ids: [point.run], y: losses.map((loss, i) => (ranges[i].high - loss) / (ranges[i].high - ranges[i].low)) }));
    return { key: "front", title: "The front", about, kind: "parallel", columns: [], x: [], series, categories: objectives,
      axes: ranges.map(({ low, high }, i) => ({ key: objectives[i], label: objectives[i], low: high, high: low })), y: { key: "share", label: "better upwards" } };
  }

  async redraw() {
    const { slider, said, round } = this;
    slider.value = String(round);
    said.textContent = `${round} of ${this.last}`;
    slider.setAttribute("aria-valuetext", `round ${round} of ${this.last}`);
    this.plot.dataset.round = String(round);
    const figure = this.figure();
    this.about.textContent = figure.about;
    await this.draw.update(this.plot, figure, { marked: this.picked ? [this.picked] : [], picked: ({ id }) => id && this.pick(id) });
  }

  // ---- moving

  at(round) {
    this.round = Math.max(0, Math.min(this.last, round));
    this.redraw();
    if (this.picked) this.weights();
  }

  start() {
    if (this.round >= this.last) this.at(0);
    this.play.textContent = "Pause";
    const step = Math.max(1, Math.round(this.last / 120));
    this.timer = setInterval(() => { if (this.round >= this.last) this.stop(); else this.at(this.round + step); }, STEP);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = 0;
    this.play.textContent = "Replay";
  }

  nearest() {
    const total = this.wishes.reduce((sum, { slider }) => sum + Number(slider.value), 0);
    const wish = Object.fromEntries(this.wishes.map(({ name, slider }) => [name, total ? Number(slider.value) / total : 1 / this.wishes.length]));
    this.wishes.forEach(({ name, said }) => { said.textContent = wish[name].toFixed(2); });
    const near = this.nearestTo(wish);
    if (!near) this.point.replaceChildren(made("p", { className: "soft" }, "No point is there yet."));
    else this.mark(near.run, wish);
  }

  // The rule of `polyfed front --pick`: of the points that are not dominated, the one with the least max of r_k F_k.
  nearestTo(wish) {
    const terms = ({ losses }) => Object.entries(wish).filter(([, share]) => share > 0).map(([name, share]) => share * (losses[name] ?? Infinity));
    const there = this.points.filter((point) => point.id && point.best).map((point) => ({ point, far: terms(point) }));
    const order = ({ far }) => [Math.max(...far), far.reduce((sum, term) => sum + term, 0)];
    const before = ([a, b], [c, d]) => a < c || (a === c && b < d);
    return there.reduce((best, one) => (!best || before(order(one), order(best)) ? one : best), null)?.point;
  }

  // A click: the preferences follow the point.
  pick(run) {
    const point = this.points.find((one) => one.run === run);
    if (!point) return;
    const most = Math.max(...Object.values(point.preference), 1e-9);
    for (const { name, slider } of this.wishes) if (name in point.preference) slider.value = String(Math.round((100 * point.preference[name]) / most));
    this.wishes.forEach(({ name, said }) => { said.textContent = (point.preference[name] ?? 0).toFixed(2); });
    this.mark(run, this.nearestTo(point.preference)?.run === run ? point.preference : {});
  }

  mark(run, wish) {
    this.wish = wish; // what --pick would be given for this very point; empty where it takes another
    if (run === this.picked) return this.order();
    this.picked = run;
    this.redraw();
    return this.show(run);
  }

  order() {
    const text = Object.entries(this.wish).map(([name, share]) => `${name}=${Number(share.toFixed(4))}`).join(",");
    const word = /^[\w.,=+-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
    this.written.replaceChildren(...(text ? [toCopy("Write this model to a file", `${this.front.pick} ${word}`)] : []));
  }

  // ---- a point

  async show(run) {
    const point = this.points.find((one) => one.run === run);
    if (!point) return;
    const { track, ...known } = point;
    this.known = JSON.stringify(known);
    this.weighed = made("div");
    this.who = made("div");
    this.written = made("div", { className: "commands" });
    const metrics = Object.entries(point.metrics).flatMap(([name, values]) => Object.entries(values).map(([metric, value]) => [`${name}: ${metric}`, shown(value)]));
    const parts = [
      made("h3", {}, this.label(point)), made("p", { className: "run" }, state(point.state === "failed" ? "broken" : point.state === "done" ? "done" : "running"), " ", point.id ? made("a", { href: `#${new URLSearchParams([["run", point.id]])}` }, point.run) : point.run),
      point.why ? made("p", { className: "why" }, point.why) : null, metrics.length ? facts(metrics) : null, this.weighed, this.who,
      point.model ? made("p", {}, "Model: ", made("code", { id: "front-model" }, point.model)) : made("p", { className: "soft" }, "It has no model yet."),
      made("div", { className: "commands" }, ...(point.use || []).map((command, i) => toCopy(i ? "Its model in Python" : "Use its model on new rows", command))),
      this.written,
    ];
    this.point.replaceChildren(...parts.filter(Boolean));
    this.weights();
    this.order();
    if (point.id) await this.clients(point);
  }

  weights() {
    const point = this.points.find((one) => one.run === this.picked);
    if (!point || !this.weighed) return;
    const { track } = point;
    const losses = this.losses(point, this.round);
    const place = track ? track.rounds.findLastIndex((one) => one <= this.round) : -1;
    const weight = (name) => (track && track.weights[name] && place >= 0 ? track.weights[name][place] : null);
    const rows = this.front.objectives.map((name) => [name, shown(point.preference[name]), shown(weight(name)), shown(losses[name])]);
    this.weighed.replaceChildren(table(`After round ${this.round}`, ["Objective", "Preference", "Weight", "Loss"], rows));
  }

  async clients(point) {
    let told;
    try {
      told = await ask("api/clients", [["run", point.id]]);
    } catch (error) {
      this.who.replaceChildren(made("p", { className: "why" }, error.message));
      return;
    }
    if (this.picked !== point.run || this.over || !told) return;
    const often = told.least === told.most ? `${told.most} times` : `${told.least} to ${told.most} times`;
    const said = made("p", {}, `${told.asked} clients were asked, ${often} each.`);
    const names = Object.keys(told.losses);
    if (!names.length) {
      this.who.replaceChildren(said, made("p", { className: "soft" }, "Their own losses were not kept; --set evaluate.per_client=true keeps them."));
      return;
    }
    const worst = (i) => Math.max(...names.map((name) => told.losses[name][i] ?? -Infinity));
    const order = told.names.map((_, i) => i).sort((a, b) => worst(b) - worst(a));
    const rows = order.slice(0, 100).map((i) => [told.names[i], ...names.map((name) => shown(told.losses[name][i]))]);
    this.who.replaceChildren(said, made("details", { open: true }, made("summary", {}, `Clients, the worst first (round ${told.round})`), table("Each client's own loss", ["Client", ...names], rows)));
  }
}
