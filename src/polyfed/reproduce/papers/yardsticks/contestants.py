"""FedAvg by polyfed, pfl-research, Flower and a plain loop: the same network, data, clients and steps.

Each is run as a process of its own, `python contestants.py polyfed WORK.pt`, as pfl needs an environment of its own:
this file imports nothing of polyfed but in polyfed's own function. WORK.pt is a dict that `torch.load` reads: x, y,
the clients' lengths (their rows lie one after another), test_x, test_y, and how to train, with the cohort of each
round: clients' sizes differ, so that other cohorts would be other work. Flower alone draws its own. The last line is
{"seconds": of the rounds, "cpu": processor seconds of the rounds or null, "accuracy": on the test rows, in percent}.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import time
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def network(kind: str, seed: int) -> nn.Module:
    """The model: 'logistic' as FedML and FLUTE have it, 'cnn' as pfl's benchmark has it.

    Args:
        kind: which.
        seed: of its weights.
    """
    torch.manual_seed(seed)
    if kind == "logistic":  # FLUTE feeds the sigmoid to a softmax, and so does everybody here
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.Sigmoid())
    made = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(14 * 14 * 64, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip
    for module in made:
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
    return made


class Work:
    """What is to be done, read from its file; tensors on the device.

    Args:
        path: of the file.
        device: where.
        rounds: how many, if other than the file says.
    """

    def __init__(self, path: str, device: str, rounds: int = 0) -> None:
        table = torch.load(path, map_location=device, weights_only=True)
        self.x, self.y, self.test_x, self.test_y = (table[key] for key in ("x", "y", "test_x", "test_y"))
        self.lengths: list[int] = table["lengths"]
        self.starts = [sum(self.lengths[:c]) for c in range(len(self.lengths))]
        self.how: dict[str, Any] = table["how"]
        self.how["rounds"] = rounds or self.how["rounds"]

    def rows(self, client: int) -> slice:
        """A client's rows."""
        return slice(self.starts[client], self.starts[client] + self.lengths[client])

    def model(self) -> nn.Module:
        """The model at the start."""
        return network(self.how["network"], self.how["seed"]).to(self.x.device)

    def accuracy(self, model: nn.Module) -> float:
        """In percent, over the test rows."""
        model.eval().to(self.x.device)
        with torch.no_grad():
            pieces = zip(self.test_x.split(1000), self.test_y.split(1000), strict=True)
            right = sum(int((model(x).argmax(1) == y).sum()) for x, y in pieces)
        return 100 * right / len(self.test_y)


def device() -> str:
    """The GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def local_steps(model: nn.Module, x: Tensor, y: Tensor, how: dict[str, Any]) -> None:
    """One pass of plain SGD over a client's rows.

    Args:
        model: is changed.
        x, y: the rows.
        how: batch and lr.
    """
    optimiser = torch.optim.SGD(model.parameters(), lr=how["lr"])
    model.train()
    for batch in torch.split(torch.randperm(len(x), device=x.device), how["batch"]):
        optimiser.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(x[batch]), y[batch]))
        optimiser.step()


class Clock:
    """Wall and processor seconds since it was made; the latter of this process and its ended children."""

    def __init__(self) -> None:
        self.began = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        spent = os.times()
        return time.perf_counter(), time.process_time() + spent.children_user + spent.children_system

    def read(self) -> tuple[float, float | None]:
        """Both, once the GPU has done its work."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        (a, b), (wall, cpu) = self.began, self._now()
        return wall - a, cpu - b


Took = tuple[tuple[float, float | None], nn.Module]

# -- the contestants: each returns the seconds of the rounds, and the model


def loop(path: str, processes: int, rounds: int = 0) -> Took:
    """A plain loop over the clients, as one writes it by hand."""
    work = Work(path, device(), rounds)
    how, model = work.how, work.model()
    clock = Clock()
    for cohort in how["cohorts"][: how["rounds"]]:
        start = {name: value.clone() for name, value in model.state_dict().items()}
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        whole = sum(work.lengths[c] for c in cohort)
        for client in cohort:
            model.load_state_dict(start)
            local_steps(model, work.x[work.rows(client)], work.y[work.rows(client)], how)
            for name, value in model.state_dict().items():
                total[name] += value * (work.lengths[client] / whole)
        model.load_state_dict(total)
    return clock.read(), model


def polyfed(path: str, processes: int, rounds: int = 0) -> Took:
    """polyfed; `engine` is its own of the work's settings, or what it finds fastest."""
    from polyfed import FedAvg, Federation, Objective, Problem, train

    work = Work(path, "cpu", rounds)
    how = work.how
    owners = [range(rows.start, rows.stop) for rows in map(work.rows, range(len(work.lengths)))]
    few = (work.test_x[:10], {"y": work.test_y[:10]})  # nobody else evaluates while the clock runs
    federation = Federation.from_arrays(work.x, {"y": work.y}, clients=owners, test=few)
    problem = Problem(network(how["network"], how["seed"]), [Objective("y", "cross-entropy")])
    algorithm = FedAvg(lr=how["lr"], local_epochs=1, batch_size=how["batch"], weighting_by="size")
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock()
        result = train(
            problem, federation, algorithm, rounds=how["rounds"], cohort=how["cohort"], seed=how["seed"],
            engine=how.get("engine", "auto"), evaluate={"every": how["rounds"]}, check_rows=False,
            out=Path(folder) / "run",
        )  # fmt: skip
        took = clock.read()
    assert [line["cohort"] for line in result.history] == how["cohorts"][: how["rounds"]]
    return took, result.model


def pfl(path: str, processes: int, rounds: int = 0) -> Took:
    """pfl-research in one process, as its own benchmark has it: clients' rows lie on the device."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel

    work = Work(path, device(), rounds)
    how = work.how

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = work.model()

        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            self.train()
            return F.cross_entropy(self.body(x), y)

        def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
            return {"loss": Weighted(float(self.loss(x, y)) * len(x), len(x))}

    def of(client: int) -> Any:
        rows = work.rows(client)
        order = torch.randperm(work.lengths[client], device=work.x.device)
        return PyTorchTensorDataset((work.x[rows][order], work.y[rows][order]), user_id=str(client))

    data = FederatedDataset(of, chain.from_iterable(how["cohorts"]).__next__)
    net = Net().to(work.x.device)
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()])
    parameters = NNAlgorithmParams(
        central_num_iterations=how["rounds"], evaluation_frequency=10**9, train_cohort_size=how["cohort"],
        val_cohort_size=None,
    )  # fmt: skip
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=how["lr"], local_batch_size=how["batch"])
    clock = Clock()
    FederatedAveraging().run(parameters, backend, model, local)
    return clock.read(), net.body


@cache
def _kept(path: str) -> Work:
    """The work in a Flower worker: read once a process."""
    torch.set_num_threads(1)
    return Work(path, device())


def flower(path: str, processes: int, rounds: int = 0) -> Took:
    """Flower's simulation with Ray: as many clients at a time as there are cores. Its clock starts after its start."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    table = torch.load(path, map_location="cpu", weights_only=True)
    how, clients = table["how"], len(table["lengths"])
    client_app, server_app = ClientApp(), ServerApp()
    folder, out = str(Path(__file__).parent), Path(tempfile.mkdtemp())

    @client_app.train()
    def fit(message: Message, context: Context) -> Message:
        sys.path.insert(0, folder)  # a worker has this function, and not what it calls
        contestants = importlib.import_module("contestants")
        work = contestants._kept(path)
        client = int(context.node_config["partition-id"])
        model, arrays = work.model(), message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        model.load_state_dict(arrays.to_torch_state_dict())
        contestants.local_steps(model, work.x[work.rows(client)], work.y[work.rows(client)], how)
        metrics = MetricRecord({"num-examples": work.lengths[client]})
        content = RecordDict({"arrays": ArrayRecord(model.cpu().state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        share = how["cohort"] / clients
        strategy = FedAvg(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=clients)
        start = ArrayRecord(network(how["network"], how["seed"]).state_dict())
        clock = Clock()
        result = strategy.start(grid=grid, initial_arrays=start, num_rounds=how["rounds"])
        torch.save({"seconds": clock.read()[0], "model": result.arrays.to_torch_state_dict()}, out / "model.pt")

    gpus = 1 / processes if device() == "cuda" else 0.0
    run_simulation(
        server_app, client_app, num_supernodes=clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": gpus}, "init_args": {"num_cpus": processes},
        },
    )  # fmt: skip
    found = torch.load(out / "model.pt", weights_only=True)
    model = network(how["network"], how["seed"])
    model.load_state_dict(found["model"])
    return (float(found["seconds"]), None), model  # Ray's processes are not this one's children


CONTESTANTS = {"loop": loop, "polyfed": polyfed, "pfl": pfl, "flower": flower}


def main() -> None:
    """Run one, and print what it came to."""
    name, path = sys.argv[1:]
    processes = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(1)
    torch.manual_seed(1 + torch.load(path, map_location="cpu", weights_only=True)["how"]["seed"])
    if name != "flower":
        CONTESTANTS[name](path, processes, 1)  # what is imported at the first use is start-up, and no round's time
    (seconds, cpu), model = CONTESTANTS[name](path, processes)
    accuracy = Work(path, device()).accuracy(model)
    print(json.dumps({"seconds": seconds, "cpu": cpu, "accuracy": accuracy}))


if __name__ == "__main__":
    main()
