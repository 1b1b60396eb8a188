"""LSTM, GRU and RNN as loops of operators that torch.func.vmap can map, as it cannot map torch's own layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddlprof.base.errors import UserError


class _Weights(NamedTuple):
    """The weights of one layer in one direction. Formulas and the order of gates are in torch.nn's documentation."""

    input: Tensor
    hidden: Tensor
    input_bias: Tensor | None
    hidden_bias: Tensor | None
    projection: Tensor | None


State = tuple[Tensor, ...]
"""(h,) or (h, c); each has the shape (samples, size)."""
Cell = Callable[[Tensor, State, _Weights], State]


def _lstm(given: Tensor, state: State, weights: _Weights) -> State:
    hidden, memory = state
    gates = given + functional.linear(hidden, weights.hidden, weights.hidden_bias)
    enters, forgets, candidate, leaves = gates.chunk(4, -1)
    memory = torch.sigmoid(forgets) * memory + torch.sigmoid(enters) * torch.tanh(candidate)
    hidden = torch.sigmoid(leaves) * torch.tanh(memory)
    return (hidden if weights.projection is None else functional.linear(hidden, weights.projection), memory)


def _gru(given: Tensor, state: State, weights: _Weights) -> State:
    (hidden,) = state
    reset_in, update_in, new_in = given.chunk(3, -1)
    reset, update, new = functional.linear(hidden, weights.hidden, weights.hidden_bias).chunk(3, -1)
    update = torch.sigmoid(update_in + update)
    new = torch.tanh(new_in + torch.sigmoid(reset_in + reset) * new)
    return (new + update * (hidden - new),)


def _rnn(activation: Callable[[Tensor], Tensor]) -> Cell:
    return lambda given, state, weights: (
        activation(given + functional.linear(state[0], weights.hidden, weights.hidden_bias)),
    )


_CELLS: dict[str, Cell] = {
    "LSTM": _lstm,
    "GRU": _gru,
    "RNN_TANH": _rnn(torch.tanh),
    "RNN_RELU": _rnn(torch.relu),
}


_TORCHS = (nn.LSTM.forward, nn.GRU.forward, nn.RNN.forward)


def decompose(model: nn.Module) -> None:
    """Makes the recurrent layers of the model compute as loops from now on. Their parameters do not change.

    Layers with a forward of their own compute something else, so they are left alone.
    """
    for module in model.modules():
        if isinstance(module, nn.RNNBase) and getattr(module.forward, "__func__", None) in _TORCHS:
            module.forward = _Loop(module)


class _Loop:
    """Replaces the layer's `forward`."""

    def __init__(self, layer: nn.RNNBase) -> None:
        self._layer = layer

    def __call__(self, input: Any, hx: Any = None) -> tuple[Tensor, Any]:
        layer = self._layer
        if not isinstance(input, Tensor):
            raise UserError(f"a {type(layer).__name__} over packed sequences cannot be fused: pad them instead")
        unbatched = input.dim() == 2
        sequence = input.unsqueeze(1) if unbatched else input.transpose(0, 1) if layer.batch_first else input
        given = () if hx is None else hx if isinstance(hx, tuple) else (hx,)
        if unbatched:
            given = tuple(each.unsqueeze(1) for each in given)
        output, states = _layers(layer, sequence, given)
        if unbatched:
            output, states = output.squeeze(1), tuple(each.squeeze(1) for each in states)
        elif layer.batch_first:
            output = output.transpose(0, 1)
        return output, states if layer.mode == "LSTM" else states[0]


def _layers(layer: nn.RNNBase, sequence: Tensor, given: State) -> tuple[Tensor, State]:
    """Runs (time, samples, features) through all layers; returns the output and the last states, by layer."""
    directions = 2 if layer.bidirectional else 1
    last: list[State] = []
    for number in range(layer.num_layers):
        outputs = []
        for direction in range(directions):
            weights = _weights(layer, number, direction == 1)
            place = number * directions + direction
            begin = tuple(each[place] for each in given) or _zeros(layer, sequence)
            steps = sequence.flip(0) if direction else sequence
            output, state = _over_time(_CELLS[layer.mode], steps, begin, weights)
            outputs.append(output.flip(0) if direction else output)
            last.append(state)
        sequence = torch.cat(outputs, -1) if directions == 2 else outputs[0]
        if layer.dropout and layer.training and number + 1 < layer.num_layers:
            sequence = functional.dropout(sequence, layer.dropout)
    return sequence, tuple(torch.stack(each) for each in zip(*last, strict=True))


def _over_time(cell: Cell, steps: Tensor, state: State, weights: _Weights) -> tuple[Tensor, State]:
    projected = functional.linear(steps, weights.input, weights.input_bias)  # all time steps in one product
    outputs = []
    for given in projected.unbind(0):
        state = cell(given, state, weights)
        outputs.append(state[0])
    return torch.stack(outputs), state


def _weights(layer: nn.RNNBase, number: int, reverse: bool) -> _Weights:
    end = f"_l{number}{'_reverse' if reverse else ''}"
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
    return _Weights(*(getattr(layer, name + end, None) for name in names))  # type: ignore[arg-type]


def _zeros(layer: nn.RNNBase, sequence: Tensor) -> State:
    samples, out = sequence.shape[1], layer.proj_size or layer.hidden_size
    if layer.mode != "LSTM":
        return (sequence.new_zeros(samples, out),)
    return sequence.new_zeros(samples, out), sequence.new_zeros(samples, layer.hidden_size)
