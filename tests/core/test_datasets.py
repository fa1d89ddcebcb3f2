"""A federation over torch Datasets: targets at once, x when it is needed."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from polyfed import BadInput, Federation


class Images(Dataset[Any]):
    """Counts how often an item is read; `kind` is what an item is."""

    def __init__(self, rows: int, kind: str = "pair", first: int = 0, bad: int = -1) -> None:
        self.rows, self.kind, self.first, self.bad, self.reads = rows, kind, first, bad, 0
        self.labels = [(first + i) % 3 for i in range(rows)]

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, i: int) -> Any:
        if i == self.bad:
            raise OSError("img7.png is truncated")
        if not 0 <= i < self.rows:
            raise IndexError(i)
        self.reads += 1
        x, y = torch.full((2, 2), float(self.first + i)), self.labels[i]
        items = {
            "pair": (x, y),
            "two": (x, {"class": y, "size": float(i)}),
            "dict": {"image": x, "label": y},
            "words": {"ids": x, "mask": x > 0, "label": y, "size": float(i)},
            "x": x,
        }
        return items[self.kind]


def test_one_data_set_per_client_is_read_once_for_targets_and_then_when_needed() -> None:
    sets = [Images(4), Images(6, first=4)]
    federation = Federation.from_datasets(sets)
    assert federation.streamed
    assert federation.examples.tolist() == [4, 6]
    assert federation.targets[""].tolist() == [i % 3 for i in range(10)]
    assert [one.reads for one in sets] == [9, 7]  # one item more to see what they are, four whether they stay it
    assert federation.take(torch.tensor([9, 2])).x[:, 0, 0].tolist() == [9.0, 2.0]
    assert [one.reads for one in sets] == [10, 8]


def test_targets_that_a_data_set_has_need_no_reading() -> None:
    for kind in ("pair", "x"):
        one = Images(9, kind)
        federation = Federation.from_datasets(one, owner=["a", "b", "c"] * 3, targets="labels")
        assert one.reads == 5
        assert federation.targets[""].tolist() == one.labels
        assert federation.names == ("a", "b", "c")
        assert federation.take(torch.tensor([5])).x.shape == (1, 2, 2)


def test_items_may_be_dicts_and_have_several_targets() -> None:
    plain = Federation.from_datasets([Images(5, "dict")] * 2, targets="label")
    assert plain.take(torch.tensor([3])).x.tolist() == [[[3.0, 3.0], [3.0, 3.0]]]
    words = Federation.from_datasets({"lab": Images(5, "words")}, targets={"class": "label", "size": "size"})
    batch = words.take(torch.tensor([2, 0]))
    assert set(batch.x) == {"ids", "mask"}
    assert batch.targets["class"].tolist() == [2, 0]
    assert batch.targets["size"].tolist() == [2.0, 0.0]
    assert words.names == ("lab",)
    two = Federation.from_datasets([Images(5, "two")])
    assert set(two.targets) == {"class", "size"}


class Noisy(Images):
    def __getitem__(self, i: int) -> Any:
        x, y = super().__getitem__(i)
        return x + torch.rand(2, 2), y


def test_a_random_transform_is_warned_of() -> None:
    say = r"^Item 0 of client 0 is another one whenever it is read.*Give random transforms as augment="
    with pytest.warns(UserWarning, match=say):
        Federation.from_datasets([Noisy(4), Images(4)])
    with pytest.warns(UserWarning, match="^Item 0 of the data set is another one"):
        Federation.from_datasets(Noisy(4), owner=[0, 0, 1, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Federation.from_datasets([Images(4), Images(4)])
        Federation.from_datasets([TensorDataset(torch.full((3, 2), torch.nan), torch.zeros(3))])


def test_rows_are_kept_aside_as_elsewhere() -> None:
    part = Federation.from_datasets([Images(20), Images(10)], test=0.2, valid=0.1)
    assert part.test is not None
    assert part.valid is not None
    assert part.test.length.tolist() == [4, 2]
    server = Federation.from_datasets([Images(5), Images(5)], test=Images(3, first=90))
    assert server.at_server().take(torch.tensor([2])).x[0, 0, 0] == 92
    own = Federation.from_datasets([Images(5), Images(5)], test=[Images(3, first=90), None])
    assert own.test is not None
    assert own.test.length.tolist() == [3, 0]
    assert own.take(torch.from_numpy(own.rows("test", 0))).x[:, 0, 0].tolist() == [90.0, 91.0, 92.0]


def test_torch_data_sets_of_all_kinds_will_do() -> None:
    whole = TensorDataset(torch.arange(20.0)[:, None], torch.arange(20) % 2)
    parts = [Subset(whole, list(range(c, 20, 4))) for c in range(4)]
    federation = Federation.from_datasets(parts)
    assert federation.take(torch.tensor([6])).x.tolist() == [[5.0]]
    again = pickle.loads(pickle.dumps(federation.shard(1, 3)))
    assert again.take(torch.tensor([0])).x.tolist() == [[1.0]]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([1])


@pytest.mark.parametrize(("datasets", "settings", "why"), [
    (Images(5), {}, "One data set needs owner="),
    ([Images(5)], {"owner": np.zeros(5)}, "owner= is for one data set"),
    ([Stream()], {}, "client 0 should be a torch Dataset with a length and items by number"),
    ([Images(0)], {}, "at least one item"),
    ([Images(5), Images(5, bad=3)], {}, r"Item 3 of client 1 cannot be read \(OSError: img7.png is truncated\)"),
    ([Images(5, "dict")], {}, r"Items that are dicts need targets="),
    ([Images(5, "dict")], {"targets": "lable"}, "client 0 has no 'lable'.*'label'"),
    ([Images(5)], {"targets": "lable"}, "has no 'lable' of one entry per item"),
    ([Images(5, "x")], {}, r"Items should be \(x, target\)"),
    ([Images(5)], {"targets": 3}, "targets should be a name"),
    ([TensorDataset(torch.zeros(5), torch.zeros(5), torch.zeros(5))], {}, r"Items should be \(x, target\)"),
])  # fmt: skip
def test_what_cannot_be_used_is_refused(datasets: Any, settings: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        Federation.from_datasets(datasets, **settings)
