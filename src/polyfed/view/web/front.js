// A front, to be explored: a slider over rounds replays it, a click shows a point, preferences lead to the nearest.
import { ask, drawing, facts, made, shown, swap, table } from "./parts.js";
import { along, lastRound, nearestTo } from "./path.js";
import { PointPanel } from "./point.js";
import { label, sketch } from "./sketch.js";

const STEP = 90; // milliseconds of a step when it is replayed
const STEPS = 120; // of a replay, about
const AGAIN = 1000; // milliseconds between questions

export class Front {
  constructor(place, list, id) {
    Object.assign(this, { place, id, over: false, round: 0, last: 0, picked: "", timer: 0, across: 0, up: 1 });
    place.replaceChildren(made("p", { className: "soft", role: "status" }, "Reading …"));
    this.refresh();
  }

  told(ids, groups) {
    const inside = this.id === "." ? "" : `${this.id}/`;
    if (groups.includes(this.id) || ids.some((id) => id.startsWith(inside))) this.refresh();
  }

  end() {
    this.over = true;
    clearInterval(this.timer);
  }

  async refresh() {
    this.wanted = true;
    if (this.reading) return;
    this.reading = true;
    while (this.wanted && !this.over) {
      this.wanted = false;
      try {
        const [told, draw] = await Promise.all([ask("api/front", [["front", this.id]]), drawing()]);
        if (!this.over) await this.take(told, draw);
      } catch (error) {
        this.plot = null; // built again when it can be read again
        if (!this.over) this.place.replaceChildren(made("p", { className: "why", role: "alert" }, error.message));
      }
      await new Promise((done) => setTimeout(done, AGAIN));
    }
    this.reading = false;
  }

  async take(told, draw) {
    const atEnd = this.round >= this.last;
    Object.assign(this, { front: told, draw, objectives: told.objectives });
    const own = (table) => Object.assign(Object.create(null), table); // an objective may be called 'constructor'
    this.points = along(
      told.points.map((point) => ({
        ...point,
        losses: own(point.losses),
        preference: own(point.preference),
        track: own(told.tracks)[point.id],
      })),
    );
    this.last = lastRound(this.points);
    if (atEnd) this.round = this.last;
    if (!this.plot) this.build();
    this.slider.max = String(Math.max(1, this.last));
    this.heads();
    await this.redraw();
    const point = this.points.find((one) => one.run === this.picked);
    if (point) this.panel.show(point, this.objectives, this.round);
    else this.nearest();
  }

  // ---- parts

  build() {
    this.facts = made("div");
    this.plot = made("div", { className: "plot", id: "front-plot" });
    this.choices = made("div");
    this.about = made("p", { className: "about" });
    this.panel = new PointPanel();
    this.picked = "";
    const heading = made("h3", {}, "The trade-off");
    const parts = [heading, this.about, this.axes(), this.plot, this.replay(), this.choices];
    const board = made("article", { className: "card" }, ...parts);
    const side = made("div", {}, this.preferences(), this.panel.element);
    const title = made("h2", {}, this.id === "." ? "The front" : this.id);
    this.place.replaceChildren(title, this.facts, made("div", { className: "explorer" }, board, side));
  }

  replay() {
    const id = "front-round";
    this.slider = made("input", { type: "range", id, min: "0", step: "1", "aria-describedby": "front-said" });
    this.slider.addEventListener("input", () => {
      this.stop();
      this.at(Number(this.slider.value));
    });
    this.said = made("output", { id: "front-said", htmlFor: id });
    this.play = made("button", { type: "button" }, "Replay");
    this.play.addEventListener("click", () => (this.timer ? this.stop() : this.start()));
    const round = made("label", { htmlFor: id }, "Round");
    return made("div", { className: "controls replay" }, this.play, round, this.slider, this.said);
  }

  // Which objectives are drawn, where there are more than two.
  axes() {
    this.all = this.objectives.length > 3;
    this.up = Math.min(1, this.objectives.length - 1);
    if (this.objectives.length < 3) return null;
    const choose = (name) => {
      const options = this.objectives.map((one, i) => new Option(one, String(i), false, i === this[name]));
      const select = made("select", {}, ...options);
      select.addEventListener("change", () => {
        this[name] = Number(select.value);
        this.redraw();
      });
      return made("label", {}, name, select);
    };
    const pair = made("span", { className: "controls", hidden: this.all }, choose("across"), choose("up"));
    const button = made("button", { type: "button", "aria-pressed": String(this.all) }, "All objectives at once");
    button.addEventListener("click", () => {
      this.all = !this.all;
      button.setAttribute("aria-pressed", String(this.all));
      pair.hidden = this.all;
      this.redraw();
    });
    return made("div", { className: "controls" }, button, pair);
  }

  preferences() {
    this.wishes = this.objectives.map((name, i) => {
      const [id, said] = [`wish-${i}`, `wished-${i}`];
      const slider = made("input", { type: "range", min: "0", max: "100", value: "50", id, "aria-describedby": said });
      slider.addEventListener("input", () => this.nearest());
      return { name, slider, said: made("output", { id: said, htmlFor: id }) };
    });
    const rows = this.wishes.map(({ name, slider, said }) =>
      made("div", { className: "wish" }, made("label", { htmlFor: slider.id }, name), slider, said),
    );
    const rule = "The nearest point is shown: the one whose largest loss, times its share, is least.";
    const parts = [made("legend", {}, "What matters how much"), made("div", { className: "wishgrid" }, ...rows)];
    return made("fieldset", { className: "card wishes" }, ...parts, made("p", { className: "soft" }, rule));
  }

  heads() {
    const { front, points, objectives } = this;
    const done = points.filter((point) => point.state === "done").length;
    const pairs = [
      ["Points", done === points.length ? String(done) : `${done} of ${points.length}`],
      ["Non-dominated", String(points.filter((point) => point.best).length)],
    ];
    if (front.hypervolume !== null) pairs.push(["Hypervolume", shown(front.hypervolume)]);
    if (front.spacing !== null) pairs.push(["Spacing", shown(front.spacing)]);
    if (front.split) pairs.push(["Measured on", front.split]);
    this.facts.replaceChildren(facts(pairs));
    const rows = points.map((point) => {
      const button = made("button", { type: "button", className: "plain" }, label(point));
      button.addEventListener("click", () => this.pick(point.run));
      const losses = objectives.map((name) => shown(point.losses[name]));
      return [button, ...losses, point.best ? "non-dominated" : "", point.why || point.state];
    });
    const head = ["Point", ...objectives.map((name) => `loss: ${name}`), "", "State"];
    const open = this.choices.querySelector("details")?.open ?? false;
    const summary = made("summary", {}, "All points as a table");
    swap(this.choices, made("details", { open }, summary, table("The points of the front", head, rows)));
  }

  async redraw() {
    const { slider, said, round, last } = this;
    slider.value = String(round);
    said.textContent = `${round} of ${last}`;
    slider.setAttribute("aria-valuetext", `round ${round} of ${last}`);
    this.plot.dataset.round = String(round);
    const figure = sketch(this.points, this.objectives, this);
    this.about.textContent = figure.about;
    const marked = this.picked ? [this.picked] : [];
    await this.draw.update(this.plot, figure, { marked, picked: ({ id }) => id && this.pick(id) });
  }

  // ---- moving

  at(round) {
    this.round = Math.max(0, Math.min(this.last, round));
    this.redraw();
    if (this.picked) this.panel.weights(this.objectives, this.round);
  }

  start() {
    if (this.round >= this.last) this.at(0);
    this.play.textContent = "Pause";
    const step = Math.max(1, Math.round(this.last / STEPS));
    this.timer = setInterval(() => {
      if (this.round >= this.last) this.stop();
      else this.at(this.round + step);
    }, STEP);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = 0;
    this.play.textContent = "Replay";
  }

  // The preferences lead to a point,
  nearest() {
    const total = this.wishes.reduce((sum, { slider }) => sum + Number(slider.value), 0);
    const share = ({ slider }) => (total ? Number(slider.value) / total : 1 / this.wishes.length);
    const wish = Object.fromEntries(this.wishes.map((one) => [one.name, share(one)]));
    for (const { name, said } of this.wishes) said.textContent = wish[name].toFixed(2);
    const near = nearestTo(this.points, wish);
    if (near) this.mark(near, wish);
    else this.panel.none();
  }

  // and follow one that was clicked.
  pick(run) {
    const point = this.points.find((one) => one.run === run);
    if (!point) return;
    const { preference } = point;
    const most = Math.max(...Object.values(preference), 1e-9);
    for (const { name, slider, said } of this.wishes) {
      slider.value = String(Math.round((100 * (preference[name] ?? 0)) / most));
      said.textContent = (preference[name] ?? 0).toFixed(2);
    }
    this.mark(point, nearestTo(this.points, preference) === point ? preference : {});
  }

  mark(point, wish) {
    if (point.run !== this.picked) {
      this.picked = point.run;
      this.redraw();
      this.panel.show(point, this.objectives, this.round);
    }
    this.panel.order(this.front.pick, wish);
  }
}
