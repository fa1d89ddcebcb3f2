"""What `polyfed data show` says of a split: who has how many rows, of which labels, for which objectives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfed.core.errors import BadInput
from polyfed.core.federation import Federation, Index, Rows
from polyfed.core.settings import Settings
from polyfed.core.split import places
from polyfed.data import Dataset
from polyfed.data.build import build_data
from polyfed.data.label_skew import discrete, labels_of

_LOOK_AT = 1000  # of more clients than that, labels are counted for so many, evenly spaced


@dataclass(frozen=True)
class Labels:
    """How many training rows of each label some clients have: counts[i, c] for client clients[i]."""

    name: str
    clients: Index
    counts: Index

    @property
    def shares(self) -> NDArray[np.float64]:
        shares: NDArray[np.float64] = self.counts / self.counts.sum(1, keepdims=True)
        return shares


def show(name: str, data: Settings, seed: int, out: Path | None = None) -> dict[str, Any]:
    """Build the federation of a [data] table, draw it to `out` if given, and return what there is to say of it."""
    dataset, federation, table = build_data(data, seed)
    labels = count_labels(dataset, federation.train, table.get("by"))
    found = {"experiment": name, "seed": seed, "data": table, **describe(dataset, federation, labels)}
    if out is not None:
        from polyfed.data.picture import draw

        draw(found, federation, labels, out)
    return {**found, "png": str(out) if out else None}


def describe(dataset: Dataset, federation: Federation, labels: Labels | None) -> dict[str, Any]:
    """Clients, rows and their owners, sizes of each split, labels per client, and who holds which objective."""
    splits = {name: rows for name in ("train", "valid", "test") if (rows := getattr(federation, name)) is not None}
    owners = np.sum([_owners(rows, dataset.rows) for rows in splits.values()], 0)
    everyone = {o.name: len(federation) for o in dataset.objectives}
    return {
        "clients": len(federation),
        "rows": {"all": dataset.rows, "unowned": int((owners == 0).sum()), "shared": int((owners > 1).sum())},
        "server_rows": 0 if federation.server is None else len(federation.server),
        "sizes": {name: _spread(rows.length) for name, rows in splits.items()},
        "labels": None if labels is None else _of_labels(labels),
        "objectives": everyone | {name: int(held.sum()) for name, held in federation.holds.items()},
    }


def count_labels(dataset: Dataset, train: Rows, by: str | None = None) -> Labels | None:
    """Labels by client, of what the partition went by; of the first target that has labels; or none."""
    own = by or ("label" if dataset.labels is not None else None)
    name = own or next((name for name, t in dataset.targets.items() if discrete(t)), None)
    if name is None:
        return None
    label = labels_of(dataset, by if own else name)
    clients = np.unique(np.linspace(0, len(train) - 1, _LOOK_AT).round().astype(np.int64))
    some = Rows(train.order, train.start[clients], train.length[clients])
    width = int(label.max()) + 1
    flat = np.repeat(np.arange(len(some)), some.length) * width + label[train.order[places(some)]]
    return Labels(name, clients, np.bincount(flat, minlength=len(some) * width).reshape(-1, width))


def _owners(rows: Rows, n: int) -> Index:
    """How many clients have each of n rows; stretches are counted by their ends, so a million cost no more than few."""
    size = len(rows.order)
    start, end = rows.start % size, rows.start % size + rows.length
    steps = np.bincount(start, minlength=2 * size + 1) - np.bincount(end, minlength=2 * size + 1)
    times = np.cumsum(steps)[: 2 * size].reshape(2, size).sum(0)  # the second half has wrapped around
    return np.bincount(rows.order, weights=times, minlength=n).astype(np.int64)


def _spread(values: NDArray[Any]) -> dict[str, float]:
    return {"min": int(values.min()), "median": float(np.median(values)), "max": int(values.max())}


def _of_labels(labels: Labels) -> dict[str, Any]:
    return {
        "by": labels.name,
        "count": labels.counts.shape[1],
        "clients_looked_at": len(labels.clients),
        "per_client": _spread((labels.counts > 0).sum(1)),
        "entropy_bits": round(float(_entropy(labels.shares).mean()), 3),
        "entropy_bits_of_all": round(float(_entropy(labels.counts.sum(0, keepdims=True) / labels.counts.sum())[0]), 3),
    }


def _entropy(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    entropy: NDArray[np.float64] = -(shares * np.log2(np.where(shares > 0, shares, 1.0))).sum(1)
    return entropy


def lines(found: dict[str, Any]) -> list[str]:
    """The description as a person reads it."""
    pairs = {"clients": f"{found['clients']:,}, partition {found['data']['partition']}", "rows": rows_line(found)}
    pairs |= {name: f"{_range(size)} a client" for name, size in found["sizes"].items()}
    if found["labels"]:
        pairs |= {"labels": labels_line(found["labels"]), "entropy": entropy_line(found["labels"])}
    pairs["objectives"] = _objectives(found["objectives"], found["clients"])
    pairs |= {"picture": found["png"]} if found["png"] else {}
    return [f"{found['experiment']}, seed {found['seed']}", *(f"  {key:<11}{text}" for key, text in pairs.items())]


def rows_line(found: dict[str, Any]) -> str:
    """How many rows there are and how they are owned."""
    rows, server = found["rows"], found["server_rows"]
    owned = [f"{rows[key]:,} {words}" for key, words in (("unowned", "nobody's"), ("shared", "shared")) if rows[key]]
    own = ", of which " + " and ".join(owned) if owned else ", each with one owner"
    return f"{rows['all']:,}{own}" + (f"; {server:,} more at the server to test on" if server else "")


def labels_line(labels: dict[str, Any]) -> str:
    """How many labels clients have."""
    return f"{_range(labels['per_client'])} a client, of {labels['count']:,} (by {labels['by']})"


def entropy_line(labels: dict[str, Any]) -> str:
    """How mixed clients' labels are."""
    return f"{labels['entropy_bits']:.2f} bits a client on average, {labels['entropy_bits_of_all']:.2f} over all"


def _range(spread: dict[str, float]) -> str:
    if spread["min"] == spread["max"]:
        return f"{spread['min']:,}"
    return f"{spread['min']:,} to {spread['max']:,} (median {spread['median']:,.0f})"


def _objectives(held: dict[str, int], clients: int) -> str:
    if all(n == clients for n in held.values()):
        return f"{_listed(list(held))}, everyone holds all"
    return "held by " + _listed([f"{n:,} ({name})" for name, n in held.items()]) + " clients"


def _listed(words: list[str], most: int = 6) -> str:
    return ", ".join(words) if len(words) <= most else ", ".join(words[:most]) + f" and {len(words) - most} more"


def to_file(out: Path | None, name: str) -> Path | None:
    """Where to draw: the file asked for, else one named after the experiment where there is matplotlib to draw with."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        if out is None:
            return None
        raise BadInput("Drawing needs matplotlib, which is not installed: pip install 'polyfed[report]'.")
    out = out or Path(f"{name}-split.png")
    if out.is_dir() or not out.resolve().parent.is_dir():
        raise BadInput(f"--out should be a file in a folder that exists. Found {out}.")
    return out
