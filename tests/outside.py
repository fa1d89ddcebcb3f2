"""What somebody outside the package might write, one file each."""

from __future__ import annotations

MEDIAN = '''
from polyfed.core.fleet import Around
from polyfed.layers import Layer


class Median(Layer):
    """The coordinate-wise median of the clients' updates, in place of their mean."""

    stage = "aggregate"
    needs = "sums"

    def fleet(self, inner):
        return MedianFleet(inner)


class MedianFleet(Around):
    def sum(self, clients, request):
        stacks = list(self.single_replies(clients, request))
        return self.combined(stacks, request, lambda updates: updates.median(0).values)
'''

COMPRESSOR = '''
import torch
from pydantic.dataclasses import dataclass

from polyfed.compress import Compressor
from polyfed.core.schema import gradient


@dataclass(frozen=True)
class Signs(Compressor):
    """Signs of the first `keep` entries of every gradient."""

    keep: int = 4
    additive = True

    def reply(self, M, d):
        return {"signs": gradient(f"M {self.keep}", by="heard")}

    def encode(self, H, keys):
        return {"signs": torch.sign(H[:, : self.keep])}

    def lift(self, arrays, keys, M, d):
        return arrays["signs"]
'''

TOY = '''
import time

import torch

from polyfed import Callback
from polyfed.core.fleet import Around
from polyfed.core.messages import Request
from polyfed.core.work import work
from polyfed.layers import Layer


def begin(client):
    return {"toy.seen": torch.zeros((), dtype=torch.float64), "toy.sum": torch.zeros((), dtype=torch.float64)}


@work("toy-offer", reply={"offer": ":float64"}, needs="rows", state=begin)
def offer(client, request, state):
    """How often the client has been asked, plus one."""
    return {"offer": state["toy.seen"] + 1}, {"toy.seen": state["toy.seen"] + 1}


@work("toy-told", reply={"ok": ":float64"}, needs="rows", state=begin)
def told(client, request, state):
    """Keeps the sum of all offers that the server has told it of."""
    total = state["toy.sum"] + request["total"]
    return {"ok": total}, {"toy.sum": total}


class Toy(Layer):
    """Two exchanges before every sum; what clients remember of them scales their updates."""

    remembers = True

    def reply(self, out):
        scale = 1 + 1e-3 * out.state.get("toy.sum", 0.0) + 1e-2 * out.state.get("toy.calls", 0.0)
        out.state = {**out.state, "toy.calls": torch.as_tensor(out.state.get("toy.calls", 0.0)).double() + 1}
        return {n: a * scale if n in out.named("update") else a for n, a in out.arrays.items()}

    def fleet(self, inner):
        return ToyFleet(inner)


class ToyFleet(Around):
    def __init__(self, inner):
        super().__init__(inner)
        self.rounds = torch.zeros(())

    def sum(self, clients, request):
        offers = torch.cat([s["offer"] for s in self.exchange(clients, Request("toy-offer"))])
        self.rounds = self.rounds + 1
        for _ in self.exchange(clients, Request("toy-told", {"total": offers.sum() + self.rounds})):
            pass
        return self.inner.sum(clients, request)

    def tree(self):
        return {"rounds": self.rounds}

    def load(self, tree):
        self.rounds = tree.get("rounds", torch.zeros(()))


class Slow(Callback):
    def on_round(self, run, line):
        time.sleep(0.03)
'''
