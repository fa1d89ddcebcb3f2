"""The batched engine on a GPU: `python benchmarks/gpu.py [--parts speed,accuracy,...]`.

The 34,635-parameter two-digit net, batch 128, 10 local steps; milliseconds a round, the
median of several, by the host's clock with the GPU idle before and after.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyfed import Federation, Layer, Objective, Problem, Rows
from polyfed.algorithms import algorithms
from polyfed.client.device import Device
from polyfed.core.engine import Engine
from polyfed.core.layer import Layers, Outgoing
from polyfed.data import Dataset
from polyfed.data.build import build_data, federate
from polyfed.engines.batched import Batched
from polyfed.layers.attacks import Misreport
from polyfed.models import models
from polyfed.run.plan import one_part
from polyfed.testing import open_door

FOUND: list[dict[str, Any]] = []


def say(**row: Any) -> None:
    FOUND.append(row)
    print("  ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()), flush=True)
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "gpu.json").write_text(json.dumps(FOUND, indent=1))


def problem(dropout: float = 0.0) -> Problem:
    x = np.zeros((1, 1, 28, 28), dtype=np.float32)
    targets = {name: np.full(1, 9) for name in ("left", "right")}
    objectives = tuple(Objective(name, "cross-entropy") for name in targets)
    torch.manual_seed(0)
    return Problem(models["two-digit-net"](Dataset(x, targets, objectives), dropout=dropout), objectives)


def federation(clients: int, rows: int = 640) -> Federation:
    g = torch.Generator().manual_seed(0)
    n = min(clients * rows, 70_000)
    order = np.arange(n)
    start = (np.arange(clients) * rows) % n
    x = torch.rand(n, 1, 28, 28, generator=g)
    y = {name: torch.randint(0, 10, (n,), generator=g) for name in ("left", "right")}
    return Federation.from_arrays(x, y, clients=Rows(order, start, np.full(clients, rows)))


def milliseconds(run: Callable[[int], object], times: int, warm: int = 3) -> float:
    settled: Callable[[], object] = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    seconds = []
    for t in range(warm + times):
        settled()
        start = time.perf_counter()
        run(t + 1)
        settled()
        seconds.append(time.perf_counter() - start)
    return 1e3 * statistics.median(seconds[warm:])


def rounds(engine: Engine, p: Problem, clients: int, name: str = "fedavg", **settings: Any) -> Callable[[int], None]:
    door = open_door(p, engine.parts[""].federation, engine, cohort=clients)
    algorithm = algorithms[name](lr=0.1, local_steps=10, batch_size=128, **settings)
    state = algorithm.init(p)

    def one(t: int) -> None:
        nonlocal state
        door.begin(t)
        state, _ = algorithm.round(t, state, door)

    return one


def speed(sizes: list[int]) -> None:
    p = problem()
    for clients in sizes:
        f = federation(clients)
        times = 20 if clients <= 100 else 5
        for tf32 in (True, False):
            engine = Batched(one_part(p, f), Layers(), tf32=tf32)
            start = time.perf_counter()
            one = rounds(engine, p, clients)
            one(1)
            first = time.perf_counter() - start
            ms = milliseconds(one, times)
            say(part="fedavg", clients=clients, tf32=tf32, ms=ms, first_round_s=first)
            if tf32 and clients == 100:
                ms2 = milliseconds(rounds(engine, p, clients, "fedcmoo"), times)
                ms1 = milliseconds(rounds(engine, p, clients, "fedcmoo", exchanges=1), times)
                say(part="fedcmoo / fedavg", clients=clients, two=ms2 / ms, one=ms1 / ms)
            del engine, one
            torch.cuda.empty_cache()


def pooled(sizes: list[int]) -> None:
    """Convolution, ReLU and pooling as one kernel or as three layers, TF32."""
    import importlib

    stacked: Any = importlib.import_module("polyfed.engines.batched.stacked")
    can = stacked.can_pool
    p = problem()
    for clients in sizes:
        f = federation(clients)
        for fused in (True, False):
            stacked.can_pool = can if fused else lambda device: False
            engine = Batched(one_part(p, f), Layers(), tf32=True)
            ms = milliseconds(rounds(engine, p, clients), 10 if clients <= 100 else 4)
            say(part="pooled", clients=clients, fused=fused, ms=ms)
            engine.close()
            torch._dynamo.reset()
    stacked.can_pool = can


def profile(clients: int = 100) -> None:
    """Which kernels a round's time goes to."""
    p = problem()
    one = rounds(Batched(one_part(p, federation(clients)), Layers(), tf32=True), p, clients)
    for t in range(3):
        one(t + 1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for t in range(3):
            one(t + 4)
        torch.cuda.synchronize()
    kernels = sorted(found.key_averages(), key=lambda k: -k.device_time_total)
    for k in kernels[:20]:
        say(part="kernel", ms=k.device_time_total / 3e3, launches=k.count // 3, name=k.key[:90])
    say(
        part="all kernels",
        ms=sum(k.device_time_total for k in kernels) / 3e3,
        launches=sum(k.count for k in kernels) // 3,
    )


LAYERS = [  # images, channels, size, out, window, padding
    (64, 1, 28, 10, 5, 0), (64, 3, 32, 64, 5, 0), (64, 10, 12, 20, 5, 0), (64, 16, 14, 32, 3, 1),
    (64, 32, 14, 64, 3, 1), (64, 64, 16, 64, 3, 1), (32, 128, 16, 128, 3, 1),
]  # fmt: skip


def layers(clients: int = 20) -> None:
    """Which convolutions our kernels are faster for: forward, input gradient, weight gradient; and their errors."""
    import triton
    from torch.nn import functional as F

    from polyfed.client.device import precision
    from polyfed.engines.batched.kernels import convolution, convolution_triton

    def us(run: Callable[[], object]) -> float:
        return 1e3 * float(triton.testing.do_bench_cudagraph(run, rep=5))

    def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
        return float((found - wanted).norm() / wanted.norm())

    def grouped(t: torch.Tensor) -> torch.Tensor:
        return t.transpose(0, 1).flatten(1, 2).contiguous()

    for n, c, h, o, k, p in LAYERS:
        x, w = torch.randn(clients, n, c, h, h, device="cuda"), torch.randn(clients, o, c, k, k, device="cuda")
        b, none, pad = torch.randn(clients, o, device="cuda"), torch.zeros(clients, c, device="cuda"), [p, p]
        exact = convolution.convolve(x.double(), w.double(), b.double(), pad)
        d, mirrored = torch.randn_like(exact).float(), w.transpose(1, 2).flip(3, 4).contiguous()
        images, weights, many = grouped(x), w.flatten(0, 1), grouped(d)

        def cudnn(*wanted: bool, at: Any = (many, images, weights), sizes: Any = ([clients * o], pad)) -> float:
            return us(
                lambda: torch.ops.aten.convolution_backward(
                    *at, sizes[0], [1, 1], sizes[1], [1, 1], False, [0, 0], clients, wanted
                )
            )

        with precision(tf32=True):
            forward = us(lambda: F.conv2d(images, weights, b.flatten(), padding=pad, groups=clients))  # noqa: B023
            theirs = forward, cudnn(True, False, False), cudnn(False, True, True)
            ours = (
                us(lambda: convolution_triton.convolve(x, w, b, pad)),  # noqa: B023
                us(lambda: convolution_triton.convolve(d, mirrored, none, [k - 1 - p] * 2)),  # noqa: B023
                us(lambda: convolution_triton.weight_grad(x, d, [k, k], pad)),  # noqa: B023
            )
            rounded = error(convolution_triton.convolve(x, w, b, pad), exact)
        with precision(tf32=False):
            full = error(convolution_triton.convolve(x, w, b, pad), exact)
        times = {"cudnn_us": [round(t) for t in theirs], "ours_us": [round(t) for t in ours]}
        say(part="layer", shape=(n, c, h, o, k, p), **times, error_tf32=rounded, error=full)


WIDE = [(40, 32, 32, 14, 64, 5), (10, 32, 64, 32, 64, 3), (10, 32, 128, 16, 128, 3), (10, 32, 256, 8, 256, 3),
        (10, 32, 512, 4, 512, 3)]  # clients, images, channels, size, out, window  # fmt: skip


def wide() -> None:
    """Wide convolutions, TF32 and bfloat16: cuDNN's grouped ones with channels last, and windows gathered on the fly;
    forward, input gradient, weight gradient, and the error of the forward pass and the weight gradient."""
    import triton

    from polyfed.client.device import precision
    from polyfed.engines.batched.kernels import wide as operators
    from polyfed.engines.batched.kernels import wide_triton

    def us(run: Callable[[], object]) -> float:
        return 1e3 * float(triton.testing.do_bench_cudagraph(run, rep=5))

    def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
        return float((found - wanted).norm() / wanted.norm())

    for g, n, c, h, o, k in WIDE:
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(g, n, h + k - 1, h + k - 1, c, device="cuda", dtype=dtype)
            w = torch.randn(g, o, k, k, c, device="cuda", dtype=dtype)
            d = torch.randn(g, n, h, h, o, device="cuda", dtype=dtype)
            around = operators._around(d, x.shape[2:4], [k, k], 1, [0, 0])
            last = torch.channels_last
            images = x.permute(1, 0, 4, 2, 3).flatten(1, 2).contiguous(memory_format=last)
            weights = w.permute(0, 1, 4, 2, 3).flatten(0, 1).contiguous(memory_format=last)
            many = d.permute(1, 0, 4, 2, 3).flatten(1, 2).contiguous(memory_format=last)
            back = partial(torch.ops.aten.convolution_backward, many, images, weights, None, [1, 1], [0, 0], [1, 1],
                           False, [0, 0], g)  # fmt: skip
            with precision(tf32=True):
                theirs = [us(partial(torch.conv2d, images, weights, groups=g)), us(partial(back, [True, False, False])),
                          us(partial(back, [False, True, False]))]  # fmt: skip
                turned = partial(operators.windows_times, around, w, 1, [0, 0], True)
                if dtype == torch.float32:  # of which the engine makes a copy
                    turned = partial(_copied, around, w)
                ours = [us(partial(wide_triton.windows_times, x, w, 1)), us(turned),
                        us(partial(wide_triton.windows_grad, x, d, [k, k], 1))]  # fmt: skip
                found = (
                    wide_triton.windows_times(x, w, 1)[:1].double(),
                    wide_triton.windows_grad(x, d, [k, k], 1)[:1].double(),
                )
            far = [t[:1].cpu().double() for t in (x, w, d)]
            exact = (
                operators.windows_times(far[0], far[1], 1, [0, 0], False),
                operators.windows_grad(far[0], far[2], [k, k], 1),
            )
            errors = [error(a.cpu(), b) for a, b in zip(found, exact, strict=True)]
            times = {"grouped_us": [round(t) for t in theirs], "ours_us": [round(t) for t in ours]}
            say(part="wide", shape=(g, n, c, h, o, k), type=str(dtype)[6:], **times, errors=errors)


def _copied(around: torch.Tensor, w: torch.Tensor) -> object:
    from polyfed.engines.batched.kernels import wide as operators

    return operators.windows_times(around, operators.mirror(w).contiguous(), 1, [0, 0], False)


def tiles() -> None:
    """Wide convolutions by the blocks that programs compute, the default first: microseconds, and the largest error.

    "copied" is the input gradient by the default, with mirrored weights that were made before.
    """
    import triton

    from polyfed.client.device import precision

    with precision(tf32=True):
        cases = [case for shape in WIDE for dtype in (torch.float32, torch.bfloat16) for case in _tiled(shape, dtype)]
        with ThreadPoolExecutor(16) as pool:  # compiling would take minutes, one after another
            list(pool.map(lambda run: run(), [run for case in cases for run in case["runs"].values()]))
        for case in cases:
            runs, wanted = case.pop("runs"), case.pop("wanted")
            us = {tile: round(1e3 * triton.testing.do_bench_cudagraph(run, rep=2), 1) for tile, run in runs.items()}
            found = (run()[:1].double() for run in runs.values())
            say(part="tiles", **case, us=us, error=max(float((f - wanted).norm() / wanted.norm()) for f in found))


def _tiled(shape: tuple[int, ...], dtype: torch.dtype) -> list[dict[str, Any]]:
    """The products of a layer: how to compute them with each tile, and what the first client's is."""
    from polyfed.engines.batched.kernels import wide as operators
    from polyfed.engines.batched.kernels import wide_triton as kernels

    g, n, c, h, o, k = shape
    sizes = (g, n, h + k - 1, h + k - 1, c), (g, o, k, k, c), (g, n, h, h, o)
    exact = [torch.randn(size, device="cuda").to(dtype) for size in sizes]
    x, w, d = (operators._nearest(t) for t in exact)
    images, weights, grads = (t[:1].double() for t in exact)
    around, far = (operators._around(t, x.shape[2:4], [k, k], 1, [k // 2] * 2) for t in (d, grads))
    out, back = (operators.windows_times(t, weights, 1, [0, 0], mir) for t, mir in ((images, False), (far, True)))
    forward = partial(kernels.windows_times, x, w, 1, False)
    mirrored = partial(kernels.windows_times, around, w, 1, True)
    copied = partial(kernels.windows_times, around, operators.mirror(w).contiguous(), 1, False)
    gradient = partial(kernels.windows_grad, x, d, [k, k], 1)
    products = {
        "forward": (forward, kernels.forward_tiles(o, dtype), out),
        "mirrored": (mirrored, kernels.forward_tiles(c, dtype), back),
        "copied": (copied, kernels.forward_tiles(c, dtype)[:1], back),
        "weights": (gradient, kernels.grad_tiles(o, c * k * k, dtype == torch.float32),
                    operators.windows_grad(images, grads, [k, k], 1)),
    }  # fmt: skip
    return [
        {"shape": shape, "type": str(dtype)[6:], "product": name, "wanted": wanted,
         "runs": {"x".join(map(str, tile)): partial(run, tile=tile) for tile in tried}}
        for name, (run, tried, wanted) in products.items()
    ]  # fmt: skip


HEADS = [(1280, 4, 80, 32), (64, 12, 128, 64)]  # rows of all clients, heads, words, width: modern.py's transformers


def attention() -> None:
    """Short sequences, causal, in bfloat16, microseconds of a product and of its gradient: torch's kernel, the
    product written out, and ours with several layouts; with the errors of ours."""
    import triton

    from polyfed.engines.batched.kernels import attention as operators
    from polyfed.engines.batched.kernels import attention_triton as kernels

    def us(run: Callable[[], object]) -> float:
        return round(1e3 * float(triton.testing.do_bench_cudagraph(run, rep=4)), 1)

    forward = [kernels.Tile(*tile) for tile in ((128, 8), (64, 4))]
    backward = [kernels.Tile(*tile) for tile in ((64, 8), (32, 4), (128, 8))]
    theirs: dict[str, Any] = {"torchs": operators._torchs, "written_out": _written_out}
    attend: Any = kernels.attend
    attend_grad: Any = kernels.attend_grad
    for n, h, t, width in HEADS:
        qkv: Any = torch.randn(n, t, 3, h, width, device="cuda", dtype=torch.bfloat16).permute(2, 0, 3, 1, 4)
        d = torch.randn(n, t, h, width, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        own: Any = [x.detach().requires_grad_() for x in qkv]
        how: Any = True, width**-0.5
        out, found = operators._by_words(d), tuple(operators._by_words(d) for _ in range(3))
        ours = {f"forward {tuple(x)}": partial(attend, *qkv, None, out, *how, tile=x) for x in forward}
        ours |= {f"backward {tuple(x)}": partial(attend_grad, *qkv, None, d, found, *how, tile=x) for x in backward}
        row: dict[str, Any] = {"part": "attention", "shape": (n, h, t, width)}
        with ThreadPoolExecutor(16) as pool:  # compiling takes long, one after another
            list(pool.map(lambda run: run(), ours.values()))
        for name, product in theirs.items():
            made = product(*own, None, *how, False)
            back = partial(torch.autograd.grad, made, own, d, retain_graph=True)  # which no graph records here
            run = partial(product, *own, None, *how, False)
            row[name] = us(run), round(1e3 * triton.testing.do_bench(back), 1)
        exact: Any = [x[:8].double().requires_grad_() for x in qkv]
        right = _written_out(*exact, None, *how, False)
        wanted = right, *torch.autograd.grad(right, exact, d[:8].double())
        seen = operators.attend_whole(*qkv, None, *how), *operators.attend_whole_grad(*qkv, None, d, *how)
        row["errors"] = [
            round(float((a[:8].double() - b).norm() / b.norm()), 6) for a, b in zip(seen, wanted, strict=True)
        ]
        say(**row, **{name: us(run) for name, run in ours.items()})


def _written_out(*given: Any) -> torch.Tensor:
    from polyfed.engines.batched.kernels.attention import _written_out as product

    q, k, v, mask, causal, scale, gqa = given
    return product(q, k, v, mask, 0.0, causal, scale, gqa)


def eager_loop(clients: int = 10) -> None:
    """A plain PyTorch loop on the GPU: what other simulators do."""
    p = problem()
    model = p.model.cuda()
    f = federation(clients)
    x, y = f.x.cuda(), {n: t.cuda() for n, t in f.targets.items()}
    start = {n: v.clone() for n, v in model.state_dict().items()}

    def one(t: int) -> None:
        for c in range(clients):
            model.load_state_dict(start)
            optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
            rows = torch.from_numpy(f.rows("train", c)).cuda()
            for i in range(10):
                batch = rows[(i % 5) * 128 : (i % 5 + 1) * 128]
                optimiser.zero_grad()
                out = model(x[batch])
                loss: Any = sum(torch.nn.functional.cross_entropy(out[n], y[n][batch]) for n in y)
                loss.backward()
                optimiser.step()

    say(part="eager loop on the GPU", clients=clients, ms=milliseconds(one, 3, 1))


def eager() -> None:
    for clients in (10, 100):
        eager_loop(clients)


def floors() -> None:
    a = torch.empty(1 << 30, dtype=torch.float32, device="cuda")
    b = torch.empty_like(a)
    ms = milliseconds(lambda t: b.copy_(a), 10)
    say(part="copy", terabytes_a_second=2 * a.numel() * 4 / ms / 1e9)
    m = torch.randn(8192, 8192, device="cuda")
    for tf32 in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        ms = milliseconds(lambda t: m @ m, 10)
        say(part="matmul", tf32=tf32, teraflops=2 * 8192**3 / ms / 1e9)
    torch.backends.cuda.matmul.allow_tf32 = False


def huge() -> None:
    p, clients = problem(), 10_000
    engine = Batched(one_part(p, federation(clients)), Layers(), tf32=True)
    torch.cuda.reset_peak_memory_stats()
    ms = milliseconds(rounds(engine, p, clients), 1, 1)
    say(part="10,000 clients", ms=ms, peak_gb=torch.cuda.max_memory_allocated() / 1e9)


def accuracy(rounds_: int = 100) -> None:
    """MultiMNIST with and without TF32, dropout and rotation on."""
    from polyfed import train
    from polyfed.data.build import build_data

    dataset, f, _ = build_data(
        {"name": "multimnist", "clients": 100, "partition": "dirichlet", "alpha": 0.3, "rotate": 25}, seed=0
    )
    for name, settings, tf32 in (
        ("fedcmoo", {"lr": 0.5, "server_lr": 1.2}, False),
        ("fedcmoo", {"lr": 0.5, "server_lr": 1.2}, True),
        ("fsmgda", {"lr": 0.1, "server_lr": 2.0}, False),
        ("fsmgda", {"lr": 0.1, "server_lr": 2.0}, True),
    ):
        for seed in (0, 1):
            torch.manual_seed(seed)
            p = Problem(models["two-digit-net"](dataset), dataset.objectives)
            algorithm = algorithms[name](local_steps=10, batch_size=128, **settings)
            start = time.perf_counter()
            engine = {"name": "batched", "tf32": tf32}
            result = train(p, f, algorithm, rounds=rounds_, cohort=10, seed=seed, engine=engine, evaluate={"every": 50})
            found = {k: 100 * v["accuracy"] for k, v in result.summary["objectives"].items()}
            say(part="multimnist", method=name, tf32=tf32, seed=seed, **found, took=time.perf_counter() - start)


class Clip(Layer):
    """Updates of at most this norm."""

    def __init__(self, norm: float) -> None:
        self.norm = norm

    def reply(self, out: Outgoing) -> Mapping[str, Any]:
        found = {name: out.arrays[name] for name in out.named("update")}
        return {**out.arrays, **{n: a * torch.clamp(self.norm / a.norm(), max=1.0) for n, a in found.items()}}


def guarded(clients: int = 100, rows: int = 640, times: int = 20, device: Device = "auto") -> None:
    """What clips and an attacker cost (wanted: at most 1.15 times the plain round)."""
    p, f = problem(), federation(clients, rows)
    clip, attack = Clip(1.0), Misreport(clients=[1], factor=3.0)
    cases: dict[str, tuple[tuple[Layer, ...], dict[str, Any]]] = {
        "plain": ((), {}), "clip of steps": ((), {"clip": 1.0}), "clip of replies": ((clip,), {}),
        "clips and an attacker": ((attack, clip), {"clip": 1.0}),
    }  # fmt: skip
    plain = 0.0
    for name, (listed, settings) in cases.items():
        engine = Batched(one_part(p, f), Layers(listed), tf32=True, device=device)
        ms = milliseconds(rounds(engine, p, clients, **settings), times)
        plain = plain or ms
        say(part="guarded", what=name, clients=clients, ms=ms, ratio=ms / plain)
        engine.close()


def digits(rows: int) -> Dataset:
    """Two of ten made glyphs in an image, moved by up to four pixels, in noise; a fifth more for the test."""
    rng, n = np.random.default_rng(0), rows + rows // 5
    glyphs = rng.normal(size=(10, 5, 5)).repeat(3, 1).repeat(3, 2)
    labels, moves = rng.integers(0, 10, (2, n)), rng.integers(0, 5, (2, n, 2))
    x = rng.normal(scale=2.0, size=(n, 1, 28, 28)).astype(np.float32)
    for i in range(n):
        for which, begin in ((0, 0), (1, 9)):
            top, left = begin + moves[which, i]
            x[i, 0, top : top + 15, left : left + 15] += glyphs[labels[which, i]]
    targets = {"left": labels[0], "right": labels[1]}
    return Dataset(x, targets, tuple(Objective(name, "cross-entropy") for name in targets), train=rows)


def experiment(rows: int, clients: int) -> tuple[Dataset, Federation]:
    """MultiMNIST where POLYFED_DATA says where MNIST is, else made digits."""
    if "POLYFED_DATA" in os.environ:
        table = {"name": "multimnist", "clients": clients, "partition": "dirichlet", "alpha": 0.3}
        return build_data(table, seed=0)[:2]
    dataset = digits(rows)
    each = rows // clients
    return dataset, federate(dataset, Rows(np.arange(rows), np.arange(clients) * each, np.full(clients, each)))


def tf32(clients: int = 100, rows: int = 64_000, times: int = 300, seeds: int = 5, device: Device = "auto") -> None:
    """Final accuracies with float32, TF32 and bfloat16, each seed's from the same beginning and with the same draws.

    FedAvg without dropout, ten clients a round, a step size that falls to zero.
    """
    dataset, f = experiment(rows, clients)
    exact: list[float] = []
    for name, rounded, autocast in (("float32", False, False), ("tf32", True, False), ("bf16", True, True)):

        def begun(seed: int, autocast: bool = autocast) -> Problem:
            torch.manual_seed(seed)
            return Problem(models["two-digit-net"](dataset, dropout=0.0), dataset.objectives, autocast=autocast)

        start = time.perf_counter()
        engine = Batched(one_part(begun(0), f), Layers(), tf32=rounded, device=device)
        found = [_trained(engine, begun(seed), dataset, seed, times) for seed in range(seeds)]
        exact = exact or found
        apart = [a - b for a, b in zip(found, exact, strict=True)]
        say(
            part="tf32", products=name, accuracy=statistics.mean(found), spread=statistics.stdev(found),
            beside_float32=statistics.mean(apart), spread_of_that=statistics.stdev(apart),
            each=[round(a, 2) for a in found], took=time.perf_counter() - start,
        )  # fmt: skip
        engine.close()


def _trained(engine: Batched, p: Problem, dataset: Dataset, seed: int, times: int) -> float:
    """The accuracy after so many rounds, in per cent, the mean of both digits; measured in float32."""
    door = open_door(p, engine.parts[""].federation, engine, seed=seed, cohort=10, rounds=times)
    algorithm = algorithms["fedavg"](lr={"rule": "cosine", "start": 0.1}, local_steps=10, batch_size=128)
    state = algorithm.init(p)
    for t in range(1, times + 1):
        door.begin(t)
        state, _ = algorithm.round(t, state, door)
    model = p.replica(engine.device).eval()
    model.load_state_dict(p.state_dict(state["x"].to(engine.device), state["buffers"].to(engine.device)))
    prepare: Callable[[Any], Any] = dataset.prepare or (lambda x: x)
    x: Any = dataset.x
    with torch.no_grad():
        out = model(prepare(torch.as_tensor(x[dataset.rows :]).to(engine.device)))
    right = [
        (out[name].argmax(1).cpu().numpy() == target[dataset.rows :]).mean() for name, target in dataset.targets.items()
    ]
    return 100 * float(np.mean(right))


def modern(names: list[str]) -> None:
    """Models of today, as `modern.py` has them: how far a round is from `local`'s, and what it takes."""
    sys.modules.setdefault("gpu", sys.modules[__name__])  # this file, which `modern` imports from, is not run twice
    import modern as today

    for name in names or today.CASES:
        case = today.CASES[name]
        timed = [partial(today.timed, name, case, bf16) for bf16 in (True, False)]
        for part in (partial(today.agreement, name, case), *timed):
            try:
                part()
            except Exception as error:  # one case that fails should not take the others along
                say(part="modern", case=name, failed=f"{type(error).__name__}: {str(error)[:300]}")
            torch._dynamo.reset()
            gc.collect()
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--parts", default="floors,eager,speed,pooled,profile,layers,wide,tiles,attention,huge,guarded,tf32,accuracy"
    )
    parser.add_argument("--sizes", default="10,100,1000")
    parser.add_argument("--cases", default="", help="of the part 'modern'; all of them if not given")
    asked = parser.parse_args()
    print(torch.cuda.get_device_name(), torch.__version__)
    parts: dict[str, Callable[[], object]] = {
        "floors": floors, "eager": eager, "profile": profile, "layers": layers, "wide": wide, "huge": huge,
        "tiles": tiles, "accuracy": accuracy, "attention": attention,
        "speed": lambda: speed([int(s) for s in asked.sizes.split(",")]), "guarded": guarded, "tf32": tf32,
        "pooled": lambda: pooled([int(s) for s in asked.sizes.split(",")]),
        "modern": lambda: modern([name for name in asked.cases.split(",") if name]),
    }  # fmt: skip
    for part in asked.parts.split(","):
        try:
            parts[part]()
        except Exception as error:
            say(part=part, failed=f"{type(error).__name__}: {str(error)[:2000]}")


if __name__ == "__main__":
    main()
