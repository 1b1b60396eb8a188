"""An LSTM that drops the same neurons for a whole batch, so that dropout makes its products smaller.

One layer over all steps is one function of autograd, with the dropout of its inputs inside. A graph of the single
operations would make a gradient as large as the weight for each step; this one adds to one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from ddlprof.base.errors import UserError
from ddlprof.extensions.sparsity.nn.dropped import KeptNeurons, Masked, accumulating

_BATCHED = 3


class StructuredDropoutLSTM(nn.LSTM):
    """torch.nn.LSTM with structured dropout while it trains: in each time step other neurons, the same for all samples.

    After Sarma et al. 2021 (arXiv 2106.12089). Of n neurons always round(n (1 - p)) are kept, at least one, and scaled
    by n over that number; which ones is drawn from torch's generator of the device. Parameters, their names, and what
    it computes in evaluation are those of torch.nn.LSTM. Raises UserError for what it cannot do: two directions,
    projections, packed sequences while dropping.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
        *,
        recurrent_dropout: float = 0.0,
        input_dropout: float = 0.0,
        structured: bool = True,
    ) -> None:
        """`dropout`: of the inputs of all layers but the first, as in torch.nn.LSTM; `input_dropout`: of the first.

        `recurrent_dropout`: of the hidden state that each layer gets from its own previous step. `structured=False`
        drops other neurons for each sample, as torch.nn.Dropout does: the same code with products of full size, as a
        baseline.
        """
        shares = {"dropout": dropout, "recurrent_dropout": recurrent_dropout, "input_dropout": input_dropout}
        for name, share in shares.items():
            if not 0 <= share < 1:
                raise UserError(f"{name} {share}: has to be 0 or more, and less than 1")
        if bidirectional or proj_size:
            raise UserError("StructuredDropoutLSTM has one direction and no projections: use torch.nn.LSTM for these")
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, device=device, dtype=dtype)
        self.recurrent_dropout = recurrent_dropout
        self.input_dropout = input_dropout
        self.structured = structured

    def __prepare_scriptable__(self) -> nn.LSTM:
        """Called by `torch.jit.script`, which would fail far from here. Raises UserError.

        An nn.LSTM given in its place would take its place in the model for good.
        """
        raise UserError(
            "torch.jit.script cannot compile StructuredDropoutLSTM: load its state_dict into a torch.nn.LSTM of"
            " the same sizes, which computes the same in evaluation, and script that"
        )

    def extra_repr(self) -> str:
        """The arguments that differ from their defaults."""
        more = {"recurrent_dropout": self.recurrent_dropout, "input_dropout": self.input_dropout}
        shown = [f"{name}={value}" for name, value in more.items() if value]
        return ", ".join([super().extra_repr(), *shown, *([] if self.structured else ["structured=False"])])

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Returns what torch.nn.LSTM does: the outputs of the last layer, and the last h and c of all layers."""
        drops = self.input_dropout, self.recurrent_dropout, self.dropout if self.num_layers > 1 else 0.0
        if not self.training or not any(drops):
            return super().forward(input, hx)
        if isinstance(input, nn.utils.rnn.PackedSequence):
            raise UserError("StructuredDropoutLSTM takes no packed sequences while it drops neurons: pad them")
        batched = input.dim() == _BATCHED
        x = input if batched else input.unsqueeze(1)
        if batched and self.batch_first:
            x = x.transpose(0, 1)
        self.check_input(input if batched else input.unsqueeze(0), None)
        h, c = self._state(x, hx, batched)
        y, h, c = self._layers(x, h, c)
        if not batched:
            return y.squeeze(1), (h.squeeze(1), c.squeeze(1))
        return y.transpose(0, 1) if self.batch_first else y, (h, c)

    def _state(self, x: Any, hx: Any, batched: bool) -> tuple[Any, Any]:
        if hx is None:
            zeros = x.new_zeros(self.num_layers, x.shape[1], self.hidden_size)
            return zeros, zeros
        h, c = hx if batched else (each.unsqueeze(1) for each in hx)
        expected = (self.num_layers, x.shape[1], self.hidden_size)
        self.check_hidden_size(h, expected, "Expected hidden[0] size {}, got {}")
        self.check_hidden_size(c, expected, "Expected hidden[1] size {}, got {}")
        return h, c

    def _layers(self, x: Any, h: Any, c: Any) -> tuple[Any, Any, Any]:
        kind = _kind_of(x)
        last_h, last_c = [], []
        apply: Any = Recurrence.apply
        with torch.autocast(x.device.type, enabled=False):
            x, h, c = (each.to(kind) for each in (x, h, c))
            for layer in range(self.num_layers):
                p = self.dropout if layer else self.input_dropout
                weights = [each.to(kind) for each in self.all_weights[layer]]
                if not self.recurrent_dropout:
                    x, cell = self._by_torch(self._masked(x, p), h[layer], c[layer], weights)
                    last_h.append(x[-1])
                    last_c.append(cell)
                    continue
                w_ih, w_hh, *biases = weights
                bias = biases[0] + biases[1] if biases else x.new_zeros(len(w_ih))
                drops = self._drop(x, p, x.shape[2]), self._drop(x, self.recurrent_dropout, self.hidden_size)
                x, cell = apply(x, h[layer], c[layer], w_ih, w_hh, bias, *drops)
                last_h.append(x[-1])
                last_c.append(cell)
        return x, torch.stack(last_h), torch.stack(last_c)

    def _by_torch(self, x: Any, h: Any, c: Any, weights: list[Any]) -> tuple[Any, Any]:
        """One layer by torch's kernel, which a loop over steps does not reach unless its products are far smaller."""
        given = (h.unsqueeze(0).contiguous(), c.unsqueeze(0).contiguous())
        y, _, cell = torch.lstm(x, given, weights, self.bias, 1, 0.0, True, False, False)
        return y, cell[0]

    def _masked(self, x: Any, p: float) -> Any:
        """The inputs of a layer, some of which are dropped: those that `_drop` would draw."""
        if not p:
            return x
        size = x.shape[2]
        if not self.structured:
            return x * _mask(x, p, size)
        kept = _number_kept(p, size)
        drawn = torch.rand(len(x), size, device=x.device)
        last = drawn.kthvalue(kept, 1, keepdim=True).values
        return torch.where((drawn <= last).unsqueeze(1), x * (size / kept), 0.0)

    def _drop(self, x: Any, p: float, size: int) -> MakeDropped:
        """Draws which of the `size` inputs of a weight are dropped in a sequence like x; returns how to multiply."""
        if not p:
            return Masked
        if not self.structured:
            return partial(Masked, mask=_mask(x, p, size))
        kept = _number_kept(p, size)
        order = torch.rand(len(x), size, device=x.device).argsort(1)
        return partial(KeptNeurons, kept=order[:, :kept].sort(1).values, factor=size / kept)


def _number_kept(p: float, size: int) -> int:
    return max(1, round(size * (1 - p)))


def _mask(x: Any, p: float, size: int) -> Any:
    return x.new_empty(*x.shape[:2], size).bernoulli_(1 - p).div_(1 - p)


def _kind_of(x: Any) -> torch.dtype:
    """The precision of the products: autocast's where it is on, as for torch.nn.LSTM on a GPU."""
    device = x.device.type
    if not torch.is_autocast_enabled(device):
        return x.dtype  # type: ignore[no-any-return]
    return torch.get_autocast_dtype(device)


MakeDropped = Callable[[Any], Masked]
"""Makes the products of a transposed weight."""


class Recurrence(torch.autograd.Function):
    """`apply(x, h, c, w_ih, w_hh, bias, drop_input, drop_hidden)` gives the outputs (T, B, H) and the last c (B, H).

    x: (T, B, I), h and c: (B, H), w_ih: (4 H, I), w_hh: (4 H, H), bias: (4 H,), the sum of both.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Any,
        h: Any,
        c: Any,
        w_ih: Any,
        w_hh: Any,
        bias: Any,
        drop_input: MakeDropped,
        drop_hidden: MakeDropped,
    ) -> tuple[Any, Any]:
        inputs, hidden = drop_input(w_ih.t()), drop_hidden(w_hh.t())
        steps, batch, size = len(x), x.shape[1], h.shape[1]
        gates = bias.expand(steps, batch, -1).contiguous()
        inputs.add_all(gates, x)
        outputs, cells = x.new_empty(steps, batch, size), x.new_empty(steps, batch, size, dtype=accumulating(x))
        before = (h, c.to(cells.dtype))
        for step in range(steps):
            hidden.add(gates[step], before[0], step)
            i, f, g, o = _activated(gates[step])
            torch.mul(f, before[1], out=cells[step]).addcmul_(i.to(cells.dtype), g.to(cells.dtype))
            outputs[step] = cells[step].tanh().mul_(o)
            before = (outputs[step], cells[step])
        ctx.save_for_backward(x, h, c, gates, outputs, cells)
        ctx.products = inputs, hidden
        return outputs, cells[-1].to(c.dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("StructuredDropoutLSTM has no second derivatives: call backward without create_graph")
        x, h, c, gates, outputs, cells = ctx.saved_tensors
        inputs, hidden = ctx.products
        of_gates = torch.empty_like(gates)
        of_outputs, of_cell = gradients
        of_cell = of_cell.to(cells.dtype, copy=True)
        of_hidden = torch.zeros_like(h)
        for step in range(len(x) - 1, -1, -1):
            before = (cells[step - 1] if step else c).to(cells.dtype)
            of_hidden = of_hidden + of_outputs[step]
            of_cell = _step_back(gates[step], of_gates[step], cells[step], before, of_hidden, of_cell)
            if step or ctx.needs_input_grad[1]:
                of_hidden = hidden.input_gradient(of_gates[step], step)
        needs = ctx.needs_input_grad
        of_w_hh = hidden.weight_gradient(torch.cat((h.unsqueeze(0), outputs[:-1])), of_gates) if needs[4] else None
        of_w_ih = inputs.weight_gradient(x, of_gates) if needs[3] else None
        return (
            inputs.input_gradients(of_gates) if needs[0] else None,
            of_hidden if needs[1] else None,
            of_cell.to(c.dtype) if needs[2] else None,
            None if of_w_ih is None else of_w_ih.t().to(x.dtype),
            None if of_w_hh is None else of_w_hh.t().to(x.dtype),
            of_gates.sum((0, 1), dtype=accumulating(x)).to(x.dtype) if needs[5] else None,
            None,
            None,
        )


def _activated(gates: Any) -> tuple[Any, ...]:
    """The gates (B, 4 H) of input, forgetting, cell and output, activated in place."""
    size = gates.shape[1] // 4
    gates[:, : 2 * size].sigmoid_()
    gates[:, 2 * size : 3 * size].tanh_()
    gates[:, 3 * size :].sigmoid_()
    return gates.chunk(4, 1)  # type: ignore[no-any-return]


def _step_back(gates: Any, of_gates: Any, cell: Any, before: Any, of_hidden: Any, of_cell: Any) -> Any:
    """Fills the gradient of the gates before their activation; returns that of the cell one step earlier."""
    i, f, g, o = gates.chunk(4, 1)
    of_i, of_f, of_g, of_o = of_gates.chunk(4, 1)
    out = cell.tanh()
    of_cell = of_cell + of_hidden * o * (1 - out * out)
    of_i.copy_(of_cell * g * i * (1 - i))
    of_f.copy_(of_cell * before * f * (1 - f))
    of_g.copy_(of_cell * i * (1 - g * g))
    of_o.copy_(of_hidden * out * o * (1 - o))
    return of_cell * f
