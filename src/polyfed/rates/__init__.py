"""Rules of the theorems, and other schedules by name: values of lr, server_lr, eps, batch_size and PGD's step.

In an experiment a rule is a table with its name and the constants that its theorem takes as known:
`lr = { rule = "fedcmoo-corollary-1.1", L = 4.0 }`. What a theorem takes from the run (T rounds, K local steps, M
objectives) the rule takes from there. A rule has one method for each setting that it gives a value for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, cast

from pydantic import BeforeValidator, PlainSerializer

from polyfed.core.errors import BadInput, shown
from polyfed.core.registry import Registry
from polyfed.core.settings import build

SETTINGS = ("lr", "server_lr", "eps", "batch_size", "step", "average_from", "rounds")


@dataclass(frozen=True)
class Moment:
    """What a rule may know of the run.

    t: the round, from 1; rounds: T; frame: how many models are trained together; objectives: M; steps: K, local steps a
    round; lr: the clients' step size in this round, for rules of the server's; normalised: whether updates are brought
    to length one; batch: whether clients take all of their rows ('full'), 'more' and more of them, or 'some'; examples:
    n, of all clients; kept: what the rule remembers.
    """

    t: int = 1
    rounds: int = 1
    frame: int = 1
    objectives: int = 1
    steps: float = 1.0
    lr: float = 1.0
    normalised: bool = False
    batch: str = "full"
    examples: int = 1
    kept: Mapping[str, Any] = field(default_factory=dict)

    def global_lr(self, eta: float) -> float:
        """The server_lr of a theorem's eta, whose updates are means of gradients: ours are K eta_c times as long."""
        return eta if self.normalised else eta / (self.steps * self.lr)


class Rule:
    """A named rule; a subclass is a settings class with `rule`, its name, and a method for each setting it is for.

    constant: whether a value is the same in all rounds; theorem: whether it is about plain SGD at the clients;
    horizon: whether values depend on how many rounds there will be.
    """

    constant: ClassVar[bool] = False
    theorem: ClassVar[bool] = True
    horizon: ClassVar[bool] = True

    def value(self, setting: str, at: Moment) -> float:
        """The value of a setting in a round."""
        return float(getattr(self, setting)(at))

    def check(self, setting: str, at: Moment) -> None:
        """Refuse, when a run begins, what the theorem does not cover."""

    def remembered(self, kept: Mapping[str, Any], logged: Mapping[str, Any]) -> dict[str, Any]:
        """What it keeps for the next round, a tree of tensors; logged: what the method logs of this one."""
        return {}

    @classmethod
    def settings(cls) -> list[str]:
        """What it gives values for."""
        return [name for name in SETTINGS if hasattr(cls, name)]


rules: Registry[type[Any]] = Registry("rule", "polyfed.rates")


def named(setting: str, table: str = "algorithm.") -> Callable[[Any], Any]:
    """From a table with a rule's name to the rule, for one setting; other values pass. table: where it stands."""

    def read(value: Any) -> Any:
        if isinstance(value, Mapping) and "rule" in value:
            name = value["rule"]
            if not isinstance(name, str):
                raise BadInput(f"{table}{setting}.rule should be a name. Found {shown(name)}.")
            value, _ = build(rules[name], dict(value), f"{table}{setting}")
        if isinstance(value, Rule) and not hasattr(value, setting):
            title, own = getattr(value, "rule", type(value).__name__), ", ".join(value.settings())
            raise BadInput(f"The rule {title!r} is for {own}. Found it at {table}{setting}.")
        return value

    return read


def plain(value: Any, handler: Any = None) -> Any:
    """A rule as the table it is made from; a function as its name."""
    if isinstance(value, Rule):
        every = {f.name: getattr(value, f.name) for f in fields(cast(Any, value))}
        return {name: own for name, own in every.items() if own is not None}  # TOML has no null
    return getattr(value, "__name__", str(value))


# a rule, or a function of the round t = 1, 2, ... (from Python)
LrRule = Annotated[Rule | Callable[[int], float], BeforeValidator(named("lr")), PlainSerializer(plain)]
ServerLrRule = Annotated[Rule | Callable[[int], float], BeforeValidator(named("server_lr")), PlainSerializer(plain)]
EpsRule = Annotated[Rule | Callable[[int], float], BeforeValidator(named("eps")), PlainSerializer(plain)]
BatchRule = Annotated[Rule | Callable[[int], int], BeforeValidator(named("batch_size")), PlainSerializer(plain)]
StepRule = Annotated[Rule, BeforeValidator(named("step")), PlainSerializer(plain)]
AverageRule = Annotated[Rule, BeforeValidator(named("average_from")), PlainSerializer(plain)]


def evaluated(rate: Any, setting: str, at: Moment) -> float:
    """The value of a rule or of a function of the round, checked."""
    value = rate.value(setting, at) if isinstance(rate, Rule) else float(rate(at.t))
    least_open = setting not in ("eps", "batch_size", "average_from")
    if not (0 < value < float("inf") if least_open else 0 <= value < float("inf")):
        name = getattr(rate, "rule", getattr(rate, "__name__", "the function"))
        raise BadInput(f"{setting} by {name!r} should be {'positive' if least_open else 'at least 0'}. Found {value}.")
    return value


def rounds_by(table: Any, examples: int) -> tuple[int, str]:
    """How many rounds a rule asks for, and the sentence that says so.

    table: with the rule's name and constants; examples: n, of all clients.
    """
    rule = named("rounds", "")(table)
    if not isinstance(rule, Rule):
        raise BadInput(f"rounds should be a whole number, or a table with a rule's name. Found {shown(table)}.")
    H = int(evaluated(rule, "rounds", Moment(examples=examples)))
    constants = ", ".join(f"{k} = {v}" for k, v in plain(rule).items() if k != "rule" and v is not None)
    return H, f"rounds by {getattr(rule, 'rule', '')} ({constants}): {H}"


def check_horizon(table: Any, before: Any, now: Any) -> None:
    """Refuse another number of rounds for a run whose rules depend on it.

    table: the settings of its method or methods; before, now: the numbers of rounds.
    """
    if before == now or not isinstance(table, Mapping | list):
        return
    if (
        isinstance(table, Mapping)
        and isinstance(name := table.get("rule"), str)
        and name in rules
        and rules[name].horizon
    ):
        raise BadInput(
            f"The rule {name!r} depends on how many rounds there will be, {before} when the run began. Found {now}; "
            "begin a new run."
        )
    for inner in table.values() if isinstance(table, Mapping) else table:
        check_horizon(inner, before, now)
