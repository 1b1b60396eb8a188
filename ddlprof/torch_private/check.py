"""Which of the private names the installed torch has. For `ddlprof doctor` and a test: it imports much of torch."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from typing import Any, NamedTuple

from ddlprof.torch_private import (
    aten,
    collectives,
    compile,
    engine,
    fake,
    loader,
    meshes,
    modules,
    operators,
    packages,
    profiler,
    sharding,
)
from ddlprof.torch_private.names import NEWEST, PrivateName, codes, version_number

PARTS = (engine, modules, loader, compile, profiler, collectives, sharding, meshes, operators, aten, fake, packages)
NAMES: tuple[PrivateName, ...] = tuple(name for part in PARTS for name in part.NAMES)


class NamesFound(NamedTuple):
    """How many of the expected names the installed torch has, and which ones are missing."""

    present: int
    missing: list[PrivateName]


def look(torch: Any, names: tuple[PrivateName, ...] = NAMES) -> NamesFound:
    """Looks at all names that this version of torch, built as it is, should have."""
    expected = [name for name in names if is_expected(name, torch.__version__) and can_be_there(name, torch)]
    missing = [name for name in expected if not exists(name, torch)]
    return NamesFound(len(expected) - len(missing), missing)


def is_expected(name: PrivateName, version: str) -> bool:
    """Whether a version of torch should have the name. Versions newer than `NEWEST` should have what `NEWEST` has."""
    return (
        version_number(name.since) <= min(version_number(version), version_number(NEWEST)) <= version_number(name.until)
    )


def can_be_there(name: PrivateName, torch: Any) -> bool:
    """Whether torch was built with the feature that the name belongs to."""
    if name.needs == "cuda":
        return bool(torch.version.cuda or torch.version.hip)
    if name.needs == "torchdata":
        return importlib.util.find_spec("torchdata") is not None
    if name.needs == "nccl":
        return bool(torch.distributed.is_available() and torch.distributed.is_nccl_available())
    return name.needs != "distributed" or bool(torch.distributed.is_available())


def exists(name: PrivateName, torch: Any) -> bool:
    """Whether the installed torch has it. Imports its module."""
    module, _, path = name.path.partition(":")
    try:
        if name.example is not None:
            return hasattr(name.example(torch), name.attribute)
        owner: Any = importlib.import_module(module)
        for part in path.split("."):
            if part == "()":
                return name.attribute in _attributes_in(vars(owner).values(), owner.__name__)
            if part.endswith("()"):
                return _has_instances_with(getattr(owner, part.removesuffix("()")), name.attribute)
            owner = getattr(owner, part)
    except Exception:  # whatever an import in another version does
        return False
    return True


def _has_instances_with(kind: type, attribute: str) -> bool:
    """Whether a class has the attribute, declares it, or uses it in one of its methods."""
    if hasattr(kind, attribute):
        return True
    for cls in kind.__mro__[:-1]:
        if attribute in inspect.get_annotations(cls) or attribute in _attributes_in(vars(cls).values(), cls.__module__):
            return True
    return False


def _attributes_in(values: Any, module: str) -> set[str]:
    """Names of functions defined in a module, and those that are used in them."""
    found: set[str] = set()
    for value in values:
        value = inspect.unwrap(getattr(value, "__func__", getattr(value, "fget", value)))
        if inspect.isfunction(value) and value.__module__ == module:
            found.add(value.__name__)
            found.update(name for code in codes(value.__code__) for name in code.co_names)
    return found
