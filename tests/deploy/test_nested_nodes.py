"""Nodes whose examples are dicts of arrays, some with missing labels: a tiny BERT and a tiny Llama on Flower."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from polyfed.core.errors import BadInput
from polyfed.core.messages import BadMessage
from polyfed.deploy.roster import Description, Roster

os.environ.setdefault("HF_HUB_OFFLINE", "1")
pytest.importorskip("transformers", reason="transformers is a test's extra")
pytest.importorskip("peft", reason="peft is a test's extra")
pytest.importorskip("flwr", reason="Flower is not installed: pip install 'polyfed[flower]'")

from polyfed.data.build import build_data
from polyfed.deploy.app import client_app
from polyfed.deploy.client import Sites
from polyfed.deploy.data import own_data
from polyfed.deploy.grid import InProcess as Grid
from polyfed.deploy.server import federate

MODELS = """
import peft
import transformers
from torch import nn

SIZES = dict(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
             max_position_embeddings=16)


class Heads(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.heads = base, nn.ModuleDict({"topic": nn.Linear(8, 3), "tone": nn.Linear(8, 1)})

    def forward(self, input_ids, attention_mask):
        h = self.base(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state.mean(1)
        return {name: head(h) for name, head in self.heads.items()}


def bert(dataset):
    config = transformers.BertConfig(**SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return Heads(transformers.BertModel(config, add_pooling_layer=False))


def llama(dataset):
    return Heads(transformers.LlamaModel(transformers.LlamaConfig(**SIZES, num_key_value_heads=1)))


def adapted(model, *where):
    config = peft.LoraConfig(r=2, target_modules=list(where), lora_dropout=0.0)
    model.base = peft.get_peft_model(model.base, config)
    return model


def bert_lora(dataset):
    return adapted(bert(dataset), "query", "value")


def llama_lora(dataset):
    return adapted(llama(dataset), "q_proj", "v_proj")
"""
EXPERIMENT = """
rounds = 2
cohort = "all"
[data]
name = "nodes"
clients = 3
shape = {{input_ids = [6], attention_mask = [6]}}
dtype = "int64"
objectives = {{topic = 3, tone = "binary"}}
[model]
name = "tiny:{model}"
[algorithm]
name = "fedcmoo"
local_steps = 2
weighting_by = "size"
"""


def written(path: Path, arrays: dict[str, Any]) -> None:
    np.savez(path, **arrays)


def node(i: int) -> dict[str, Any]:
    rng = np.random.default_rng(i)
    ids = rng.integers(1, 20, (12 + i, 6))
    topic = ids[:, 0] % 3
    topic[: 3 * i] = -100
    tone = np.where(np.arange(len(ids)) % 4 == 0, np.nan, ids[:, 1] % 2)
    path = Path(f"node-{i}.npz").absolute()
    written(path, {"x.input_ids": ids, "x.attention_mask": np.ones_like(ids), "topic": topic, "tone": tone})
    return {"name": f"clinic-{i}", "data": str(path), "state": str(Path(f"state-{i}").absolute())}


@pytest.mark.parametrize("model", ["bert", "llama", "bert_lora", "llama_lora"])
def test_dicts_of_arrays_train_on_flower(model: str) -> None:
    Path("tiny.py").write_text(MODELS)
    Path("experiment.toml").write_text(EXPERIMENT.format(model=model))
    config = {"out": str(Path("run").absolute()), "timeout": 60.0, "wait": 5.0}
    sites = {f"clinic-{i}": Sites(Path.cwd()) for i in range(3)}  # a process each
    app = client_app(lambda c, to, m: sites[str(c.node_config["name"])].answer(config, c.node_config, to, m))
    sites_of = [node(i) for i in range(3)]
    summary = federate(Path.cwd(), Grid(app, sites_of), config)
    assert summary["failures"] == 0
    clients = json.loads(Path("run/clients-0.json").read_text())["clients"]
    assert [c["labelled"] for c in clients] == [[12, 9], [10, 9], [8, 10]]
    assert set(summary["objectives"]) == {"topic", "tone"}
    if "lora" in model:  # Jacobian sketches and updates of the adapters and heads alone
        whole = load_file("run/model.safetensors")
        base = sum(t.numel() for name, t in whole.items() if "lora" not in name and "heads" not in name)
        assert summary["bytes_up"] / (2 * 3) < 4 * base


def test_what_a_node_has_must_be_what_the_experiment_says() -> None:
    table = {"name": "nodes", "clients": 2, "shape": {"a": [3], "b": [2]}, "objectives": {"y": 2}}
    _, template, _ = build_data(table, 0)
    rows: dict[str, Any] = {"x.a": np.zeros((4, 3), np.float32), "x.b": np.zeros((4, 2), np.float32), "y": np.zeros(4)}
    written(Path("rows.npz"), rows)
    made = own_data({"data": "rows.npz"}, template, ["y"], {}, 0)
    assert set(made.x) == {"a", "b"}
    written(Path("rows.npz"), {**rows, "x.b": np.zeros((4, 9), np.float32)})
    with pytest.raises(BadInput, match="The node's examples have the shape"):
        own_data({"data": "rows.npz"}, template, ["y"], {}, 0)
    with pytest.raises(BadInput, match=r"data\.dtype by name"):
        build_data({**table, "dtype": {"c": "int64"}}, 0)


def described(**more: Any) -> dict[str, Any]:
    name = torch.tensor(list(b"clinic"), dtype=torch.uint8)
    return {"name": name, "examples": torch.tensor(5), "holds": torch.tensor([True, True]), **more}


@pytest.mark.parametrize(
    "said", [torch.tensor([6, 1]), torch.tensor([-1, 1]), torch.tensor([1.0, 1.0]), torch.tensor([1])]
)
def test_a_client_cannot_have_more_labels_than_examples(said: torch.Tensor) -> None:
    with pytest.raises(BadMessage, match="how many of its 5 examples have a label"):
        Description.of(described(labelled=said), 2)


def test_a_roster_knows_which_part_is_labelled() -> None:
    whole, some = Description.of(described(), 2), Description.of(described(labelled=torch.tensor([5, 1])), 2)
    assert Roster([whole, whole]).labelled is None
    labelled = Roster([whole, some]).labelled
    assert labelled is not None
    assert labelled.tolist() == [[1.0, 1.0], [1.0, 0.2]]
