"""The parameters of a module and of an optimizer, without calling `parameters()`, which may be the script's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddlprof.torch_private.modules import BUFFERS, MODULES, PARAMETERS


def parameters_of(optimizer: Any) -> Iterator[Any]:
    """All parameters that an optimizer updates."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def own_parameters(module: Any) -> Iterator[Any]:
    """Each parameter once, in the order of `nn.Module.parameters`."""
    return _own(module, PARAMETERS)


def own_buffers(module: Any) -> Iterator[Any]:
    """Each buffer once, in the order of `nn.Module.buffers`."""
    return _own(module, BUFFERS)


def _own(module: Any, table: str) -> Iterator[Any]:
    parts, seen = [module], {id(module)}
    while parts:
        part = parts.pop().__dict__
        for parameter in part[table].values():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter
        for child in part[MODULES].values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                parts.append(child)


def has_parameters(module: Any) -> bool:
    """Whether the module has parameters; False if that cannot be determined."""
    try:
        return next(own_parameters(module), None) is not None
    except Exception:
        return False
