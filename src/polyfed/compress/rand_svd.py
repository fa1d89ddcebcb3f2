"""FedCMOO's compressor: the leading components of the Jacobian reshaped to a square (Algorithm 3).

H (M x d) becomes a side x side matrix, side about sqrt(M d), padded with zeros; r components by randomised SVD (Halko,
Martinsson, Tropp 2011), oversampled by r / 10, two power iterations. r is the most that `budget` models pay for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from polyfed.compress import Compressor, Keys, compressors
from polyfed.core import tensorkeys
from polyfed.core.errors import BadInput
from polyfed.core.messages import Request
from polyfed.core.schema import Field, gradient
from polyfed.core.settings import Positive, settings

LARGE = 1024  # the side of a square from which on a GPU is expected to be faster than the host


@compressors("rand-svd")
@settings
class RandSvd(Compressor):
    """FedCMOO's randomised SVD of the reshaped Jacobian, for the upload of `budget` models.

    Args:
        budget: a client's upload in models of d numbers, at least 2 ceil(sqrt(M d)) / d: one component.
    """

    budget: Positive = 1.0

    restores = True

    def _sizes(self, M: int, d: int) -> tuple[int, int]:
        """The side of the square and the number of components."""
        side = math.ceil(math.sqrt(M * d))
        return side, int(min(self.budget * d / (2 * side), side))

    def reply(self, M: int, d: int) -> Mapping[str, Field]:
        side, r = self._sizes(M, d)
        if r < 1:
            raise BadInput(f"rand-svd needs a budget of at least {2 * side / d:.2f} models here. Found {self.budget}.")
        return {
            "U": gradient(f"{side} {r}", lengths=partial(self.lengths, M, d)),
            "V": gradient(f"{r} {side}", form="orthonormal", alike=False),
        }

    def encode(self, H: Tensor, keys: Keys) -> dict[str, Tensor]:
        side, r = self._sizes(*H.shape)
        A = torch.nn.functional.pad(H.reshape(-1), (0, side * side - H.numel())).view(side, side)
        width = min(side, r + max(1, r // 10))
        start = tensorkeys.normal(keys[1], side * width, H.device).view(side, width).to(A)
        if side < LARGE:
            A, start = A.cpu(), start.cpu()
        fine = A.isfinite().all()  # of several clients at once, one must not fail the others
        A = torch.where(fine, A, torch.zeros_like(A))
        Q = _range(A, start)
        U, s, Vh = torch.linalg.svd(Q.T @ A, full_matrices=False)
        sent = torch.where(fine, (Q @ U[:, :r]) * s[:r], math.nan)
        return {"U": sent.to(H.device), "V": Vh[:r].contiguous().to(H.device)}

    def lengths(self, M: int, d: int, arrays: Mapping[str, Tensor], clients: Sequence[int], request: Request) -> Tensor:
        """The lengths (n, M) of the objectives' rows of U V: those of U's rows, V's being orthonormal, but where an
        objective begins or ends within a row of the square."""
        U, V = arrays["U"], arrays["V"]
        side = U.shape[1]
        rows = U.square().sum(2)
        found = []
        for s in range(M):
            (first, start), (last, stop) = divmod(s * d, side), divmod((s + 1) * d, side)
            whole = rows[:, first + (start > 0) : last].sum(1)
            if first == last:
                found.append(_energy(U, V, first, start, stop))
            else:
                whole = whole + (_energy(U, V, first, start, side) if start else 0.0)
                found.append(whole + (_energy(U, V, last, 0, stop) if stop else 0.0))
        return torch.stack(found, 1).sqrt()

    def lift(self, arrays: Mapping[str, Tensor], keys: Sequence[Keys], M: int, d: int) -> Tensor:
        A = arrays["U"] @ arrays["V"]
        lifted: Tensor = A.reshape(len(A), -1)[:, : M * d].view(len(A), M, d)
        return lifted


def _energy(U: Tensor, V: Tensor, row: int, start: int, stop: int) -> Tensor:
    """The squared length (n,) of a stretch of one row of U V."""
    piece = U[:, row].unsqueeze(1) @ V[:, :, start:stop]
    return piece.square().sum((1, 2))


def _range(A: Tensor, start: Tensor, powers: int = 2) -> Tensor:
    """An orthonormal basis of what A mostly maps to."""
    Q = torch.linalg.qr(A @ start).Q
    for _ in range(powers):
        Q = torch.linalg.qr(A @ torch.linalg.qr(A.T @ Q).Q).Q
    basis: Tensor = Q
    return basis
