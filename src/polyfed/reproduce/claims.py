"""Claims of a paper against measured figures: each with its statistic over seeds, and a verdict by rule.

A claim is looked at part by part, for each of its measures, grids and rows that it is compared with. Of a part:

| kind | what is claimed | statistic | seen | in part |
|---|---|---|---|---|
| greater, smaller | row above (below) each of `than`, by `margin` | one-sided paired t-test | p < 0.05 | means are |
| level | row and `than` differ by at most `margin` | two one-sided paired t-tests | p < 0.05 | the means do |
| ratio | row / than in [low, high] | 95 % interval of the mean log ratio | it lies inside | the ratio does |
| within | every one of `rows` in [low, high] | 95 % interval of the mean | it lies inside | the mean does |
| near | every one of `rows` within `margin` of what is published | 95 % interval of the difference | inside | it is |
| order | `rows` from lowest to highest | exact test of Kendall's S over seeds | p < 0.05, in order | tau >= 0.5 |
| trend | `rows` rising or falling | exact test of Kendall's S over seeds | p < 0.05, tau > 0 | tau >= 0.5 |
| spread | row varies less over seeds than each of `than` | one-sided F-test of variances | p < 0.05 | it is smaller |

P-values are corrected by Holm over the parts of a claim. Fewer than three seeds allow no test: 'in part' is then the
most. Where every seed has the same difference, a t-test would be certain of it however few they are: a sign test takes
its place, which five seeds can pass. A row without any spread has no F-test, and is seen in part at most. Rows whose
seeds differ are compared by Welch's test. A target that was not reached counts as reached at the end of the grid's
longest run, so that short runs win nothing by it. A run whose numbers have overflowed counts as what the measure says
in `diverged`. A row of which some seeds have no figure (another run that failed) is seen in part at most. A claim is
seen if all its parts are; in part if some part is seen, or at least half of them are in part; else not seen. Rows that
a quick version leaves out are left out of its verdict; any other row that is missing makes the claim 'not run', and a
whole grid that has not begun leaves it in part at most. A claim with `quick = false` is left to the whole item: its
quick version says 'not run'. `than` and `rows` may name rows of another grid as 'grid / row'. A trend with `than` is of
how much each row is above its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc, stdtr, stdtrit

from polyfed.reproduce.grids import rows_of
from polyfed.reproduce.item import Claim, Item, Measure
from polyfed.reproduce.record import Record
from polyfed.study.statistics import ALPHA, FEWEST, holm

Word = Literal["seen", "in part", "not seen", "not run"]
Values = dict[int, float]  # by seed
PART = 0.5  # Kendall's tau of the means from which an order or a trend is seen in part


@dataclass(frozen=True)
class Part:
    """One comparison of a claim.

    Args:
        what: which, in words, with its figures.
        verdict: by rule.
        p: corrected; None where there is no test.
        effect: the mean difference over its standard deviation, or another size that `statistic` names.
        statistic: in words: 't(4) = 3.1'.
    """

    what: str
    verdict: Word
    p: float | None = None
    effect: float | None = None
    statistic: str = ""


@dataclass(frozen=True)
class Judged:
    """A claim, its verdict and the parts that it follows from, of a record.

    Args:
        claim: which.
        verdict: by rule.
        parts: its comparisons.
        record: whose figures they are of.
        seeds: how many each of its rows has, from the fewest to the most.
        waits: titles of grids that it is about, too, and that have not begun.
    """

    claim: Claim
    verdict: Word
    parts: list[Part] = field(default_factory=list)
    record: Record | None = None
    seeds: list[int] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)


def judge_all(item: Item, record: Record) -> list[Judged]:
    """Every claim of an item, against a record."""
    return [judge(item, claim, record) for claim in item.claims]


def judge_known(item: Item, records: Sequence[Record]) -> list[Judged]:
    """Every claim of an item, against the first of its records that has a verdict.

    Args:
        item: which.
        records: what is known of it, the better first; the whole item's may have too few runs yet for a claim.
    """
    found = [[judge(item, claim, record) for record in records] for claim in item.claims]
    first = [some[0] if some else Judged(claim, "not run") for claim, some in zip(item.claims, found, strict=True)]
    return [
        next((one for one in some if one.verdict != "not run"), none) for some, none in zip(found, first, strict=True)
    ]


def telling(item: Item, records: Sequence[Record]) -> list[Record]:
    """The records that verdicts are of; the first one where there is no verdict."""
    said = [one.record for one in judge_known(item, records) if one.verdict != "not run"]
    return [record for record in records if any(one is record for one in said)] or list(records[:1])


def judge(item: Item, claim: Claim, record: Record) -> Judged:
    """A claim against a record."""
    if record.mode == "quick" and not claim.quick:
        return Judged(claim, "not run", [], record)
    asked = [_Asked(item, claim, record, item.measure(measure)) for measure in claim.measures]
    parts = [part for one in asked for part in _parts(one)]
    tested = [i for i, part in enumerate(parts) if part.p is not None]
    for i, p in zip(tested, holm([parts[i].p or 0.0 for i in tested]), strict=True):
        lost = parts[i].verdict == "seen" and p >= ALPHA
        parts[i] = replace(parts[i], p=p, verdict="in part" if lost else parts[i].verdict)
    verdict = together([part.verdict for part in parts])
    seeds = sorted({many for one in asked for many in one.seeds})
    waits = asked[0].waits
    return Judged(claim, "in part" if verdict == "seen" and waits else verdict, parts, record, seeds, waits)


def together(words: Sequence[Word]) -> Word:
    """The verdict of several: seen if all are, in part if one is or at least half are in part."""
    if not words or "not run" in words:
        return "not run"
    if {*words} == {"seen"}:
        return "seen"
    return "in part" if "seen" in words or 2 * words.count("in part") >= len(words) else "not seen"


@dataclass(frozen=True)
class _Asked:
    """A claim about one measure."""

    item: Item
    claim: Claim
    record: Record
    measure: Measure

    @property
    def grids(self) -> list[str]:
        if all(self._place(one, "")[0] for one in self._named):
            return [""]  # every row says whose it is
        return self.claim.grids or [grid.name for grid in self.item.grids]

    @property
    def waits(self) -> list[str]:
        """Titles of grids that the claim is about and that have not begun yet."""
        later = [grid for grid in self.grids if not self.begun(grid)]
        some = [grid for grid in later if any(self.has(row, grid) for row in self._named)]
        return [self.item.grid(grid).title or grid for grid in some]

    @property
    def seeds(self) -> list[int]:
        """How many figures each row has that the claim compares."""
        some = [grid for grid in self.grids if self.begun(grid)]
        return [len(self.values(row, grid)) for grid in some for row in self._named if self.has(row, grid)]

    def begun(self, grid: str) -> bool:
        """Whether some cell of a grid is there, or has diverged and counts."""
        lost = [one for one in self.record.failed if self.measure.diverged is not None and one.diverged]
        return not grid or any(one.grid == grid for some in (self.record.cells, lost) for one in some)

    @property
    def _named(self) -> list[str]:
        return [*([self.claim.row] if self.claim.row else []), *self.claim.than, *self.claim.rows]

    def values(self, row: str, grid: str) -> Values:
        """A row's figures by seed; a target that was not reached counts as reached at the end of the longest run."""
        grid, row = self._place(row, grid)
        found = self.record.counted(self.measure, grid, row)
        if self.measure.take == "reach":
            ends = [getattr(cell, self.measure.cost, None) for cell in self.record.cells if cell.grid == grid]
            end = max((one for one in ends if one is not None), default=None)
            found = {seed: end if value is None else value for seed, value in found.items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def has(self, row: str, grid: str) -> bool:
        """Whether the version that was run has a row: a quick one may leave it out, and so may a grid."""
        grid, row = self._place(row, grid)
        return any(one.label == row for one in rows_of(self.item.grid(grid), self.record.mode == "quick"))

    def sure(self, part: Part, rows: Sequence[str], grid: str) -> Part:
        """A part that is seen, in part where some seeds of its rows have no figure."""
        places = [self._place(row, grid) for row in rows]
        cells = [cell for cell in self.record.cells if (cell.grid, cell.row) in places]
        few = self.measure.take != "reach" and any(cell.values.get(self.measure.name) is None for cell in cells)
        failed = [one for one in self.record.failed if self.measure.diverged is None or not one.diverged]
        few = few or any((one.grid, one.row) in places for one in failed)
        return replace(part, verdict="in part") if few and part.verdict == "seen" else part

    def published(self, row: str, grid: str) -> float | None:
        """What the paper prints of a row."""
        grid, row = self._place(row, grid)
        told = [o.values.get(self.measure.name) for o in self.item.published if (o.row, o.grid or grid) == (row, grid)]
        found = next((one for one in told if one is not None), None)
        return found[0] if isinstance(found, list) else found

    def _place(self, row: str, grid: str) -> tuple[str, str]:
        first, slash, rest = row.partition(" / ")
        return (first, rest) if slash and first in {one.name for one in self.item.grids} else (grid, row)

    def said(self, grid: str) -> str:
        several = len(self.item.grids) > 1 and grid
        return self.measure.title + (f", {self.item.grid(grid).title or grid}" if several else "")

    def number(self, values: Values) -> str:
        return self.measure.text(_of(values))


def _parts(asked: _Asked) -> Iterator[Part]:
    pairs: dict[str, Callable[[_Asked, Values, Values], Part]] = {
        "greater": _above, "smaller": _above, "level": _level, "ratio": _ratio, "spread": _spread,
    }  # fmt: skip
    claim = asked.claim
    for grid in filter(asked.begun, asked.grids):
        if claim.kind in pairs:
            for than in (one for one in claim.than if asked.has(claim.row, grid) and asked.has(one, grid)):
                a, b = asked.values(claim.row, grid), asked.values(than, grid)
                what = f"{asked.said(grid)}: {claim.row} {_mean(asked, a)}, {than} {_mean(asked, b)}"
                part = pairs[claim.kind](asked, a, b) if a and b else Part("", "not run")
                yield asked.sure(replace(part, what=what), [claim.row, than], grid)
        elif claim.kind in ("within", "near"):
            for row in (one for one in claim.rows if asked.has(one, grid)):
                yield from (asked.sure(part, [row], grid) for part in _one_row(asked, row, grid))
        else:
            yield from _ordered(asked, grid)


def _mean(asked: _Asked, values: Values) -> str:
    return asked.number(values) if values else "not run"


# two rows


def _above(asked: _Asked, a: Values, b: Values) -> Part:
    sign = 1.0 if asked.claim.kind == "greater" else -1.0
    t, df, effect = _t(a, b, sign, asked.claim.margin or 0.0)
    right = sign * (_of(a) - _of(b)) > (asked.claim.margin or 0.0)
    if df is None:
        return Part("", "in part" if right else "not seen")
    p = _p(t, df, min(len(a), len(b)))
    return Part("", _word(right, p), p, effect, _t_text(t, df))


def _level(asked: _Asked, a: Values, b: Values) -> Part:
    margin = asked.claim.margin or 0.0
    right = abs(_of(a) - _of(b)) <= margin
    (low, df, effect), (high, _, _) = _t(a, b, 1.0, -margin), _t(a, b, -1.0, -margin)
    if df is None:
        return Part("", "in part" if right else "not seen")
    p = max(_p(one, df, min(len(a), len(b))) for one in (low, high))
    return Part("", _word(right, p), p, effect, f"two one-sided tests, {_t_text(min(low, high), df)}")


def _ratio(asked: _Asked, a: Values, b: Values) -> Part:
    seeds = sorted({*a} & {*b})
    if not seeds or any(a[s] <= 0 or b[s] <= 0 for s in seeds):
        return Part("", "not seen", statistic="no ratio of such figures")
    logs = {seed: math.log(a[seed] / b[seed]) for seed in seeds}
    return _inside(logs, asked.claim, "ratio", math.exp)


def _spread(asked: _Asked, a: Values, b: Values) -> Part:
    if min(len(a), len(b)) < 2:
        return Part("", "not run")
    va, vb = (float(np.var(list(one.values()), ddof=1)) for one in (a, b))
    said = f"standard deviations {math.sqrt(va):.2g} and {math.sqrt(vb):.2g}"
    if min(len(a), len(b)) < FEWEST:
        return Part("", "in part" if va < vb else "not seen", statistic=said)
    if va == 0:
        return Part("", "in part" if vb > 0 else "not seen", statistic=said)
    f = vb / va
    p = float(fdtrc(len(b) - 1, len(a) - 1, f))
    return Part("", _word(va < vb, p), p, math.sqrt(f), f"F({len(b) - 1}, {len(a) - 1}) = {f:.3g}, {said}")


def _t(a: Values, b: Values, sign: float, margin: float) -> tuple[float, float | None, float | None]:
    """t of sign (a - b) - margin, its degrees of freedom (None: too few seeds) and the effect; paired if possible."""
    seeds = sorted({*a} & {*b})
    if len(seeds) >= FEWEST:
        d = np.array([sign * (a[seed] - b[seed]) - margin for seed in seeds])
        std = float(d.std(ddof=1))
        std = 0.0 if std <= 1e-12 * float(np.abs(d).max()) else std  # but for rounding
        return _over(float(d.mean()), std / math.sqrt(len(d))), len(d) - 1, _effect(d.mean() + margin, std)
    if min(len(a), len(b)) < FEWEST:
        return 0.0, None, None
    x, y = (np.array(list(one.values())) for one in (a, b))
    vx, vy = x.var(ddof=1) / len(x), y.var(ddof=1) / len(y)
    mean = sign * float(x.mean() - y.mean()) - margin
    if vx + vy == 0:
        return _over(mean, 0.0), len(x) + len(y) - 2, None
    df = (vx + vy) ** 2 / (vx**2 / (len(x) - 1) + vy**2 / (len(y) - 1))
    pooled = math.sqrt((x.var(ddof=1) + y.var(ddof=1)) / 2)
    return _over(mean, math.sqrt(vx + vy)), float(df), _effect(mean + margin, pooled)


def _of(values: Values) -> float:
    return float(np.mean(list(values.values())))


def _over(mean: float, error: float) -> float:
    return mean / error if error else math.copysign(math.inf, mean) if mean else 0.0


def _effect(mean: float, std: float) -> float | None:
    return float(mean) / std if std else None


def _p(t: float, df: float, seeds: int) -> float:
    """One-sided; of the same difference with every seed, that of a sign test."""
    return float(stdtr(df, -t)) if math.isfinite(t) else 0.5**seeds if t > 0 else 1.0


def _t_text(t: float, df: float) -> str:
    return f"t({df:.3g}) = {t:.2f}" if math.isfinite(t) else "the same difference with every seed, sign test"


def _word(right: bool, p: float) -> Word:
    return "seen" if right and p < ALPHA else "in part" if right else "not seen"


# one row


def _one_row(asked: _Asked, row: str, grid: str) -> Iterator[Part]:
    """A row against bounds, or against what the paper prints of it; where that is nothing, there is no part."""
    values, told, claim = asked.values(row, grid), asked.published(row, grid), asked.claim
    what = f"{asked.said(grid)}: {row} {_mean(asked, values)}"
    if claim.kind == "near" and told is None:
        return
    if not values:
        yield Part(what, "not run")
    elif claim.kind == "within":
        yield replace(_inside(values, claim, "mean", lambda value: value), what=what)
    else:
        margin = claim.margin or 0.0
        bounds = claim.model_copy(update={"low": -margin, "high": margin})
        off = {seed: value - (told or 0.0) for seed, value in values.items()}
        part = _inside(off, bounds, "difference", lambda value: value)
        yield replace(part, what=f"{what}, published {told:g}")


def _inside(values: Values, claim: Claim, called: str, undo: Callable[[float], float]) -> Part:
    """Whether a mean and its 95 % interval lie between two bounds."""
    low, high = -math.inf if claim.low is None else claim.low, math.inf if claim.high is None else claim.high
    some = np.array(list(values.values()))
    mean = float(some.mean())
    right = low <= undo(mean) <= high
    if len(some) < FEWEST:
        return Part("", "in part" if right else "not seen", statistic=f"{called} {undo(mean):.3g}")
    half = float(stdtrit(len(some) - 1, 1 - ALPHA / 2)) * float(some.std(ddof=1)) / math.sqrt(len(some))
    ends = undo(mean - half), undo(mean + half)
    word: Word = "seen" if low <= ends[0] and ends[1] <= high else "in part" if right else "not seen"
    return Part("", word, statistic=f"{called} {undo(mean):.3g}, 95 % interval {ends[0]:.3g} to {ends[1]:.3g}")


# several rows


def _ordered(asked: _Asked, grid: str) -> Iterator[Part]:
    claim = asked.claim
    rows = _rows(asked, grid)
    if not rows:
        return
    what = f"{asked.said(grid)}: " + ", ".join(f"{row} {_mean(asked, values)}" for row, values in rows.items())
    if len(rows) < 2 or not all(rows.values()):
        yield Part(what, "not run")
        return
    sign = -1.0 if claim.direction == "falling" else 1.0
    seeds = sorted(set.intersection(*({*values} for values in rows.values())))
    taus = np.array([tau([sign * values[seed] for values in rows.values()]) for seed in seeds])
    means = [sign * _of(values) for values in rows.values()]
    whole = all(a < b for a, b in pairwise(means)) if claim.kind == "order" else tau(means) > 0
    some = tau(means) >= PART
    said = f"Kendall's tau of the means {tau(means):.2f}"
    if len(taus) < FEWEST:
        yield Part(what, "in part" if some else "not seen", statistic=said)
        return
    p = kendall_p(taus, len(rows))
    word: Word = "seen" if whole and p < ALPHA else "in part" if some else "not seen"
    part = Part(what, word, p, float(taus.mean()), f"{said}, exact test over {len(taus)} seeds")
    yield asked.sure(part, [*claim.rows, *claim.than], grid)


def _rows(asked: _Asked, grid: str) -> dict[str, Values]:
    """The figures that are to be in order; with `than`, how much each row is above its own, seed by seed."""
    rows, than = asked.claim.rows, asked.claim.than
    if not than:
        return {row: asked.values(row, grid) for row in rows if asked.has(row, grid)}
    found = {}
    for row, other in zip(rows, than, strict=True):
        if asked.has(row, grid) and asked.has(other, grid):
            a, b = asked.values(row, grid), asked.values(other, grid)
            found[f"{row} less {other}"] = {seed: a[seed] - b[seed] for seed in sorted({*a} & {*b})}
    return found


def kendall_p(taus: Sequence[float] | NDArray[np.float64], rows: int) -> float:
    """How often taus of so many seeds add up to as much, where all orders of the rows are as likely in each.

    Args:
        taus: one for each seed.
        rows: how many are in order.
    """
    pairs = rows * (rows - 1) // 2
    ways = np.ones(1)  # by the number of pairs in order: of 1 row, then of one more each time
    for k in range(2, rows + 1):
        ways = np.convolve(ways, np.ones(k)) / k
    every = np.ones(1)
    for _ in taus:
        every = np.convolve(every, ways)
    in_order = sum((float(one) + 1) / 2 * pairs for one in taus)  # ties count as half
    return float(every[math.ceil(in_order - 1e-9) :].sum())


def tau(values: Sequence[float]) -> float:
    """Kendall's tau of values against their order: 1 for rising, -1 for falling; equal ones count as neither."""
    pairs = list(combinations(values, 2))
    return sum(float(np.sign(b - a)) for a, b in pairs) / len(pairs)
