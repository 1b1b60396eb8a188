"""`ddlprof features`: counts of a model that nobody has to run, as a file that `ddlprof recommend` takes for a run."""

from __future__ import annotations

from typing import Annotated

import typer

from ddlprof.cli.output import Out, format_option, wanted

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
    from ddlprof.planning.features import count_model
    from ddlprof.report.features import as_table
    from recommender.workload import workload_text

    places = wanted(out, format, FORMATS)
    found = count_model(
        model, input or [], seq_len=seq_len, batch=batch, optimizer=optimizer, precision=precision,
        checkpointing=checkpointing, compiled=compiled, training=not inference,
    )  # fmt: skip
    places.write(
        {
            "table": lambda found: as_table(found.facts, found.step, found.notes),
            "json": lambda found: workload_text(found.workload()),
        },
        found,
    )
