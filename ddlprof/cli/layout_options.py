"""The options of commands about layouts of a model over many GPUs, and what their values stand for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from ddlprof.base.errors import UserError
from ddlprof.cli.panels import job_option, machines_option

if TYPE_CHECKING:
    from ddlprof.cli.output import Wanted
    from ddlprof.planning.job import DescribedJob
    from ddlprof.planning.layouts import LayoutQuestion
    from ddlprof.planning.question import PlanQuestion
    from ddlprof.recommender import Layout
    from ddlprof.report.plans.data import Answer

LayoutText = Annotated[
    str | None,
    job_option(
        "--layout",
        metavar="PART,...",
        help="How the model is divided: tp8,pp4,vp2,cp2,ep8,dp16,zero1,mb1,ga16,selective; what is left out is 1 or"
        " none.",
    ),
]
Vary = Annotated[
    str | None,
    job_option(
        metavar="DIMENSION",
        help="With --layout, a row for each value of tensor, pipeline, virtual, context, expert, micro-batch, shard or"
        " recompute; GPUs and global batch stay.",
    ),
]
GlobalBatch = Annotated[
    int | None,
    job_option(metavar="N", min=1, help="Sequences of an update over all GPUs; with a layout, in place of ga."),
]
Layouts = Annotated[
    str | None,
    job_option(
        metavar="auto", help="Search the best layout of a transformer on each machine type, with --global-batch."
    ),
]
Interconnect = Annotated[
    str | None, machines_option(metavar="LINK", help="With --gpu, links in a machine: pcie3..5 or nvlink1..5.")
]
NetworkGbps = Annotated[
    float | None,
    machines_option(metavar="G", min=1e-3, max=1e6, help="With --gpu, Gbit/s of a machine, all its GPUs together."),
]


def question_of(text: str, **named: Any) -> LayoutQuestion:
    """The question of a layout as typed, with what other options name. Raises PredictionError."""
    from ddlprof.planning.layouts import LayoutQuestion
    from ddlprof.recommender.layout import parse_layout

    return LayoutQuestion(parse_layout(text), **named)


def write_layouts(
    destinations: Wanted,
    job: DescribedJob,
    machines: Sequence[tuple[str, str]],
    question: LayoutQuestion,
    vary: str | None,
) -> None:
    """Predicts a layout on machines, with `vary` its neighbours too, and writes them."""
    from ddlprof.planning.layouts import predict_layouts
    from ddlprof.report.plans.layout_prediction import as_json, render

    found = predict_layouts(job, machines, question, vary)
    name = job.workload.name
    destinations.write(
        {"table": partial(render, name, vary=vary), "json": partial(as_json, name)},
        found,
    )


def refuse(reason: str, **given: object) -> None:
    """Raises UserError for the options among `given` that were used."""
    used = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
    if used:
        raise UserError(f"{', '.join(used)}: {reason}")


def best_layouts(
    job: DescribedJob,
    layouts: str,
    question: PlanQuestion,
    allows: Callable[[Layout], bool] | None,
    advance: Callable[[int, int], None],
) -> Answer:
    """The answer with layouts. Raises UserError for options that contradict them.

    `allows` tells which layouts may be tried.
    """
    from ddlprof.planning.layout_plans import ALL, layout_answer

    if layouts != ALL:
        raise UserError(
            f"--layouts takes {ALL}: not {layouts!r}; one layout is predicted with ddlprof predict --layout"
        )
    refuse(
        "it is part of the layouts that are searched; give --global-batch",
        keep_global_batch=question.keep_global_batch or None,
        batch=question.batches_per_gpu or None,
    )
    apart = (
        "strategy grad_accum checkpointing compiled lora qlora lora_targets lora_precision qlora_format lora_dropout"
        " host_launch_us"
    )
    fixed = {name: getattr(question.settings, name) for name in apart.split()}
    refuse("it is part of the layouts that are searched", **fixed)
    return layout_answer(job, question, allows, advance)
