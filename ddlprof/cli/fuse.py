"""`ddlprof fuse`: a sweep of small trainings as one training, where that is faster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlprof.base.errors import UserError
from ddlprof.cli.output import Out, Wanted, format_option, wanted
from ddlprof.model.naming import on_this_machine

if TYPE_CHECKING:
    from ddlprof.fusion.hyperparameters import Value
    from ddlprof.fusion.job import Options
    from ddlprof.fusion.task import Names

FORMATS = ("table", "json", "csv")

_Data = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="MODULE:BATCHES",
        help="A function that gives the batches of one epoch, or a DataLoader: (x, y) or a dict with `labels`.",
    ),
]
_Sweep = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep",
        metavar="NAME=V,V,...",
        help="Values of a hyper-parameter of the optimizer, of a parameter of FACTORY or BATCHES, or of `seed`."
        " Several: every combination.",
    ),
]
_Loss = Annotated[
    str,
    typer.Option(
        "--loss",
        metavar="NAME",
        help="A loss of torch.nn.functional, MODULE:FUNCTION of output and target, or `model` if it returns one.",
    ),
]
_Metric = Annotated[
    str | None, typer.Option("--metric", metavar="NAME", help="accuracy, or MODULE:FUNCTION of output and target.")
]
_Eval = Annotated[
    str | None,
    typer.Option("--eval", metavar="MODULE:BATCHES", help="Batches to evaluate on; otherwise those of --data."),
]
_Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        min=0,
        metavar="N",
        help="Processes side by side to compare with; one for each processor if not given, 0 for none.",
    ),
]
_Save = Annotated[
    Path | None,
    typer.Option(
        "--save", metavar="DIR", callback=on_this_machine, help="Also save each trained model: DIR/trial-N.pt."
    ),
]
_Precision = Annotated[
    str,
    typer.Option(
        "--precision",
        metavar="NAME",
        help="fp32, or autocast: amp-bf16, amp-fp16 (with scaled losses, a scale for each model).",
    ),
]
_CudaGraph = Annotated[
    bool, typer.Option("--cuda-graph", help="Replay each recorded step as one CUDA graph, where the device is CUDA.")
]


def fuse(
    model: Annotated[
        str, typer.Argument(metavar="MODULE:FACTORY", help="A function that returns a new model at each call.")
    ],
    data: _Data,
    sweep: _Sweep = None,
    optimizer: Annotated[str, typer.Option("--optimizer", metavar="NAME", help="sgd, adam or adamw.")] = "adam",
    loss: _Loss = "cross_entropy",
    metric: _Metric = None,
    evaluation: _Eval = None,
    max_steps: Annotated[
        int | None, typer.Option("--max-steps", metavar="N", min=1, help="Steps to train, in place of epochs.")
    ] = None,
    epochs: Annotated[int, typer.Option("--epochs", metavar="N", min=1, help="Epochs to train.")] = 1,
    max_models: Annotated[
        str, typer.Option("--max-models", metavar="auto|N", help="The most models at once; auto: what memory holds.")
    ] = "auto",
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Seed of each model; a sweep over `seed` has several.")
    ] = 0,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu or cuda.")] = "auto",
    clip_norm: Annotated[
        float | None, typer.Option("--clip-norm", metavar="NORM", help="The longest gradient of each model.")
    ] = None,
    precision: _Precision = "fp32",
    cuda_graph: _CudaGraph = False,
    processes: _Processes = None,
    force: Annotated[bool, typer.Option("--force", help="Fuse also where that is expected to lose.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Predict and decide, but do not train.")] = False,
    save: _Save = None,
    out: Out = None,
    format: Annotated[str | None, format_option(FORMATS, besides="; csv has the trials")] = None,
) -> None:
    """Train models of one shape with different hyper-parameters as one, if that is faster than one by one."""
    from ddlprof.base.torch_needed import require_torch
    from ddlprof.fusion.hyperparameters import check_sweeps, defaults_of

    sweeps = check_sweeps(sweep or [])
    defaults_of(optimizer)
    most = _most(max_models)
    places = wanted(out, format, FORMATS)
    if clip_norm is not None and not 0 < clip_norm < float("inf"):
        raise UserError(f"--clip-norm {clip_norm:g}: must be more than zero")
    require_torch()
    from ddlprof.fusion.job import Options, prepare
    from ddlprof.fusion.task import Names, device_of
    from ddlprof.fusion.training import Length

    names = Names(model, data, loss, metric, evaluation, optimizer, seed, device_of(device), clip_norm, precision)
    if save is not None and not dry_run:
        prepare(save)
    options = Options(
        Length(max_steps, epochs), most, dry_run, force, bool(evaluation or metric), save, processes, cuda_graph
    )
    _run(names, sweeps, options, places)


def _run(names: Names, sweeps: dict[str, list[Value]], options: Options, places: Wanted) -> None:
    from ddlprof.cli.screen import progress
    from ddlprof.fusion.job import run
    from ddlprof.report.fusion import as_csv, as_json, as_page

    with progress("training") as advance:
        result = run(names, sweeps, options, advance)
    places.write({"table": as_page, "json": as_json, "csv": as_csv}, result)


def _most(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--max-models {text}: neither auto nor a number of models")
    return int(text)
