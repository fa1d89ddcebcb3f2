"""The numbers of every round as MLflow's metrics."""

from __future__ import annotations

import importlib
import os
import re
import time
from collections.abc import Mapping
from typing import Any

import torch

from polyfed.callbacks.checked import checked
from polyfed.callbacks.tracker import Tracker, numbers, place
from polyfed.run.callbacks import RunView, callbacks

BATCH = 1000  # metrics that MLflow takes at once


@callbacks("mlflow")
@checked
class MLflow(Tracker):
    """Metrics for MLflow, a step a round, in files without a server (extra 'mlflow').

    A resumed run goes on in the same run of MLflow. Where that has steps of rounds that are done again, which MLflow
    cannot forget, it is deleted, and another has all of them.

    Args:
        uri: MLflow's tracking URI; left out, the folder mlruns in the run's directory.
        experiment: MLflow's name for runs that belong together.
    """

    package = extra = "mlflow"

    def __init__(self, *, uri: str = "", experiment: str = "polyfed", optional: bool = True) -> None:
        super().__init__(optional=optional)
        self.uri, self.experiment = uri, experiment
        self.run_id = ""
        self._loaded = False
        self._client: Any = None

    def begin(self, run: RunView) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow prefers a database, and asks to be told
        tracking: Any = importlib.import_module("mlflow.tracking")
        self._client = tracking.MlflowClient(tracking_uri=self.uri or place(run, "mlruns").as_uri())
        continued, self._loaded = self._loaded and bool(self.run_id), False
        if continued and self._last_step() <= run.round:
            self._client.update_run(self.run_id, status="RUNNING")
            return
        if continued:
            self._client.delete_run(self.run_id)
        self._create(run)

    def _last_step(self) -> int:
        """The last round that is logged already, in whole or in part."""
        logged = self._client.get_run(self.run_id).data.metrics
        every = (self._client.get_metric_history(self.run_id, name) for name in logged)
        return max((metric.step for history in every for metric in history), default=0)

    def _create(self, run: RunView) -> None:
        """A run of MLflow, with all rounds that have been."""
        found = self._client.get_experiment_by_name(self.experiment)
        owner = found.experiment_id if found else self._client.create_experiment(self.experiment)
        made = self._client.create_run(owner, run_name=run.path.name, tags={"polyfed.run": str(run.path)})
        self.run_id = made.info.run_id
        plan = run.plan
        about = {"algorithm": plan.title, "engine": plan.engine_name, "seed": plan.seed, "cohort": plan.cohort}
        for name, value in about.items():
            self._client.log_param(self.run_id, name, value)
        for line in run.history():
            self._send(line["round"], numbers(line))

    def log(self, run: RunView, values: Mapping[str, float]) -> None:
        self._send(run.round, values)

    def _send(self, step: int, values: Mapping[str, float]) -> None:
        entities: Any = importlib.import_module("mlflow.entities")
        now = int(time.time() * 1000)
        made = [entities.Metric(metric_name(name), float(value), now, step) for name, value in values.items()]
        for i in range(0, len(made), BATCH):
            self._client.log_batch(self.run_id, made[i : i + BATCH])

    def close(self, *, complete: bool) -> None:
        if self._client is not None and self.run_id:
            self._client.set_terminated(self.run_id, "FINISHED" if complete else "KILLED")

    def tree(self) -> dict[str, Any]:
        return {"run_id": torch.tensor(list(self.run_id.encode()), dtype=torch.uint8)} if self.run_id else {}

    def load(self, tree: Mapping[str, Any]) -> None:
        self.run_id = bytes(tree["run_id"].tolist()).decode()
        self._loaded = True


def metric_name(name: str) -> str:
    """A name as MLflow takes it: letters, digits, spaces and _ - . : /; each part not empty."""
    return "/".join(re.sub(r"[^A-Za-z0-9_\-. :]", "_", part).strip(".") or "_" for part in name.split("/"))
