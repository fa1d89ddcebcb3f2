"""Data as people have them: owners, tables, rows kept aside. pandas is used here, and only here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from polyfed import BadInput, FedAvg, Federation, Objective, Problem, Rows, train
from polyfed.core.keys import generator
from polyfed.core.split import split

N = 40
rng = np.random.default_rng(0)
X = rng.normal(size=(N, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
WHO = np.array(["south", "north", "east", "north"])[np.arange(N) % 4]
NAMES = ("east", "north", "south")


def frame(**more: Any) -> pd.DataFrame:
    """Twenty patients of two hospitals."""
    rows = np.arange(20)
    columns = {
        "hospital": np.where(rows % 2, "b", "a"),
        "age": rows * 1.5,
        "male": rows % 3 == 0,
        "visits": pd.array(rows, dtype="Int64"),
        "risk": (rows % 4 == 0).astype(int),
        "days": np.where(rows % 5, rows * 0.1, np.nan),
        "split": np.array(["train", "train", "train", "valid", "test"])[rows % 5],
    }
    return pd.DataFrame({**columns, **more}, index=[f"p{row}" for row in rows])


def from_frame(table: Any = None, **more: Any) -> Federation:
    given: dict[str, Any] = {"owner": "hospital", "x": ["age", "male"], "targets": ["risk"], **more}
    return Federation.from_frame(frame() if table is None else table, **given)


def owned(federation: Federation, split: str = "train") -> list[list[int]]:
    return [sorted(federation.rows(split, client).tolist()) for client in range(len(federation))]


# owners


@pytest.mark.parametrize(
    "owner",
    [WHO, WHO.tolist(), tuple(WHO), pd.Series(WHO, index=range(5, 5 + N)), pd.Categorical(WHO), WHO.astype(object)],
)  # fmt: skip
def test_a_column_of_owners_makes_a_client_of_each(owner: Any) -> None:
    federation = Federation.from_arrays(X, Y, owner=owner)
    assert federation.names == NAMES
    assert owned(federation) == [np.flatnonzero(name == WHO).tolist() for name in NAMES]


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        ([30, 7, 7, 100], (7, 30, 100)),
        (np.array([2.5, 1.0, 1.0, 2.5]), (1.0, 2.5)),
        (torch.tensor([3, 1, 3, 3]), (1, 3)),
        ([("a", 2), ("a", 1), ("a", 2), ("b", 0)], (("a", 1), ("a", 2), ("b", 0))),
        ([1, "1", 1, "1"], (1, "1")),  # of two kinds: in order of appearance
        (pd.Series(pd.to_datetime(["2020-02-01", "2020-01-01"] * 2)).dt.date, None),
        (pd.array([5, 4, 5, 4], dtype="Int64"), (4, 5)),
    ],
)
def test_owners_may_be_anything_and_are_sorted_where_they_can_be(owner: Any, names: Any) -> None:
    federation = Federation.from_arrays(X[:4], Y[:4], owner=owner)
    assert names is None or federation.names == names
    if names is None:
        assert list(federation.names) == sorted(set(owner))
    for client, name in enumerate(federation.names):
        assert owned(federation)[client] == [row for row in range(4) if list(owner)[row] == name]


def test_client_names_are_in_errors_and_in_the_file_of_clients(tmp_path: Path) -> None:
    problem = Problem(nn.Linear(3, 1), [Objective("y", "binary")])
    bad = Y.copy()
    bad[1] = 7
    with pytest.raises(BadInput, match=r"Found 7 in row 1, of client 'north'"):
        train(problem, Federation.from_arrays(X, {"y": bad}, owner=WHO), FedAvg(), rounds=1)
    out = tmp_path / "run"
    train(
        problem,
        Federation.from_arrays(X, {"y": Y}, owner=WHO),
        FedAvg(),
        rounds=1,
        out=out,
        evaluate={"per_client": True},
    )
    (line,) = (out / "clients.jsonl").read_text().splitlines()
    assert json.loads(line)["names"] == list(NAMES)


def test_a_client_alone_and_a_worker_need_no_names() -> None:
    federation = Federation.from_arrays(X, Y, owner=WHO)
    assert [federation.alone(1).names, federation.shard(0, 2).names, federation.pooled().names] == [(), (), ()]


@pytest.mark.parametrize(
    "clients",
    [np.arange(N), [*range(N)], pd.Series(range(N)), torch.arange(N), WHO, [*WHO], pd.Series(WHO), pd.Categorical(WHO)],
)  # fmt: skip
def test_a_column_given_as_clients_is_refused_with_the_remedy(clients: Any) -> None:
    with pytest.raises(BadInput, match=r"names the owner of each row, give it as owner="):
        Federation.from_arrays(X, Y, clients=clients)


# rows kept aside


def test_a_fraction_is_each_clients_own_and_seeded() -> None:
    one, two, other = (Federation.from_arrays(X, Y, owner=WHO, test=0.2, valid=0.1, seed=s) for s in (1, 1, 2))
    sizes = [[len(rows) for rows in owned(one, s)] for s in ("train", "valid", "test")]
    assert sizes == [[7, 14, 7], [1, 2, 1], [2, 4, 2]]
    assert owned(one, "test") == owned(two, "test") != owned(other, "test")
    splits = [owned(one, s) for s in ("train", "valid", "test")]
    assert [sorted(row for rows in splits for row in rows[c]) for c in range(3)] == owned(
        Federation.from_arrays(X, Y, owner=WHO)
    )


def test_a_fraction_is_what_the_data_by_name_keep_aside() -> None:
    rows = Rows.dealt(generator(3, "partition").permutation(N), 4)
    mine = Federation.from_arrays(X, Y, clients=4, test=0.3, seed=3)
    train_rows, _, test_rows = split(rows, 0.0, 0.3, generator(3, "split"))
    assert owned(mine) == [sorted(train_rows[c].tolist()) for c in range(4)]
    assert owned(mine, "test") == [sorted(test_rows[c].tolist()) for c in range(4)]


@pytest.mark.parametrize("kind", [np.asarray, list, pd.Series, torch.from_numpy])
def test_a_mask_keeps_rows_aside_at_their_owners(kind: Callable[[NDArray[Any]], Any]) -> None:
    mask = np.arange(N) % 5 == 0
    federation = Federation.from_arrays(X, Y, owner=WHO, test=kind(mask), valid=0.5)
    assert owned(federation, "test") == [[r for r in range(N) if mask[r] and WHO[r] == name] for name in NAMES]
    assert [len(rows) for rows in owned(federation, "valid")] == [4, 8, 4]  # of what the mask leaves
    assert not any(mask[row] for rows in owned(federation) for row in rows)


def test_a_column_of_texts_says_it_for_both_splits() -> None:
    for given in ({"test": "split"}, {"valid": "split"}, {"test": "split", "valid": "split"}):
        federation = from_frame(**given)
        for name in ("train", "valid", "test"):
            wanted = [np.flatnonzero((frame().split == name) & (frame().hospital == h)).tolist() for h in "ab"]
            assert owned(federation, name) == wanted


def test_a_client_may_keep_all_of_its_rows_aside() -> None:
    federation = Federation.from_arrays(X, Y, owner=WHO, test=WHO == "north")
    assert federation.examples.tolist() == [10, 0, 10]
    assert len(federation.rows("test", 1)) == 20


def test_rows_of_each_client_or_of_the_server_may_be_given() -> None:
    more = (X[:2], Y[:2])
    by_list = Federation.from_arrays(X, Y, owner=WHO, test=[more, None, more])
    by_name = Federation.from_arrays(X, Y, owner=WHO, test={"south": more, "east": more})
    assert owned(by_list, "test") == owned(by_name, "test") == [[40, 41], [], [42, 43]]
    assert torch.equal(by_list.targets[""], by_name.targets[""])
    server = Federation.from_arrays(X, Y, owner=WHO, test=more, valid=0.1)
    assert server.server is not None
    assert server.server.tolist() == [40, 41]
    assert server.test is None


def test_tests_from_another_table_are_its_owners_or_the_servers() -> None:
    table = frame()
    theirs = from_frame(table[:12], test=table[12:])
    assert owned(theirs, "test") == [[12, 14, 16, 18], [13, 15, 17, 19]]
    assert torch.equal(theirs.x, from_frame(table).x)
    whole = from_frame(table[:12], test=table[12:].drop(columns="hospital"))
    assert whole.server is not None
    assert whole.server.tolist() == list(range(12, 20))


def test_columns_and_what_changes_a_batch_pass_through() -> None:
    sex = np.arange(N) % 2
    federation = Federation.from_arrays(
        X, Y, owner=WHO, columns={"sex": sex}, test=(X[:3], Y[:3], {"sex": sex[:3]}), prepare=torch.neg, augment=max
    )
    assert federation.columns["sex"].tolist() == [*sex, *sex[:3]]
    assert federation.augment is max
    assert torch.equal(federation.take(torch.tensor([4])).x, -torch.from_numpy(X[4:5]))
    with pytest.raises(BadInput, match=r"Test columns should be those of training, \['sex'\]. Found \[\]"):
        Federation.from_arrays(X, Y, owner=WHO, columns={"sex": sex}, test=(X[:3], Y[:3]))


# nested inputs


def nested(rows: slice) -> dict[str, Any]:
    return {"ids": Y[rows], "more": (X[rows], pd.DataFrame(X[rows], columns=list("abc")))}


def test_inputs_of_any_shape_in_every_constructor() -> None:
    arrays = Federation.from_arrays(nested(slice(0, 30)), Y[:30], clients=3, test=(nested(slice(30, 40)), Y[30:]))
    clients = Federation.from_clients([(nested(slice(0, 30)), Y[:30])], test=[(nested(slice(30, 40)), Y[30:])])
    tables = from_frame(x={"numbers": ["age", "male"], "visits": "visits"}, test=0.2)
    for federation in (arrays, clients):
        assert federation.x["ids"].tolist() == Y.tolist()
        assert torch.equal(federation.x["more"][0], federation.x["more"][1])
    assert tables.x["numbers"].shape == (20, 2)
    assert tables.x["visits"].dtype == torch.int64  # one column keeps its type, for an embedding


# one pair per client


def test_clients_by_name_hold_what_they_have() -> None:
    z = X[:, 0]
    pair = {"a": (X[:4], {"y": Y[:4]}), "b": (X[4:9], {"z": z[4:9]}), "c": (X[9:12], {"y": Y[9:12], "z": z[9:12]})}
    federation = Federation.from_clients(pair, test={"b": (X[:2], {"z": X[:2, 1]}), "c": (X[2:4], {"y": Y[2:4]})})
    assert federation.names == ("a", "b", "c")
    assert federation.matrix(["y", "z"]).tolist() == [[True, False], [False, True], [True, True]]
    assert owned(federation, "test") == [[], [12, 13], [14, 15]]
    assert federation.labelled["z"].tolist() == [True] * 14 + [False] * 2  # a test row without the label of its client
    assert "y" not in federation.labelled  # client b does not hold it at all


def test_fractions_and_columns_of_clients_pairs() -> None:
    pairs = [(X[:10], Y[:10], {"sex": Y[:10]}), (X[10:15], Y[10:15], {"sex": Y[10:15]})]
    federation = Federation.from_clients(pairs, test=0.2)
    assert [len(rows) for rows in owned(federation, "test")] == [2, 1]
    assert federation.columns["sex"].tolist() == Y[:15].tolist()
    with pytest.raises(BadInput, match=r"Every client should have the column 'sex'. Found 1 without it"):
        Federation.from_clients([pairs[0], (X[10:15], Y[10:15])])


# tables


def test_a_tables_columns_become_inputs_and_targets() -> None:
    federation = from_frame(x=["age", "male", "visits"], targets={"ill": "risk", "stay": "days"}, columns=["male"])
    table = frame()
    assert torch.equal(federation.x, torch.tensor(np.stack([table.age, table.male, np.arange(20)], 1)))
    assert federation.names == ("a", "b")
    assert federation.targets["ill"].tolist() == table.risk.tolist()
    assert federation.labelled["stay"].tolist() == table.days.notna().tolist()
    assert federation.columns["male"].tolist() == table.male.tolist()
    assert set(federation.labelled) == {"stay"}


@pytest.mark.parametrize("kind", ["Int64", "Int8", "Float64", "Float32", "boolean", object])
def test_values_that_pandas_calls_na_are_missing_labels(kind: Any) -> None:
    def column() -> Any:
        return np.array(values, dtype=object) if kind is object else pd.array(values, dtype=kind)

    values: list[Any] = [bool(row % 2) if kind == "boolean" else row % 2 for row in range(20)]
    whole = from_frame(frame(risk=column()))
    assert whole.targets["risk"].tolist() == [row % 2 for row in range(20)]
    values[3] = None
    some = from_frame(frame(risk=column()))
    assert some.labelled["risk"].tolist() == [row != 3 for row in range(20)]
    assert some.targets["risk"].tolist() == [row % 2 if row != 3 else 0 for row in range(20)]


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (np.array(["mild", "none", "bad"] * 6 + ["bad", None], dtype=object), ("bad", "mild", "none")),
        (pd.array(["mild", "none", "bad"] * 6 + ["bad", None], dtype="string"), ("bad", "mild", "none")),
        (pd.Categorical(["mild", "none", "bad"] * 6 + ["bad", None], ["none", "mild", "bad"]), ("none", "mild", "bad")),
    ],
)
def test_texts_and_categories_become_class_numbers_that_are_told(values: Any, classes: tuple[str, ...]) -> None:
    federation = from_frame(frame(state=values), targets={"state": "state"}, test=0.2)
    assert federation.classes == {"state": classes}
    assert federation.labelled["state"].tolist() == [True] * 19 + [False]
    assert [classes[code] for code in federation.targets["state"][:19]] == list(values[:19])
    assert federation.targets["state"].dtype == torch.int64
    problem = Problem(nn.Linear(2, 3), [Objective("state", "cross-entropy")])
    assert train(problem, federation, FedAvg(), rounds=1).summary["split"] == "test"


def test_tests_have_the_classes_of_training() -> None:
    texts, other = np.where(Y, "yes", "no"), np.array(["no", "maybe"])
    federation = Federation.from_arrays(X, texts, owner=WHO, test=(X[:2], ["yes", "no"]))
    assert federation.classes == {"": ("no", "yes")}
    assert federation.targets[""].tolist() == [*Y, 1, 0]
    ordered = pd.Categorical(texts, ["no", "yes"])
    with pytest.raises(BadInput, match=r"should be one of \['no', 'yes'\]. Found 'maybe'"):
        Federation.from_arrays(X, ordered, owner=WHO, test=(X[:2], other))
    with pytest.raises(BadInput, match="texts everywhere or numbers everywhere"):
        Federation.from_arrays(X, texts, owner=WHO, test=(X[:2], [0, 1]))


def test_groups_may_be_texts() -> None:
    federation = from_frame(columns={"site": "hospital"})
    assert federation.classes == {"site": ("a", "b")}
    assert federation.columns["site"].tolist() == [row % 2 for row in range(20)]


def test_a_table_of_targets_keeps_its_names_in_from_arrays() -> None:
    table = frame()
    federation = Federation.from_arrays(table[["age", "male"]], table[["risk", "days"]], owner=table.hospital)
    assert set(federation.targets) == {"risk", "days"}
    assert set(federation.labelled) == {"days"}
    assert federation.x.shape == (20, 2)
    clients = Federation.from_clients({h: (rows[["age"]], rows[["risk"]]) for h, rows in table.groupby("hospital")})
    assert clients.names == ("a", "b")
    assert set(clients.targets) == {"risk"}


def test_a_table_may_lack_inputs_that_prepare_mends() -> None:
    def mend(x: Tensor) -> Tensor:
        return x.nan_to_num(0.0)

    federation = from_frame(x=["age", "days"], prepare=mend)
    problem = Problem(nn.Linear(2, 1), [Objective("risk", "binary")])
    assert train(problem, federation, FedAvg(), rounds=1).summary["failures"] == 0


class Columns:
    """A table that is not pandas': names and columns of NumPy's, as polars has them."""

    def __init__(self, **columns: Any) -> None:
        self.held = {name: np.asarray(values) for name, values in columns.items()}
        self.columns, self.shape = list(columns), (20, len(columns))

    def __getitem__(self, name: str) -> Any:
        return self.held[name]

    def __len__(self) -> int:
        return 20


def test_tables_of_other_libraries_serve() -> None:
    other = Columns(**{name: frame()[name].to_numpy() for name in frame()})
    mine, theirs = from_frame(targets=["risk", "days"]), from_frame(other, targets=["risk", "days"])
    assert torch.equal(mine.x, theirs.x)
    assert torch.equal(mine.labelled["days"], theirs.labelled["days"])
    with pytest.raises(BadInput, match=r"Found nan in column 'days', row 0, of 'a' \(4 in all\)"):
        from_frame(other, x=["days"])


# labels of rows


def test_columns_of_a_table_belong_together_by_their_labels() -> None:
    table = frame()
    other = table.iloc[rng.permutation(20)]
    mask = table["age"] > 20
    for given in (mask, other["age"] > 20):
        assert owned(from_frame(table, test=given), "test") == [[14, 16, 18], [15, 17, 19]]
    x = table[["age"]]
    plain = Federation.from_arrays(x, table["risk"], owner=table["hospital"], columns={"v": table["visits"]}, test=mask)
    mixed = Federation.from_arrays(
        x, other["risk"], owner=other["hospital"], columns={"v": other["visits"]}, test=other["age"] > 20
    )
    assert torch.equal(plain.targets[""], mixed.targets[""])
    assert torch.equal(plain.columns["v"], mixed.columns["v"])
    assert owned(plain) == owned(mixed)
    assert owned(plain, "test") == owned(mixed, "test")
    nested = Federation.from_clients([({"a": x, "b": other[["male"]]}, other[["risk"]])])
    assert torch.equal(nested.x["b"][:, 0], torch.tensor(table["male"].to_numpy(), dtype=torch.float32))
    assert torch.equal(nested.targets["risk"], plain.targets[""])


def test_the_same_column_may_be_named_for_both_splits() -> None:
    assert owned(from_frame(test="split", valid="split"), "test") == owned(from_frame(test="split"), "test")


@pytest.mark.parametrize(
    ("federation", "where"),
    [
        (lambda: Federation.from_clients({"r": (X, Y), "s": (X, np.where(np.arange(N) == 13, 7, Y))}), "row 13, of"),
        (lambda: Federation.from_clients([(X, Y)], test=[(X[:5], np.array([0, 0, 7, 0, 0]))]), "row 2, of client 0"),
        (lambda: from_frame(frame(risk=[0] * 19 + [7]), x=["age", "male", "visits"]), "row 'p19', of client 'b'"),
        (lambda: from_frame(frame(risk=[0] * 19 + [7]).set_index(np.arange(20) + 5), x=["age"] * 3), "row 24, of"),
    ],
)  # fmt: skip
def test_a_row_is_called_as_its_owner_knows_it(federation: Callable[[], Federation], where: str) -> None:
    problem = Problem(nn.Linear(3, 2), [Objective("risk", "cross-entropy")])
    with pytest.raises(BadInput, match=f"Found 7 in {where}"):
        train(problem, federation(), FedAvg(lr=0.1), rounds=1, keep=False)


# what is refused


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Federation.from_arrays(X, Y), "Found neither of them"),
        (lambda: Federation.from_arrays(X, Y, owner=WHO, clients=3), "Found both of them"),
        (lambda: Federation.from_arrays(X, Y, owner=WHO[:3]), r"each of the 40 rows. Found 3"),
        (lambda: Federation.from_arrays(X, Y, owner="hospital"), "owner should be a column"),
        (lambda: Federation.from_arrays(X, Y, owner=X), r"one column. Found an array of shape \(40, 3\)"),
        (lambda: Federation.from_arrays(X[:2], Y[:2], owner=["a", None]), "needs an owner. Found None in row 1"),
        (lambda: Federation.from_arrays(X[:2], Y[:2], owner=[0.5, np.nan]), "Found nan in row 1"),
        (lambda: Federation.from_arrays(X[:2], Y[:2], owner=pd.array([1, None], dtype="Int64")), "Found nan in row 1"),
        (lambda: Federation.from_arrays(X[:2], Y[:2], owner=[[1], [2]]), r"hashable values. Found \[1\]"),
        (lambda: Federation.from_arrays(X, Y, owner=WHO, test=1.0), "from 0 to below 1. Found 1.0"),
        (lambda: Federation.from_arrays(X, Y, owner=WHO, test=0.6, valid=0.5), "leave rows to train on"),
        (lambda: Federation.from_arrays(X, Y, owner=WHO, test=Y), "test should be a fraction, a mask"),
        (lambda: Federation.from_arrays(X, Y, owner=WHO, test=[True, False]), "each of 40 rows. Found 2"),
        (lambda: Federation.from_arrays(X, Y, owner=WHO, test=Y > 0, valid=Y > 0), "that both masks name"),
        (lambda: Federation.from_arrays(X, Y, owner=WHO, test=WHO), "'valid' or 'test' of every row. Found 'east'"),
        (lambda: Federation.from_arrays(X, Y, owner=WHO, valid=(X, Y)), "valid rows are the clients' own"),
        (lambda: Federation.from_arrays(X, Y, owner=WHO, test=[(X, Y)]), "for each of 3 clients. Found 1"),
        (lambda: Federation.from_arrays(X, Y, owner=WHO, test={"nort": (X, Y)}), "Did you mean 'north'"),
        (lambda: Federation.from_arrays(X, Y, owner=WHO, test=(X, Y[:3])), "one row per example"),
        (lambda: Federation.from_arrays(X, Y, owner=WHO, columns=Y.tolist()), "a dict of arrays by name"),
        (lambda: Federation.from_frame(X, owner="a", x=["b"], targets="c"), "takes a table with named columns"),
        (lambda: from_frame(owner="hospitel"), "no column 'hospitel'. Did you mean 'hospital'"),
        (lambda: from_frame(x=["age", "hospital"]), r"texts in column 'hospital'.*pandas.get_dummies\(df, columns="),
        (lambda: from_frame(x=["age", "days"]), r"Found nan in column 'days', row 'p0', of 'a' \(4 in all\)"),
        (lambda: from_frame(frame(age=np.inf)), r"Found inf in column 'age', row 'p0', of 'a'"),
        (lambda: from_frame(frame(visits=pd.array([None] * 20, dtype="Int64")), x=["visits"]), "Found nan in column"),
        (lambda: from_frame(x=[]), "x should be a list of columns"),
        (lambda: from_frame(targets=None), "targets should be a list of columns"),
        (lambda: from_frame(test=frame(hospital="c")), "Found the owner 'c', who has none"),
        (lambda: from_frame(frame(risk=pd.Timestamp("2020-01-01"))), "'risk' should be one array of numbers"),
        (lambda: from_frame(frame(risk=[object()] * 20)), r"'risk' should be numbers or texts. Found \['object'\]"),
        (lambda: from_frame(frame(hospital=None)), "Every row needs an owner"),
        (lambda: from_frame(frame().set_index("age"), x=["days"]), r"column 'days', row 0\.0, of 'a'"),
        (lambda: from_frame(x={"days": "days"}), r"Found nan in column 'days', row 'p0', of 'a' \(4 in all\)"),
        (lambda: from_frame(frame(day=pd.Timestamp("2020-01-01")), x=["day"]), r"dates in column 'day'.*total_sec"),
        (lambda: from_frame(frame(hospital=["a"] * 19 + [None])), "Found nan in row 'p19'|Found None in row 'p19'"),
        (lambda: from_frame(test=pd.array([True, None] * 10, dtype="boolean")), "Found 10 missing values; fill them"),
        (lambda: from_frame(frame(split=["train", None] * 10), test="split"), "Found 10 missing values; fill them"),
        (lambda: from_frame(test=0.2, valid="split"), "valid, a column .* speaks for both splits: leave test= out"),
        (lambda: from_frame(test="split", valid=np.arange(20) < 2), "speaks for both splits: leave valid= out"),
        (lambda: from_frame(test=pd.Series([True, False] * 10)), "test should have the row labels .* of x's table"),
        (lambda: Federation.from_arrays(frame()[["age"]], Y[:20], owner=pd.Series(WHO[:20])), "owner should have the"),
        (lambda: Federation.from_clients({"a": (X, Y), "b": (X[:, :2], Y)}), r"\[\(3,\)\] of client 'a' and .* 'b'"),
        (lambda: from_frame(frame(site=["x"] * 19 + [None]), columns=["site"]), "'site' should have a text in"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_a_sentence(make: Callable[[], object], why: str) -> None:
    with pytest.raises(BadInput, match=why) as found:
        make()
    assert len(str(found.value)) <= 400
