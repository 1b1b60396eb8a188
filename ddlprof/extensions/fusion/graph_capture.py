"""Records the operators that a function calls, below autograd and vmap, as a graph to call instead of the function.

torch's `make_fx` does the same, but first imports torch's compiler, which takes longer than many a sweep.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

_BY_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class Unrecordable(Exception):
    """The operators depend on the values of tensors."""


class _Layout(NamedTuple):
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


class _Watch(TorchDispatchMode):
    """Adds every operator that is called to a graph."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph, self.constants = fx.Graph(), nn.Module()
        self._nodes = WeakTensorKeyDictionary()
        for number, each in enumerate(inputs):
            self._keep(each, self.graph.placeholder(f"given_{number}"))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False. torch asks this, and would otherwise import its compiler to exclude this class from it."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _BY_VALUES & set(func.tags):
            raise Unrecordable(str(func))
        kwargs = kwargs or {}
        named = pytree.tree_map_only(Tensor, self.node_of, (args, kwargs))
        found = func(*args, **kwargs)
        node = self.graph.call_function(func, *named)
        if isinstance(found, Tensor):
            self._keep(found, node)
        elif isinstance(found, (tuple, list)):
            for number, each in enumerate(found):
                if isinstance(each, Tensor):
                    self._keep(each, self.graph.call_function(operator.getitem, (node, number)))
        elif found is not None:
            raise Unrecordable(str(func))
        return found

    def node_of(self, tensor: Tensor) -> fx.Node:
        """The node that made a tensor. A tensor that no operator made becomes a constant."""
        node = self._nodes.get(tensor)
        if node is None:
            name = f"constant_{len(list(self.constants.buffers()))}"
            self.constants.register_buffer(name, tensor)
            node = self.graph.get_attr(name)
            self._keep(tensor, node)
        return node  # type: ignore[no-any-return]

    def _keep(self, tensor: Tensor, node: fx.Node) -> None:
        node.meta["layout"] = _Layout(tensor.shape, tensor.stride(), tensor.dtype)
        self._nodes[tensor] = node


@dataclass
class Recording:
    """The recorded operators, as a function of the same tensors in a flat list."""

    graph: fx.Graph
    constants: nn.Module
    spec: pytree.TreeSpec | None
    """The structure of the result, if the graph does not build it itself."""

    def same_as(self, other: Recording) -> bool:
        """Whether both recorded the same operators with the same constants."""
        pairs = zip(self.constants.buffers(), other.constants.buffers(), strict=False)
        return str(self.graph) == str(other.graph) and all(one is two or torch.equal(one, two) for one, two in pairs)

    @property
    def is_low(self) -> bool:
        """Whether any tensor has 16 bits."""
        layouts = [node.meta.get("layout") for node in self.graph.nodes]
        return any(each is not None and each.dtype in (torch.bfloat16, torch.float16) for each in layouts)

    def compiled(self, differentiable: bool) -> Callable[..., Any]:
        """A function of the inputs, one by one. `differentiable`: whether gradients must flow through the result."""
        simplify(self.graph, differentiable)
        _call_directly(self.graph)
        run = fx.GraphModule(self.constants, self.graph).forward  # a Module's call would cost as much as an operator
        spec = self.spec
        return run if spec is None else lambda *given: pytree.tree_unflatten(run(*given), spec)


def record(function: Callable[[], Any], inputs: Sequence[Tensor]) -> Recording:
    """Calls `function`, which computes from `inputs`, and records it.

    Raises Unrecordable, and the errors of the function.
    """
    watch = _Watch(inputs)
    with watch:
        found = function()
    spec = None
    if not _is_plain(found):
        found, spec = pytree.tree_flatten(found)
    watch.graph.output(pytree.tree_map_only(Tensor, watch.node_of, found))
    return Recording(watch.graph, watch.constants, spec)


def _is_plain(found: Any) -> bool:
    """Whether a graph can return it: containers of Python's own types."""
    if type(found) in (tuple, list):
        return all(map(_is_plain, found))
    if type(found) is dict:
        return all(isinstance(key, str) and _is_plain(each) for key, each in found.items())
    return found is None or isinstance(found, (Tensor, bool, int, float, str))


_aten = torch.ops.aten
_VIEWS = {
    _aten.expand.default,
    _aten.permute.default,
    _aten.reshape.default,
    _aten.transpose.int,
    _aten.view.default,
    _aten._unsafe_view.default,
}
_DIRECTLY: dict[Any, Callable[..., Any]] = {
    _aten.add.Tensor: torch.add,
    _aten.bmm.default: torch.bmm,
    _aten.clone.default: torch.clone,
    _aten.div.Tensor: torch.div,
    _aten.expand.default: Tensor.expand,
    _aten.mul.Tensor: torch.mul,
    _aten.relu.default: torch.relu,
    _aten.sigmoid.default: torch.sigmoid,
    _aten.sub.Tensor: torch.sub,
    _aten.sum.dim_IntList: torch.sum,
    _aten.tanh.default: torch.tanh,
    _aten.transpose.int: torch.transpose,
    _aten.unsqueeze.default: torch.unsqueeze,
    _aten.view.default: Tensor.view,
    _aten._unsafe_view.default: Tensor.view,
}
_ALIASES = {_aten.detach.default, _aten.alias.default}


def simplify(graph: fx.Graph, differentiable: bool) -> None:
    """Removes operators without effect: unused ones, views of views, products with one."""
    for node in list(graph.nodes):
        if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
            continue
        source = node.args[0]
        if _transposes_back(node, source):
            node.replace_all_uses_with(source.args[0])
        elif (
            (node.target in _VIEWS and _same_layout(node, source))
            or _is_times_one(node)
            or (node.target in _ALIASES and not differentiable)
        ):
            node.replace_all_uses_with(source)
    _drop_unused(graph)
    for node in list(graph.nodes):
        _turn_product(graph, node)
    _drop_unused(graph)


def _drop_unused(graph: fx.Graph) -> None:
    for node in reversed(list(graph.nodes)):
        if node.op in ("call_function", "get_attr") and not node.users and not _writes(node):
            graph.erase_node(node)


def _same_layout(node: fx.Node, source: fx.Node) -> bool:
    one, other = node.meta.get("layout"), source.meta.get("layout")
    return one is not None and other is not None and one[:2] == other[:2]


def _transposes_back(node: fx.Node, source: fx.Node) -> bool:
    transpose = _aten.transpose.int
    if node.target is not transpose or source.target is not transpose:
        return False
    dims = len(node.meta["layout"].shape)
    pairs = [{int(each) % dims for each in one.args[1:3]} for one in (node, source)]  # type: ignore[arg-type]
    return pairs[0] == pairs[1]


def _turn_product(graph: fx.Graph, node: fx.Node) -> None:
    """Makes products that are returned transposed (gradients of weights) be computed in the order of the result."""
    product = node.args[0] if node.args else None
    if node.target is not _aten.transpose.int or not isinstance(product, fx.Node):
        return
    if (
        product.target is not _aten.bmm.default
        or len(product.users) > 1
        or any(use.op != "output" for use in node.users)
    ):
        return
    if {int(each) % 3 for each in node.args[1:3]} != {1, 2}:  # type: ignore[arg-type]
        return
    with graph.inserting_before(node):
        turned = [_transposed(graph, each) for each in reversed(product.args)]
        node.replace_all_uses_with(graph.call_function(_aten.bmm.default, tuple(turned)))


def _transposed(graph: fx.Graph, node: Any) -> fx.Node:
    if node.target is _aten.transpose.int and {int(each) % 3 for each in node.args[1:3]} == {1, 2}:
        return node.args[0]  # type: ignore[no-any-return]
    return graph.call_function(_aten.transpose.int, (node, 1, 2))


def _call_directly(graph: fx.Graph) -> None:
    """Replaces overloads of operators by torch's functions with the same arguments, which take half as long to call."""
    for node in graph.nodes:
        if node.op == "call_function" and node.target in _DIRECTLY:
            node.target = _DIRECTLY[node.target]


def _is_times_one(node: fx.Node) -> bool:
    """Whether the operator only copies its argument, to which nothing is written."""
    if node.target is not _aten.mul.Scalar or node.args[1] != 1:
        return False
    source = node.args[0]
    assert isinstance(source, fx.Node)
    if node.meta["layout"].dtype != source.meta["layout"].dtype:
        return False
    return not any(_writes(user) for user in node.users)


def _writes(node: fx.Node) -> bool:
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))
