"""TorchJD's Gramian weightings (Quinton and Rey 2024), with their memory and their chance made explicit.

Here are those that ask for nothing but a Gram matrix. CAGrad, whose TorchJD form needs cvxpy, is in `cagrad`. Left
out: Nash-MTL (cvxpy); ConFIG, GradDrop, TrimmedMean and ExcessMTL (they need the gradients themselves); MoDo and
SDMGrad (they ask for two independent batches); PCD (its first objective rules the others, and may be absent); CR-MOGM
(a moving average, which is the business of the algorithm).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from polyfed.core.errors import BadInput, cut
from polyfed.core.settings import Count, NotNegative, real, whole
from polyfed.weights.dual_cone import project_dual_cone
from polyfed.weights.gram import Array, psd
from polyfed.weights.weighting import Weighting, WeightingState, weightings

if TYPE_CHECKING:
    from torch import Tensor

Share = Annotated[float, Field(ge=0, le=1), BeforeValidator(real)]
Iterations = Annotated[int, Field(ge=1, le=1_000_000), BeforeValidator(whole)]
Selected = Annotated[int, Field(ge=1), BeforeValidator(whole)]


@dataclass(frozen=True)
class TorchJD(Weighting):
    """A weighting of TorchJD by its class and options: its buffers are the state, its draws come from the key."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._module()  # a missing install or an impossible option shows before anything has run

    def __call__(self, gram: Array, state: WeightingState, key: int) -> tuple[Array, WeightingState]:
        import torch

        module, G = self._module(), torch.from_numpy(psd(gram))
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            if state:
                module(torch.eye(len(G), dtype=G.dtype))  # makes the buffers, which the next line fills
                module.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
            torch.default_generator.manual_seed(key % 2**63)
            weights = _refusing(module, G)
        return weights.numpy(), {name: value.numpy() for name, value in module.state_dict().items()}

    def _module(self) -> Any:
        try:
            from torchjd import aggregation
        except ImportError as error:
            raise BadInput(
                f"{self.name} is TorchJD's, which is not installed; run: pip install 'polyfed[torchjd]'."
            ) from error
        return _refusing(getattr(aggregation, self.name), **self.options)


def _refusing(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What the function returns; its ValueError is a person's to mend."""
    try:
        return function(*arguments, **options)
    except ValueError as error:
        raise BadInput(f"TorchJD refused this weighting: {cut(str(error))}") from error


def _project(U: Tensor, G: Tensor) -> Tensor:
    """The projector handed to TorchJD, in place of its own on quadprog (GPL)."""
    import torch

    gram = G.numpy()
    return torch.from_numpy(np.apply_along_axis(lambda u: project_dual_cone(gram, u), -1, U.numpy()))


@weightings("upgrad")
def upgrad() -> TorchJD:
    """UPGrad: each gradient made to conflict with none, then their mean (Quinton and Rey 2024)."""
    return TorchJD("UPGradWeighting", {"projector": _project})


@weightings("dualproj")
def dualproj() -> TorchJD:
    """DualProj: the nearest direction to the mean that conflicts with none (Lopez-Paz and Ranzato 2017)."""
    return TorchJD("DualProjWeighting", {"projector": _project})


@weightings("pcgrad")
def pcgrad() -> TorchJD:
    """PCGrad: each gradient freed of conflicts with the others one by one, in random order (Yu et al. 2020)."""
    return TorchJD("PCGradWeighting")


@weightings("gradvac")
def gradvac(beta: Share = 0.5) -> TorchJD:
    """GradVac: each pair of gradients brought to its usual angle, which is remembered (Wang et al. 2021).

    Args:
        beta: how much a round's cosine counts in the usual one, 0 to 1; at 0 that stays a right angle, as in PCGrad.
    """
    return TorchJD("GradVacWeighting", {"beta": beta})


@weightings("imtl-g")
def imtl_g() -> TorchJD:
    """IMTL-G: the direction with equal projections on all gradients; weights may be negative (Liu et al. 2021)."""
    return TorchJD("IMTLGWeighting")


@weightings("aligned-mtl")
def aligned_mtl(scale_mode: Literal["min", "median", "rmse"] = "min") -> TorchJD:
    """Aligned-MTL: the mean after the singular values are made equal (Senushkin et al. 2023).

    Args:
        scale_mode: what singular values become: their 'min', their 'median', or 'rmse', the root of their mean square.
    """
    return TorchJD("AlignedMTLWeighting", {"scale_mode": scale_mode})


@weightings("mgda")
def mgda(max_iters: Iterations = 100) -> TorchJD:
    """MGDA by Frank-Wolfe steps, as often published: inexact where min-norm is exact (Sener and Koltun 2018).

    Args:
        max_iters: the most steps; they end sooner when one moves the weights by less than 0.001 of the way.
    """
    return TorchJD("MGDAWeighting", {"max_iters": max_iters})


@weightings("fairgrad")
def fairgrad(alpha: NotNegative = 1.0) -> TorchJD:
    """FairGrad: alpha-fair gains, 1 being proportional fairness; depends on the scale of G (Ban and Ji 2024).

    Args:
        alpha: how much the worse-off count; 0 for the mean, and the larger, the nearer to the best for the worst-off.
    """
    return TorchJD("FairGradWeighting", {"alpha": alpha})


@weightings("krum")
def krum(n_byzantine: Count = 1, n_selected: Selected = 1) -> TorchJD:
    """Krum: the gradients closest to the others, as a guard against attackers (Blanchard et al. 2017).

    Args:
        n_byzantine: gradients that may be an attacker's; there must be three more than these.
        n_selected: how many gradients are chosen, and averaged.
    """
    return TorchJD("KrumWeighting", {"n_byzantine": n_byzantine, "n_selected": n_selected})


@weightings("random")
def random() -> TorchJD:
    """Random weights on the simplex, drawn anew each round (Lin et al. 2022)."""
    return TorchJD("RandomWeighting")
