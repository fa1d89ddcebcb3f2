"""Adapters: only they are trained, sent and saved; their base exists once, in the type it came in."""

from __future__ import annotations

import os
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import guarded
import polyfed
from polyfed import Objective, Problem
from polyfed.algorithms import algorithms
from polyfed.client.device import HOST
from polyfed.core.client import all_finite
from polyfed.testing import open_door
from test_hugging_face import WORDS, sentences

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="transformers is a test's extra")
peft = pytest.importorskip("peft", reason="peft is a test's extra")


def base(kind: str) -> nn.Module:
    """A model whose one output has columns for both objectives: peft saves and loads it as it is.

    Its numbers are large for so small a model, so that adapters deep in it have gradients worth comparing.
    """
    torch.manual_seed(0)
    if kind == "bert":
        config: Any = transformers.BertConfig(
            vocab_size=WORDS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=5,
            initializer_range=0.5,
        )  # fmt: skip
        made: nn.Module = transformers.BertForSequenceClassification(config)
        return made
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=32, max_position_embeddings=16, num_labels=5, pad_token_id=0, initializer_range=0.5,
    )  # fmt: skip
    return nn.ModuleList([transformers.LlamaForSequenceClassification(config)])[0]


WHERE = {"bert": ["query", "value"], "llama": ["q_proj", "v_proj"]}


def lora(kind: str, dtype: torch.dtype = torch.float32, dropout: float = 0.0) -> nn.Module:
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=WHERE[kind], lora_dropout=dropout)
    torch.manual_seed(1)
    made: nn.Module = peft.get_peft_model(base(kind).to(dtype), config)
    return made


def topic(output: Any) -> Any:
    return output.logits[:, :3]


def tone(output: Any) -> Any:
    return output.logits[:, 3:]


def problem(model: nn.Module, **more: Any) -> Problem:
    own = [Objective("topic", "cross-entropy", output=topic), Objective("tone", "cross-entropy", output=tone)]
    return Problem(model, own, **more)


METHOD = polyfed.FedCMOO(lr=0.05, local_steps=2, batch_size=6)


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_adapters_train_on_local_wire_and_batched_and_load_in_peft(kind: str, tmp_path: Path) -> None:
    found = {}
    for engine in ("local", "wire", "batched"):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*runs client by client")
            out = tmp_path / engine
            result = polyfed.train(problem(lora(kind)), sentences(), METHOD, rounds=3, engine=engine, out=out)
        found[engine] = result.model.state_dict()
    for name, value in found["local"].items():
        assert torch.equal(value, found["wire"][name]), name
        torch.testing.assert_close(value, found["batched"][name], atol=1e-5, rtol=1e-4)
    again = peft.PeftModel.from_pretrained(base(kind), tmp_path / "local" / "adapter").eval()
    with torch.no_grad():
        x = sentences().x
        torch.testing.assert_close(again(**x).logits, found_model(result)(**x).logits, atol=1e-5, rtol=1e-4)


def trained(kind: str, method: str, engine: str, guards: bool, **more: Any) -> dict[str, torch.Tensor]:
    """The adapters after two rounds in which nothing has been run client by client."""
    clip = guarded.STEP if guards else None
    algorithm = algorithms[method](lr=0.1, local_steps=3, batch_size=5, clip=clip)  # 12 rows: the last batch has 2
    layers = guarded.layers() if guards else []
    made = problem(lora(kind, **more))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        result = polyfed.train(made, sentences(), algorithm, rounds=2, engine=engine, layers=layers, keep=False)
    assert not result.summary["failures"]
    return {name: value for name, value in result.model.state_dict().items() if name in made.params}


@cache
def alone(kind: str, method: str, guards: bool) -> dict[str, torch.Tensor]:
    """On `local`."""
    return trained(kind, method, "local", guards)


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize("guards", [False, True], ids=["plain", "clips and an attack"])
@pytest.mark.parametrize("method", ["fedavg", "fsmgda", "fedcmoo"])
@pytest.mark.parametrize("kind", WHERE)
def test_batched_equals_local_and_nothing_falls_back(kind: str, method: str, guards: bool) -> None:
    local, batched = alone(kind, method, guards), trained(kind, method, "batched", guards)
    assert distance(batched, local) < 1e-6
    before = lora(kind).state_dict()
    assert all(float((value - before[name]).abs().max()) > 2e-5 for name, value in local.items())
    if guards:
        assert distance(local, alone(kind, method, False)) > 1e-3


@pytest.mark.parametrize("kind", WHERE)
def test_dropout_of_adapters_runs_together_too(kind: str) -> None:
    """Other masks than on `local`, and so another model; the same again from the same seed."""
    first, again = (trained(kind, "fedcmoo", "batched", True, dropout=0.3) for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert distance(first, alone(kind, "fedcmoo", True)) > 1e-4


def found_model(result: polyfed.Result) -> nn.Module:
    assert not result.model.training
    return result.model


def test_what_travels_and_what_is_saved_are_the_adapters_alone(tmp_path: Path) -> None:
    model = lora("bert")
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    whole = sum(p.numel() for p in model.parameters())
    made = problem(model)
    assert made.dim == trained < whole / 3
    result = polyfed.train(made, sentences(), polyfed.FedAvg(lr=0.1, local_steps=1), rounds=1, out=tmp_path / "run")
    upload = result.history[0]["bytes_up"] / 4  # a client
    assert 4 * trained < upload < 4 * trained + 1000
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert sum(t.numel() for t in saved.values()) == trained
    assert not any("base_layer" in name for name in saved)


def test_the_base_is_never_copied() -> None:
    """Ten copies of a problem's module, as engines and evaluations make them, share one base."""
    model = lora("bert")
    made = problem(model)
    frozen = {name: p.data_ptr() for name, p in model.named_parameters() if not p.requires_grad}
    for _ in range(10):
        replica = made.replica(HOST)
        own = dict(replica.named_parameters())
        assert all(own[name].data_ptr() == place for name, place in frozen.items())
        assert all(own[name].data_ptr() != p.data_ptr() for name, p in model.named_parameters() if p.requires_grad)


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """The shapes of all matrix products, forward and backward."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: list[tuple[tuple[int, ...], ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"):
            self.shapes.append(tuple(tuple(t.shape) for t in args if isinstance(t, Tensor) and t.dim() > 1))
        return func(*args, **(kwargs or {}))


class Adapted(nn.Module):
    """A frozen product of 7 to 11 numbers, with an adapter of rank 2."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(7, 11), nn.Linear(11, 3)
        self.first, self.down, self.up = nn.Linear(6, 7), nn.Linear(7, 2, bias=False), nn.Linear(2, 11, bias=False)
        self.base.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        found: Tensor = self.head((self.base(h) + self.up(self.down(h))).tanh().mean(1))
        return found


def test_the_base_is_one_product_over_the_words_of_all_clients() -> None:
    """Four clients, batches of three, five words: 60 rows, and of their gradients; adapters are products of each."""
    torch.manual_seed(0)
    made = Problem(Adapted(), [Objective("y", "cross-entropy")])
    federation = polyfed.Federation.from_arrays(torch.randn(12, 5, 6), torch.arange(12) % 3, clients=4)
    door = open_door(made, federation, "batched", cohort=4, settings={"device": "cpu", "compile": False})
    method = algorithms["fedavg"](lr=0.1, local_steps=1, batch_size=3)
    door.begin(1)
    with Products() as seen:
        method.round(1, method.init(made), door)
    assert seen.shapes.count(((60, 7), (7, 11))) == 1
    assert seen.shapes.count(((60, 11), (11, 7))) == 1
    base = {(7, 11), (11, 7)}
    assert sum(shape[-2:] in base for shapes in seen.shapes for shape in shapes) == 2  # nowhere is it copied for each
    assert ((4, 15, 7), (4, 7, 2)) in seen.shapes


@pytest.mark.parametrize("engine", ["local", "wire"])
def test_a_base_in_bfloat16_stays_so(engine: str, tmp_path: Path) -> None:
    model = lora("llama", torch.bfloat16)
    made = problem(model, autocast="bf16")
    assert {p.dtype for p in model.parameters() if not p.requires_grad} == {torch.bfloat16}
    assert {p.dtype for p in made.model.parameters() if p.requires_grad} == {torch.float32}
    result = polyfed.train(made, sentences(), METHOD, rounds=2, engine=engine, out=tmp_path / "run")
    assert {p.dtype for p in result.model.parameters() if not p.requires_grad} == {torch.bfloat16}
    assert result.summary["failures"] == 0
    assert all_finite(*load_file(tmp_path / "run" / "model.safetensors").values())


def test_frozen_a_averages_the_product(tmp_path: Path) -> None:
    """FFA-LoRA: with A the same everywhere, the mean of B_i A is (the mean of B_i) A."""
    model = lora("bert")
    made = problem(model, freeze=["*lora_A*"])
    assert not any("lora_A" in name for name in made.params)
    assert any("lora_B" in name for name in made.params)
    assert any(
        p.requires_grad for name, p in model.named_parameters() if "lora_A" in name
    )  # the caller's is left alone
    result = polyfed.train(made, sentences(), METHOD, rounds=2, out=tmp_path / "run")
    after = dict(result.model.named_parameters())
    for name, p in model.named_parameters():
        assert torch.equal(after[name], p) == (name not in made.params), name

    generator = torch.Generator().manual_seed(0)
    A, As = torch.randn(4, 16, generator=generator), torch.randn(5, 4, 16, generator=generator)
    Bs = torch.randn(5, 16, 4, generator=generator)
    torch.testing.assert_close((Bs @ A).mean(0), Bs.mean(0) @ A)
    assert not torch.allclose((Bs @ As).mean(0), Bs.mean(0) @ As.mean(0), atol=0.1)


def test_what_is_frozen_is_named_by_a_pattern() -> None:
    with pytest.raises(polyfed.BadInput, match=r"'head.*', which no trainable parameter is like"):
        Problem(nn.Linear(2, 2), [Objective("y", "squared")], freeze=["head.*"])
    with pytest.raises(polyfed.BadInput, match="freeze should be a list of patterns"):
        Problem(nn.Linear(2, 2), [Objective("y", "squared")], freeze="bias")
    made = Problem(nn.Linear(2, 2), [Objective("y", "squared")], freeze=["bias"])
    assert list(made.params) == ["weight"]
