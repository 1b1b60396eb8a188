"""What scripts do with the methods that the copy hooks time; `test_cuda_build.py` compares processes that run this.

`python copy_programs.py [DIRECTORY before|after]`: prints what came of each program as JSON, on what looks like a CUDA
build of torch; profiled where there is a directory, from before or after the import of dynamo.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

CALLS = 6
METHODS = ("to", "cuda", "copy_", "type", "new_tensor", "__setitem__")
TABLE = {getattr(Tensor, name): name for name in METHODS}
"""As libraries have it, from before the hooks."""
MOVES = {Tensor.to, Tensor.cuda}
Program = Callable[[Tensor], Any]


class Own(Tensor):
    """Looks up what is called of it."""

    seen: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not torch.compiler.is_compiling():
            cls.seen.append(f"{TABLE.get(func)} {func in MOVES} {func is Tensor.to} {func == Tensor.to}")
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func in MOVES else result


class Overriding(Tensor):
    """Has a method of its own over one of torch's."""

    def to(self, *args: Any, **kwargs: Any) -> Any:
        return super().to(*args, **kwargs) * 2


class Mode(TorchFunctionMode):
    """Sees all calls."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {})) if func is not Tensor.to else func(*args, **(kwargs or {})) * 3


def through_a_mode(x: Tensor) -> Tensor:
    with Mode():
        return x.to(torch.float64) + 1


def items(x: Tensor) -> Tensor:
    y = x.clone()
    y[0] = x[1]
    y[1] = 5.0
    return y


def method_in_a_variable(x: Tensor) -> Tensor:
    move = x.to
    return move(torch.float64)


def with_a_break(x: Tensor) -> Tensor:
    y = x.to(torch.float64)
    torch._dynamo.graph_break()
    return y.to(torch.float32) + x


torch.manual_seed(0)
moved = nn.Linear(3, 3)


def moving_a_module(x: Tensor) -> Any:
    return nn.functional.linear(x, moved.to("cpu").weight)


def parameter_copied(x: Tensor) -> Any:
    with torch.no_grad():
        moved.bias.copy_(x)
    return moved.bias + 1


COMPILED: dict[str, Program] = {
    "to a type": lambda x: x.to(torch.float64) + 1,
    "to a device": lambda x: x.to("cpu").copy_(x) + 1,
    "to another tensor": lambda x: x.to(x.double()) + 1,
    "the class's method": lambda x: Tensor.to(x, torch.float64) + 1,
    "mapped method": lambda x: list(map(Tensor.double, [x, x])),
    "attribute by name": lambda x: getattr(x, "to")(torch.float64) + 1,  # noqa: B009
    "has the attribute": lambda x: x + 1 if hasattr(x, "to") else x,
    "method in a variable": method_in_a_variable,
    "type and new_tensor": lambda x: x.type(torch.float64).new_tensor([1.0, 2, 3]) + x,
    "torch.tensor": lambda x: x + torch.tensor([1.0, 2, 3]) + torch.as_tensor(x),
    "items": items,
    "mode": through_a_mode,
    "break": with_a_break,
    "module": moving_a_module,
    "parameter": parameter_copied,
}
SUBCLASSED: dict[str, Any] = {"own class": Own, "overriding class": Overriding}


def values(result: Any) -> str:
    """What is in tensors. Printing them is another thing: its guards are objects of the thread that prints."""
    tensors = result if isinstance(result, list) else [result]
    return str([(type(tensor).__name__, str(tensor.dtype), tensor.tolist()) for tensor in tensors])


def counted() -> dict[str, Any]:
    from torch._dynamo.utils import counters

    breaks = sorted(reason.split("\n")[0][:200] for reason in counters["graph_break"])
    return {**counters["stats"], "breaks": breaks, "frames": counters["frames"]["total"]}


def compiled(program: Program, x: Tensor, between: Callable[[int], None], **options: Any) -> dict[str, Any]:
    """Called again and again, while the hooks go and come."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    Own.seen.clear()
    function = torch.compile(program, **options)
    outcome: list[str] = []
    for call in range(CALLS):
        try:
            outcome.append(values(function(x)))
        except Exception as error:
            outcome.append(f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
        between(call)
    return {"outcome": outcome, "seen": list(Own.seen), **counted()}


def uncompiled(between: Callable[[int], None]) -> dict[str, Any]:
    """The other ways to get hold of what a function does."""
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.ones(3)

    def moves(x: Tensor) -> Tensor:
        return x.to(torch.float64).copy_(x).type(torch.float32)

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return moves(x) + torch.tensor(1.0)

    class Scripted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.to(torch.float64).clone()
            y[0] = 1
            return y.copy_(x).to(x) + torch.tensor([1.0])

    with torch.device("cpu"):
        on_default_device = torch.tensor([1.0]).to(torch.float64)
    own = torch.ones(3).as_subclass(Own)
    Own.seen.clear()
    between(0)
    own.to(torch.float64)
    own.copy_(torch.zeros(3))
    torch.ones(3).to(own)
    torch.ones(3).copy_(own)
    own[0] = 1
    between(1)
    own.to(torch.float64)
    between(2)
    return {
        "export": str(torch.export.export(Net(), (x,), strict=False).graph),
        "strict export": str(torch.export.export(Net(), (x,), strict=True).graph),
        "make_fx": make_fx(moves)(x).code,
        "vmap": values(torch.func.vmap(moves)(torch.ones(2, 3))),
        "grad": values(torch.func.grad(lambda x: x.to(torch.float64).sum())(x)),
        "script": str(torch.jit.script(Scripted()).graph),
        "trace": torch.jit.trace(Net(), (x,)).code,
        "symbolic_trace": torch.fx.symbolic_trace(Net()).code,
        "to a proxy": torch.fx.symbolic_trace(lambda x: torch.ones(3).to(x)).code,
        "lazy layer": str(nn.LazyLinear(3).to(torch.float64)(torch.ones(2, 5, dtype=torch.float64)).dtype),
        "default device": values(on_default_device),
        "seen": list(Own.seen),
    }


def run(between: Callable[[int], None]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    x = torch.ones(3)
    for name, program in COMPILED.items():
        for fullgraph in (False, True):
            results[f"{name}, {fullgraph=}"] = compiled(program, x, between, backend="aot_eager", fullgraph=fullgraph)
    for name, kind in SUBCLASSED.items():
        results[name] = compiled(COMPILED["to a type"], x.as_subclass(kind), between, backend="eager")
    return {**results, **uncompiled(between)}


def profiled(directory: str) -> dict[str, Any]:
    from ddlprof.collect.session import Session
    from ddlprof.model.options import Options

    session = Session(Options(out=directory, quiet=True), "copies", [])
    session.begin()
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    in_place: list[int] = []

    def between(call: int) -> None:
        if call % 3 == 1:
            session.pause()
        elif call % 3 == 2:
            session.resume()
        optimizer.step()
        in_place.append(sum(name in vars(Tensor) for name in METHODS))

    result = {"results": run(between), "in_place": in_place}
    session.finish("ok", 0)
    return result


def main() -> None:
    torch.version.cuda = "12.6"
    torch.accelerator.current_accelerator = lambda check_available=False: torch.device("cuda")
    warnings.simplefilter("ignore")
    if sys.argv[2:] == ["after"]:
        importlib.import_module("torch._dynamo")
    print(json.dumps(profiled(sys.argv[1]) if sys.argv[1:] else {"results": run(lambda call: None)}))


if __name__ == "__main__":
    main()
