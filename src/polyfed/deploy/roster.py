"""Who the clients are: the names they gave, their numbers, and what each said it has; kept beside the run."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyfed.core.errors import BadInput
from polyfed.core.messages import Arrays
from polyfed.run.directory import write


@dataclass(frozen=True)
class Description:
    """What a client says of itself."""

    name: str
    examples: int
    holds: list[bool]

    @classmethod
    def of(cls, arrays: Arrays, objectives: int) -> Description:
        try:
            name = bytes(arrays["name"].numpy()).decode()
            examples, holds = int(arrays["examples"]), [bool(h) for h in arrays["holds"].tolist()]
        except (KeyError, ValueError, TypeError) as error:
            raise BadInput(f"a client describes itself by name, examples and holds; {error!r}") from error
        if len(holds) != objectives or examples < 0 or not name:
            raise BadInput(f"a client has a name, 0 or more examples, and says of {objectives} objectives whether it "
                           f"holds them; found {name!r}, {examples}, {holds}")  # fmt: skip
        return cls(name, examples, holds)


@dataclass(frozen=True)
class Roster:
    """The run's id, and its clients in the order of their numbers."""

    clients: Sequence[Description]
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def gathered(cls, found: Mapping[str, Description]) -> Roster:
        """Numbers follow the names, by value where all are numbers."""
        by_value = all(name.isdigit() for name in found)
        return cls([found[name] for name in sorted(found, key=lambda n: (int(n) if by_value else 0, n))])

    def number(self, name: str) -> int | None:
        return next((i for i, client in enumerate(self.clients) if client.name == name), None)

    @property
    def examples(self) -> NDArray[np.int64]:
        return np.array([client.examples for client in self.clients], dtype=np.int64)

    @property
    def holds(self) -> NDArray[np.bool_]:
        return np.array([client.holds for client in self.clients], dtype=bool)

    def save(self, path: Path) -> None:
        table = {"run": self.run, "clients": [vars(client) for client in self.clients]}
        write(path, json.dumps(table, indent=1).encode() + b"\n")

    @classmethod
    def load(cls, path: Path) -> Roster:
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
            return cls([Description(**client) for client in table["clients"]], table["run"])
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{path} is not a list of clients as a run writes it; {error!r}.") from error
