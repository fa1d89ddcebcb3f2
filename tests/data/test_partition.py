"""Who gets which rows: every row has one owner, the laws hold, the same seed gives the same rows."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.core.errors import BadInput
from polyfed.core.federation import Rows
from polyfed.core.keys import generator
from polyfed.core.problem import Objective
from polyfed.data import Dataset, datasets, partitions
from polyfed.data.build import build_data, federate, skewed

steady = settings(derandomize=True, deadline=None, max_examples=25)


def labelled(n: int, labels: int = 10, owners: int = 7, seed: int = 0) -> Dataset:
    """n rows with two labels, their composite, and two kinds of owners."""
    rng = generator(seed, "test")
    a, b = rng.integers(0, labels, n), rng.integers(0, 2, n)
    return Dataset(
        x=np.arange(n, dtype=np.float32)[:, None],
        targets={"a": a, "b": b, "level": rng.normal(size=n)},
        objectives=(Objective("a", "cross-entropy"), Objective("b", "binary")),
        labels=2 * a + b,
        keys={"user": rng.integers(0, owners, n), "sensor": np.arange(n) % 3},
    )


def split(name: str, dataset: Dataset, seed: int = 0, **options: Any) -> Rows:
    rows: Rows = partitions[name](dataset, rng=generator(seed, "partition"), **options)
    return rows


def owned(rows: Rows) -> np.ndarray:
    return np.concatenate([rows[i] for i in range(len(rows))])


def shares(rows: Rows, label: np.ndarray | None) -> np.ndarray:
    assert label is not None
    counts = np.stack([np.bincount(label[rows[i]], minlength=label.max() + 1) for i in range(len(rows))])
    return np.asarray(counts / counts.sum(1, keepdims=True))


ONE_OWNER = [
    ("iid", {}), ("iid", {"sizes": "lognormal", "sigma": 2.0}), ("dirichlet", {}),
    ("dirichlet", {"alpha": 1e-3, "by": "a"}), ("dirichlet", {"sizes": "lognormal"}), ("dirichlet", {"alpha": 1e6}),
    ("shards", {"shards_per_client": 2}), ("labels", {"labels_per_client": 3, "by": "a"}),
    ("labels", {"labels_per_client": 2, "by": "b"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), ONE_OWNER)
@steady
@given(st.integers(40, 400), st.integers(4, 20), st.integers(0, 2**40))
def test_every_row_has_one_owner(name: str, options: dict[str, Any], n: int, clients: int, seed: int) -> None:
    rows = split(name, labelled(n), seed, clients=clients, **options)
    assert len(rows) == clients
    assert np.array_equal(np.sort(owned(rows)), np.arange(n))


@steady
@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 2**40))
def test_sizes_are_equal_or_spread(n: int, clients: int, seed: int) -> None:
    clients = min(n, clients)
    for name in ("iid", "dirichlet"):
        assert np.ptp(split(name, labelled(n), seed, clients=clients).length) <= 1
        assert split(name, labelled(n), seed, clients=clients, sizes="lognormal", sigma=3.0).length.min() >= 1


def test_lognormal_sizes_have_the_spread_asked_for() -> None:
    length = split("iid", labelled(200_000), clients=2000, sizes="lognormal", sigma=0.8).length
    assert np.log(length).std() == pytest.approx(0.8, rel=0.1)


@steady
@given(st.sampled_from([0.1, 0.3, 1.0, 5.0]), st.integers(3, 12), st.integers(0, 2**40))
def test_dirichlet_has_the_right_means_and_variances(alpha: float, labels: int, seed: int) -> None:
    """Shares of 60 draws: E = 1/L, Var = v + (E(1 - E) - v) / 60 with v = E(1 - E) / (alpha L + 1)."""
    dataset = replace(labelled(120_000, labels), labels=None)
    found = shares(split("dirichlet", dataset, seed, clients=500, alpha=alpha, by="a", rows_per_client=60),
                   dataset.targets["a"])  # fmt: skip
    mean, v = 1 / labels, (1 - 1 / labels) / labels / (alpha * labels + 1)
    variance = v + (mean * (1 - mean) - v) / 60
    assert np.allclose(found.mean(0), mean, atol=5 * np.sqrt(variance / 500))
    assert found.var(0).mean() == pytest.approx(variance, rel=0.15)


@pytest.mark.parametrize("alpha", [0.1, 0.3, 1.0])
def test_dirichlet_keeps_its_variance_when_every_row_is_dealt(alpha: float) -> None:
    """The papers' case: 100 clients, 100 composite labels, 600 rows each; labels that run out cost a little."""
    dataset = labelled(60_000, 50)
    found = shares(split("dirichlet", dataset, alpha=alpha), dataset.labels)
    v = 0.01 * 0.99 / (100 * alpha + 1)
    assert found.var(0).mean() == pytest.approx(v + (0.01 * 0.99 - v) / 600, rel=0.15)


def test_dirichlet_goes_by_any_label_or_key() -> None:
    dataset = labelled(6000)
    by_a = split("dirichlet", dataset, by="a", alpha=0.05, clients=20)
    assert shares(by_a, dataset.targets["a"]).max(1).mean() > 0.5
    assert shares(by_a, dataset.targets["b"]).max(1).mean() < 0.6
    by_sensor = split("dirichlet", dataset, by="sensor", alpha=0.05, clients=20)
    assert shares(by_sensor, dataset.keys["sensor"]).max(1).mean() > 0.8


def test_reuse_is_fedcmoos_own_partition() -> None:
    """600 rows each of 48,000: more than there are, so clients share; nobody has a row twice; the filler is uniform."""
    dataset = labelled(48_000, 50)
    rows = split("dirichlet", dataset, rows_per_client=600, reuse=True)
    assert (rows.length == 600).all()
    assert all(len(np.unique(rows[i])) == 600 for i in range(100))
    assert 0 < len(np.unique(owned(rows))) < 48_000
    floor = np.floor(600 * generator(0, "partition").dirichlet(np.full(100, 0.3), 100)).astype(int)
    counts = np.round(600 * shares(rows, dataset.labels)).astype(int)
    assert (counts >= floor).all()
    filler = (counts - floor).sum(0)
    assert filler.min() > 0.3 * filler.mean()


def test_reuse_deals_all_rows_to_everyone_when_asked() -> None:
    rows = split("dirichlet", labelled(50), clients=3, rows_per_client=50, reuse=True)
    assert all(np.array_equal(np.sort(rows[i]), np.arange(50)) for i in range(3))


def test_shards_hold_few_labels() -> None:
    """FedMGDA+: 50,000 rows of ten classes, 500 shards, 5 a user: no user has more than five classes, 500 rows each."""
    dataset = replace(labelled(50_000), labels=np.repeat(np.arange(10), 5000))
    rows = split("shards", dataset, clients=100, shards_per_client=5)
    assert (rows.length == 500).all()
    assert (shares(rows, dataset.labels) > 0).sum(1).max() <= 5


@steady
@given(st.integers(1, 10), st.integers(10, 40), st.integers(0, 2**40))
def test_labels_per_client(k: int, clients: int, seed: int) -> None:
    dataset = labelled(4000)
    has = shares(split("labels", dataset, seed, clients=clients, labels_per_client=k, by="a"), dataset.targets["a"]) > 0
    assert (has.sum(1) == k).all()
    assert np.ptp(has.sum(0)) <= 1


@steady
@given(st.integers(1, 5), st.integers(10, 30), st.integers(5, 40), st.integers(0, 2**40))
def test_so_many_rows_for_every_client(k: int, clients: int, rows: int, seed: int) -> None:
    """As many rows of each of its labels, up to one; nobody has another's."""
    dataset = labelled(4000)
    found = split("labels", dataset, seed, clients=clients, labels_per_client=k, by="a", rows_per_client=rows)
    counts = np.round(rows * shares(found, dataset.targets["a"])).astype(int)
    assert (found.length == rows).all()
    assert len(np.unique(owned(found))) == clients * rows
    assert all(sorted(set(c[c > 0])) in ([rows // k], [rows // k, rows // k + 1]) for c in counts)
    assert ((counts > 0).sum(1) == k).all()
    plain = split("iid", dataset, seed, clients=clients, rows_per_client=rows)
    assert (plain.length == rows).all()
    assert len(np.unique(owned(plain))) == clients * rows
    spread = split("iid", dataset, seed, clients=clients, rows_per_client=rows, sizes="lognormal")
    assert spread.length.sum() == clients * rows
    assert np.ptp(spread.length) > 1


def test_a_label_that_runs_out_is_told_with_what_will_do() -> None:
    """Ten clients with two of ten labels each: every label has two holders, so a client can have 2 x 10 // 2 rows."""
    dataset = replace(labelled(100), labels=np.repeat(np.arange(10), 10))
    options = {"clients": 10, "labels_per_client": 2}
    assert (split("labels", dataset, rows_per_client=10, **options).length == 10).all()
    with pytest.raises(BadInput, match=r"rows_per_client should be so small that no label runs out: 10 will do. Found"):
        split("labels", dataset, rows_per_client=12, **options)
    with pytest.raises(BadInput, match=r"rows_per_client should be at least data.labels_per_client, 2. Found 1."):
        split("labels", dataset, rows_per_client=1, **options)


def test_natural_owners() -> None:
    dataset = labelled(500)
    rows = split("natural", dataset, key="user")
    assert len(rows) == 7
    assert np.array_equal(np.sort(owned(rows)), np.arange(500))
    assert all(len(np.unique(dataset.keys["user"][rows[i]])) == 1 for i in range(7))
    drawn = split("natural", dataset, key="user", clients=4)
    assert len({dataset.keys["user"][drawn[i]][0] for i in range(4)}) == 4
    assert len(split("natural", dataset, key="user", min_rows=int(rows.length.max()))) == 1


def test_natural_owners_of_the_training_rows_only() -> None:
    dataset = replace(labelled(500), train=400, keys={"user": np.repeat([0, 1, 2], [200, 200, 100])})
    rows = split("natural", dataset)
    assert rows.length.tolist() == [200, 200]


def test_a_million_clients_by_reference() -> None:
    rows = split("windows", labelled(60_000), clients=1_000_000, rows_per_client=1000)
    assert len(rows) == 1_000_000
    assert rows.order.nbytes + rows.start.nbytes + rows.length.nbytes < 17e6
    assert len(np.unique(rows[999_999])) == 1000
    federation = federate(labelled(60_000), rows, valid=0.1, test=0.1)
    assert [len(federation.rows(s, 7)) for s in ("train", "valid", "test")] == [800, 100, 100]


PINNED = {
    "iid": 1303554637, "windows": 21941637, "natural": 2979917960, "dirichlet": 3639969254, "shards": 3724253322,
    "labels": 788186021,
}  # fmt: skip


@pytest.mark.parametrize("name", PINNED)
def test_same_seed_same_rows_on_every_machine(name: str) -> None:
    """Figures of one machine, to be found on every other."""
    dataset = replace(labelled(1000), keys={"user": np.arange(1000) % 9})
    own: dict[str, Any] = {"windows": {"rows_per_client": 100}, "natural": {"clients": 5}, "labels": {"by": "a"}}
    options = {"clients": 10, **own.get(name, {})}
    rows, again = (split(name, dataset, 5, **options) for _ in range(2))
    assert np.array_equal(owned(rows), owned(again))
    assert not np.array_equal(owned(rows), owned(split(name, dataset, 6, **options)))
    assert zlib.crc32(np.concatenate([rows.length, owned(rows)]).astype("<i8").tobytes()) == PINNED[name]


@steady
@given(st.floats(0, 0.45), st.floats(0, 0.45), st.integers(0, 2**40))
def test_clients_keep_rows_aside(valid: float, test: float, seed: int) -> None:
    whole = split("labels", labelled(600), seed, clients=10, labels_per_client=2, by="a")
    federation = federate(labelled(600), whole, seed=seed, valid=valid, test=test)
    for i in range(10):
        parts = [federation.rows(s, i) for s in ("train", "valid", "test") if getattr(federation, s) is not None]
        assert np.array_equal(np.sort(np.concatenate(parts)), np.sort(whole[i]))
        assert len(parts[0]) == max(1, int(len(whole[i]) * (1 - valid - test) + 1e-6))


def test_rows_kept_aside_are_drawn_at_random() -> None:
    """A client whose rows are sorted by label still tests on all of its labels, and on others for another seed."""
    dataset = replace(labelled(1000), targets={"a": np.repeat(np.arange(10), 100)})
    sorted_rows = Rows.of([np.arange(1000)])
    kept = federate(dataset, sorted_rows, seed=1, test=0.2).rows("test", 0)
    assert len(np.unique(dataset.targets["a"][kept])) == 10
    assert not np.array_equal(kept, federate(dataset, sorted_rows, seed=2, test=0.2).rows("test", 0))


def test_the_papers_splits() -> None:
    """FedMGDA+: 400, 50, 50 of 500. MOCHA, 75 %: 306 of 409, 517 of 690, 210 of 281."""
    for n, valid, test, expected in [(500, 0.1, 0.1, [400, 50, 50]), (409, 0, 0.25, [306, 103]),
                                     (690, 0, 0.25, [517, 173]), (281, 0, 0.25, [210, 71])]:  # fmt: skip
        federation = federate(labelled(n), Rows.of([np.arange(n)]), valid=valid, test=test)
        splits = [s for s in ("train", "valid", "test") if getattr(federation, s) is not None]
        assert [len(federation.rows(s, 0)) for s in splits] == expected


@pytest.mark.parametrize(
    ("tasks", "least", "largest", "smallest", "share", "deviation"),
    [
        (30, 210, 306, 3, 0.15, 84.41), (38, 524, 581, 6, 0.03, 111.79), (29, 333, 517, 5, 0.4, 181.92),
        (23, 872, 1933, 19, 0.08, 486.08),
    ],
)  # fmt: skip
def test_skew_has_mochas_extremes_and_deviation(
    tasks: int, least: int, largest: int, smallest: int, share: float, deviation: float
) -> None:
    """Its Table 3."""
    length = np.linspace(least, largest, tasks).astype(np.int64)
    train = Rows(np.arange(length.sum()), np.cumsum(length) - length, length)
    drawn = [skewed(train, 100, share, generator(seed, "skew")) for seed in range(30)]
    assert all((r.length.min(), r.length.max()) == (smallest, largest) for r in drawn)
    assert all((r.length <= length).all() and np.array_equal(r.start, train.start) for r in drawn)
    assert np.mean([r.length.std() for r in drawn]) == pytest.approx(deviation, rel=0.1)


def test_skew_leaves_test_rows_alone() -> None:
    dataset = labelled(3000)
    whole = split("natural", dataset, key="user")
    plain, skew = (federate(dataset, whole, test=0.25, skew=s) for s in (1, 50))
    assert plain.test is not None
    assert skew.test is not None
    assert np.array_equal(plain.test.length, skew.test.length)
    assert round(skew.train.length.max() / skew.train.length.min()) in range(45, 55)


SENTENCES = [
    ({"partition": "iid", "clients": 41}, "data.clients should be at most the number of rows, 40. Found 41."),
    ({"partition": "iid", "clients": 0}, "data.clients should be greater than or equal to 1. Found 0."),
    ({"partition": "dirichlet", "alpha": 0}, "data.alpha should be greater than 0. Found 0."),
    ({"partition": "dirichlet", "alpha": -1.5}, "data.alpha should be greater than 0. Found -1.5."),
    ({"partition": "dirichlet", "by": "lft"}, "Found 'lft'. Did you mean 'left'?"),
    ({"partition": "dirichlet", "clients": 5, "rows_per_client": 9}, "Found 45; data.reuse = true lets clients share"),
    ({"partition": "shards", "clients": 10}, "x data.shards_per_client should be at most the 40 rows. Found 50."),
    ({"partition": "labels", "clients": 4, "by": "left"}, "data.labels_per_client should lie between 3, so that 4"),
    ({"partition": "labels", "clients": 30, "by": "left"}, "of 30 have none: use fewer clients."),
    ({"partition": "natural"}, "This data set has no natural owners of rows; choose another data.partition."),
    ({"partition": "iid", "clients": 5, "rows_per_client": 9}, "at most the 40 rows. Found 45; use fewer of either."),
    ({"partition": "windows", "rows_per_client": 41}, "data.rows_per_client should be at most the 40 rows. Found 41."),
    ({"partition": "iid", "sizes": "log"}, "data.sizes should be 'equal' or 'lognormal'. Found 'log'."),
    ({"partition": "iid", "alpha": 1}, "Unknown key 'data.alpha'."),
    ({"partition": "iid", "clients": 4, "valid": 0.5, "test": 0.5}, "leave rows to train on. Found 0.5 and 0.5."),
    ({"partition": "iid", "clients": 4, "skew": 0.5}, "data.skew should be greater than or equal to 1. Found 0.5."),
    ({"partition": "idd"}, "Unknown partition 'idd'. Did you mean 'iid'?"),
]  # fmt: skip


@pytest.mark.parametrize(("table", "sentence"), SENTENCES)
def test_bad_input_is_a_sentence(table: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        build_data({"name": "two-digits", "examples": 40, **table}, seed=0)
    assert sentence in str(caught.value)


def test_bad_keys_and_labels_are_sentences() -> None:
    dataset = labelled(100)
    bad: list[tuple[dict[str, Any], str]] = [
        ({}, "more than one kind of owner. Known: sensor, user."), ({"key": "usr"}, "Did you mean 'user'?"),
        ({"key": "user", "clients": 8}, "with 1 rows or more, 7; leave it out"),
        ({"key": "user", "min_rows": 101}, "with 101 rows or more, 0;"),
    ]  # fmt: skip
    for options, sentence in bad:
        with pytest.raises(BadInput, match="data") as caught:
            split("natural", dataset, **options)
        assert sentence in str(caught.value)
    with pytest.raises(BadInput, match=r"name a label in data.by: a, b, sensor, user\."):
        split("dirichlet", replace(dataset, labels=None))
    with pytest.raises(BadInput, match="Found 'level'"):
        split("dirichlet", dataset, by="level")


def test_settings_come_back_complete_and_build_the_same() -> None:
    table = {"name": "two-digits", "examples": 300, "partition": "dirichlet", "clients": 6, "test": 0.2, "holds": 0.5}
    _, federation, resolved = build_data(table, seed=3)
    assert resolved == table | {
        "alpha": 0.3, "sizes": "equal", "sigma": 1.0, "reuse": False, "overlap": 2, "valid": 0.0, "skew": 1.0,
        "skew_share": 1.0, "rotate": 0.0,
    }  # fmt: skip
    _, again, _ = build_data(resolved, seed=3)
    assert np.array_equal(owned(federation.train), owned(again.train))


def test_the_built_in_partitions_have_help() -> None:
    assert {"iid", "dirichlet", "shards", "labels", "natural", "windows"} <= set(partitions)
    assert all(partitions.help(name) for name in partitions)
    assert "two-digits" in datasets
