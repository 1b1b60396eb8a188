"""Reads the published operators and whole models (`data/operators/README.md`) as the recommender's records."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from ddlprof.model.operators import Operator, StepOperators

ELEMENTWISE = ("gelu", "relu", "tanh", "add", "mul", "div", "pow", "addu", "mulu", "divu", "powu")
BACKWARD_BYTES = {
    "Dropout": 2.2,
    "LayerNorm": 1.9,
    "softmax": 1.7,
    "pow": 2.9,
    "mul": 1.4,
    "add": 0.1,
    "Embedding": 3.0,
}
"""Bytes of backward over those of forward, where they differ from 1.5."""
_KINDS = {"softmax": "softmax", "LayerNorm": "normalization", "Embedding": "embedding", "embedding": "embedding"}
_COPIES = ("contiguous", "reshape", "to", "bool", "long")


@dataclass(frozen=True)
class ModelCase:
    """One row of `models.csv` with its operators."""

    gpu: str
    model: str
    batch: int
    sequence: int
    training: bool
    seconds: float
    forward_s: float
    backward_s: float
    step: StepOperators

    @property
    def name(self) -> str:
        return f"{self.model} {'train' if self.training else 'inf'} x{self.batch}"


def operator_of(op: str, b: int, m: int, n: int, k: float, mflop: float, mbyte: float) -> Operator:
    """A row of `operators.csv`."""
    flops, moved = mflop * 1e6, mbyte * 1e6
    if op in ("linear", "bmm"):
        return Operator("product", "forward", op, "fp32", (b, m, n, int(k)), flops, moved, 1, 1)
    if op == "conv":
        return Operator("convolution", "forward", op, "fp32", (b, m, n, int(k), 1, 9), flops, moved, 1, 1)
    kind = {"ln": "normalization", "softmax": "softmax"}.get(op, "elementwise")
    shape = (m * n,) if kind == "elementwise" else (m, n)
    return Operator(kind, "forward", op, "fp32", shape, 0.0, moved, 1, 1)


def operators_of(rows: pd.DataFrame) -> list[Operator]:
    """The rows of `operators.csv` as operators."""
    columns = (rows[name].tolist() for name in ("op", "b", "m", "n", "k", "mflop", "mbyte"))
    return [
        operator_of(op, b, m, n, 1 if math.isnan(k) else k, f, y) for op, b, m, n, k, f, y in zip(*columns, strict=True)
    ]


def read_models(folder: Path) -> list[ModelCase]:
    """The rows of `models.csv` whose operators are known, in their order."""
    models, parts = pd.read_csv(folder / "models.csv"), pd.read_csv(folder / "model_operators.csv")
    parts = parts[parts["kernel"] == 1]
    key = ["gpu_model", "model", "mode", "seq_len", "batch"]
    groups = dict(iter(parts.groupby(key)))
    found = []
    rows: Any = models.itertuples()
    for row in rows:
        traced = groups.get((row.gpu_model, row.model, row.mode, row.seq_len, row.batch))
        if traced is None:
            continue
        training = row.mode == "train"
        operators = tuple(_merged(_model_operators(traced, training)))
        step = StepOperators(row.batch, "fp32", operators, "none", training)
        backward_s = 0.0 if math.isnan(row.backward_ms) else row.backward_ms / 1e3
        seconds, forward_s = row.e2e_ms / 1e3, row.forward_ms / 1e3
        found.append(
            ModelCase(row.gpu_model, row.model, row.batch, row.seq_len, training, seconds, forward_s, backward_s, step)
        )
    return found


def _merged(operators: Iterator[Operator]) -> list[Operator]:
    """Equal operators as one with the sum of their counts."""
    counts: dict[Operator, float] = {}
    for operator in operators:
        one = replace(operator, count=1)
        counts[one] = counts.get(one, 0.0) + operator.count
    return [replace(operator, count=count) for operator, count in counts.items()]


def _model_operators(traced: pd.DataFrame, training: bool) -> Iterator[Operator]:
    for op, inputs, output, count in zip(
        traced["op"], traced["input_shapes"], traced["output_shape"], traced["count"], strict=True
    ):
        forward = list(_forward(op, ast.literal_eval(inputs), ast.literal_eval(output)))
        for operator in forward:
            yield replace(operator, count=float(count))
            if training:
                yield from (replace(back, count=float(count)) for back in _backward(op, operator))


def _forward(op: str, inputs: list[list[int]], output: list[int]) -> Iterator[Operator]:
    """What one call launches. Inputs of one element are numbers."""
    out = math.prod(output)
    if op in ("addmm", "Linear", "matmul", "bmm"):
        batched = op in ("matmul", "bmm")
        left = inputs[1] if op == "addmm" else inputs[0]
        b = math.prod(output[:-2]) if batched else 1
        m, n, k = math.prod(output) // b // output[-1], output[-1], left[-1]
        moved = 4.0 * b * (m * k + k * n + m * n) + (0 if batched else 4.0 * n)
        if op == "matmul":  # both operands are permuted views, which matmul copies first
            for elements in (b * m * k, b * k * n):
                if elements != b * m * n and k != m:
                    yield Operator("copy", "forward", "clone", "fp32", (elements,), 0.0, 8.0 * elements, 1, 1)
        yield Operator("product", "forward", op, "fp32", (b, m, n, k), 2.0 * b * m * n * k, moved, 1, 1)
        return
    kind = _KINDS.get(op, "copy" if op in _COPIES else "elementwise")
    if kind in ("softmax", "normalization", "embedding"):
        yield Operator(kind, "forward", op, "fp32", (out // output[-1], output[-1]), 0.0, 8.0 * out, 1, 1)
    else:
        read = sum(math.prod(shape) for shape in inputs if math.prod(shape) > 1)
        dropout = 0.25 if op == "Dropout" else 0.0
        yield Operator(kind, "forward", op, "fp32", (out,), 0.0, 4.0 * (read + out * (1 + dropout)), 1, 1)


def _backward(op: str, forward: Operator) -> Iterator[Operator]:
    if forward.kind == "product":
        b, m, n, k = forward.shape
        for name, shape in (("grad_input", (b, m, k, n)), ("grad_weight", (b, k, n, m))):
            yield replace(forward, phase="backward", name=name, shape=shape)
        return
    if forward.kind == "copy" and op != "matmul":
        return
    times = BACKWARD_BYTES.get(op, 1.5)
    yield replace(forward, phase="backward", name=f"{op}_backward", bytes=forward.bytes * times)
