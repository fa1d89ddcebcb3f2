"""The same FedAvg on polyfed, pfl-research and Flower's Ray simulation, each in a process of its own.

    python -m venv pfl && pfl/bin/pip install torch==2.13.0 pfl==0.6.0      # cannot share an environment with Flower
    python benchmarks/peers.py --pfl pfl/bin/python                         # about five minutes on two cores

20 clients of 1280 rows, 10 a round, one pass in batches of 128, plain SGD, uniform mean, 20 rounds, the same initial
weights, no evaluation on the way. Against pfl: processor seconds of the rounds in one process, both warm. Against
Flower: wall seconds from the start of the process to the last round, two processes each. The loss of the final model
over all rows shows that all did the same work.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

CLIENTS, ROWS, COHORT, BATCH, LR = 20, 1280, 10, 128, 0.1
SHAPES = {"mlp": (64,), "conv": (1, 28, 28)}


def network(kind: str) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    if kind == "mlp":
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    return nn.Sequential(
        nn.Conv2d(1, 10, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 15, 3), nn.MaxPool2d(2),
        nn.ReLU(), nn.Flatten(), nn.Linear(540, 50), nn.ReLU(), nn.Linear(50, 10),
    )  # fmt: skip


@cache
def rows(kind: str) -> tuple[Any, Any]:
    """All clients' rows, one after another: labels are the largest of ten linear functions."""
    import torch

    made = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS * ROWS, *SHAPES[kind], generator=made)
    return x, (x.flatten(1) @ torch.randn(x[0].numel(), 10, generator=made)).argmax(1)


def of(kind: str, client: int) -> tuple[Any, Any]:
    x, y = rows(kind)
    return x[client * ROWS : (client + 1) * ROWS], y[client * ROWS : (client + 1) * ROWS]


def final_loss(kind: str, model: Any) -> float:
    import torch
    import torch.nn.functional as F

    x, y = rows(kind)
    with torch.no_grad():
        pieces = zip(x.split(ROWS), y.split(ROWS), strict=True)
        return sum(float(F.cross_entropy(model(a), b)) for a, b in pieces) / CLIENTS


def report(kind: str, began: float, ended: tuple[float, float], model: Any) -> None:
    """Processor seconds of the rounds, when they ended, and the loss."""
    print(json.dumps({"cpu": ended[1] - began, "ended": ended[0], "loss": final_loss(kind, model)}))


def now() -> tuple[float, float]:
    """Wall clock, and processor time of this process and of its ended children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.time(), time.process_time() + children.ru_utime + children.ru_stime


# -- the contestants


def polyfed(kind: str, rounds: int, workers: int) -> None:
    import torch

    from polyfed import FedAvg, Federation, Objective, Problem, train

    torch.set_num_threads(1)
    x, y = rows(kind)
    owners = [range(c * ROWS, (c + 1) * ROWS) for c in range(CLIENTS)]
    federation = Federation.from_arrays(x, {"y": y}, clients=owners)
    problem = Problem(network(kind), [Objective("y", "cross-entropy")])
    algorithm = FedAvg(lr=LR, local_epochs=1, batch_size=BATCH, weighting_by="uniform")
    with tempfile.TemporaryDirectory() as folder:

        def run(rounds: int) -> Any:
            return train(
                problem, federation, algorithm, rounds=rounds, cohort=COHORT, out=Path(folder) / f"run-{rounds}",
                engine={"name": "local", "workers": workers}, evaluate={"every": rounds},
            )  # fmt: skip

        if workers == 1:
            run(1)  # warm, where only the rounds are compared
        began = now()[1]
        result = run(rounds)
        report(kind, began, now(), result.model)


def pfl(kind: str, rounds: int, workers: int) -> None:
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network(kind)

        def loss(self, x: Any, y: Any) -> Any:
            return torch.nn.functional.cross_entropy(self.body(x), y)

        def metrics(self, x: Any, y: Any) -> dict[str, Any]:
            return {"loss": Weighted(float(self.loss(x, y)) * len(x), len(x))}

    rows(kind)
    data = FederatedDataset(
        lambda c: PyTorchTensorDataset(of(kind, c), user_id=c), get_user_sampler("random", list(range(CLIENTS)))
    )
    net = Net()
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    start = copy.deepcopy(net.state_dict())

    def run(rounds: int) -> None:
        FederatedAveraging().run(
            NNAlgorithmParams(
                central_num_iterations=rounds,
                evaluation_frequency=10**9,
                train_cohort_size=COHORT,
                val_cohort_size=None,
            ),
            SimulatedBackend(training_data=data, val_data=data),
            model,
            NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH),
        )

    run(1)
    net.load_state_dict(start)
    began = now()[1]
    run(rounds)
    report(kind, began, now(), net.body)


def flower(kind: str, rounds: int, workers: int) -> None:
    import torch
    import torch.nn.functional as F
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client_app, server_app = ClientApp(), ServerApp()
    folder = str(Path(__file__).parent)
    kept = Path(tempfile.mkdtemp()) / "model.pt"

    @client_app.train()
    def fit(message: Message, context: Context) -> Message:
        sys.path.insert(0, folder)
        import peers

        torch.set_num_threads(1)
        x, y = peers.of(kind, int(context.node_config["partition-id"]))
        model = peers.network(kind)
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        model.load_state_dict(arrays.to_torch_state_dict())
        optimiser = torch.optim.SGD(model.parameters(), lr=LR)
        for batch in torch.split(torch.randperm(len(x)), BATCH):
            optimiser.zero_grad()
            torch.autograd.backward(F.cross_entropy(model(x[batch]), y[batch]))
            optimiser.step()
        metrics = MetricRecord({"num-examples": len(x)})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_train=COHORT / CLIENTS, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        result = strategy.start(grid=grid, initial_arrays=ArrayRecord(network(kind).state_dict()), num_rounds=rounds)
        torch.save(result.arrays.to_torch_state_dict(), kept)

    began = now()[1]
    run_simulation(
        server_app, client_app, num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": workers}},
    )  # fmt: skip
    ended = now()
    model = network(kind)
    model.load_state_dict(torch.load(kept))
    report(kind, began, ended, model)


# -- the race

CONTESTANTS = {"polyfed": polyfed, "pfl": pfl, "flower": flower}


def run(python: str, name: str, kind: str, rounds: int, workers: int) -> dict[str, float]:
    """One contestant in a fresh process: what it reports, and the wall time of all of it."""
    command = [python, __file__, "--one", name, "--net", kind, "--rounds", str(rounds), "--workers", str(workers)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    start = time.time()
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {**found, "total": found["ended"] - start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--net", choices=SHAPES, help="only this network")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2, help=argparse.SUPPRESS)
    parser.add_argument("--pfl", default=sys.executable, help="the Python that has pfl")
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args()
    if given.one:
        return CONTESTANTS[given.one](given.net, given.rounds, given.workers)
    for kind in [given.net] if given.net else SHAPES:
        for _ in range(given.times):
            us = run(sys.executable, "polyfed", kind, given.rounds, 1)
            them = run(given.pfl, "pfl", kind, given.rounds, 1)
            say(kind, "processor seconds of the rounds", "cpu", us, "pfl", them, 1.5)
        us = run(sys.executable, "polyfed", kind, given.rounds, 2)
        them = run(sys.executable, "flower", kind, given.rounds, 2)
        say(kind, "wall seconds with start-up", "total", us, "Flower", them, 2.5)
    return None


def say(kind: str, what: str, key: str, us: dict[str, float], peer: str, them: dict[str, float], wanted: float) -> None:
    print(
        f"{kind:5} {what}: polyfed {us[key]:.2f}, {peer} {them[key]:.2f}, {them[key] / us[key]:.2f} times "
        f"({wanted} wanted); final loss {us['loss']:.3f} and {them['loss']:.3f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
