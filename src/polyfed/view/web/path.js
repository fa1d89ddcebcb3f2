// Where the points of a front were after a round, and which of them a preference leads to.

// Rounds are counted along the path: a point begins where the one that it starts from has ended.
export function along(points) {
  const by = new Map(points.map((point) => [point.run, point]));
  for (const point of points) point.rounds = point.track ? (point.track.rounds.at(-1) ?? 0) : 0;
  for (const point of points) {
    const before = new Set([point.run]);
    point.begins = 0;
    point.from = by.get(point.start);
    for (let one = point.from; one && !before.has(one.run); one = by.get(one.start)) {
      before.add(one.run);
      point.begins += one.rounds;
    }
  }
  return points;
}

export const lastRound = (points) => Math.max(0, ...points.map(({ begins, rounds }) => begins + rounds));

// The place in its track of a point's last evaluation by a round; -1 before its first.
export function reached({ track, begins }, round) {
  return track ? track.rounds.findLastIndex((one) => one <= round - begins) : -1;
}

export function lossesAt(point, round) {
  const { track, begins, from } = point;
  if (!track || !track.rounds.length) return point.losses;
  const place = reached(point, round);
  if (place >= 0)
    return Object.fromEntries(Object.entries(track.losses).map(([name, values]) => [name, values[place]]));
  return from && round >= begins ? lossesAt(from, Infinity) : {};
}

// The points that are there after a round, and which of them no other beats.
export function placesAt(points, objectives, round) {
  const found = points
    .map((point) => ({ point, losses: objectives.map((name) => lossesAt(point, round)[name] ?? NaN) }))
    .filter(({ losses }) => losses.every(Number.isFinite));
  const beats = (a, b) => a.every((value, i) => value <= b[i]) && a.some((value, i) => value < b[i]);
  return found.map((one) => ({ ...one, best: !found.some((other) => beats(other.losses, one.losses)) }));
}

// The rule of `polyfed front --pick`: of the points that are not dominated, the one with the least max of r_k F_k.
export function nearestTo(points, wish) {
  const terms = ({ losses }) =>
    Object.entries(wish)
      .filter(([, share]) => share > 0)
      .map(([name, share]) => share * (losses[name] ?? Infinity));
  const there = points.filter((point) => point.id && point.best).map((point) => ({ point, far: terms(point) }));
  const order = ({ far }) => [Math.max(...far), far.reduce((sum, term) => sum + term, 0)];
  const before = ([a, b], [c, d]) => a < c || (a === c && b < d);
  return there.reduce((best, one) => (!best || before(order(one), order(best)) ? one : best), null)?.point;
}
