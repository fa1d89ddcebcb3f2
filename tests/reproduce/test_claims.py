"""Verdicts by rule, and statistics against hand-computed values and scipy's own tests."""

from __future__ import annotations

import math
from typing import Any

import pytest
from scipy import stats

from polyfed.reproduce.claims import judge, kendall_p, tau, together
from polyfed.reproduce.item import Claim, Grid, Item, Measure, Minutes, Published, Row
from polyfed.reproduce.page import measured
from polyfed.reproduce.record import Failed, Figures, Record

Rows = dict[str, list[float | None]]


def item_with(rows: Rows, claim: dict[str, Any], **measure: Any) -> tuple[Item, Claim]:
    about = {"name": "m", "title": "m", "of": "mean.loss", "better": "higher", **measure}
    made = Claim(text="It is so.", measures=["m"], **claim)
    grid = Grid(name="g", rows=[Row(label=label) for label in rows])
    times = Minutes(quick=1, full=1, gpu=1)
    item = Item(
        title="t", where="w", shows="s", minutes=times, grids=[grid], measures=[Measure(**about)], claims=[made]
    )
    return item, made


def judged(rows: Rows, measure: dict[str, Any] | None = None, /, **claim: Any) -> Any:
    item, made = item_with(rows, claim, **(measure or {}))
    cells = [
        Figures("g", label, seed, {"m": value}, rounds=50)
        for label, values in rows.items()
        for seed, value in enumerate(values)
    ]
    return judge(item, made, Record("p", "i", "full", len(cells), cells=cells))


A: list[float | None] = [3.0, 4.0, 5.0, 5.0]
B: list[float | None] = [1.0, 3.0, 2.0, 4.0]


def test_greater_is_a_paired_t_test() -> None:
    found = judged({"a": A, "b": B}, kind="greater", row="a", than=["b"])
    (part,) = found.parts
    # differences 2, 1, 3, 1: mean 1.75, standard deviation sqrt(11/12), t = 1.75 / (0.9574 / 2) = 3.656
    assert part.statistic == "t(3) = 3.66"
    assert part.effect == pytest.approx(1.75 / math.sqrt(11 / 12))
    assert part.p == pytest.approx(stats.ttest_rel(A, B, alternative="greater").pvalue)
    assert (found.verdict, part.verdict) == ("seen", "seen")
    assert judged({"a": A, "b": B}, kind="smaller", row="a", than=["b"]).verdict == "not seen"
    assert judged({"a": A, "b": B}, kind="greater", row="a", than=["b"], margin=1.5).verdict == "in part"
    assert judged({"a": A, "b": B}, kind="greater", row="a", than=["b"], margin=2.0).verdict == "not seen"


def test_two_seeds_allow_no_test() -> None:
    found = judged({"a": A[:2], "b": B[:2]}, kind="greater", row="a", than=["b"])
    assert (found.verdict, found.parts[0].p) == ("in part", None)
    assert judged({"a": B[:2], "b": A[:2]}, kind="greater", row="a", than=["b"]).verdict == "not seen"


def test_seeds_that_differ_are_compared_by_welch() -> None:
    item, claim = item_with({"a": A, "b": B}, {"kind": "greater", "row": "a", "than": ["b"]})
    cells = [Figures("g", "a", seed, {"m": value}) for seed, value in enumerate(A)]
    cells += [Figures("g", "b", 10 + seed, {"m": value}) for seed, value in enumerate(B)]
    (part,) = judge(item, claim, Record("p", "i", "full", 8, cells=cells)).parts
    assert part.p == pytest.approx(stats.ttest_ind(A, B, equal_var=False, alternative="greater").pvalue)


def test_p_values_are_corrected_over_the_parts() -> None:
    rows: Rows = {"a": A, "b": B, "c": B}
    alone = judged(rows, kind="greater", row="a", than=["b"]).parts[0].p
    found = judged(rows, kind="greater", row="a", than=["b", "c"])
    assert [part.p for part in found.parts] == pytest.approx([2 * alone, 2 * alone])


def test_level_is_two_one_sided_tests() -> None:
    near: list[float | None] = [1.1, 2.9, 2.1, 3.9]
    found = judged({"a": near, "b": B}, kind="level", row="a", than=["b"], margin=0.5)
    d = [x - y for x, y in zip(near, B, strict=True) if x is not None and y is not None]
    low, high = stats.ttest_1samp(d, -0.5, alternative="greater"), stats.ttest_1samp(d, 0.5, alternative="less")
    assert found.parts[0].p == pytest.approx(max(low.pvalue, high.pvalue))
    assert found.verdict == "seen"
    assert judged({"a": near, "b": B}, kind="level", row="a", than=["b"], margin=0.05).verdict == "in part"
    assert judged({"a": A, "b": B}, kind="level", row="a", than=["b"], margin=0.5).verdict == "not seen"


def test_runs_that_failed_are_seeds_without_a_figure() -> None:
    item, claim = item_with({"a": A, "b": B}, {"kind": "greater", "row": "a", "than": ["b"]})
    cells = [Figures("g", label, seed, {"m": v}) for label, some in (("a", A), ("b", B)) for seed, v in enumerate(some)]
    record = Record("p", "i", "full", 9, cells=cells)
    assert judge(item, claim, record).verdict == "seen"
    record.failed = [Failed("g", "c", 5, "why")]
    assert judge(item, claim, record).verdict == "seen"  # of another row
    record.failed = [Failed("g", "a", 5, "why")]
    assert judge(item, claim, record).verdict == "in part"


def test_runs_that_diverged_count_as_the_measure_says() -> None:
    item, claim = item_with({"a": A, "b": B}, {"kind": "greater", "row": "a", "than": ["b"]})
    some: dict[str, list[float]] = {"a": [2.0, 2.1, 2.2], "b": [2.3]}
    cells = [Figures("g", label, seed, {"m": v}) for label, values in some.items() for seed, v in enumerate(values)]
    why = "'x' would be infinite, not a number or beyond 1e+15 after round 829, which is not taken."
    record = Record("p", "i", "full", 6, cells=cells, failed=[Failed("g", "b", seed, why) for seed in (1, 2)])
    assert judge(item, claim, record).verdict == "not seen"  # of b's only figure
    low, claim = item_with({"a": A, "b": B}, {"kind": "greater", "row": "a", "than": ["b"]}, diverged=0.5)
    part = judge(low, claim, record).parts[0]
    assert part.verdict == "in part"
    assert part.p == pytest.approx(stats.ttest_rel([2.0, 2.1, 2.2], [2.3, 0.5, 0.5], alternative="greater").pvalue)
    record.cells = [cell for cell in cells if cell.row == "a"]
    record.failed = [Failed("g", "b", seed, why) for seed in range(3)]
    assert judge(low, claim, record).verdict == "seen"
    record.failed[0] = Failed("g", "b", 0, "No memory.")
    assert judge(low, claim, record).verdict == "in part"
    assert measured(item.measure("m"), record, "g", "b") == "diverged (2)"


def test_ratio_has_an_interval_on_the_log_scale() -> None:
    double: list[float | None] = [2.1, 5.9, 4.1, 8.0]
    found = judged({"a": double, "b": B}, kind="ratio", row="a", than=["b"], low=1.8, high=2.2)
    logs = [math.log(x / y) for x, y in zip(double, B, strict=True) if x and y]
    ends = stats.t.interval(0.95, 3, sum(logs) / 4, stats.sem(logs))
    assert found.parts[0].statistic.endswith(f"{math.exp(ends[0]):.3g} to {math.exp(ends[1]):.3g}")
    assert found.verdict == "seen"
    assert judged({"a": double, "b": B}, kind="ratio", row="a", than=["b"], low=1.99, high=2.2).verdict == "in part"
    assert judged({"a": double, "b": B}, kind="ratio", row="a", than=["b"], low=3, high=4).verdict == "not seen"
    assert (
        judged({"a": [0.0, 1, 1], "b": B[:3]}, kind="ratio", row="a", than=["b"], low=0, high=4).verdict == "not seen"
    )


def test_within_looks_at_every_row() -> None:
    rows: Rows = {"a": [1.0, 1.1, 0.9], "b": [2.0, 2.1, 1.9]}
    assert judged(rows, kind="within", rows=["a"], low=0.5, high=1.5).verdict == "seen"
    assert judged(rows, kind="within", rows=["a"], low=0.95, high=1.5).verdict == "in part"
    assert judged(rows, kind="within", rows=["b"], low=0.5, high=1.5).verdict == "not seen"
    assert judged(rows, kind="within", rows=["a", "b"], low=0.5, high=1.5).verdict == "in part"


@pytest.mark.parametrize(("margin", "verdict"), [(0.5, "seen"), (0.15, "in part"), (0.05, "not seen")])
def test_near_is_about_what_is_published(margin: float, verdict: str) -> None:
    rows: Rows = {"a": [1.0, 1.1, 0.9], "b": [2.0, 2.1, 1.9]}
    item, claim = item_with(rows, {"kind": "near", "rows": ["a", "b"], "margin": margin})
    item.published = [Published(row="a", grid="g", values={"m": [1.1, 0.2]})]
    cells = [Figures("g", label, seed, {"m": v}) for label, values in rows.items() for seed, v in enumerate(values)]
    found = judge(item, claim, Record("p", "i", "full", len(cells), cells=cells))
    assert found.verdict == verdict
    assert [part.what for part in found.parts] == ["m: a 1.00, published 1.1"]  # of b, nothing is


def test_order_and_trend_by_kendalls_tau() -> None:
    assert tau([1, 2, 3]) == 1
    assert tau([3, 2, 1]) == -1
    assert tau([1, 3, 2]) == pytest.approx(1 / 3)
    assert tau([1, 1]) == 0
    rows: Rows = {"a": [1.0, 1.1, 0.9], "b": [2.0, 2.1, 1.9], "c": [3.0, 3.1, 2.9]}
    assert judged(rows, kind="order", rows=["a", "b", "c"]).verdict == "seen"
    assert judged(rows, kind="order", rows=["c", "b", "a"]).verdict == "not seen"
    assert judged(rows, kind="order", rows=["a", "c", "b"]).verdict == "not seen"  # tau 1/3
    assert judged(rows, kind="trend", rows=["a", "b", "c"], direction="rising").verdict == "seen"
    assert judged(rows, kind="trend", rows=["a", "c", "b"], direction="rising").verdict == "not seen"  # tau 1/3
    more: Rows = {**rows, "d": [2.5, 2.6, 2.4]}
    assert judged(more, kind="trend", rows=["a", "b", "c", "d"], direction="rising").verdict == "seen"  # tau 2/3
    assert judged(rows, kind="trend", rows=["a", "b", "c"], direction="falling").verdict == "not seen"


def test_the_test_of_an_order_is_exact() -> None:
    assert kendall_p([1.0] * 3, 2) == pytest.approx(1 / 8)  # two rows, three seeds: a coin that falls well three times
    assert kendall_p([1.0, 1.0, -1.0], 2) == pytest.approx(4 / 8)
    assert kendall_p([1.0] * 3, 3) == pytest.approx(1 / 6**3)
    assert kendall_p([1 / 3], 3) == pytest.approx(3 / 6)  # two of three pairs: 2 orders, and the one of all three
    assert kendall_p([-1.0] * 4, 4) == pytest.approx(1)
    two: Rows = {"a": [1.0] * 3, "b": [2.0] * 3}
    assert judged(two, kind="order", rows=["a", "b"]).verdict == "in part"  # three seeds are too few for two rows


@pytest.mark.parametrize(("seeds", "verdict"), [(3, "in part"), (5, "seen")])
def test_the_same_difference_with_every_seed_is_no_proof_by_itself(seeds: int, verdict: str) -> None:
    found = judged({"a": [2.0] * seeds, "b": [1.0] * seeds}, kind="greater", row="a", than=["b"])
    assert (found.parts[0].p, found.verdict) == (0.5**seeds, verdict)
    assert found.parts[0].statistic == "the same difference with every seed, sign test"
    level = judged({"a": [2.0] * seeds, "b": [2.0] * seeds}, kind="level", row="a", than=["b"], margin=0.1)
    assert level.verdict == verdict
    assert judged({"a": [1.0] * 3, "b": [1.0] * 3}, kind="greater", row="a", than=["b"]).verdict == "not seen"


def test_spread_is_an_f_test() -> None:
    tight: list[float | None] = [1.0, 1.01, 0.99, 1.0]
    found = judged({"a": tight, "b": B}, kind="spread", row="a", than=["b"])
    ratio = (5 / 3) / (0.0002 / 3)  # of the variances
    assert found.parts[0].p == pytest.approx(stats.f.sf(ratio, 3, 3))
    assert found.verdict == "seen"
    assert judged({"a": B, "b": tight}, kind="spread", row="a", than=["b"]).verdict == "not seen"
    assert judged({"a": [1.0] * 4, "b": [2.0] * 4}, kind="spread", row="a", than=["b"]).verdict == "not seen"
    assert judged({"a": [1.0] * 4, "b": B}, kind="spread", row="a", than=["b"]).verdict == "in part"


def test_a_target_that_is_not_reached_counts_as_the_last_round() -> None:
    reach = {"take": "reach", "target": 0.5, "better": "lower"}
    found = judged({"a": [9.0, 10, 11], "b": [None, 40, None]}, reach, kind="smaller", row="a", than=["b"])
    assert found.parts[0].what == "m: a 10.00, b 46.67"
    assert found.verdict == "seen"


def test_a_run_that_ends_early_wins_nothing_by_not_reaching_the_target() -> None:
    about = {"take": "reach", "target": 0.5, "better": "lower"}
    item, claim = item_with({"slow": [], "fast": []}, {"kind": "smaller", "row": "fast", "than": ["slow"]}, **about)
    cells = [Figures("g", "slow", seed, {"m": 300.0 + seed}, rounds=600) for seed in range(3)]
    cells += [Figures("g", "fast", seed, {"m": None}, rounds=80) for seed in range(3)]
    found = judge(item, claim, Record("p", "i", "full", 6, cells=cells))
    assert found.parts[0].what == "m: fast 600.00, slow 301.00"
    assert found.verdict == "not seen"


@pytest.mark.parametrize(
    "claim",
    [
        {"kind": "greater", "row": "a", "than": ["b"]},
        {"kind": "within", "rows": ["a"], "low": 2.0, "high": 9.0},
        {"kind": "order", "rows": ["b", "c", "a"]},
    ],
)
def test_a_row_with_runs_that_have_no_figure_is_seen_in_part_at_most(claim: dict[str, Any]) -> None:
    rows: Rows = {"a": [5.0, 5.1, 5.2, 5.3], "b": [1.0, 1.1, 1.2, 1.4], "c": [2.0, 2.1, 2.2, 2.3]}
    assert judged(rows, **claim).verdict == "seen"
    assert judged({**rows, "a": [5.0, 5.1, 5.2, None]}, **claim).verdict == "in part"


def test_a_quick_version_is_judged_by_the_rows_that_it_has() -> None:
    rows: Rows = {"a": A, "b": B, "c": []}
    item, claim = item_with(rows, {"kind": "greater", "row": "a", "than": ["b", "c"]})
    cells = [Figures("g", label, seed, {"m": v}) for label, values in rows.items() for seed, v in enumerate(values)]
    quick = Record("p", "i", "quick", len(cells), cells=cells)
    assert judge(item, claim, quick).verdict == "not run"  # c should be there
    item.grids[0].quick.rows = ["a", "b"]
    assert (judge(item, claim, quick).verdict, len(judge(item, claim, quick).parts)) == ("seen", 1)
    assert judge(item, claim, Record("p", "i", "full", len(cells), cells=cells)).verdict == "not run"


@pytest.mark.parametrize(
    "claim",
    [{"kind": "order", "rows": ["b", "c", "a"]}, {"kind": "within", "rows": ["a", "c"], "low": 0.0, "high": 9.0}],
)
def test_a_row_that_failed_is_not_left_out_in_silence(claim: dict[str, Any]) -> None:
    assert judged({"a": A, "b": B, "c": []}, **claim).verdict == "not run"


def test_a_grid_that_has_not_begun_leaves_a_claim_in_part() -> None:
    rows: Rows = {"a": A, "b": B}
    item, claim = item_with(rows, {"kind": "greater", "row": "a", "than": ["b"]})
    cells = [Figures("g", label, seed, {"m": v}) for label, values in rows.items() for seed, v in enumerate(values)]
    record = Record("p", "i", "full", 16, cells=cells)
    assert judge(item, claim, record).verdict == "seen"
    item.grids.append(Grid(name="later", title="A later grid", rows=[Row(label=label) for label in rows]))
    found = judge(item, claim, record)
    assert (found.verdict, [part.verdict for part in found.parts]) == ("in part", ["seen"])
    assert found.waits == ["A later grid"]


def test_a_claim_says_how_many_seeds_its_own_rows_have() -> None:
    found = judged({"a": A, "b": B[:3], "other": A[:1]}, kind="greater", row="a", than=["b"])
    assert found.seeds == [3, 4]


def test_a_trend_of_differences_is_of_each_row_above_its_own() -> None:
    # a falls, and b falls faster: the gap is 1, 2, 4 with each of three seeds
    rows: Rows = {
        "a1": [9.0, 9.5, 9.1], "a2": [8.0, 8.5, 8.1], "a3": [7.0, 7.5, 7.1],
        "b1": [8.0, 8.5, 8.1], "b2": [6.0, 6.5, 6.1], "b3": [3.0, 3.5, 3.1],
    }  # fmt: skip
    claim = {"kind": "trend", "rows": ["a1", "a2", "a3"], "direction": "rising"}
    found = judged(rows, **claim, than=["b1", "b2", "b3"])
    assert (found.verdict, found.parts[0].p) == ("seen", pytest.approx(1 / 6**3))
    assert "a1 less b1 1.00, a2 less b2 2.00, a3 less b3 4.00" in found.parts[0].what
    assert judged(rows, **claim).verdict == "not seen"
    assert judged(rows, **claim, than=["b3", "b2", "b1"]).verdict == "not seen"
    assert judged({**rows, "b3": []}, **claim, than=["b1", "b2", "b3"]).verdict == "not run"
    with pytest.raises(ValueError, match="as many `than` as rows, or none; found 2 and 3"):
        judged(rows, **claim, than=["b1", "b2"])


def test_a_claim_that_needs_the_whole_size_is_left_to_the_whole_item() -> None:
    item, claim = item_with({"a": A}, {"kind": "within", "rows": ["a"], "low": 0.0, "high": 9.0, "quick": False})
    cells = [Figures("g", "a", seed, {"m": value}) for seed, value in enumerate(A)]
    whole, quick = (Record("p", "i", mode, len(cells), cells=cells) for mode in ("full", "quick"))
    assert (judge(item, claim, whole).verdict, judge(item, claim, quick).verdict) == ("seen", "not run")
    assert judge(item, claim.model_copy(update={"quick": True}), quick).verdict == "seen"


def test_what_was_not_run_is_said() -> None:
    assert judged({"a": A, "b": []}, kind="greater", row="a", than=["b"]).verdict == "not run"
    assert judged({"a": [], "b": []}, kind="greater", row="a", than=["b"]).verdict == "not run"


def test_verdicts_together() -> None:
    assert together(["seen", "seen"]) == "seen"
    assert together(["not seen", "not seen"]) == "not seen"
    assert together(["seen", "not seen", "not seen"]) == together(["in part", "not seen"]) == "in part"
    assert together(["in part", "not seen", "not seen"]) == "not seen"  # most are against it
    assert together(["seen", "not run"]) == together([]) == "not run"
