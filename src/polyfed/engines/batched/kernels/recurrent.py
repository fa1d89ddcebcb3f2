"""LSTM and GRU layers of many clients at once, each with weights of its own: a product a step, batched over clients.

torch's layers call cuDNN, for which vmap has no rule. Here the inputs' products of all steps are one product; a step is
the product of the clients' states with their weights, and its gates are one kernel on a GPU. The gradient of the
weights, a sum over steps, is one product at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfed.engines.batched.kernels import why_no_triton

Tensors = tuple[Tensor, ...]


class _Client:
    """What both kinds of layer have: directions, layers one upon the other, and dropout between them."""

    def _all(self: Any, x: Any, hx: Any) -> Any:
        """As torch's layer, of a tensor: (rows, steps, inputs), or as `batch_first` says."""
        if not isinstance(x, Tensor):
            raise NotImplementedError("recurrent layers of many clients take tensors, and no packed sequences")
        alone = x.dim() == 2
        x = x.unsqueeze(1) if alone else x.transpose(0, 1) if self.batch_first else x  # steps first
        states = self._states(x, hx, alone)
        ways = 2 if self.bidirectional else 1
        last: list[Tensors] = []
        for layer in range(self.num_layers):
            found = []
            for way in range(ways):
                begin = tuple(s[layer * ways + way] for s in states)
                out, ends = self._run(x.flip(0) if way else x, begin, f"l{layer}{'_reverse' * way}")
                found.append(out.flip(0) if way else out)
                last.append(ends)
            x = torch.cat(found, -1) if ways > 1 else found[0]
            if self.dropout and self.training and layer + 1 < self.num_layers:
                x = F.dropout(x, self.dropout)
        ended = [torch.stack(parts) for parts in zip(*last, strict=True)]
        ended = [e.squeeze(1) if alone else e for e in ended]
        x = x.squeeze(1) if alone else x.transpose(0, 1) if self.batch_first else x
        return x, ended[0] if len(ended) == 1 else tuple(ended)

    def _states(self: Any, x: Tensor, hx: Any, alone: bool) -> list[Tensor]:
        """The states that the layers begin with, (layers x ways, rows, size) each."""
        if hx is None:
            many = self.num_layers * (2 if self.bidirectional else 1)
            return [x.new_zeros(many, x.shape[1], self.hidden_size)] * self.kept
        given = [hx] if isinstance(hx, Tensor) else list(hx)
        return [s.unsqueeze(1) if alone else s for s in given]

    def _weights(self: Any, at: str) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        bias = (getattr(self, f"bias_ih_{at}"), getattr(self, f"bias_hh_{at}")) if self.bias else (None, None)
        return getattr(self, f"weight_ih_{at}"), getattr(self, f"weight_hh_{at}"), *bias


class ClientLSTM(_Client, nn.LSTM):
    """An `nn.LSTM` whose stacked form is `lstm`."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        return self._all(input, hx)

    kept = 2

    def _run(self, x: Tensor, begin: Tensors, at: str) -> tuple[Tensor, Tensors]:
        into, over, first, second = self._weights(at)
        gates = F.linear(x, into, None if first is None or second is None else first + second)
        like = gates.dtype
        given = [t.to(like).unsqueeze(0) for t in (gates, over, *begin)]
        out, cells, _ = (t.squeeze(0) for t in lstm(*given))
        return out, (out[-1], cells[-1])


class ClientGRU(_Client, nn.GRU):
    """An `nn.GRU` whose stacked form is `gru`."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        return self._all(input, hx)

    kept = 1

    def _run(self, x: Tensor, begin: Tensors, at: str) -> tuple[Tensor, Tensors]:
        into, over, first, second = self._weights(at)
        gates = F.linear(x, into, first)
        bias = gates.new_zeros(gates.shape[-1]) if second is None else second
        given = [t.to(gates.dtype).unsqueeze(0) for t in (gates, over, bias, *begin)]
        out, _ = (t.squeeze(0) for t in gru(*given))
        return out, (out[-1],)


def replace_recurrent(model: nn.Module) -> None:
    """A module's LSTM and GRU layers become those of many clients; others stay as they are."""
    kinds: dict[type[nn.Module], type[nn.Module]] = {nn.LSTM: ClientLSTM, nn.GRU: ClientGRU}
    for module in model.modules():
        if type(module) in kinds and not getattr(module, "proj_size", 0):
            module.__class__ = kinds[type(module)]


def unreplaced(model: nn.Module) -> bool:
    """Whether a module has recurrent layers of torch's own left."""
    return any(isinstance(m, nn.RNNBase) and not isinstance(m, _Client) for m in model.modules())


# gates of a step: inputs' part i and the states' part h of (clients, rows, 4 or 3 sizes)


def _lstm_step(i: Tensor, h: Tensor, c: Tensor) -> Tensors:
    """The new state and cell, and the gates after their functions."""
    a, f, g, o = (i + h).chunk(4, -1)
    a, f, g, o = a.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    after = f * c + a * g
    return o * after.tanh(), after, torch.cat([a, f, g, o], -1)


def _lstm_back(
    dh: Tensor, dh_later: Tensor, dc: Tensor, dc_later: Tensor, acts: Tensor, c: Tensor, before: Tensor
) -> Tensors:
    """The gradients of the gates and of the cell before, given those of state and cell."""
    a, f, g, o = acts.chunk(4, -1)
    bent = c.tanh()
    dh = dh + dh_later
    dc = dc + dc_later + dh * o * (1 - bent * bent)
    gates = [dc * g * a * (1 - a), dc * before * f * (1 - f), dc * a * (1 - g * g), dh * bent * o * (1 - o)]
    return torch.cat(gates, -1), dc * f


def _gru_step(i: Tensor, h: Tensor, state: Tensor) -> Tensors:
    """The new state, and the gates after their functions with the states' part of the last."""
    ir, iz, inew = i.chunk(3, -1)
    hr, hz, hnew = h.chunk(3, -1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    new = (inew + r * hnew).tanh()
    return (1 - z) * new + z * state, torch.cat([r, z, new, hnew], -1)


def _gru_back(dh: Tensor, later: Tensor, acts: Tensor, before: Tensor) -> Tensors:
    """The gradients of the inputs' gates, of the states' gates, and of the state before but for the product."""
    r, z, new, hnew = acts.chunk(4, -1)
    dh = dh + later
    dnew = dh * (1 - z) * (1 - new * new)
    dr, dz = dnew * hnew * r * (1 - r), dh * (before - new) * z * (1 - z)
    return torch.cat([dr, dz, dnew], -1), torch.cat([dr, dz, dnew * r], -1), dh * z


def _kernels(t: Tensor) -> bool:
    """Whether Triton's kernels do a step: of float32 on a GPU that has them."""
    return t.is_cuda and t.dtype == torch.float32 and not why_no_triton(t.device)


@cache
def _fused(step: Callable[..., Tensors], device: torch.device) -> Callable[..., Tensors]:
    """On a GPU with Triton, a step's gates as one kernel."""
    return step if device.type != "cuda" or why_no_triton(device) else _compiled(step)


def _compiled(step: Callable[..., Tensors], **settings: Any) -> Callable[..., Tensors]:
    fused: Callable[..., Tensors] = torch.compile(step, dynamic=False, **settings)

    def program(*given: Tensor) -> Tensors:
        """Of what has no gradients: looking for those of views, the compiler would warn."""
        return fused(*(t.detach() for t in given))

    return program


# operators: gates (clients, steps, rows, 4 or 3 sizes), w (clients, 4 or 3 sizes, size), states (clients, rows, size)


@torch.library.custom_op("polyfed::lstm", mutates_args=())
def lstm(gates: Tensor, w: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """States, cells and gates of all steps."""
    if _kernels(gates):
        from polyfed.engines.batched.kernels import recurrent_triton

        return recurrent_triton.forward(gates.contiguous(), w.contiguous(), h.contiguous(), c.contiguous())
    step, across, found = _fused(_lstm_step, gates.device), w.transpose(1, 2), []
    for i in gates.unbind(1):
        h, c, acts = step(i, torch.bmm(h, across), c)
        found.append((h, c, acts))
    out, cells, acts = (torch.stack(parts, 1) for parts in zip(*found, strict=True))
    return out, cells, acts


@torch.library.custom_op("polyfed::lstm_back", mutates_args=())
def lstm_back(
    dout: Tensor, dcells: Tensor, out: Tensor, cells: Tensor, acts: Tensor, w: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of gates, weights, first state and first cell."""
    if _kernels(w):
        from polyfed.engines.batched.kernels import recurrent_triton

        given = (t.contiguous() for t in (dout, dcells, cells, acts, w, c))
        gates, dc = recurrent_triton.backward(*given)
        return gates, _weight_grad(gates, out, h), torch.bmm(gates[:, 0], w), dc
    back, found = _fused(_lstm_back, w.device), []
    dh, dc = torch.zeros_like(h), torch.zeros_like(c)
    for t in reversed(range(dout.shape[1])):
        before = cells[:, t - 1] if t else c
        gate, dc = back(dout[:, t], dh, dcells[:, t], dc, acts[:, t], cells[:, t], before)
        dh = torch.bmm(gate, w)
        found.append(gate)
    gates = torch.stack(found[::-1], 1)
    return gates, _weight_grad(gates, out, h), dh, dc.clone()


@torch.library.custom_op("polyfed::gru", mutates_args=())
def gru(gates: Tensor, w: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """States and gates of all steps; b: of the states' part."""
    step, across, bias, found = _fused(_gru_step, gates.device), w.transpose(1, 2), b.unsqueeze(1), []
    for i in gates.unbind(1):
        h, acts = step(i, torch.baddbmm(bias, h, across), h)
        found.append((h, acts))
    out, acts = (torch.stack(parts, 1) for parts in zip(*found, strict=True))
    return out, acts


@torch.library.custom_op("polyfed::gru_back", mutates_args=())
def gru_back(dout: Tensor, out: Tensor, acts: Tensor, w: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of gates, weights, bias and first state."""
    back, dh = _fused(_gru_back, w.device), torch.zeros_like(h)
    into, over = [], []
    for t in reversed(range(dout.shape[1])):
        gate, own, dh = back(dout[:, t], dh, acts[:, t], out[:, t - 1] if t else h)
        dh = torch.baddbmm(dh, own, w)
        into.append(gate)
        over.append(own)
    owns = torch.stack(over[::-1], 1)
    return torch.stack(into[::-1], 1), _weight_grad(owns, out, h), owns.sum((1, 2)), dh


def _weight_grad(gates: Tensor, out: Tensor, h: Tensor) -> Tensor:
    """The sum over steps and rows of gates times the states before them."""
    before = torch.cat([h.unsqueeze(1), out[:, :-1]], 1)
    return torch.bmm(gates.flatten(1, 2).transpose(1, 2), before.flatten(1, 2))


@lstm.register_fake
def _(gates: Tensor, w: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    small = gates.new_empty(*gates.shape[:3], w.shape[2])
    return small, torch.empty_like(small), torch.empty_like(gates, memory_format=torch.contiguous_format)


@lstm_back.register_fake
def _(
    dout: Tensor, dcells: Tensor, out: Tensor, cells: Tensor, acts: Tensor, w: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.empty_like(acts), w.new_empty(w.shape), h.new_empty(h.shape), c.new_empty(c.shape)


@gru.register_fake
def _(gates: Tensor, w: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    shape, size = gates.shape[:3], w.shape[2]
    return gates.new_empty(*shape, size), gates.new_empty(*shape, 4 * size)


@gru_back.register_fake
def _(dout: Tensor, out: Tensor, acts: Tensor, w: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    gates = out.new_empty(*out.shape[:3], w.shape[1])
    return gates, w.new_empty(w.shape), w.new_empty(w.shape[:2]), h.new_empty(h.shape)


def _keep_lstm(ctx: Any, inputs: Any, output: Any) -> None:
    _, w, h, c = inputs
    ctx.save_for_backward(*output, w, h, c)


def _keep_gru(ctx: Any, inputs: Any, output: Any) -> None:
    _, w, _, h = inputs
    ctx.save_for_backward(*output, w, h)


lstm.register_autograd(
    lambda ctx, dout, dcells, dacts: lstm_back(dout, dcells, *ctx.saved_tensors), setup_context=_keep_lstm
)
gru.register_autograd(lambda ctx, dout, dacts: gru_back(dout, *ctx.saved_tensors), setup_context=_keep_gru)


def _register(operator: Any) -> None:
    """Under vmap, its dimension is joined with that of the clients."""

    def rule(info: Any, dims: Any, *tensors: Tensor) -> Any:
        many = [
            (t.movedim(d, 0) if d is not None else t.expand(info.batch_size, *t.shape)).flatten(0, 1)
            for t, d in zip(tensors, dims, strict=True)
        ]
        found = operator(*many)
        return tuple(t.view(info.batch_size, -1, *t.shape[1:]) for t in found), tuple(0 for _ in found)

    operator.register_vmap(rule)


for _operator in (lstm, lstm_back, gru, gru_back):
    _register(_operator)
