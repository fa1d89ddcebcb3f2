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
