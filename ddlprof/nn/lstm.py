"""An LSTM that drops the same neurons for a whole batch, so that dropout makes its products smaller."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from ddlprof.base.errors import UserError
from ddlprof.nn.dropped import Kept, Masked
from ddlprof.nn.recurrence import MakeDropped, Recurrence

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

        `recurrent_dropout`: of what each layer gets from itself, one step later. `structured=False` drops other neurons
        for each sample, as torch.nn.Dropout does: the same code with products of full size, to compare with.
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
        for weight in self.parameters():
            if weight.dim() == 2 and weight.device.type == "cpu":
                weight.data = weight.data.t().contiguous().t()  # neuron after neuron; a GPU's LSTM wants its own order

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As that of torch.nn.LSTM, also in memory: some formats of files refuse any other order."""
        found = super().state_dict(*args, **kwargs)
        for key, value in found.items():
            if isinstance(value, torch.Tensor) and not value.is_contiguous():
                found[key] = value.contiguous()
        return found

    def extra_repr(self) -> str:
        """The arguments that are not at their defaults."""
        more = {"recurrent_dropout": self.recurrent_dropout, "input_dropout": self.input_dropout}
        shown = [f"{name}={value}" for name, value in more.items() if value]
        return ", ".join([super().extra_repr(), *shown, *([] if self.structured else ["structured=False"])])

    def forward(self, input: Any, hx: Any = None) -> Any:
        """As torch.nn.LSTM: the outputs of the last layer, and the last h and c of all."""
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
                w_ih, w_hh, *biases = (each.to(kind) for each in self.all_weights[layer])
                bias = biases[0] + biases[1] if biases else x.new_zeros(len(w_ih))
                drops = self._drop(x, p, x.shape[2]), self._drop(x, self.recurrent_dropout, self.hidden_size)
                x, cell = apply(x, h[layer], c[layer], w_ih, w_hh, bias, *drops)
                last_h.append(x[-1])
                last_c.append(cell)
        return x, torch.stack(last_h), torch.stack(last_c)

    def _drop(self, x: Any, p: float, size: int) -> MakeDropped:
        """What one weight of `size` inputs makes of its inputs in a sequence like x."""
        if not p:
            return Masked
        if not self.structured:
            return partial(Masked, mask=_mask(x, p, size))
        kept = max(1, round(size * (1 - p)))
        order = torch.rand(len(x), size, device=x.device).argsort(1)
        return partial(Kept, kept=order[:, :kept].sort(1).values, factor=size / kept)


def _mask(x: Any, p: float, size: int) -> Any:
    return x.new_empty(*x.shape[:2], size).bernoulli_(1 - p).div_(1 - p)


def _kind_of(x: Any) -> torch.dtype:
    """The precision of the products: autocast's where it is on, as for torch.nn.LSTM on a GPU."""
    device = x.device.type
    if not torch.is_autocast_enabled(device):
        return x.dtype  # type: ignore[no-any-return]
    return torch.get_autocast_dtype(device)
