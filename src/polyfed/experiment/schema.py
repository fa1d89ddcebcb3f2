"""The keys of an experiment. Tables that name something are checked against what they name, when it is built."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from polyfed.core.settings import Positive, Settings, Table, whole

Whole = Annotated[int, Field(ge=1), BeforeValidator(whole)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63), BeforeValidator(whole)]


def _clients(value: Any) -> Any:
    """1.0 could mean one client or all of them."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number or isinstance(value, str)) or (isinstance(value, float) and not 0 < value < 1):
        raise ValueError("a whole number of clients, a fraction below 1, or 'all'")
    return value


Cohort = Annotated[Whole | Fraction | Literal["all"], BeforeValidator(_clients)]

Client = Annotated[int, Field(ge=0), BeforeValidator(whole)]
NAMES = {"data": "two-digits", "model": "mlp", "algorithm": "fedcmoo", "engine": "local", "attacks": "misreport"}


class Top(Table):
    """The keys of an experiment.

    cohort_always, cohort_never: clients that take part in every round, and clients that take part in none; guard:
    whether replies that are far longer than the cohort's are left out; check_rows: whether every client's rows are
    looked at before the first round.
    """

    rounds: Whole | Settings = 100
    seed: Seed = 0
    cohort: Cohort = 10
    cohort_always: list[Client] = Field(default_factory=list)
    cohort_never: list[Client] = Field(default_factory=list)
    guard: Literal["on", "off"] = "on"
    check_rows: bool = True
    data: Settings = Field(default_factory=dict)
    model: Settings = Field(default_factory=dict)
    objectives: dict[str, Settings] = Field(default_factory=dict)
    algorithm: Settings = Field(default_factory=dict)
    engine: Settings = Field(default_factory=dict)
    evaluate: Settings = Field(default_factory=dict)
    layers: list[Settings] = Field(default_factory=list)
    callbacks: list[Settings] = Field(default_factory=list)
    attacks: list[Settings] = Field(default_factory=list)
    schedule: Settings = Field(default_factory=dict)
    models: Settings = Field(default_factory=dict)
    faults: Settings | None = None
    network: Settings | None = None


class Personalise(Table):
    """steps, lr: of a client's fine-tuning before it is measured; without lr, the method's."""

    steps: Whole = 5
    lr: Positive | None = None


class Evaluate(Table):
    """every: rounds between evaluations; the others: what else is measured, by asking clients, and how often.

    per_client: every client's own figures, in clients.jsonl and in the result; splits: whose losses and metrics are
    logged besides; personalise: how clients fine-tune the model, to be measured with what it becomes, too; optimum: x*,
    the path of a model file or 'known', from Python also a tensor or a state dict.
    """

    every: Whole = 1
    clients: bool = False
    per_client: bool = False
    improved: bool = False
    stationarity: Annotated[int, Field(ge=0)] = 0
    own_stationarity: Annotated[int, Field(ge=0)] = 0
    client_stationarity: Annotated[int, Field(ge=0)] = 0
    progress: Annotated[int, Field(ge=0)] = 0
    splits: list[Literal["train", "valid", "test"]] = Field(default_factory=list)
    personalise: Personalise | None = None
    optimum: Any = None


class ObjectiveTable(Table):
    """[objectives.NAME]: loss: by name, in place of the data set's."""

    loss: str


class Model(Table):
    """The keys of [model] beside those of the model itself.

    freeze: patterns of the names of parameters that are not trained; autocast: 'bf16' or true computes the module's
    outputs in bfloat16, where torch.autocast does, beside dtype 'float32'; weights: a model file, or the directory of a
    run, whose weights training begins with.
    """

    name: str
    dtype: Literal["float32", "float64"] = "float32"
    freeze: list[str] = Field(default_factory=list)
    autocast: Literal["bf16"] | bool = False
    weights: str | None = None


class ModelTable(Table):
    """One of several models, [models.NAME].

    copies: as many models of this kind, NAME-1, NAME-2, ...; objectives: some of the data set's; seed: of the data and
    the initial weights, the experiment's if left out.
    """

    copies: Annotated[int, Field(ge=1)] = 1
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    objectives: list[str] | None = None
    data: Settings = Field(default_factory=dict)
    model: Settings = Field(default_factory=dict)
    algorithm: Settings = Field(default_factory=dict)


class ScheduleTable(Table):
    """[schedule]: how several models share the clients."""

    name: str = "mfa-rr"


class Told(BaseModel):
    """Part of what a run of Python says of itself; more may be said than is read."""

    model_config = ConfigDict(extra="ignore", strict=True)


class ToldModel(Told):
    """[model] of such a run: where its module comes from."""

    from_: str = Field(default="", alias="from")
    class_: str = Field(default="", alias="class")
    config: str = "{}"
    dtype: str = "float32"
    frozen: list[str] = Field(default_factory=list)


class ToldObjective(Told):
    """[objectives.NAME] of such a run."""

    loss: str
    output: str | int | list[str | int] | None = None
    classes: int | None = None


class ToldData(Told):
    """[data] of such a run: what its examples and clients look like."""

    from_: str = Field(default="", alias="from")
    clients: int = 0
    names: list[str | int | float] = Field(default_factory=list)
    classes: dict[str, list[str]] = Field(default_factory=dict)
    inputs: Settings | None = None
    prepared: Settings | None = None
    prepare: str = ""


class Record(Told):
    """What a run that was started from Python says of a model."""

    model: ToldModel = Field(default_factory=ToldModel)
    objectives: dict[str, ToldObjective] = Field(default_factory=dict)
    data: ToldData = Field(default_factory=ToldData)
    algorithm: Settings = Field(default_factory=dict)
    folder: str = ""
