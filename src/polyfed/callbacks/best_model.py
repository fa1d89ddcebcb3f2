"""The model of the best round, in the run beside the last one's."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfed.callbacks.checked import checked
from polyfed.callbacks.criterion import Combined, Preference, Reference, Split
from polyfed.callbacks.judging import Judging
from polyfed.core.errors import BadInput
from polyfed.run.callbacks import RunView, callbacks
from polyfed.run.directory import BEST, RunDirectory, model_bytes, round_of, write

if TYPE_CHECKING:
    from polyfed.run.loop import Result
    from polyfed.run.plan import Plan


@callbacks("best-model")
@checked
class BestModel(Judging):
    """Keeps the model of the round that was best at its evaluation, as best.safetensors and `result.best_model`.

    While the run goes on, the models that its checkpoints name are in best/.
    """

    def __init__(
        self,
        *,
        objective: str = "",
        metric: str = "loss",
        preference: Preference | None = None,
        combined: Combined = "max",
        reference: Reference | None = None,
        split: Split = "",
    ) -> None:
        super().__init__(
            objective=objective, metric=metric, preference=preference, combined=combined, reference=reference,
            split=split,
        )  # fmt: skip
        self._folder = Path()

    def check(self, plan: Plan) -> None:
        super().check(plan)
        if sum(isinstance(callback, BestModel) for callback in plan.callbacks) > 1:
            raise BadInput("A run keeps one best model. Found BestModel twice; leave one of them out.")

    def on_start(self, run: RunView) -> None:
        super().on_start(run)
        self._folder = run.path / "best"
        for file in [self._file(round) for round in self._kept() if round > self.round]:
            file.unlink()  # of a round that will be done again
        if self.round and not self._file(self.round).is_file():
            raise BadInput(
                f"The best model of {run.path}, that of round {self.round}, is not in {self._folder}; put it back, or "
                "go on without BestModel."
            )

    def on_evaluation(self, run: RunView, line: Mapping[str, Any]) -> None:
        if self.improves(run, line):
            self._folder.mkdir(exist_ok=True)
            write(self._file(self.round), model_bytes(run.plan.saved(run.states)))

    def tree(self) -> dict[str, Any]:
        """For the next checkpoint; what neither it nor those before it name is removed."""
        rounds, saved = self._kept(), RunDirectory(self._folder.parent).saved()
        named = {max((r for r in rounds if r <= round_of(path)), default=0) for path in saved}
        for round in set(rounds) - named - {self.round}:
            self._file(round).unlink()
        return super().tree()

    def summary(self, run: RunView) -> Mapping[str, Any]:
        data = self._published(run)
        if not data:
            return {}
        sha256 = hashlib.sha256(data).hexdigest()
        return {"best": {"round": self.round, "value": self.value, "by": str(self.criterion), "model_sha256": sha256}}

    def on_end(self, run: RunView, result: Result | None) -> None:
        if result is None:
            self._published(run)

    def _published(self, run: RunView) -> bytes:
        """The best model under the name by which it is looked for; nothing where no round was the best."""
        if not self.round:
            (run.path / BEST).unlink(missing_ok=True)
            return b""
        data = self._file(self.round).read_bytes()
        write(run.path / BEST, data)
        return data

    def _kept(self) -> list[int]:
        """The rounds whose models are here: each was the best until the next."""
        names = [path.stem.removeprefix("round-") for path in self._folder.glob("round-*.safetensors")]
        return [int(name) for name in names if name.isdecimal()]

    def _file(self, round: int) -> Path:
        return self._folder / f"round-{round:08d}.safetensors"
