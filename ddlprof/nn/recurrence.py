"""One layer of an LSTM over all steps as one function of autograd, with the dropout of its inputs inside.

Equations, the order of the gates and the shapes are those of torch.nn.LSTM. A graph of the single operations would make
a gradient as large as the weight for each step; this one adds to one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ddlprof.nn.dropped import Dropped, accumulating

MakeDropped = Callable[[Any], Dropped]
"""Of a transposed weight."""


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
        inputs, hidden = drop_input(w_ih.t().contiguous()), drop_hidden(w_hh.t().contiguous())
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
