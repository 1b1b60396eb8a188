"""Where the input of a layer comes from, read off the graph that autograd has made of the forward pass."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

DROPOUT = "Dropout"
_MOST_NODES = 200
_MOST_PATHS = 8
_LAYER, _MASK = "ddlprof layer", "ddlprof mask"
"""Keys in the metadata of the node that an output ends with; a dictionary that torch keeps for such marks."""

MAKES_ZEROS = frozenset(("Relu", "Threshold", "Hardtanh", "NativeDropout", "FusedDropout"))
"""Operators whose zeros get no gradient, as backward keeps a mask. Dropout on a CPU is a product: see `mark_mask`."""
_KEEPS_ZEROS = frozenset((
    "Mul", "View", "UnsafeView", "ReshapeAlias", "AsStrided", "Transpose", "T", "Permute", "Squeeze", "Unsqueeze",
    "Clone", "ToCopy", "Expand", "Slice", "Select", "Split", "Unbind", "Cat", "Stack", "ConstantPadNd",
))  # fmt: skip
"""Operators that move values, and their gradients with them."""


class Path(NamedTuple):
    """From the input of one layer back to the output of another."""

    layer: str
    operators: tuple[str, ...]
    """By torch's names without "Backward0", the last first."""


def mark(output: Any, layer: str) -> None:
    """Says that a layer has made this tensor."""
    output.grad_fn.metadata[_LAYER] = layer


def mark_mask(output: Any) -> None:
    """Says that a dropout has made this tensor."""
    output.grad_fn.metadata[_MASK] = True


def paths(tensor: Any) -> list[Path]:
    """The ways back from a tensor to the outputs of layers that were marked; a few of them, as there may be many."""
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
    """Whether a zero of the tensor gets no gradient, as it comes out of a ReLU, a dropout, or a pooling of these."""
    return _makes_zeros(tensor.grad_fn, _MOST_PATHS)


def _makes_zeros(node: Any, depth: int) -> bool:
    if node is None or not depth:
        return False
    name = _name(node)
    inputs = [following for following, _ in node.next_functions if following is not None]
    if name in MAKES_ZEROS or _MASK in node.metadata:
        return True
    if name == "Mul" and len(inputs) > 1:  # the zero may be the other factor's
        return False
    if name in _KEEPS_ZEROS or ("Pool" in name and "Max" in name):
        return bool(inputs) and all(_makes_zeros(each, depth - 1) for each in inputs)
    return False


def chain(tensor: Any) -> list[str]:
    """The last few operators that made a tensor, the last first, along their first inputs."""
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
