"""FedCMOO and FedCMOO-Pref (Askin, Sharma, Joshi, Joe-Wong, "Federated Communication-Efficient Multi-Objective
Optimization", 2025), Algorithms 1, 3, 6, 7 and 10.

A round: (1) every client of the cohort computes its stochastic Jacobian H_i on one batch, compresses it and uploads
it; (2) the server forms G, about (mean H_i)^T (mean H_i), and finds weights w; (3) the clients take tau local steps on
sum_k w_k f_ik and upload Delta_i = x - x_i; (4) x <- x - eta_s mean Delta_i.

Where the paper and its code differ we follow the paper: one batch for all objectives, the first local step on that
same batch. Weights are exact by default (`weighting = "pgd"` is the paper's FindWeights). The two-way Gram is

    |B|^-2 [ sum Ht_i^T Ht_i + S^T S - sum H_i^T H_i + C + C^T ],
    S = sum H_i,  C = sum R_i^T (Q(S) - H_i),  R_i = Ht_i - H_i

(the paper's 2C is a slip), clipped to be positive semi-definite. Ours: `compress = "sketch"`, and `exchanges = 1`, in
which a client trains with the weights the server already has and sends its sketch along with its update: half the
exchanges, the same upload. It is the sketch, not the one exchange, that makes it little more than one model; the
paper's compressor sends a second one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from polyfed.algorithms import Diagnostics, State, algorithms
from polyfed.algorithms.base import descended, objective_weights, present
from polyfed.algorithms.objectives.gramian import Gramian, WeightingResult, mean_by
from polyfed.compress import Compressor, compressors, own_key
from polyfed.compress.exact import Exact
from polyfed.core.door import Door
from polyfed.core.errors import BadInput, nearest
from polyfed.core.fleet import Stack, Sum
from polyfed.core.keys import client_key, common_key
from polyfed.core.messages import Option, Request
from polyfed.core.problem import Problem
from polyfed.core.settings import Positive, as_table, choose, settings
from polyfed.core.work import works
from polyfed.weights import preference, proximal, psd, still_owed
from polyfed.weights.preference import unevenness

Floats = NDArray[np.float64]


@algorithms("fedcmoo")
@settings
class FedCMOO(Gramian):
    """Weights from compressed Jacobians first, then local steps on the weighted objective: one model's upload.

    Args:
        compress: how a client's Jacobian is compressed: a name, a dict with a name and settings, or a
            `polyfed.Compressor`.
        width: numbers an objective, for compress = 'sketch'; 256 where the model has them.
        budget: upload in models, for 'rand-svd', 'top-k' and 'random-mask'.
        ways: 1; or 2: the server sends the compressed sum back, and clients correct G.
        gram: G of the 'cohort', or of 'two-sets' of further clients (Algorithms 9 and 10).
        gram_clients: n', how many clients each of the two sets has; as many as a round's cohort if not given.
        exchanges: 2 a round; or 1: weights of the last round, Jacobians sent along with updates.
        ema: with one exchange, how much of the last weights is kept.
        gram_error: whether to ask for exact Jacobians as well, and log how far G is from theirs, as it is and at the
            best scale.
    """

    compress: str | Mapping[str, Any] | Compressor = "sketch"
    width: Annotated[int, Field(ge=1)] | None = None
    budget: Positive = 1.0
    ways: Literal[1, 2] = 1
    gram: Literal["cohort", "two-sets"] = "cohort"
    gram_clients: Annotated[int, Field(ge=1)] | None = None
    exchanges: Literal[1, 2] = 2
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.0
    gram_error: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.exchanges == 1 and (self.ways == 2 or self.gram == "two-sets"):
            raise ValueError("exchanges = 1 leaves no time for ways = 2 or gram = 'two-sets'; use exchanges = 2.")
        if self.gram == "two-sets" and not self.compressor.unbiased:
            raise ValueError(f"gram = 'two-sets' needs an unbiased compressor. Found compress = {self.compress!r}.")
        if self.gram_clients is not None and self.gram != "two-sets":
            raise ValueError("gram_clients goes with gram = 'two-sets'; leave it out.")
        if self.ways == 2 and not self.compressor.restores:
            raise ValueError(
                "ways = 2 needs a compressor whose result is a Jacobian again: exact, rand-svd, top-k or random-mask. "
                f"Found compress = {self.compress!r}."
            )

    @cached_property
    def compressor(self) -> Compressor:
        """The compressor, built once."""
        table = self.compress
        if isinstance(table, str):
            short = {"width": self.width, "budget": self.budget}
            known = getattr(compressors[table], "__dataclass_fields__", {})
            table = {"name": table, **{k: v for k, v in short.items() if k in known and v is not None}}
        made: Compressor = choose(compressors, table, "algorithm.compress", Compressor)
        return made

    @property
    def needs(self) -> Literal["sums", "replies"]:
        """Compressed Jacobians that do not add up have to be lifted one by one."""
        return "sums" if self.compressor.additive else "replies"

    def check(self, problem: Problem, clients: int) -> None:
        """Refuse a compressor that does not fit the model's size."""
        super().check(problem, clients)
        self.compressor.reply(len(problem.names), len(self.columns(problem)))

    def init(self, problem: Problem) -> State:
        M = len(problem.names)
        return {**super().init(problem), "w": torch.full((M,), 1 / M, dtype=torch.float64)}

    def _options(self, t: int, fleet: Door, compressor: Compressor | None = None) -> dict[str, Option]:
        """What both sides must know: how to train, and how to compress (`work.jacobian.JacobianOptions`)."""
        how = as_table(compressors, compressor or self.compressor)
        size = {"rows": len(fleet.names), "columns": len(self.columns(fleet.problem))}
        return {**self.local_options(t, fleet), "compress": how, **size, "over": self.gram_over}

    def round(self, t: int, state: State, fleet: Door) -> tuple[State, Diagnostics]:
        return self._one(t, state, fleet) if self.exchanges == 1 else self._two(t, state, fleet)

    def _two(self, t: int, state: State, fleet: Door) -> tuple[State, Diagnostics]:
        """Algorithm 1."""
        cohort = fleet.cohort(t)
        model = _model(state)
        G, heard, losses, clients = self._gram(t, cohort, model, fleet)
        if (heard > 0).any():
            w, remembered, found = self.find_weights(G, heard, losses / heard, state, fleet)
        else:  # two sets that hold nothing in common say nothing of G
            w, remembered, found = state["w"].numpy(), state["weighting"], {}
        if not fleet.holds[clients].any(0)[w > 0].all():  # two sets held more than the cohort does
            w = self._applied(w, fleet.holds[clients])
        omega = objective_weights(w, self.shares(clients, fleet), self.stakes(clients, fleet))
        again = {} if self.gram == "cohort" else model  # the cohort has x already, where it sent its Jacobians
        shared = {**again, "omega": torch.as_tensor(omega, dtype=state["x"].dtype)}
        total = fleet.sum(clients, Request("sgd", shared, options=self.local_options(t, fleet)))
        found["lost_between"] = len(clients) - len(total.clients)
        if self.gram_error:
            found |= self._errors(t, G, cohort, model, fleet)
        return self._step(t, state, total, w, remembered, fleet), self._diagnostics(w, found, losses / heard)

    def _one(self, t: int, state: State, fleet: Door) -> tuple[State, Diagnostics]:
        """One exchange: last round's weights for training, this round's Jacobians for the next weights."""
        cohort = fleet.cohort(t)
        w = self._applied(state["w"].numpy(), fleet.holds[cohort])
        omega = objective_weights(w, self.shares(cohort, fleet), self.stakes(cohort, fleet))
        shared = {**_model(state), "omega": torch.as_tensor(omega, dtype=state["x"].dtype)}
        request = Request("sgd-jacobian", shared, options=self._options(t, fleet))
        total, features, _ = self._features(t, cohort, request, fleet)
        G = self.compressor.gram(features, total["heard"])
        losses = total["losses"] / total["heard"]
        fresh, remembered, found = self.find_weights(G, total["heard"], losses, state, fleet)
        mixed = self.ema * w + (1 - self.ema) * fresh
        kept = _keeping(state["w"].numpy(), mixed, (total["heard"] > 0).numpy())
        return self._step(t, state, total, kept, remembered, fleet), self._diagnostics(w, found, losses)

    def _applied(self, w: NDArray[np.float64], holds: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Last round's weights among the objectives that the cohort holds; where those have none, all alike."""
        here = holds.any(0)
        return present(w if w[here].any() else here.astype(float), holds)

    def _step(self, t: int, state: State, total: Any, w: NDArray[np.float64], remembered: State, fleet: Door) -> State:
        mean = total["delta"].div_(total["weight"])
        x = descended(state["x"], self.at_server(self.server_lr, t, fleet), mean)
        buffers = total["buffers"] / total["weight"]
        return {"x": x, "buffers": buffers, "w": torch.from_numpy(w), "weighting": remembered}

    def _diagnostics(self, w: NDArray[np.float64], found: Mapping[str, Any], losses: Tensor) -> Diagnostics:
        return {"weights": torch.from_numpy(w), "train": losses, **found}

    # ApproxGramJacobian (Algorithms 3 and 6)

    def _gram(self, t: int, cohort: list[int], model: dict[str, Tensor], fleet: Door) -> tuple[Any, ...]:
        """G, who was heard for each objective, the sum of their losses, and the clients that answered."""
        if self.gram == "two-sets":
            return self._two_sets(t, cohort, model, fleet)
        request = Request("jacobian", model, options=self._options(t, fleet))
        total, features, clients = self._features(t, cohort, request, fleet)
        G = self.compressor.gram(features, total["heard"])
        if self.ways == 2:
            G = self._corrected(t, features, total["heard"], clients, request, fleet)
        return G, total["heard"], total["losses"], clients

    def _features(self, t: int, cohort: list[int], request: Request, fleet: Door) -> tuple[Any, Tensor, list[int]]:
        """All arrays summed over the clients, among them what is made of their Jacobians (M, p)."""
        compressor, M, d = self.compressor, len(fleet.names), len(self.columns(fleet.problem))
        names = list(compressor.reply(M, d))
        if compressor.additive:
            total = fleet.sum(cohort, request)
            once = {name: total[name].unsqueeze(0) for name in names}
            return total, compressor.lift(once, [(0, 0)], M, d)[0], list(total.clients)

        def lifted(stack: Stack) -> Stack:
            """Replies with features in place of what they were made from, times the clients' weights."""
            draw = works[request.work].parse(request.options).draw
            keys = [(common_key(fleet.seed, t), own_key(client_key(fleet.seed, t, c), draw)) for c in stack.clients]
            features = compressor.lift({name: stack[name] for name in names}, keys, M, d)
            arrays = {name: a for name, a in stack.weighed(request).arrays.items() if name not in names}
            return replace(stack, arrays={**arrays, "features": features * stack["heard"].unsqueeze(2)})

        total = Sum.of(lifted(stack) for stack in fleet.ask(cohort, request))
        return total, total["features"], list(total.clients)

    def _corrected(self, t: int, S: Tensor, heard: Tensor, clients: list[int], request: Request, fleet: Door) -> Tensor:
        """Two-way (Algorithm 6, option 2): Q(S) goes down, and what the compression lost is estimated."""
        keys = common_key(fleet.seed, t), own_key(0)
        down = {f"h.{name}": a for name, a in self.compressor.encode(S, keys).items()}
        back = fleet.sum(clients, Request("residual", down, options=request.options))
        total = (back["true"] + S @ S.T - back["sent"] + back["cross"] + back["cross"].T).double()
        scale = torch.where(heard > 0, heard, 1.0).double()
        return torch.from_numpy(psd((total / torch.outer(scale, scale)).numpy()))

    def _two_sets(self, t: int, cohort: list[int], model: dict[str, Tensor], fleet: Door) -> tuple[Any, ...]:
        """Algorithm 9: an unbiased, unsymmetric G from two independent sets of clients, batches and masks.

        A client may be in both sets, and in the cohort. A sketch's hash is common to both, or their product would mean
        nothing; over its draw the product is unbiased, too.
        """
        means, heards, losses = [], [], []
        for draw in (1, 2):
            some = fleet.cohort(t, f"gram-{draw}", self.gram_clients)
            request = Request("jacobian", model, options={**self._options(t, fleet), "draw": draw})
            total, features, _ = self._features(t, some, request, fleet)
            means.append(mean_by(features, total["heard"]))
            heards.append(total["heard"])
            losses.append(total["losses"])
        both = (heards[0] > 0) & (heards[1] > 0)
        return (means[0] @ means[1].T).double(), torch.where(both, sum(heards), 0.0), sum(losses), cohort

    def _errors(self, t: int, G: Tensor, cohort: list[int], model: dict[str, Tensor], fleet: Door) -> dict[str, float]:
        """How far G is from that of the exact Jacobians of the same batches."""
        request = Request("exact-jacobian", model, options=self._options(t, fleet, Exact()))
        total = fleet.sum(cohort, request)
        return gram_errors(G, Exact().gram(total["H"], total["heard"]))


def gram_errors(G: Tensor, exact: Tensor) -> dict[str, float]:
    """|G - G*| / |G*|, and the least of any c G, as weights do not depend on the scale."""
    c = (G * exact).sum() / (G * G).sum().clamp(min=torch.finfo(G.dtype).tiny)
    errors = {"gram_error": G - exact, "gram_error_scaled": c * G - exact}
    return {name: float(error.norm() / exact.norm()) for name, error in errors.items()}


@algorithms("fedcmoo-pref")
@settings
class FedCMOOPref(FedCMOO):
    """FedCMOO that ends where r_1 F_1 = ... = r_M F_M, for a preference r.

    Args:
        preference: r, by objective; all 1 if none is given.
        program: how weights are found: 'proximal' (ours: a step that lowers the largest r_k F_k, to the point itself),
            the 'paper's linear program (19), or the one of the authors' 'code'. If not given, 'proximal', or 'code'
            where band or threshold is given.
        band: of a linear program: objectives with r_k F_k of at least this part of the largest count among the largest;
            1 in the paper and 0.9 in the code if not given.
        threshold: of a linear program: the unevenness mu below which all objectives descend; 0.01 if not given.
        min_weight: share of the weights that is spread evenly; if not given, 0.2 in the 'code' and else 0.
    """

    preference: Mapping[str, float] = Field(default_factory=dict)
    program: Literal["proximal", "paper", "code"] | None = None
    band: Annotated[float, Field(gt=0, le=1)] | None = None
    threshold: Positive | None = None
    min_weight: Annotated[float, Field(ge=0, lt=1)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.program == "proximal" and (self.band is not None or self.threshold is not None):
            raise ValueError("band and threshold are a linear program's; leave them out, or set program = 'paper'.")

    def check(self, problem: Problem, clients: int) -> None:
        """Refuse a preference that is not about the problem's objectives."""
        super().check(problem, clients)
        for name in self.preference:
            if name not in problem.names:
                unknown = f"algorithm.preference names {name!r}, which is no objective here."
                raise BadInput(unknown + nearest(name, problem.names))
        r = self._r(problem.names)
        if (r < 0).any() or not r.any() or not np.isfinite(r).all():
            found = dict(self.preference)
            raise BadInput(f"algorithm.preference should be non-negative numbers, not all zero. Found {found}.")

    def _r(self, names: Any) -> NDArray[np.float64]:
        return np.array([self.preference.get(name, 0.0) if self.preference else 1.0 for name in names])

    def find_weights(self, gram: Tensor, heard: Tensor, losses: Tensor, state: State, fleet: Door) -> WeightingResult:
        """FindWeights-Pref (Algorithms 4 and 8), over the objectives that were heard of."""
        here = (heard > 0).numpy()
        G, F = gram.numpy()[np.ix_(here, here)], losses.double().numpy()[here]
        r = self._r(fleet.names)[here]
        w = np.zeros(len(here))
        if not r.any():  # nobody heard of what the preference is about: as if there were none
            r = np.ones_like(r)
        owed = state["weighting"].get("owed", torch.zeros(len(here), dtype=torch.float64)).numpy().copy()
        w[here], owed[here], found = self._programmed(G, F, r, owed[here], fleet)
        spread = self.min_weight if self.min_weight is not None else 0.2 if self._program == "code" else 0.0
        w[here] = (1 - spread) * w[here] + spread / here.sum()
        jump = float(np.abs(w - state["w"].numpy()).sum())
        return WeightingResult(w, {"owed": torch.from_numpy(owed)}, {**found, "jump": jump})

    @property
    def _program(self) -> str:
        linear = self.band is not None or self.threshold is not None
        return self.program or ("code" if linear else "proximal")

    def _programmed(self, G: Floats, F: Floats, r: Floats, owed: Floats, fleet: Door) -> tuple[Floats, Floats, Any]:
        """The program's weights, what each objective is still owed, and what to log."""
        if self._program == "proximal":
            owed = still_owed(owed, r * F)
            w = proximal(G, F * np.exp(owed), r, step=self.length(fleet.round, fleet))
            return w, owed, {"mode": "proximal", "mu": unevenness(r * F, r)[0]}
        printed = self._program == "paper"
        band = self.band or (1.0 if printed else 0.9)
        got = preference(G, F, r, threshold=self.threshold or 0.01, band=band, as_printed=printed)
        return got.weights, owed, {"mode": got.mode, "mu": got.mu, "feasible": got.feasible}


def _keeping(before: NDArray[np.float64], now: NDArray[np.float64], heard: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Weights for the next round: objectives that nobody answered for keep theirs, those heard share the rest."""
    kept = np.where(heard, 0.0, before)
    among = np.where(heard, now, 0.0)
    weights: NDArray[np.float64] = kept + (1 - kept.sum()) * among / max(among.sum(), np.finfo(float).tiny)
    return weights


def _model(state: State) -> dict[str, Tensor]:
    return {"x": state["x"], "buffers": state["buffers"]}
