"""The facts of a model that nobody runs: built and called on the meta device, where tensors have shapes and no data.

Not part of a profiled training. Counts are those of `features`, as inside a run, and the formulas of `flops_mode`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ddlprof.collect.facts.features import model_facts
from ddlprof.collect.facts.operator_flops import FlopCount
from ddlprof.collect.torch_private.operators import leaves
from ddlprof.model.errors import UserError
from ddlprof.model.manifest import ModelFacts

_SAMPLES = 2
"""The samples in the batch: batch normalisation refuses a single one."""
_INPUT = re.compile(r"(?:(?P<dtype>[a-z]+[0-9]*):)?(?P<shape>[0-9]+(?:,[0-9]+)*)?")


class InputSpec(NamedTuple):
    """One argument of the model's forward, for one sample."""

    shape: tuple[int, ...]
    dtype: str | None
    """Name of a torch dtype; None: that of the model's parameters."""


@dataclass(frozen=True)
class MetaModel:
    """What was found; `notes` say what was not, and why."""

    facts: ModelFacts
    notes: list[str]


def parse_input(text: str) -> InputSpec:
    """The input of `3,224,224` or `int64:512`; nothing after the colon means one number a sample. Raises UserError."""
    import torch

    match = _INPUT.fullmatch(text)
    if match is None or not text:
        raise UserError(f"--input {text}: not the shape of a sample, such as 3,224,224 or, for tokens, int64:512")
    dtype = match["dtype"]
    if dtype is not None and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise UserError(f"--input {text}: torch has no dtype {dtype}; known are float32, bfloat16, int64, ...")
    return InputSpec(tuple(map(int, match["shape"].split(","))) if match["shape"] else (), dtype)


def build(factory: Callable[[], Any]) -> Any:
    """The model that `factory` makes, without its data. Raises what the factory raises.

    Where it does not work on the meta device (`.item()` on a tensor, for instance) it is made in memory.
    """
    import torch

    with contextlib.suppress(Exception), torch.device("meta"):
        return factory()
    return factory()  # in memory, only what is wrong with the factory itself comes again


def look(model: Any, inputs: list[InputSpec]) -> MetaModel:
    """Counts of `model`; with the shapes of its inputs, its operations too. Raises what its forward raises."""
    facts = model_facts(model)  # before anything is moved, which would tear tied parameters apart
    if not inputs:
        return MetaModel(facts, ["FLOPs are not counted: say what one sample looks like, as in --input 3,224,224"])
    count, notes = _count(model.to("meta"), inputs)
    if facts.layers is None:  # lazy modules have seen their input now
        facts = model_facts(model)
    if count.unknown:
        notes.append(f"FLOPs are a lower bound: {count.unknown} operators have no formula that could be used")
    forward, backward = count.forward / _SAMPLES, count.backward / _SAMPLES
    return MetaModel(replace(facts, forward_flops_per_sample=forward, backward_flops_per_sample=backward), notes)


def _count(model: Any, inputs: list[InputSpec]) -> tuple[FlopCount, list[str]]:
    arguments = [_tensor(spec, model) for spec in inputs]
    count = FlopCount()
    if not count.enter():
        raise RuntimeError("it cannot be counted under a dispatch mode that was entered before")
    try:
        output = model(*arguments)
        count.mark_backward()
        try:
            _backward(output)
        except Exception as error:
            count.backward = 2 * count.forward
            reason = str(error).partition("\n")[0]
            return count, [f"backward is taken for twice forward: without data it fails ({reason})"]
    finally:
        count.exit()
    return count, []


def _tensor(spec: InputSpec, model: Any) -> Any:
    import torch

    floating = (p.dtype for p in model.parameters() if p.is_floating_point())
    dtype = getattr(torch, spec.dtype) if spec.dtype else next(floating, torch.get_default_dtype())
    return torch.empty((_SAMPLES, *spec.shape), dtype=dtype, device="meta")


def _backward(output: Any) -> None:
    """Runs backward from the sum of all that the model returns. Raises RuntimeError if nothing of it has a gradient."""
    import torch

    tensors = [leaf for leaf in leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if not tensors:
        raise RuntimeError("nothing that it returns has a gradient")
    torch.autograd.backward([tensor.sum() for tensor in tensors])
