"""What a search may change: ranges and choices as texts, refused in sentences, for those who have the setting."""

from __future__ import annotations

from typing import Any

import pytest

from polyfed.core.errors import BadInput
from polyfed.experiment.reading import read
from polyfed.study.parameters import Parameter, applies, check_keys, read_parameters
from polyfed.study.sampling import Sampler, Seen


def test_ranges_and_choices() -> None:
    texts = ["algorithm.lr=log:0.01..1", "algorithm.server_lr=0.5..2", "algorithm.local_steps=int:1..20",
             "algorithm.name=fedcmoo,fsmgda", "model.hidden=[64],[128, 64]", "cohort=2,0.5,all"]  # fmt: skip
    found = read_parameters(texts)
    assert found == (
        Parameter("algorithm.lr", 0.01, 1.0, log=True),
        Parameter("algorithm.server_lr", 0.5, 2.0),
        Parameter("algorithm.local_steps", 1, 20, whole=True),
        Parameter("algorithm.name", choices=("fedcmoo", "fsmgda")),
        Parameter("model.hidden", choices=([64], [128, 64])),
        Parameter("cohort", choices=(2, 0.5, "all")),
    )
    assert [one.short for one in found] == [
        "lr", "server_lr", "local_steps", "algorithm", "model.hidden", "cohort"
    ]  # fmt: skip
    again = read_parameters({one.key: str(one) for one in found})
    assert again == found, "as study.json keeps them"
    assert read_parameters({"algorithm.name": ["fedcmoo", "fsmgda"]}) == found[3:4]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "A search needs a parameter: --param KEY=RANGE"),
        (["algorithm.lr"], "--param needs KEY=RANGE"),
        (["algorithm.lr="], "--param needs KEY=RANGE"),
        (["algorithm.lr=2..1"], "algorithm.lr=2..1 is empty: a range goes from a number to a larger one"),
        (["algorithm.lr=1..1"], "is empty"),
        (["algorithm.lr=log:0..1"], "a range by logarithms begins above 0. Found 0."),
        (["algorithm.lr=log:-1..1"], "a range by logarithms begins above 0. Found -1."),
        (["algorithm.lr=a..1"], "the ends of a range are numbers. Found 'a'."),
        (["algorithm.lr=0..inf"], "the ends of a range are numbers. Found 'inf'."),
        (["algorithm.local_steps=int:1.5..3"], "the ends of a range are whole numbers. Found '1.5'."),
        (["algorithm.lr=0.1"], "leaves nothing to choose. Found 0.1"),
        (["algorithm.lr=0.1,0.1"], "leaves nothing to choose"),
        (["algorithm.lr=0.1,0.2", "algorithm.lr=1..2"], "--param algorithm.lr is given twice"),
        (["seed=1,2"], "seed is no matter of better and worse: --seed sets it"),
        (["rounds=int:1..9"], "rounds is set by --rounds"),
        (["data.alpha=0.1..1"], "data is what trials are compared on"),
        (["evaluate.every=1,2"], "evaluate is what trials are compared on"),
        ("algorithm.lr=0.1..1", "Parameters should be a dict"),
        ({"algorithm.lr": 3}, "needs a range or choices"),
        ({3: "1..2"}, "A parameter's key should be a text"),
    ],
)
def test_what_is_no_parameter_is_refused_in_a_sentence(given: Any, says: str) -> None:
    with pytest.raises(BadInput) as error:
        read_parameters(given)
    assert says in str(error.value)
    assert len(str(error.value)) <= 400


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["algorithm.lrr=0.1..1"], "--param algorithm.lrr: there is no such setting. Did you mean 'lr'?"),
        (
            ["algorithm.name=fsmgda,fedavg", "algorithm.compress=exact,sketch"],
            "algorithm.compress: there is no",
        ),
        (["model.hiden=[1],[2]"], "Did you mean 'hidden'?"),
        (["models.a.algorithm.lr=0.1..1"], "there is no such setting"),
    ],
)
def test_a_setting_that_nobody_has_is_refused(texts: list[str], says: str) -> None:
    _, settings = read("two-digits")
    with pytest.raises(BadInput, match="there is no such setting") as error:
        check_keys(read_parameters(texts), settings)
    assert says in str(error.value)


def test_a_setting_that_one_of_the_methods_has_is_taken() -> None:
    _, settings = read("two-digits")
    check_keys(read_parameters(["algorithm.name=fedprox,fedcmoo", "algorithm.mu=0.1..1"]), settings)
    assert not applies("algorithm.mu", settings)
    assert applies("algorithm.mu", {**settings, "algorithm": {"name": "fedprox"}})
    assert applies("algorithm.weighting.c", settings), "a table of its own, which building looks at"
    _, several = read("many-models")
    model = next(iter(several["models"]))
    check_keys(read_parameters([f"models.{model}.algorithm.lr=0.1..1"]), several)


def test_draws_hang_on_the_seed_the_number_and_what_is_seen_only() -> None:
    _, settings = read("two-digits")
    parameters = read_parameters(
        {
            "algorithm.lr": "log:0.01..1",
            "algorithm.name": ["fedcmoo", "fsmgda"],
            "algorithm.compress": ["exact", "sketch"],
        }
    )
    first = {"algorithm.lr": 0.3, "algorithm.name": "fedcmoo", "algorithm.compress": "elsewhere"}

    def drawn(seed: int = 0) -> list[Any]:
        sampler = Sampler(parameters, settings, seed, first)
        seen: list[Seen] = []
        for number in range(14):
            values = sampler.draw(number, seen, [])
            assert values is not None
            bad = number % 5 == 4
            seen.append(Seen(values, None if bad else (values["algorithm.lr"], 1 - values["algorithm.lr"])))
        again = Sampler(parameters, settings, seed, first).draw(13, seen[:13], [])
        assert again == seen[13].values, "drawn alone"
        return [one.values for one in seen]

    found = drawn()
    assert found == drawn()
    assert found != drawn(seed=1)
    assert (found[0]["algorithm.lr"], found[0]["algorithm.name"]) == (0.3, "fedcmoo"), "the experiment's own come first"
    for values in found:
        assert 0.01 <= values["algorithm.lr"] <= 1
        assert len(f"{values['algorithm.lr']:.10g}") <= 7, "a few digits, as a person writes them"
        assert ("algorithm.compress" in values) == (values["algorithm.name"] == "fedcmoo")
