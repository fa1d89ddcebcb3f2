"""Models and inputs as people bring them: a tiny BERT and a tiny Llama, with dicts of inputs, on every engine."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import polyfed
from polyfed import Federation, Objective, Problem
from polyfed.run.plan import check_compatible

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="transformers is a test's extra")

WORDS, LENGTH = 32, 8


class TwoHeads(nn.Module):
    """An encoder of Hugging Face's with two heads of one's own: what one fine-tunes."""

    def __init__(self, base: nn.Module, width: int) -> None:
        super().__init__()
        self.base = base
        self.heads = nn.ModuleDict({"topic": nn.Linear(width, 3), "tone": nn.Linear(width, 2)})

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        hidden = self.base(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        kept = attention_mask.unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * kept).sum(1) / kept.sum(1)
        return {name: head(pooled) for name, head in self.heads.items()}


def bert() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.5,
    )  # fmt: skip
    return TwoHeads(transformers.BertModel(config, add_pooling_layer=False), 16)


def llama() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=32, max_position_embeddings=16, initializer_range=0.5,
    )  # fmt: skip
    return TwoHeads(transformers.LlamaModel(config), 16)


def sentences(clients: int = 4) -> Federation:
    """Token ids and masks of sentences of several lengths, by client."""
    rng = np.random.default_rng(0)
    n = 12 * clients
    ids = rng.integers(1, WORDS, (n, LENGTH))
    mask = (np.arange(LENGTH) < rng.integers(3, LENGTH + 1, (n, 1))).astype(np.int64)
    x = {"input_ids": ids * mask, "attention_mask": mask}
    targets = {"topic": ids[:, 0] % 3, "tone": ids[:, 1] % 2}
    return Federation.from_arrays(x, targets, clients=clients)


def problem(model: nn.Module) -> Problem:
    return Problem(model, [Objective("topic", "cross-entropy"), Objective("tone", "cross-entropy")])


def _last_layer(output: Any) -> Any:
    return output.hidden_states[-1]


MODELS: dict[str, Any] = {"bert": bert, "llama": llama}


@pytest.mark.parametrize("model", MODELS)
def test_transformers_train_on_local_wire_and_batched(model: str, tmp_path: Path) -> None:
    """The same model on all of them; on `batched` as one program."""
    found: dict[str, dict[str, Tensor]] = {}
    losses: dict[str, list[float]] = {}
    for engine in ("local", "wire", "batched"):
        method = polyfed.FedCMOO(lr=0.05, local_steps=3, batch_size=6)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*runs client by client")
            result = polyfed.train(
                problem(MODELS[model]()), sentences(), method, rounds=4, engine=engine, out=tmp_path / engine
            )
        found[engine] = result.model.state_dict()
        losses[engine] = [sum(line["losses"].values()) for line in result.history if "losses" in line]
    assert losses["local"][-1] < losses["local"][0]
    for name, value in found["local"].items():
        assert torch.equal(value, found["wire"][name]), name
        torch.testing.assert_close(value, found["batched"][name], atol=1e-5, rtol=1e-4)


def test_an_output_of_hugging_face_is_picked_by_name(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, num_labels=3, output_hidden_states=True,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    f = sentences()
    data = Federation(f.x, {"topic": f.targets["topic"]}, f.train)
    made = Problem(
        model,
        [
            Objective("topic", "cross-entropy", output="logits"),
            Objective("small", lambda h: h[:, 0].square().mean(1), takes=("output",), output=_last_layer),
        ],
    )
    result = polyfed.train(made, data, polyfed.FedCMOO(lr=0.1, local_steps=2), rounds=2, out=tmp_path / "run")
    assert set(result.history[-1]["losses"]) == {"topic", "small"}


def test_buffers_that_training_leaves_alone_do_not_travel() -> None:
    """RoPE's inverse frequencies are a float buffer, and no statistics."""
    made = problem(llama())
    assert any("inv_freq" in name for name in made.buffers)
    check_compatible(made, sentences())
    assert made.buffers == {}
    assert made.dims["b"] == 0


def test_tied_weights_are_one_parameter(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=32, max_position_embeddings=16, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    f = sentences()

    def next_word(logits: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), target[:, 1:], reduction="none").mean(1)

    data = Federation(f.x, {"text": f.x["input_ids"]}, f.train)
    made = Problem(model, [Objective("text", next_word, output="logits")])
    result = polyfed.train(made, data, polyfed.FedAvg(lr=0.2, local_steps=2), rounds=2, out=tmp_path / "run")
    state = result.model.state_dict()
    assert torch.equal(state["lm_head.weight"], state["model.embed_tokens.weight"])
    assert not torch.equal(state["lm_head.weight"], model.state_dict()["lm_head.weight"])
