"""Finds in autograd's graph of the forward pass where the input of a layer comes from."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

DROPOUT = "Dropout"
_MOST_NODES = 200
_MOST_PATHS = 8
_LAYER, _MASK = "ddlprof layer", "ddlprof mask"
"""Keys for marks in the metadata of an output's graph node, a dictionary that torch keeps for such use."""

MAKES_ZEROS = frozenset(("Relu", "Threshold", "Hardtanh", "NativeDropout", "FusedDropout"))
"""Operators whose zeros get no gradient, as backward keeps a mask of them. For dropout on a CPU see `mark_mask`."""
_KEEPS_ZEROS = frozenset((
    "Mul", "View", "UnsafeView", "ReshapeAlias", "AsStrided", "Transpose", "T", "Permute", "Squeeze", "Unsqueeze",
    "Clone", "ToCopy", "Expand", "Slice", "Select", "Split", "Unbind", "Cat", "Stack", "ConstantPadNd",
))  # fmt: skip
"""Operators that only move or select values, and their gradients with them."""


class Path(NamedTuple):
    """A path in the graph from the input of one layer back to the output of another."""

    layer: str
    operators: tuple[str, ...]
    """Torch's names without "Backward0", the latest operator first."""


def mark(output: Any, layer: str) -> None:
    """Marks a tensor as the output of a layer."""
    output.grad_fn.metadata[_LAYER] = layer


def mark_mask(output: Any) -> None:
    """Marks a tensor as the output of a dropout."""
    output.grad_fn.metadata[_MASK] = True


def paths(tensor: Any) -> list[Path]:
    """Paths from a tensor back to the outputs of marked layers; at most a few, as there may be many."""
    found: list[Path] = []
    waiting: list[tuple[Any, tuple[str, ...]]] = [(tensor.grad_fn, ())]
    seen: set[Any] = set()
    while waiting and len(seen) < _MOST_NODES and len(found) < _MOST_PATHS:
        node, behind = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        layer = node.metadata.get(_LAYER)
        if layer is not None:
            found.append(Path(layer, behind))
            continue
        waiting += [(following, (*behind, _name(node))) for following, _ in node.next_functions]
    return found


def mask_is_known(tensor: Any) -> bool:
    """Whether zeros of the tensor get no gradient, as it comes from a ReLU, a dropout, or a pooling of these."""
    return _makes_zeros(tensor.grad_fn, _MOST_PATHS)


def _makes_zeros(node: Any, depth: int) -> bool:
    if node is None or not depth:
        return False
    name = _name(node)
    inputs = [following for following, _ in node.next_functions if following is not None]
    if name in MAKES_ZEROS or _MASK in node.metadata:
        return True
    if name == "Mul" and len(inputs) > 1:  # the zero may be in the other factor
        return False
    if name in _KEEPS_ZEROS or ("Pool" in name and "Max" in name):
        return bool(inputs) and all(_makes_zeros(each, depth - 1) for each in inputs)
    return False


def chain(tensor: Any) -> list[str]:
    """The last few operators that made a tensor, the latest first, following their first inputs."""
    names: list[str] = []
    node = tensor.grad_fn
    while node is not None and len(names) < _MOST_PATHS:
        names.append(_name(node))
        node = node.next_functions[0][0] if node.next_functions else None
    return names


def _name(node: Any) -> str:
    if _MASK in node.metadata:
        return DROPOUT
    return re.sub(r"Backward\d*$", "", node.name())
