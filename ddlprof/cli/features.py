"""`ddlprof features`: counts of a model that nobody has to run, as a file that `ddlprof recommend` takes for a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlprof.base.errors import UserError
from ddlprof.cli.output import Out, Wanted, format_option, wanted

if TYPE_CHECKING:
    from collections.abc import Callable


FORMATS = ("table", "json")


def features(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="MODULE:FACTORY, a function without arguments that returns the model; or timm:NAME, transformers:NAME,"
            " torchvision:NAME.",
        ),
    ],
    input: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="[NAME=][DTYPE:]SHAPE",
            help="Shape of one sample: 3,224,224, or int64:512 for tokens. Give it once for each argument of forward;"
            " with a name where it goes by name: labels=int64:512.",
        ),
    ] = None,
    seq_len: Annotated[
        int | None, typer.Option("--seq-len", metavar="N", min=1, help="Tokens of a sample, for transformers:NAME.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", metavar="B", min=1, help="Samples of the step that is written.")] = 8,
    optimizer: Annotated[
        str,
        typer.Option(
            "--optimizer",
            metavar="NAME",
            help="adamw, adam, sgd, sgd-momentum, ... or none; adamw-fused for the fused one, -single for one parameter"
            " after another.",
        ),
    ] = "adamw",
    precision: Annotated[
        str, typer.Option("--precision", metavar="P", help="fp32, bf16, fp16, amp-bf16 or amp-fp16.")
    ] = "fp32",
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", help="Compute the activations of each block again in backward.")
    ] = False,
    compiled: Annotated[bool, typer.Option("--compile", help="With torch.compile, which joins operators.")] = False,
    inference: Annotated[bool, typer.Option("--inference", help="The forward pass alone.")] = False,
    out: Out = None,
    format: Annotated[str | None, format_option(FORMATS, besides=" (for `ddlprof recommend FILE`)")] = None,
) -> None:
    """Count the layers, gradients, FLOPs, operators and memory of a model without running it."""
    from ddlprof.base.torch_needed import require_torch

    places = wanted(out, format, FORMATS)
    require_torch()
    from ddlprof.operators.trace_step import StepSettings

    settings = StepSettings(batch, precision, optimizer, not inference, checkpointing, compiled)
    settings.check()
    _features(model, input or [], seq_len, settings, places)


def _features(model: str, inputs: list[str], seq_len: int | None, settings: Any, places: Wanted) -> None:
    from dataclasses import replace

    from ddlprof.launch.users_code import split_name, users_own
    from ddlprof.operators import named_models
    from ddlprof.operators.model_alone import build, look, parse_input
    from ddlprof.report.features import as_table

    module, factory = split_name(model, "MODULE:FACTORY, such as models.resnet:resnet50")
    given = [parse_input(text) for text in inputs]
    if module in named_models.LIBRARIES:
        named = named_models.find(module, factory, seq_len)
        make, given = named.factory, given or named.inputs(settings.training)
    else:
        make = _factory(module, factory)
    made = users_own(model, lambda: build(make))
    if not hasattr(made, "named_modules"):
        raise UserError(f"{model}: it returned {type(made).__name__}, not a torch.nn.Module")
    found = users_own(f"forward of {model}", lambda: look(made, given, settings))
    facts = replace(found.facts, name=factory)
    places.write(
        {
            "table": lambda found: as_table(facts, found.step, found.notes),
            "json": lambda found: _json(facts, found.step, _tokens(given)),
        },
        found,
    )


def _factory(module: str, name: str) -> Callable[[], Any]:
    from ddlprof.launch.users_code import find

    found = find(module, name)
    if hasattr(found, "named_modules") and not isinstance(found, type):  # the model exists already
        return lambda: found
    if not callable(found):
        raise UserError(f"{module}:{name} is no function: it has to return the model")
    return found  # type: ignore[no-any-return]


def _tokens(inputs: list[Any]) -> int | None:
    """The tokens of a sample: the length of the first input, if that is a row of whole numbers."""
    if not inputs:
        return None
    shape = inputs[0].shape
    return shape[0] if len(shape) == 1 and str(inputs[0].dtype).startswith("int") else None


def _json(facts: Any, step: Any, tokens: int | None) -> str:
    from dataclasses import replace

    from ddlprof.api import model_workload
    from recommender import PredictionError
    from recommender.workload import workload_text

    try:
        return workload_text(replace(model_workload(facts, ""), step=step, tokens_per_sample=tokens))
    except PredictionError as error:
        raise UserError(str(error)) from None
