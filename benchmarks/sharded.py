"""`batched` over several GPUs, or over one that is split: `python benchmarks/sharded.py [--clients 100] [--devices 2]`.

What matters is how long the host needs to start a stretch of the cohort, beside what a GPU needs to work on it: only as
many GPUs as the one goes into the other can be at work at once. Model and milliseconds as in `gpu.py`.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from gpu import federation, milliseconds, problem, rounds, say
from polyfed.core.layer import Layers
from polyfed.core.messages import Request
from polyfed.engines.batched import Batched
from polyfed.run.plan import one_part


def starting(engine: Batched, clients: int) -> tuple[float, float]:
    """Milliseconds until a training of some clients is started, and until it is done."""
    start = {**problem().initial(), "omega": torch.ones(2)}
    begun, done = [], []
    for t in range(1, 14):
        request = Request("sgd", start, options={"lr": 0.1, "steps": 10, "batch_size": 128}, round=t)
        torch.cuda.synchronize()
        before = time.perf_counter()
        _ = list(engine.started(range(clients), request))
        begun.append(time.perf_counter() - before)
        torch.cuda.synchronize()
        done.append(time.perf_counter() - before)
    return 1e3 * statistics.median(begun[3:]), 1e3 * statistics.median(done[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--devices", type=int, default=2)
    asked = parser.parse_args()
    p, f = problem(), federation(asked.clients)
    for devices in (1, asked.devices):
        engine = Batched(one_part(p, f), Layers(), tf32=True, devices=devices)
        before = time.perf_counter()
        one = rounds(engine, p, asked.clients)
        one(1)
        first = time.perf_counter() - before
        say(part="fedavg", devices=devices, clients=asked.clients, ms=milliseconds(one, 20), first_round_s=first)
    begun, done = starting(engine, -(-asked.clients // asked.devices))
    say(part="a stretch", clients=-(-asked.clients // asked.devices), started_ms=begun, done_ms=done, gpus=done / begun)


if __name__ == "__main__":
    main()
