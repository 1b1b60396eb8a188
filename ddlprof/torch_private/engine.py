"""Autograd: its engine, the nodes of its graph, and facts that tensors and the dispatcher give."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import Any

from ddlprof.torch_private.names import PrivateName, find, imported, reader

_SAVED, _SLOT = "_saved_", "_raw_saved_"
_FLOPS = "floating point operations of the model are not counted, so predictions know no FLOPs"


def _node(torch: Any) -> Any:
    matrix = torch.ones(1, 1, requires_grad=True)
    return torch.addmm(matrix, matrix, matrix).grad_fn


def _own_function(torch: Any) -> Any:
    def forward(context: Any, value: Any) -> Any:
        return value.clone()

    def backward(context: Any, gradient: Any) -> Any:
        return gradient

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function = type("Own", (torch.autograd.Function,), methods)
    return type(function.apply(torch.ones(1, requires_grad=True)).grad_fn)  # type: ignore[attr-defined]


NAMES = (
    PrivateName(
        "torch:_C._current_graph_task_id",
        "tells whether a hook runs inside a backward",
        "optimizers that step inside the backward, and collectives issued there, are not told from others",
    ),
    PrivateName(
        "torch:autograd.Variable._execution_engine.queue_callback",
        "is called when all gradients are there, just before DDP waits for its collectives",
        "the wait at the end of DDP's backward is counted as compute, not as communication",
    ),
    PrivateName(
        "torch:_C.DisableTorchFunction",
        "looks at parameters and batches without running code of the script's tensor classes",
        "tensor classes of the script are asked for what ddlprof looks at",
    ),
    PrivateName(
        "torch:_C._len_torch_function_stack",
        "tells whether a mode of the script's hears what is asked of tensors",
        "counting the samples of a batch takes some 20 microseconds longer",
    ),
    PrivateName(
        "torch:_C._len_torch_dispatch_stack",
        "tells whether tensors are fake, as under a dispatch mode",
        "copies of fake tensors are counted as copies to the device",
    ),
    PrivateName(
        "torch:_C._autograd._get_sequence_nr",
        "tells whether a compiled call has recorded anything for a backward",
        "every call of a compiled function with gradients enabled is taken for a forward",
    ),
    PrivateName(
        "torch:Tensor._version",
        "tells whether compiled code has changed a parameter, and whether a batch was changed in place",
        "steps of a loop that is compiled with its optimizer are not seen",
    ),
    PrivateName(
        "torch.autograd.graph:Node()._input_metadata", "tells shapes between operations", _FLOPS, "2.5", example=_node
    ),
    PrivateName(
        "torch.autograd.graph:Node()._saved_alpha",
        "tells arguments of an operation that are no tensors",
        _FLOPS,
        example=_node,
    ),
    PrivateName(
        "torch.autograd.graph:Node()._raw_saved_mat1",
        "tells shapes of saved tensors without unpacking them",
        _FLOPS,
        example=_node,
    ),
    PrivateName(
        "torch.autograd.graph:Node()._sequence_nr",
        "tells apart operations that two backwards go through",
        "floating point operations of a graph that is kept for another backward are counted twice",
        example=_node,
    ),
    PrivateName(
        "torch.autograd.graph:Node()._forward_cls",
        "finds autograd functions of the script's own",
        "floating point operations may be fewer than those of the model where it has autograd functions of its own",
        example=_own_function,
    ),
)

version_of: Callable[[Any], int] = attrgetter("_version")
"""How often a tensor was changed in place. Raises AttributeError or RuntimeError where that is not counted."""


version_or_none = reader("_version")


def _no_task() -> int:
    return -1


def graph_task(torch: Any) -> Callable[[], int]:
    """A function that returns the number of the backward that the current thread is in, -1 outside of one."""
    return find(torch, "_C._current_graph_task_id") or _no_task


def call_at_backward_end(torch: Any) -> Callable[[Callable[[], None]], None] | None:
    """A function that queues a callback for the end of the current thread's backward; None in another torch."""
    queue: Callable[[Callable[[], None]], None] | None = find(
        torch, "autograd.Variable._execution_engine.queue_callback"
    )
    return queue


def no_torch_function(torch: Any = None) -> AbstractContextManager[Any]:
    """A context in which no `__torch_function__` of the script's tensor classes or modes is called."""
    core = getattr(torch or imported("torch"), "_C", None)
    manager: AbstractContextManager[Any] = getattr(core, "DisableTorchFunction", nullcontext)()
    return manager


def in_one_piece(tensor: Any) -> bool:
    """Whether it is a tensor of torch's own class (a DTensor would gather its parts) with all its numbers next to each
    other in memory of the processors that is not given back for the time being (FSDP; to read it ends the process).
    Call it under `no_torch_function`."""
    torch = imported("torch")
    own = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
    return bool(own and tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.untyped_storage().nbytes())


def first_values(tensor: Any, most: int) -> tuple[Any, ...]:
    """The first values of a tensor; none where it is not `in_one_piece`. Call it under `no_torch_function`."""
    return tuple(tensor.detach().view(-1)[:most].tolist()) if in_one_piece(tensor) else ()


def nonzero_share(tensor: Any, fewest: int, most: int) -> float | None:
    """The share of a tensor's numbers that are not zero, by at most `most` of them; None for one of fewer than
    `fewest`, and where they are not `in_one_piece`, as they are or transposed."""
    with no_torch_function():
        tensor = tensor.detach()
        tensor = tensor.t() if tensor.dim() == 2 and not tensor.is_contiguous() else tensor
        if tensor.numel() < fewest or not in_one_piece(tensor):
            return None
        seen = tensor.view(-1)[:: -(-tensor.numel() // most) | 1]  # odd, so that it falls on all columns
        return int(seen.count_nonzero()) / int(seen.numel())


def function_modes(torch: Any) -> Callable[[], int] | None:
    """A function that returns the number of active function modes; None in another torch. Without such a mode, nothing
    intercepts what is done with a tensor of torch's own class."""
    count: Callable[[], int] | None = find(torch, "_C._len_torch_function_stack")
    return count


def dispatch_modes(torch: Any) -> Callable[[], int]:
    """A function that returns the number of active dispatch modes."""
    return find(torch, "_C._len_torch_dispatch_stack") or (lambda: 0)


def recorded_operations(torch: Any) -> Callable[[], int] | None:
    """A function that returns how many operations autograd has recorded in this thread; None in another torch."""
    count: Callable[[], int] | None = find(torch, "_C._autograd._get_sequence_nr")
    return count


def output_shape(node: Any, output: int = 0) -> Any:
    """Shape of an output of a node of the graph. Raises where it is not known."""
    return node._input_metadata[output].shape


def saved_argument(node: Any, name: str) -> Any:
    """An argument, no tensor, of the operation that made a node. Raises AttributeError where it has none."""
    return getattr(node, f"{_SAVED}{name}")


def saved_tensor(node: Any, name: str) -> Any:
    """The slot of a saved tensor, packed as it is; None where the node has none."""
    return getattr(node, f"{_SLOT}{name}", None)


def output_kinds(node: Any) -> tuple[tuple[Any, Any], ...]:
    """Shape and dtype of each output of a node of the graph. Raises where they are not known."""
    return tuple((tuple(output.shape), output.dtype) for output in node._input_metadata)


def saved_names(kind: type) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The names under which nodes of a class save tensors, sizes and strides of tensors, and other arguments."""
    names = dir(kind)
    tensors = tuple(name.removeprefix(_SLOT) for name in names if name.startswith(_SLOT))
    saved = [name.removeprefix(_SAVED) for name in names if name.startswith(_SAVED)]
    arguments = [name for name in saved if name not in tensors]
    sizes = tuple(name for name in arguments if "_sym_" in name)
    return tensors, sizes, tuple(name for name in arguments if name not in sizes)


def sequence_number(node: Any) -> int | None:
    """The number of the node's operation in the order in which its thread recorded them; None if not known."""
    number = getattr(node, "_sequence_nr", None)
    return None if number is None else int(number())


def forward_class(node: Any) -> Any:
    """The autograd function, written in Python, that made a node; None for other nodes."""
    return getattr(type(node), "_forward_cls", None)
