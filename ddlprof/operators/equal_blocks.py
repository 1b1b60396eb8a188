"""Which repeated blocks of a model do the same: modules of one class with equal settings and shapes of parameters.

Numbers may differ between blocks, as a layer's number does, if nothing asks for them while a block runs: `Watched`
stands in their place and tells.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from ddlprof.operators.trace_memory import blocks
from ddlprof.torch_private.modules import BUFFERS, MODULES, PARAMETERS

Numbers = set[tuple[str, str]]
"""The path of a module inside a block, and the name of an attribute of it."""

FEWEST = 4
"""Groups of fewer blocks are not worth it."""
_DEEPEST = 4
"""How far objects in objects are compared."""
_PLAIN = (str, bytes, int, float, complex, set, frozenset, type(None))
_TABLES = (PARAMETERS, BUFFERS, MODULES)


def groups(model: Any) -> list[tuple[list[Any], Numbers]]:
    """The groups of equal blocks in the order of the model, each with the numbers in which they differ."""
    found: list[tuple[list[Any], Numbers]] = []
    for block in _separate(model, blocks(model)):
        for members, numbers in found:
            different = _differences(members[0], block)
            if different is not None:
                members.append(block)
                numbers |= different
                break
        else:
            if _differences(block, block) is not None:
                found.append(([block], set()))
    return [(members, numbers) for members, numbers in found if len(members) >= FEWEST]


def _separate(model: Any, found: list[Any]) -> Iterable[Any]:
    """The blocks that share no trained parameter with anything else."""
    owners: Counter[int] = Counter()
    parts = [(block, list(block.modules())) for block in found]
    inside = {id(part) for _, modules in parts for part in modules}
    outside = [part for part in model.modules() if id(part) not in inside]
    trained = [{id(p) for part in modules for p in _own(part) if p.requires_grad} for _, modules in parts]
    for parameters in (*trained, {id(p) for part in outside for p in _own(part)}):
        owners.update(parameters)
    return [block for (block, _), mine in zip(parts, trained, strict=True) if all(owners[p] == 1 for p in mine)]


def _own(part: Any) -> list[Any]:
    return list(part.parameters(recurse=False))


def _differences(first: Any, other: Any) -> Numbers | None:
    """The numbers in which two blocks differ; None where they differ in anything else."""
    mine, theirs = list(first.named_modules()), list(other.named_modules())
    if [name for name, _ in mine] != [name for name, _ in theirs]:
        return None
    numbers: Numbers = set()
    for (path, one), (_, two) in zip(mine, theirs, strict=True):
        if type(one) is not type(two) or vars(one).keys() != vars(two).keys():
            return None
        if not all(_same_tensors(vars(one)[table], vars(two)[table]) for table in (PARAMETERS, BUFFERS)):
            return None
        for name, value in vars(one).items():
            if name in _TABLES:
                continue
            if "hooks" in name and isinstance(value, dict) and (value or vars(two)[name]):
                return None
            if _are_numbers(value, vars(two)[name]):
                numbers |= {(path, name)} if value != vars(two)[name] else set()
            elif not _equal(value, vars(two)[name], (first, other), _DEEPEST):
                return None
    return numbers


def _are_numbers(one: Any, two: Any) -> bool:
    return type(one) is type(two) and type(one) in (int, float)


def _same_tensors(mine: dict[str, Any], theirs: dict[str, Any]) -> bool:
    return mine.keys() == theirs.keys() and all(_layout(mine[name]) == _layout(theirs[name]) for name in mine)


def _layout(tensor: Any) -> Any:
    return None if tensor is None else (
        type(tensor), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad,
    )  # fmt: skip


def _equal(one: Any, two: Any, roots: tuple[Any, Any], depth: int) -> bool:
    if one is two or (one is roots[0] and two is roots[1]):
        return True
    if type(one) is not type(two) or depth == 0 or hasattr(one, "untyped_storage"):
        return False
    again = functools.partial(_equal, roots=roots, depth=depth - 1)
    if isinstance(one, _PLAIN) or type(one).__module__ == "torch":
        return bool(one == two)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(again(a, b) for a, b in zip(one, two, strict=True))
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(again(one[key], two[key]) for key in one)
    if isinstance(one, functools.partial):
        return all(again(a, b) for a, b in ((one.func, two.func), (one.args, two.args), (one.keywords, two.keywords)))
    if hasattr(one, "__func__"):  # a method of the block itself
        return one.__func__ is two.__func__ and again(one.__self__, two.__self__)
    own = getattr(one, "__dict__", None)
    return own is not None and not callable(one) and again(own, two.__dict__)


class Watched:
    """A number in the place of one that differs between blocks. Whatever asks for its value is told of."""

    __slots__ = ("asked", "value")

    def __init__(self, value: Any, asked: Callable[[], None]) -> None:
        self.value, self.asked = value, asked


def _answering(name: str) -> Callable[..., Any]:
    def answer(self: Watched, *args: Any) -> Any:
        self.asked()
        return getattr(self.value, name)(*args)

    return answer


for _name in {name for kind in (int, float) for name in dir(kind) if name.startswith("__")}.difference(
    ("__class__", "__new__", "__init__", "__getattribute__", "__setattr__", "__delattr__", "__init_subclass__",
     "__subclasshook__", "__doc__", "__dict__", "__dir__", "__reduce__", "__reduce_ex__", "__getnewargs__",
     "__getstate__", "__sizeof__", "__getformat__", "__setformat__")
):  # fmt: skip
    setattr(Watched, _name, _answering(_name))
