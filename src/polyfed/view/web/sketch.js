// The front after a round as a figure that figures.js draws: two objectives against each other, or all of them.
import { shown } from "./parts.js";
import { placesAt, reached } from "./path.js";

const MARGIN = 0.08;
const TRAIL = 6; // rounds that a moving point leaves behind

export function label(point) {
  const words = Object.entries(point.preference).map(([name, value]) => `${name} ${shown(value)}`);
  const short = words.length && words.length <= 4 ? words.join(", ") : point.run;
  return point.kind === "scalarisation" ? `${short} (scalarised)` : short;
}

// `show`: round and last of the slider; all objectives, or the places of two of them, across and up.
export function sketch(points, objectives, show) {
  const now = placesAt(points, objectives, show.round);
  const ends = [...now, ...placesAt(points, objectives, show.last)].map(({ losses }) => losses);
  const best = now.filter((one) => one.best).length;
  const look = show.all ? " (solid; the others are dashed)" : " (circles; the others are squares)";
  const told = `${best} of ${now.length} points ${best === 1 ? "is" : "are"} not dominated${best < now.length ? look : ""}`;
  const where = show.all ? "upwards" : "down and to the left";
  const about = `After round ${show.round} along the path, ${told}. Better is ${where}.`;
  const figure = { key: "front", title: "The front", about, columns: [], x: [] };
  return { ...figure, ...(show.all ? parallel(now, ends, objectives) : pairs(now, ends, objectives, show)) };
}

// From where the points are now to where they end: the axes come nearer as the points do.
function range(ends, i) {
  const values = ends.map((losses) => losses[i]);
  const [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
  const room = (high - low) * MARGIN || Math.abs(high) * MARGIN || 1;
  return { low: low - room, high: high + room };
}

function pairs(now, ends, objectives, { round, across, up }) {
  const columns = [];
  const column = (values) => ({ across: columns.push(values) - 1 });
  const moving = now.filter(({ point }) => point.track && round < point.begins + point.rounds);
  const trails = moving.map(({ point }) => {
    const many = reached(point, round) + 1;
    const at = (i) => (point.track.losses[objectives[i]] || []).slice(Math.max(0, many - TRAIL), many);
    const ids = at(up).map(() => point.run);
    return { name: label(point), mode: "line", faint: true, colour: 5, x: column(at(across)), y: at(up), ids };
  });
  const marks = now.map(({ point, losses, best }) => ({
    name: label(point),
    mode: "points",
    x: column([losses[across]]),
    y: [losses[up]],
    ids: [point.run],
    ...(best ? { colour: 0 } : { colour: 1, marker: 1, faint: true }),
  }));
  return {
    kind: "points",
    columns,
    series: [...trails, ...marks],
    x: [{ key: "across", label: `loss: ${objectives[across]}`, ...range(ends, across) }],
    y: { key: "up", label: `loss: ${objectives[up]}`, ...range(ends, up) },
  };
}

function parallel(now, ends, objectives) {
  const ranges = objectives.map((_, i) => range(ends, i));
  const series = now.map(({ point, losses, best }) => ({
    name: label(point),
    colour: best ? 0 : 1,
    dash: best ? 0 : 1,
    faint: !best,
    mode: "line",
    ids: [point.run],
    y: losses.map((loss, i) => (ranges[i].high - loss) / (ranges[i].high - ranges[i].low)),
  }));
  const axes = ranges.map(({ low, high }, i) => ({ key: objectives[i], label: objectives[i], low: high, high: low }));
  return { kind: "parallel", series, categories: objectives, axes, y: { key: "share", label: "better upwards" } };
}
