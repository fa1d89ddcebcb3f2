"""Gram error against upload, for every compressor, on a ResNet-18 with 40 objectives and 10 non-iid clients.

`POLYFED_DATA=... python benchmarks/gram.py [--device cuda]`. The images are MNIST's digits on three channels of 32x32;
the 40 binary objectives are the ten digits and the brightness of 30 cells against its median; a client has two digits.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad

from polyfed import Objective, Problem
from polyfed.compress import compressors
from polyfed.data import Dataset, datasets
from polyfed.metrics import nrmse
from polyfed.models import models
from polyfed.weights import min_norm

CLIENTS, BATCH, M = 10, 128, 40


def examples() -> tuple[Tensor, Tensor, np.ndarray]:
    mnist = datasets["mnist"]()
    x = torch.from_numpy(np.array(mnist.x[:20_000])).float() / 255
    digits = np.asarray(next(iter(mnist.targets.values())))[:20_000].astype(int)
    cells = torch.nn.functional.adaptive_avg_pool2d(x, (5, 6)).reshape(len(x), -1)
    bright = (cells > cells.median(0).values).float()
    one_hot = torch.nn.functional.one_hot(torch.from_numpy(digits), 10).float()
    images = torch.nn.functional.pad(x, (2, 2, 2, 2)).expand(-1, 3, -1, -1)
    return images, torch.cat([one_hot, bright], 1), digits


def jacobians(device: str) -> tuple[Problem, list[Tensor]]:
    """H_i (M, d) of every client at the initial model, over the shared parameters."""
    x, targets, digits = examples()
    names = [f"a{k}" for k in range(M)]
    dataset = Dataset(
        x[:1].contiguous().numpy(), {n: np.zeros(1) for n in names}, tuple(Objective(n, "binary") for n in names)
    )
    torch.manual_seed(0)
    problem = Problem(models["resnet18"](dataset), dataset.objectives)
    model, x0 = problem.model.to(device), problem.initial()["x"].to(device)
    shared = problem.parts["shared"].to(device)
    rng = np.random.default_rng(0)
    found = []
    for c in range(CLIENTS):
        rows = rng.choice(np.flatnonzero((digits == c) | (digits == (c + 1) % 10)), BATCH, replace=False)
        bx, by = x[rows].contiguous().to(device), targets[rows].to(device)

        def loss(v: Tensor, k: int, bx: Tensor = bx, by: Tensor = by) -> Tensor:
            out = functional_call(model, problem.split(v), (bx,))[names[k]].reshape(-1)
            return torch.nn.functional.binary_cross_entropy_with_logits(out, by[:, k])

        found.append(torch.stack([grad(loss)(x0, k)[shared] for k in range(M)]).detach())
    return problem, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    device = parser.parse_args().device
    _, H = jacobians(device)
    d = H[0].shape[1]
    mean: Any = sum(H) / CLIENTS
    exact = (mean @ mean.T).double().cpu().numpy()
    best = min_norm(exact)
    print(f"ResNet-18, {d:,} shared parameters, {M} objectives, {CLIENTS} clients, on {device}")
    print(f"{'compressor':14} {'upload / model':>14} {'Gram error':>10} {'direction':>10} {'seconds':>8}")
    rows: list[tuple[str, dict[str, Any]]] = [
        ("exact", {}), *(("sketch", {"width": w}) for w in (256, 1024, 4096, d // M)), ("rand-svd", {"budget": 1.0}),
        ("top-k", {"budget": 1.0}), ("random-mask", {"budget": 1.0}), ("client-grams", {}),
    ]  # fmt: skip
    for name, settings in rows:
        compressor = compressors[name](**settings)
        compressor.reply(M, d)  # refuses what does not fit
        start, total, upload = time.perf_counter(), None, 0
        for i, h in enumerate(H):
            sent = compressor.encode(h, (7, 100 + i))
            upload = sum(a.numel() * a.element_size() for a in sent.values())
            lifted = compressor.lift({n: a.unsqueeze(0) for n, a in sent.items()}, [(7, 100 + i)], M, d)[0]
            total = lifted if total is None else total + lifted
        assert total is not None
        gram = compressor.gram(total, torch.full((M,), float(CLIENTS), device=total.device)).cpu().numpy()
        seconds = (time.perf_counter() - start) / CLIENTS
        w = min_norm(gram)
        longer = np.sqrt((w @ exact @ w) / (best @ exact @ best)) - 1
        label = f"{name} {settings['width']}" if "width" in settings else name
        error = nrmse(exact, gram)
        print(f"{label:14} {upload / (4 * d):>13.2%} {error:>10.2%} {longer:>10.2%} {seconds:>8.3f}", flush=True)


if __name__ == "__main__":
    main()
