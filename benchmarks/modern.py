"""Models of today on the batched engine: `python benchmarks/modern.py [--cases ...] [--loop]`, on a GPU.

FedAvg, 10 local steps, everybody in the cohort; milliseconds a round, the median of several, beside the relative
distance of a round's update from the one of `local` on the CPU in float32 (few clients and steps, TF32 off), for
FedAvg, FSMGDA and FedCMOO. first_s: seconds to the end of the first round, CUDA and the compiler being there. `--loop`
times a tuned loop, too: one client after another, compiled with mode='reduce-overhead', in bfloat16.
"""

from __future__ import annotations

import argparse
import copy
import gc
import itertools
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor, nn
from torch.nn import functional as F

from gpu import milliseconds, say
from polyfed import Federation, Objective, Problem, Rows
from polyfed.algorithms import algorithms
from polyfed.core.engine import Engine, engines
from polyfed.core.layer import Layers
from polyfed.engines.batched import Batched
from polyfed.run.plan import one_part
from polyfed.testing import open_door

# models


class Adapted(nn.Module):
    """A frozen product, and an adapter of low rank beside it."""

    def __init__(self, before: int, after: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(before, after)
        self.down, self.up = nn.Parameter(0.02 * torch.randn(before, rank)), nn.Parameter(torch.zeros(rank, after))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.base(x) + (x @ self.down) @ self.up
        return found


class Block(nn.Module):
    """A layer of a transformer, norms first."""

    def __init__(self, width: int, heads: int, rank: int) -> None:
        super().__init__()
        self.heads, self.first, self.second = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.into = Adapted(width, 3 * width, rank) if rank else nn.Linear(width, 3 * width)
        self.out, self.up, self.down = nn.Linear(width, width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        rows, words, width = h.shape
        q, k, v = self.into(self.first(h)).view(rows, words, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(seen.transpose(1, 2).reshape(rows, words, width))
        found: Tensor = h + self.down(F.gelu(self.up(self.second(h))))
        return found


class Transformer(nn.Module):
    """GPT-2's shape without a language head; with a rank, only the adapters and the head are trained."""

    def __init__(self, vocab: int, width: int, layers: int, heads: int, words: int, rank: int, classes: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocab, width), nn.Parameter(0.02 * torch.randn(words, width))
        self.layers = nn.Sequential(*(Block(width, heads, rank) for _ in range(layers)))
        self.head = nn.Linear(width, classes)
        for name, p in self.named_parameters():
            p.requires_grad_(not rank or name.endswith((".down", ".up")) or name.startswith("head."))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.layers(self.words(x) + self.places).mean(1))
        return found


class Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), norm(after), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(after, after, 3, 1, 1, bias=False), norm(after))
        same = before == after and stride == 1
        self.past = (
            nn.Identity() if same else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), norm(after))
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(self.first(x)) + self.past(x))


def resnet18(norm: Callable[[int], nn.Module]) -> nn.Module:
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2),
              (512, 512, 1)]  # fmt: skip
    begin = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), norm(64), nn.ReLU()]
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    return nn.Sequential(*begin, *(Residual(*sizes, norm) for sizes in widths), *end)


def mcmahan() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers, self.head = (
            nn.Embedding(90, 8),
            nn.LSTM(8, 256, 2, batch_first=True),
            nn.Linear(256, 90),
        )

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.layers(self.words(x))[0][:, -1])
        return found


class Rounded(torch.autograd.Function):
    """Eighths, with the gradient of what they are rounded from: an operator that vmap has no rule for."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        return (8 * t).round() / 8

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


class Odd(nn.Module):
    """The same network with what vmap refuses: rounded activations, or a look at numbers."""

    def __init__(self, looks: bool) -> None:
        super().__init__()
        self.begin, self.end, self.looks = mcmahan()[:6], mcmahan()[6:], looks

    def forward(self, x: Tensor) -> Tensor:
        h = self.begin(x)
        if self.looks:
            h = h / 2 if float(h.detach().max()) > 1e3 else h
        else:
            rounded: Any = Rounded.apply
            h = rounded(h)
        found: Tensor = self.end(h)
        return found


MOST = 40  # kernels that a profile shows
PATIENCE = 170.0  # seconds that a process waits for others, which compile


class Case(NamedTuple):
    make: Callable[[], nn.Module]
    data: Callable[[int], Tensor]
    classes: int
    clients: int
    batch: int


def tokens(words: int) -> Callable[[int], Tensor]:
    return lambda rows: torch.randint(0, 90, (rows, words))


def pictures(channels: int, size: int) -> Callable[[int], Tensor]:
    return lambda rows: torch.rand(rows, channels, size, size)


CASES: dict[str, Case] = {
    "gpt2-lora": Case(lambda: Transformer(512, 768, 12, 12, 128, 8, 10), tokens(128), 10, 16, 4),
    "gpt2-lora-64": Case(lambda: Transformer(512, 768, 12, 12, 128, 8, 10), tokens(128), 10, 64, 4),
    "small-lora": Case(lambda: Transformer(512, 128, 4, 4, 80, 8, 10), tokens(80), 10, 40, 32),
    "small-whole": Case(lambda: Transformer(90, 128, 4, 4, 80, 0, 90), tokens(80), 90, 100, 32),
    "resnet18-gn": Case(lambda: resnet18(lambda c: nn.GroupNorm(2, c)), pictures(3, 32), 10, 10, 32),
    "resnet18-bn": Case(lambda: resnet18(nn.BatchNorm2d), pictures(3, 32), 10, 10, 32),
    "mcmahan": Case(mcmahan, pictures(1, 28), 10, 40, 32),
    "mcmahan-rounded": Case(lambda: Odd(False), pictures(1, 28), 10, 40, 32),
    "mcmahan-looking": Case(lambda: Odd(True), pictures(1, 28), 10, 40, 32),
    "lstm": Case(Lstm, tokens(80), 90, 20, 10),
}


def made(case: Case, clients: int, rows: int, bf16: bool, moved: float = 0.0) -> tuple[Problem, Federation]:
    """A problem and its clients; `moved`: by which part of themselves, at random, the model's numbers are."""
    torch.manual_seed(0)
    n = clients * rows
    x, y = case.data(n), torch.randint(0, case.classes, (n,))
    federation = Federation.from_arrays(
        x, y, clients=Rows(np.arange(n), np.arange(clients) * rows, np.full(clients, rows))
    )
    model = case.make()
    with torch.no_grad():
        for p in model.parameters() if moved else ():
            p.mul_(1 + moved * torch.randn_like(p))
    return Problem(model, [Objective("y", "cross-entropy")], autocast=bf16), federation


def rounds(engine: Engine, problem: Problem, clients: int, method: str, steps: int, batch: int) -> Callable[[int], Any]:
    door = open_door(problem, engine.parts[""].federation, engine, cohort=clients)
    algorithm = algorithms[method](lr=0.05, local_steps=steps, batch_size=batch)
    state = algorithm.init(problem)

    def one(t: int) -> Any:
        nonlocal state
        door.begin(t)
        state, _ = algorithm.round(t, state, door)
        return state["x"]

    return one


@contextmanager
def alone(others: int = 0) -> Iterator[None]:
    """Inside, no other process of this script times anything: several may run at once, as they compile for long.

    others: how many more have to be this far before the first one times: what compiles may use the GPU, too.
    """
    folder = Path(tempfile.gettempdir()) / "polyfed-timing"
    folder.mkdir(exist_ok=True)
    (folder / f"{os.getpid()}.ready").touch()
    until = time.monotonic() + PATIENCE
    recent = time.time() - 2 * PATIENCE  # those of an earlier call do not count
    while sum(p.stat().st_mtime > recent for p in folder.glob("*.ready")) <= others and time.monotonic() < until:
        time.sleep(0.2)
    with FileLock(folder / "lock"):
        yield


def begin() -> None:
    """CUDA and the compiler, which take seconds to start whatever is run, are started."""
    x = torch.ones(8, device="cuda", requires_grad=True)
    torch.autograd.grad(torch.compile(lambda x: torch.sin(x) + 1)(x).sum(), x)
    torch._dynamo.reset()


def timed(name: str, case: Case, bf16: bool, kernels: bool = False, others: int = 0, **settings: Any) -> None:
    begin()
    problem, federation = made(case, case.clients, 64, bf16)
    torch.cuda.reset_peak_memory_stats()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.perf_counter()
        engine = Batched(one_part(problem, federation), Layers(), tf32=True, **settings)
        one = rounds(engine, problem, case.clients, "fedavg", 10, case.batch)
        one(1)
        first = time.perf_counter() - start
        with alone(others):
            ms = milliseconds(one, times=8, warm=2)
            if kernels:
                profile(name, bf16, one)
    said = [str(w.message)[:120] for w in caught if "client by client" in str(w.message)]
    said += [text for text in engine.choices.sentences() if "The work" in text]
    peak = torch.cuda.max_memory_allocated() / 2**30
    say(
        case=name,
        bf16=bf16,
        ms=ms,
        first_s=first,
        peak_gb=peak,
        d=problem.dim,
        **settings,
        **({"said": said} if said else {}),
    )
    engine.close()


def profile(name: str, bf16: bool, one: Callable[[int], Any]) -> None:
    """Which kernels a round's time goes to."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        one(100)
        torch.cuda.synchronize()
    kernels = sorted(found.key_averages(), key=lambda k: -k.device_time_total)
    for k in kernels[:MOST]:
        say(case=name, bf16=bf16, ms=k.device_time_total / 1e3, launches=k.count, name=k.key[:110])
    say(case=name, kernels_ms=sum(k.device_time_total for k in kernels) / 1e3, launches=sum(k.count for k in kernels))


def agreement(name: str, case: Case) -> None:
    """How far a round's update on the GPU is from that on the CPU: two clients, one or two steps of a batch of 2.

    moved: how far the CPU's own update goes where the model to begin with differs by 1e-6 of each number.
    """
    for method, steps in itertools.product(("fedavg", "fsmgda", "fedcmoo"), (1, 2)):
        exact = update(case, method, steps, "local")
        there = update(case, method, steps, "batched", tf32=False, compile=False)
        near = update(case, method, steps, "local", moved=1e-6)
        error, moved = (float((exact - other).norm() / exact.norm()) for other in (there, near))
        say(case=name, method=method, steps=steps, error=error, moved=moved)


def update(case: Case, method: str, steps: int, where: str, moved: float = 0.0, **settings: Any) -> Tensor:
    """A round's update of a small federation on an engine."""
    problem, federation = made(case, 2, 4, False, moved)
    engine = engines[where](one_part(problem, federation), Layers(), **settings)
    x: Tensor = rounds(engine, problem, 2, method, steps, 2)(1).cpu()
    engine.close()
    return x - problem.initial()["x"]


def loop(name: str, case: Case) -> None:
    """One client after another: what somebody who tunes a loop has."""
    torch.manual_seed(0)
    rows, some = 64, min(case.clients, 6)
    x, y = case.data(some * rows).cuda(), torch.randint(0, case.classes, (some * rows,)).cuda()
    model = copy.deepcopy(case.make()).cuda()
    params: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in params]

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return F.cross_entropy(model(x).float(), y)

    fast = torch.compile(loss, mode="reduce-overhead")

    def one(t: int) -> None:
        for c in range(some):
            with torch.no_grad():
                torch._foreach_copy_(params, start)
            order = torch.randperm(rows, device="cuda")
            for i in range(10):
                at = c * rows + order[torch.arange(i * case.batch, (i + 1) * case.batch, device="cuda") % rows]
                grads = torch.autograd.grad(fast(x[at], y[at]), params)
                with torch.no_grad():
                    torch._foreach_add_(params, grads, alpha=-0.05)
            torch.cat([p.detach().reshape(-1) for p in params])

    one(0)
    with alone():
        say(case=name, loop_ms=milliseconds(one, times=4, warm=2) * case.clients / some)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--loop", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--no-agreement", action="store_true")
    parser.add_argument("--types", default="bf16,tf32")
    parser.add_argument("--others", type=int, default=0, help="processes of this script that compile meanwhile")
    parser.add_argument("--engine", default="{}", help="more settings of the engine, as JSON")
    asked = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    for name in asked.cases.split(","):
        case = CASES[name]
        parts: list[Callable[[], None]] = [] if asked.no_agreement else [partial(agreement, name, case)]
        settings = json.loads(asked.engine)
        parts += [
            partial(timed, name, case, bf16, asked.profile, asked.others, **settings)
            for bf16 in (True, False)
            if ("bf16" if bf16 else "tf32") in asked.types
        ]
        parts += [partial(loop, name, case)] if asked.loop else []
        for part in parts:
            try:
                part()
            except Exception as error:  # one case that fails should not take the others along
                say(case=name, error=f"{type(error).__name__}: {error}"[:300])
            torch._dynamo.reset()
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
