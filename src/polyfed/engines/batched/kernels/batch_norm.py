"""BatchNorm of clients whose batches are padded: statistics over the rows that exist, as one client alone has them.

A module that is replaced has one buffer more, `mask`, by which the engine says which rows of a batch exist: 1 or 0 for
each. Running statistics are written over in place, so that the engine finds them where it gave them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

MASK = "polyfed_mask"  # the buffer's name


class ClientBatchNorm(_BatchNorm):
    """BatchNorm that does not see padding."""

    def forward(self, x: Tensor) -> Tensor:
        given = x.dtype
        x = x.to(torch.promote_types(given, torch.float32))
        mean, var = (self.running_mean, self.running_var)
        if self.training or mean is None or var is None:
            mean, var = self._statistics(x)
        shape = (1, -1, *(1,) * (x.dim() - 2))
        x = (x - mean.view(shape)) * torch.rsqrt(var + self.eps).view(shape)
        if self.affine:
            x = x * self.weight.view(shape) + self.bias.view(shape)
        return x.to(given)

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of each channel over the rows that exist; the running ones follow."""
        mask: Any = getattr(self, MASK)
        if x.shape[0] != mask.shape[0]:
            raise RuntimeError(f"BatchNorm is given {x.shape[0]} rows where the batch has {mask.shape[0]}")
        over = [d for d in range(x.dim()) if d != 1]
        weight = mask.view(-1, *(1,) * (x.dim() - 1)).to(x.dtype)
        count = mask.sum().to(x.dtype) * math.prod(x.shape[2:])
        mean = (x * weight).sum(over) / count
        away = (x - mean.view(1, -1, *(1,) * (x.dim() - 2))).square()
        var = (away * weight).sum(over) / count
        var = torch.where(count > 1, var, torch.nan)  # of one value alone, for which torch raises an error
        if self.training and self.running_mean is not None and self.running_var is not None:
            rate = float(self.momentum or 0.0)  # of None, a cumulative mean, see `takes`
            with torch.no_grad():
                self.running_mean.copy_(torch.lerp(self.running_mean, mean.detach(), rate))
                self.running_var.copy_(torch.lerp(self.running_var, var.detach() * (count / (count - 1)), rate))
        return mean, var

    def _check_input_dim(self, input: Tensor) -> None:
        """Nothing that the class which was replaced has not seen in the trial step."""


PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def takes(module: nn.Module) -> bool:
    """Whether a module is a BatchNorm that can be replaced."""
    return type(module) in PLAIN and getattr(module, "momentum", None) is not None


def replace_batch_norms(model: nn.Module) -> list[str]:
    """A module's BatchNorms become `ClientBatchNorm`; the names of their masks."""
    found = [(name, module) for name, module in model.named_modules() if takes(module)]
    for _, module in found:
        module.__class__ = ClientBatchNorm
        module.register_buffer(MASK, torch.ones(0), persistent=False)
    return [f"{name}.{MASK}".lstrip(".") for name, _ in found]
