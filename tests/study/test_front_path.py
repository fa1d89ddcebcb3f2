"""Where the points of a front are tried: in the largest gap, each with a neighbour to begin with."""

from __future__ import annotations

import numpy as np
import pytest

from polyfed.study.pareto import non_dominated, reference_of, spacing
from polyfed.study.path import Tried, in_order, next_preference, next_weights, shares


def tried(*points: tuple[tuple[float, float], tuple[float, float] | None]) -> list[Tried]:
    return [Tried(np.array(r), None if F is None else np.array(F)) for r, F in points]


BEGIN = (((0.5, 0.5), (0.25, 0.25)), ((1.0, 0.0), (0.0, 1.0)), ((0.0, 1.0), (1.0, 0.0)))


def test_the_middle_comes_first_and_then_the_ends() -> None:
    found: list[Tried] = []
    for (r, F), start in zip(BEGIN, (None, 0, 0), strict=True):
        step = next_preference(found, 2, 11)
        assert step is not None
        assert (tuple(step.preference), step.start) == (r, start)
        found += tried((r, F))


def test_the_next_is_in_the_largest_gap_and_begins_at_the_nearer_end() -> None:
    step = next_preference(tried(*BEGIN, ((0.2, 0.8), (0.6, 0.1))), 2, 11)
    assert step is not None
    assert step.start == 0
    r, middle = step.preference, np.array([0.125, 0.625])  # between (0, 1) and (1/4, 1/4)
    assert np.ptp(r * middle) == pytest.approx(0)


def test_a_ray_is_tried_once() -> None:
    """The preference between the middle and the first end did not get between them."""
    step = next_preference(tried(*BEGIN, ((5 / 6, 1 / 6), (0.25, 0.25))), 2, 11)
    assert step is not None
    assert step.preference[0] < 0.5


def test_without_a_gap_preferences_are_spread_evenly() -> None:
    step = next_preference(tried(*((r, (0.3, 0.3)) for r, _ in BEGIN)), 2, 5)
    assert step is not None
    assert step.preference[0] in (0.25, 0.75)


def test_points_that_failed_are_no_neighbours() -> None:
    step = next_preference(tried(BEGIN[0], ((1.0, 0.0), None), BEGIN[2]), 2, 11)
    assert step is not None
    assert step.start in (0, 2)
    assert next_preference(tried(BEGIN[0], ((1.0, 0.0), None), ((0.0, 1.0), None)), 2, 11) is None


@pytest.mark.parametrize(("objectives", "points"), [(2, 11), (3, 4), (3, 21), (5, 30), (40, 41)])
def test_shares_fill_the_simplex(objectives: int, points: int) -> None:
    found = shares(objectives, points)
    assert found.shape == (points, objectives)
    assert np.allclose(found.sum(1), 1)
    assert (found >= 0).all()
    assert len({tuple(row) for row in found.round(9)}) == points
    assert set(map(tuple, np.eye(objectives))) <= set(map(tuple, found))


def test_shares_begin_in_the_middle_and_go_to_what_is_near() -> None:
    some = shares(2, 11)
    order = in_order(some)
    steps = [np.abs(some[order[:k]] - some[order[k]]).sum(1).min() for k in range(1, 11)]
    assert tuple(some[order[0]]) == (0.5, 0.5)
    assert steps == pytest.approx([0.2] * 10)


def test_the_longest_gap_of_three_is_filled_first() -> None:
    """After the corners and the middle: half-way between two corners, whatever the scales."""
    corners = np.array([[0.0, 2.0, 30.0], [1.0, 0.0, 30.0], [1.0, 2.0, 0.0]])
    middle = np.array([0.2, 0.4, 3.0])
    before = [Tried(np.full(3, 1 / 3), middle), *(Tried(e, A) for e, A in zip(np.eye(3), corners, strict=True))]
    step = next_preference(before, 3, 11)
    assert step is not None
    middles = [(corners[i] + corners[j]) / 2 for i, j in ((0, 1), (0, 2), (1, 2))]
    middles += [(A + middle) / 2 for A in corners]
    assert min(np.ptp(step.preference * m) for m in middles) == pytest.approx(0, abs=1e-12)


def test_weights_at_an_end_leave_a_little_for_the_others() -> None:
    step = next_weights([Tried(shares(2, 3)[0], np.ones(2))], 2, 3)
    assert step is not None
    assert sorted(step.preference) == pytest.approx([0.05, 0.95])


def test_measures_of_a_set() -> None:
    points = np.array([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0], [0.6, 0.5], [0.5, 0.5]])
    assert non_dominated(points).tolist() == [True, True, True, False, True]
    assert reference_of(points) == pytest.approx([1.1, 1.1])
    assert spacing(points[:3]) == pytest.approx(0)
    assert spacing(points[:2]) is None
