"""`ddlprof fuse`: a sweep of small trainings as one training, where that is faster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlprof.base.errors import UserError
from ddlprof.cli.output import Out, Wanted, format_option, wanted
from ddlprof.model.naming import on_this_machine

if TYPE_CHECKING:
    from ddlprof.extensions.fusion.planner import FuseOptions
    from ddlprof.extensions.fusion.sweeps import Choices
    from ddlprof.extensions.fusion.task import TaskSpec

FORMATS = ("table", "json", "csv")

_Data = Annotated[
    str,
    typer.Option(
        metavar="MODULE:BATCHES",
        help="A function that gives the batches of one epoch, or a DataLoader: (x, y) or a dict with `labels`.",
    ),
]
_Sweep = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=V,V,...",
        help="Values of a hyper-parameter of the optimizer, of a parameter of FACTORY, BATCHES or the schedule, of"
        " `seed` or of `optimizer`; also log(LOW,HIGH,N), uniform(LOW,HIGH,N), choice(A,B,...)."
        " Several: every combination.",
    ),
]
_Schedule = Annotated[
    str | None, typer.Option(metavar="NAME", help="cosine, onecycle, or MODULE:FUNCTION of step, steps and lr.")
]
_GradAccum = Annotated[int, typer.Option(metavar="N", min=1, help="Batches of a step, whose mean gradient it uses.")]
_Halving = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Successive halving: the best of N trials go on, N times as long, until the next are ended."
    ),
]
_FirstRung = Annotated[
    int | None, typer.Option(metavar="STEPS", min=1, help="Steps before --halving ends the first trials; else chosen.")
]
_Optimizer = Annotated[str, typer.Option(metavar="NAME", help="sgd, adam or adamw.")]
_MaxSteps = Annotated[int | None, typer.Option(metavar="N", min=1, help="Steps to train, in place of epochs.")]
_Epochs = Annotated[int, typer.Option(metavar="N", min=1, help="Epochs to train.")]
_MaxModels = Annotated[str, typer.Option(metavar="auto|N", help="The most models at once; auto: what memory holds.")]
_Seed = Annotated[
    int, typer.Option(metavar="N", help="Seed of each model and of draws; a sweep over `seed` has several.")
]
_ClipNorm = Annotated[float | None, typer.Option(metavar="NORM", help="The longest gradient of each model.")]
_Loss = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="A loss of torch.nn.functional, MODULE:FUNCTION of output and target, or `model` if it returns one.",
    ),
]
_Metric = Annotated[str | None, typer.Option(metavar="NAME", help="accuracy, or MODULE:FUNCTION of output and target.")]
_Eval = Annotated[
    str | None,
    typer.Option("--eval", metavar="MODULE:BATCHES", help="Batches to evaluate on; otherwise those of --data."),
]
_Processes = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="Processes side by side to compare with; one for each processor if not given, 0 for none.",
    ),
]
_Save = Annotated[
    Path | None,
    typer.Option(metavar="DIR", callback=on_this_machine, help="Also save each trained model: DIR/trial-N.pt."),
]
_Precision = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="fp32, or autocast: amp-bf16, amp-fp16 (with scaled losses, a scale for each model)."
    ),
]
_ParamGroups = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:FUNCTION",
        help="Groups of a model's parameters with values of their own, as torch.optim takes them.",
    ),
]


def fuse(
    model: Annotated[
        str, typer.Argument(metavar="MODULE:FACTORY", help="A function that returns a new model at each call.")
    ],
    data: _Data,
    sweep: _Sweep = None,
    trials: Annotated[
        int | None, typer.Option(metavar="N", help="Draw so many trials (by --seed); ranges are then log(LOW,HIGH).")
    ] = None,
    optimizer: _Optimizer = "adam",
    schedule: _Schedule = None,
    loss: _Loss = "cross_entropy",
    metric: _Metric = None,
    evaluation: _Eval = None,
    max_steps: _MaxSteps = None,
    epochs: _Epochs = 1,
    grad_accum: _GradAccum = 1,
    param_groups: _ParamGroups = None,
    halving: _Halving = None,
    first_rung: _FirstRung = None,
    max_models: _MaxModels = "auto",
    seed: _Seed = 0,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu or cuda.")] = "auto",
    clip_norm: _ClipNorm = None,
    precision: _Precision = "fp32",
    processes: _Processes = None,
    force: Annotated[bool, typer.Option("--force", help="Fuse also where that is expected to lose.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Predict and decide, but do not train.")] = False,
    save: _Save = None,
    out: Out = None,
    format: Annotated[str | None, format_option(FORMATS, besides="; csv has the trials")] = None,
) -> None:
    """Train models of one shape with different hyper-parameters as one, if that is faster than one by one."""
    from ddlprof.base.torch_needed import require_torch
    from ddlprof.extensions.fusion.hyperparameters import defaults_of
    from ddlprof.extensions.fusion.sweeps import parse_sweeps, trials_of

    sweeps = parse_sweeps(sweep or [])
    trials_of(sweeps, trials, seed)  # says what is wrong before torch is imported
    defaults_of(optimizer)
    most = _most(max_models)
    destinations = wanted(out, format, FORMATS)
    _check(clip_norm, halving, first_rung)
    require_torch()
    from ddlprof.extensions.fusion.halving import Halving
    from ddlprof.extensions.fusion.loop import SweepLength
    from ddlprof.extensions.fusion.planner import FuseOptions
    from ddlprof.extensions.fusion.task import TaskSpec, device_of

    names = TaskSpec(
        model, data, loss, metric, evaluation, optimizer, seed, device_of(device), clip_norm, precision, schedule,
        grad_accum, param_groups,
    )  # fmt: skip
    options = FuseOptions(
        SweepLength(max_steps, epochs), most, dry_run, force, bool(evaluation or metric), save, processes, trials,
        None if halving is None else Halving(halving, first_rung),
    )  # fmt: skip
    _run(names, sweeps, options, destinations)


def _check(clip_norm: float | None, halving: int | None, first_rung: int | None) -> None:
    if clip_norm is not None and not 0 < clip_norm < float("inf"):
        raise UserError(f"--clip-norm {clip_norm:g}: must be more than zero")
    if halving is not None and halving < 2:
        raise UserError(f"--halving {halving}: must be 2 or more: of so many trials one goes on")
    if first_rung is not None and halving is None:
        raise UserError("--first-rung needs --halving N, which says how many of the trials go on")


def _run(names: TaskSpec, sweeps: dict[str, Choices], options: FuseOptions, destinations: Wanted) -> None:
    from ddlprof.cli.screen import progress
    from ddlprof.extensions.fusion.job import run
    from ddlprof.extensions.fusion.report import as_csv, as_json, as_page
    from ddlprof.extensions.fusion.saving import prepare

    if options.save is not None and not options.dry_run:
        prepare(options.save)
    with progress("training") as advance:
        result = run(names, sweeps, options, advance)
    destinations.write({"table": as_page, "json": as_json, "csv": as_csv}, result)


def _most(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--max-models {text}: neither auto nor a number of models")
    return int(text)
