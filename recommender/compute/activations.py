"""What forward leaves behind for backward, as far as the results of its operators tell."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ddlprof.model.operators import Operator, StepOperators

_NOT_KEPT = ("copy", "embedding", "optimizer")
"""Kinds whose results are other tensors' copies, or whose backward needs indices only."""


def results(step: StepOperators) -> Iterator[tuple[Operator, float]]:
    """The operators of forward whose results grow with the batch, each with the elements of all of its results."""
    for operator in step.operators:
        if operator.phase == "forward" and operator.grows is not None and operator.kind not in _NOT_KEPT:
            yield operator, _elements(operator) * operator.count


def _elements(operator: Operator) -> float:
    shape, kind = operator.shape, operator.kind
    if kind == "product":
        return math.prod(shape[:3])
    if kind == "convolution":
        return math.prod(shape[:3]) * shape[4]
    if kind == "attention":
        return shape[0] * shape[1] * shape[3]
    if kind == "recurrent":
        return math.prod(shape[:4])
    if kind == "reduction":
        return shape[1]
    return math.prod(shape[:2]) if kind in ("softmax", "normalization") else shape[0]


def largest_convolution_bytes(step: StepOperators) -> float:
    """The operands and the result of the largest convolution; 0 without one."""
    return max((operator.bytes for operator in step.operators if operator.kind == "convolution"), default=0.0)
