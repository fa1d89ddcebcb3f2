// A point of the front: its metrics, weights, clients, its model's path, and what uses the model.
import { ask, facts, made, measured, shown, state, table, toCopy } from "./parts.js";
import { lossesAt, reached } from "./path.js";
import { label } from "./sketch.js";

const WORST = 100; // clients in the table
const STATES = { failed: "broken", done: "done" };

export class PointPanel {
  constructor() {
    this.element = made("div", { className: "card", id: "front-point" });
    this.said = made("p", { className: "unseen", role: "status" }); // which point, and not each weight of a replay
    this.weighed = made("div");
    this.who = made("div");
    this.written = made("div", { className: "commands" });
  }

  none() {
    this.known = "";
    this.element.replaceChildren(this.said, made("p", { className: "soft" }, "No point is there yet."));
  }

  // The same point again changes nothing but its weights: what a person reads stays where it is.
  show(point, objectives, round) {
    const { track, from, ...known } = point;
    const same = this.known === JSON.stringify(known);
    this.known = JSON.stringify(known);
    this.point = point;
    if (!same) {
      this.who = made("div");
      if (!this.said.isConnected) this.element.append(this.said);
      while (this.element.lastChild !== this.said) this.element.lastChild.remove();
      while (this.element.firstChild !== this.said) this.element.firstChild.remove();
      this.element.append(...this.parts(point).filter(Boolean));
      this.said.textContent = `Shown: ${label(point)}`;
      if (point.id) this.clients(point, this.who);
    }
    this.weights(objectives, round);
  }

  parts(point) {
    const metrics = Object.entries(point.metrics).flatMap(([name, values]) =>
      Object.entries(values).map(([metric, value]) => [`${name}: ${metric}`, measured(metric, value)]),
    );
    const run = point.id ? made("a", { href: `#${new URLSearchParams([["run", point.id]])}` }, point.run) : point.run;
    const uses = ["Use its model on new rows", "Its model in Python"];
    return [
      made("h3", {}, label(point)),
      made("p", {}, state(STATES[point.state] || "running"), " ", run),
      point.why ? made("p", { className: "why" }, point.why) : null,
      metrics.length ? facts(metrics) : null,
      this.weighed,
      this.who,
      point.model
        ? made("p", {}, "Model: ", made("code", { id: "front-model" }, point.model))
        : made("p", { className: "soft" }, "It has no model yet."),
      made("div", { className: "commands" }, ...(point.use || []).map((command, i) => toCopy(uses[i], command))),
      this.written,
    ];
  }

  weights(objectives, round) {
    const { track, preference } = this.point;
    const losses = lossesAt(this.point, round);
    const place = reached(this.point, round);
    const weight = (name) => (place >= 0 && track.weights[name] ? track.weights[name][place] : null);
    const rows = objectives.map((name) => [name, preference[name], weight(name), losses[name]]);
    const said = place < 0 ? "Before its first evaluation" : `After its round ${track.rounds[place]}`;
    const cells = rows.map(([name, ...numbers]) => [name, ...numbers.map(shown)]);
    this.weighed.replaceChildren(table(said, ["Objective", "Preference", "Weight", "Loss"], cells));
  }

  // `wish`: what --pick would be given for this very point; empty where it takes another.
  order(pick, wish) {
    const text = Object.entries(wish)
      .map(([name, share]) => `${name}=${Number(share.toFixed(4))}`)
      .join(",");
    const word = /^[\w.,=+-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
    this.written.replaceChildren(...(text ? [toCopy("Write this model to a file", `${pick} ${word}`)] : []));
  }

  async clients(point, place) {
    try {
      place.replaceChildren(...clientParts(await ask("api/clients", [["run", point.id]])));
    } catch (error) {
      place.replaceChildren(made("p", { className: "why" }, error.message));
    }
  }
}

function clientParts(told) {
  const often = told.least === told.most ? `${told.most} times` : `${told.least} to ${told.most} times`;
  const said = made("p", {}, `${told.asked} clients were asked, ${often} each.`);
  const names = Object.keys(told.losses);
  if (!names.length) {
    const how = "Their own losses were not kept; --set evaluate.per_client=true keeps them.";
    return [said, made("p", { className: "soft" }, how)];
  }
  const worst = (i) => Math.max(...names.map((name) => told.losses[name][i] ?? -Infinity));
  const order = told.names.map((_, i) => i).sort((a, b) => worst(b) - worst(a));
  const rows = order.slice(0, WORST).map((i) => [told.names[i], ...names.map((name) => shown(told.losses[name][i]))]);
  const summary = made("summary", {}, `Clients, the worst first (round ${told.round})`);
  return [said, made("details", { open: true }, summary, table("Each client's own loss", ["Client", ...names], rows))];
}
