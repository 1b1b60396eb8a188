"""`ddlprof features`: counts of a model that nobody has to run, as a file that `ddlprof recommend` takes for a run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ddlprof.cli import transformer_options as sizes
from ddlprof.cli.output import Out, Wanted, format_option, wanted

FORMATS = ("table", "json")


_Inputs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=][DTYPE:]SHAPE",
        help="Shape of one sample: 3,224,224, or int64:512 for tokens. Give it once for each argument of forward;"
        " with a name where it goes by name: labels=int64:512.",
    ),
]
_Tokens = Annotated[int | None, typer.Option(metavar="N", min=1, help="Tokens of a sample, for transformers.")]
_Optimizer = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="adamw, adam, sgd, sgd-momentum, ... or none; adamw-fused for the fused one, -single for one parameter"
        " after another.",
    ),
]


def features(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="MODULE:FACTORY, a function without arguments that returns the model; timm:NAME, transformers:NAME or"
            " torchvision:NAME; or without torch: a config.json of Hugging Face, or `transformer` with sizes.",
        ),
    ],
    input: _Inputs = None,
    seq_len: _Tokens = None,
    batch: Annotated[int, typer.Option("--batch", metavar="B", min=1, help="Samples of the step that is written.")] = 8,
    optimizer: _Optimizer = "adamw",
    precision: Annotated[str, typer.Option(metavar="P", help="fp32, bf16, fp16, amp-bf16 or amp-fp16.")] = "fp32",
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", help="Compute the activations of each block again in backward.")
    ] = False,
    compiled: Annotated[bool, typer.Option("--compile", help="With torch.compile, which joins operators.")] = False,
    inference: Annotated[bool, typer.Option("--inference", help="The forward pass alone.")] = False,
    layers: sizes.Layers = None,
    hidden: sizes.Hidden = None,
    heads: sizes.Heads = None,
    kv_heads: sizes.KvHeads = None,
    head_dim: sizes.HeadDim = None,
    ffn: sizes.Ffn = None,
    vocab: sizes.Vocab = None,
    experts: sizes.Experts = None,
    experts_per_token: sizes.ExpertsPerToken = None,
    expert_ffn: sizes.ExpertFfn = None,
    shared_experts: sizes.SharedExperts = None,
    dense_layers: sizes.DenseLayers = None,
    q_lora: sizes.QLora = None,
    kv_lora: sizes.KvLora = None,
    rope_dim: sizes.RopeDim = None,
    value_dim: sizes.ValueDim = None,
    gated: sizes.Gated = None,
    tied: sizes.Tied = None,
    causal: sizes.Causal = None,
    flash: sizes.Flash = None,
    software: sizes.Software = None,
    out: Out = None,
    format: Annotated[str | None, format_option(FORMATS, besides=" (for `ddlprof recommend FILE`)")] = None,
) -> None:
    """Count the layers, gradients, FLOPs, operators and memory of a model without running it."""
    from ddlprof.planning.transformers import is_known_by_sizes

    destinations = wanted(out, format, FORMATS)
    values = (
        layers, hidden, heads, kv_heads, head_dim, ffn, vocab, experts, experts_per_token, expert_ffn, shared_experts,
        dense_layers, q_lora, kv_lora, rope_dim, value_dim, gated, tied, causal, flash, software,
    )  # fmt: skip
    if is_known_by_sizes(model) or any(value is not None for value in values):
        _write_sizes(destinations, model, dict(zip(sizes.NAMES, values, strict=True)), seq_len)
        return
    counted = {
        "seq_len": seq_len, "batch": batch, "optimizer": optimizer, "precision": precision,
        "checkpointing": checkpointing, "compiled": compiled, "training": not inference,
    }  # fmt: skip
    _write_counts(destinations, model, input or [], counted)


def _write_sizes(destinations: Wanted, model: str, sizes: dict[str, Any], seq_len: int | None) -> None:
    """Writes what follows from the sizes of a transformer."""
    from ddlprof.planning.transformers import workload_by_sizes
    from ddlprof.recommender.workload import workload_text
    from ddlprof.report.features import table_of_sizes

    destinations.write({"table": table_of_sizes, "json": workload_text}, workload_by_sizes(model, sizes, seq_len))


def _write_counts(destinations: Wanted, model: str, inputs: list[str], counted: dict[str, Any]) -> None:
    """Writes what is counted of a model that torch makes."""
    from ddlprof.cli.screen import progress
    from ddlprof.planning.features import count_model
    from ddlprof.recommender.workload import workload_text
    from ddlprof.report.features import as_table

    with progress("counting", at_once=True) as advance:
        found = count_model(model, inputs, **counted, advance=advance)
    destinations.write(
        {
            "table": lambda found: as_table(found.facts, found.step, found.notes),
            "json": lambda found: workload_text(found.workload()),
        },
        found,
    )
