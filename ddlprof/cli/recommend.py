"""`ddlprof recommend`: the cheapest instance types that finish a job within a time budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlprof.base.errors import UserError
from ddlprof.base.units import parse_duration
from ddlprof.cli import emit_options, layout_options, options
from ddlprof.cli.latest import run_argument
from ddlprof.cli.options import JOB_HELP, amount, names_in, settings_of, whole_numbers
from ddlprof.cli.output import Out, Wanted, format_option
from ddlprof.cli.panels import job_option, machines_option, output_option, panel, price_option
from ddlprof.cli.price_offer import offer_newer_prices
from ddlprof.planning.question import PlanQuestion

if TYPE_CHECKING:
    from ddlprof.planning.job import DescribedJob
    from ddlprof.report.plans.data import Answer

FORMATS = ("table", "csv", "json", "html", "layouts")
_work_option = panel("Work and budget")
NO_PLAN_EXIT_CODE = 1
"""The exit code where no plan meets the budget; bad input has a different code."""

_Samples = Annotated[
    float | None, _work_option(parser=amount, metavar="S", help="Work to do: S samples, as 1e8, 300k or 1.2M.")
]
_Keep = Annotated[
    bool, job_option("--keep-global-batch", help="Keep the samples per optimizer step, not those per GPU.")
]
_Batches = Annotated[str, job_option(metavar="B,...", help="Samples per GPU and forward pass [as in RUN].")]
_Region = Annotated[
    str | None, machines_option(metavar="R", help="Region whose prices count [the cloud's usual one; AWS: us-east-1].")
]
_Cloud = Annotated[
    str | None, machines_option(parser=str.lower, metavar="C", help="Machines of this cloud; any: of all [aws].")
]
_Pricing = Annotated[str, price_option(metavar="P,...", help="Ways to pay: on_demand, spot, or both.")]
_Instance = Annotated[
    list[str] | None,
    machines_option("--instance", "--instances", metavar="TYPE,...", help="Only these types, even if retired."),
]
_Nodes = Annotated[
    int | None, machines_option(metavar="N", min=1, help="With --instance: exactly N machines, with all their GPUs.")
]
_MaxNodes = Annotated[
    int | None, machines_option(metavar="M", min=1, help="Most machines in a plan [8; with --layouts: any number].")
]
_Gpus = Annotated[
    str | None, machines_option(metavar="N,...", help="With --layouts: numbers of GPUs to try [64,128,...,4096].")
]
_MaxCost = Annotated[float | None, _work_option(metavar="USD", help="Most that the job may cost.")]
_Format = Annotated[
    str | None,
    format_option(
        FORMATS, besides="; csv has rejected candidates, too; layouts: a CSV file of all that --layouts tried"
    ),
]
_Carbon = Annotated[
    float | None, output_option(metavar="G", min=0, help="Grams of CO2 of a kWh where the machines are.")
]
_AllSizes = Annotated[
    bool, output_option("--all-sizes", help="Show all sizes of a type, not only the best for each way to pay.")
]
_Why = Annotated[
    bool, output_option("--why", help="Show cost against time, why candidates were rejected, and what it rests on.")
]
_Emit = Annotated[
    str | None,
    output_option(
        metavar="ENGINE",
        help="Write what starts the best plan, to NAME.ENDING or -o: slurm, kubernetes, pytorchjob, dstack, skypilot,"
        " parallelcluster, sagemaker or torchrun; with --layouts megatron, torchtitan or accelerate.",
    ),
]
_Plan = Annotated[
    int | None, output_option("--plan", metavar="K", min=1, help="With --emit: plan K of the table, not the best.")
]


def recommend(
    budget: Annotated[str, _work_option(metavar="TIME", help="Time the job may take: 12h, 90m, 1d, 2h30m.")],
    run: Annotated[list[str] | None, run_argument(JOB_HELP)] = None,
    steps: Annotated[int | None, _work_option(metavar="N", help="Work to do: N steps with RUN's samples.")] = None,
    epochs: Annotated[float | None, _work_option(metavar="E", help="Work to do: E times RUN's data set.")] = None,
    samples: _Samples = None,
    keep_global_batch: _Keep = False,
    batch: _Batches = "",
    region: _Region = None,
    pricing: _Pricing = "on_demand",
    cloud: _Cloud = None,
    instance: _Instance = None,
    max_nodes: _MaxNodes = None,
    nodes: _Nodes = None,
    host_launch_us: options.HostLaunchUs = None,
    max_cost: _MaxCost = None,
    top: Annotated[int, output_option(metavar="K", min=1, help="Number of types of machines to show.")] = 8,
    all_sizes: _AllSizes = False,
    why: _Why = False,
    precision: options.Precision = None,
    strategy: options.Strategy = None,
    optimizer: options.Optimizer = None,
    grad_accum: options.GradAccum = None,
    checkpointing: options.Checkpointing = None,
    compiled: options.Compiled = None,
    channels_last: options.ChannelsLast = None,
    layouts: layout_options.Layouts = None,
    global_batch: layout_options.GlobalBatch = None,
    gpus: _Gpus = None,
    lora: options.Lora = None, qlora: options.Qlora = None, lora_targets: options.LoraTargets = None,
    lora_precision: options.LoraPrecision = None, qlora_format: options.QloraFormat = None,
    lora_dropout: options.LoraDropout = None, discount: options.Discounts = None, prices: options.Prices = None,
    interruptions: options.Interruptions = None,
    other_job: options.OtherJobs = None, learned: options.LearnedFile = None,
    carbon: _Carbon = None,
    out: Out = None, format: _Format = None, emit: _Emit = None, plan: _Plan = None,
) -> None:  # fmt: skip
    """Rank the cloud machines that finish a job within a time budget by the predicted cost. A plan meets the budget if
    the upper end of its 80 % interval does. The exit code is 1 if no plan does.
    """
    emission, destinations = emit_options.wanted_with(emit, plan, out, format, FORMATS)
    budget_s = _budget_s(budget, steps, epochs, samples)
    job, batches = _job(learned, run or [], batch, other_job or ())
    emission = emit_options.with_path(emission, job, layouts is not None)
    answer = _answer(job, layouts, emit, PlanQuestion(
        budget_s=budget_s, max_cost_usd=max_cost, region=region, cloud=cloud,
        samples=_samples(job, steps, epochs, samples, global_batch), pricing=names_in(pricing),
        instance_types=names_in(",".join(instance or [])) or None, prices=options.own_prices(discount, prices),
        settings=settings_of(precision=precision, strategy=strategy, optimizer=optimizer, grad_accum=grad_accum,
            checkpointing=checkpointing, compiled=compiled, channels_last=channels_last, lora=lora, qlora=qlora,
            lora_targets=lora_targets, lora_precision=lora_precision, qlora_format=qlora_format,
            lora_dropout=lora_dropout, host_launch_us=host_launch_us),
        interruptions=options.interruptions_of(interruptions),
        gpus=whole_numbers(gpus, "--gpus") if gpus else None, nodes=nodes, max_nodes=max_nodes,
        keep_global_batch=keep_global_batch, batches_per_gpu=batches, global_batch=global_batch,
    ))  # fmt: skip
    _report(replace(answer, carbon_g_per_kwh=carbon, max_cost_usd=max_cost), top, all_sizes, why, destinations)
    emit_options.emit(emission, job, answer, [row.plan for row in answer.rows(top, all_sizes=all_sizes)], precision)


def _job(
    learned: Path | None, runs: list[str], batch: str, others: Sequence[str]
) -> tuple[DescribedJob, tuple[int, ...]]:
    """The job, and the batches to try."""
    from ddlprof.planning.learned import load_job_with

    batches = whole_numbers(batch, "--batch") if batch else ()
    return load_job_with(learned, runs, batches, others), batches


def _answer(job: DescribedJob, layouts: str | None, engine: str | None, question: PlanQuestion) -> Answer:
    """The answer, with the best layouts where they are asked for. Raises UserError for options that do not go together.

    `engine` is what the best plan is to be started with.
    """
    from ddlprof.cli.screen import progress
    from ddlprof.planning.choose import answer

    if question.nodes and (question.max_nodes or not question.instance_types):
        raise UserError("--nodes takes --instance beside it, and no --max-nodes")
    if layouts is not None:
        allows = emit_options.allows(job, engine, question.settings.precision)
        with progress("trying layouts") as advance:
            return layout_options.best_layouts(job, layouts, question, allows, advance)
    layout_options.refuse("it goes with --layouts auto", global_batch=question.global_batch, gpus=question.gpus)
    with progress("predicting") as advance:
        return answer(job, question, advance)


def _budget_s(budget: str, *amounts: float | None) -> float:
    """The budget in seconds. Raises UserError for a bad budget, or unless exactly one amount of work is given."""
    budget_s = parse_duration(budget, "--budget")
    if sum(amount is not None for amount in amounts) != 1:
        raise UserError("say how much work it is with exactly one of --steps, --epochs and --samples")
    if any(amount is not None and not amount > 0 for amount in amounts):
        raise UserError("--steps, --epochs and --samples must be more than zero")
    return budget_s


def _samples(
    job: DescribedJob, steps: int | None, epochs: float | None, samples: float | None, asked_batch: int | None
) -> float:
    """The work to do, in samples."""
    from ddlprof.recommender.plans.candidates import global_batch_of

    if samples is not None:
        return samples
    if epochs is not None:
        if job.dataset_samples is None:
            raise UserError("the size of the data set is not known, so --epochs cannot be counted: use --samples")
        return epochs * job.dataset_samples
    global_batch = asked_batch or global_batch_of(job.workload)
    if global_batch is None:
        raise UserError(
            "a file of features does not tell the samples of an update, so --steps cannot be counted: use --samples,"
            " which is the steps times these"
        )
    return (steps or 0) * global_batch


def _report(answer: Answer, top: int, all_sizes: bool, why: bool, destinations: Wanted) -> None:
    """Writes and shows the plans. Ends the command where no plan meets the budget."""
    from ddlprof.cli.screen import terminal_columns
    from ddlprof.report.plans import data, text, tried

    offer_newer_prices((plan.cloud for plan in answer.plans), answer.today)

    columns = terminal_columns()

    def page(answer: Answer) -> Iterable[str]:
        from ddlprof.report.plans import html

        return html.render(answer, top, all_sizes=all_sizes)

    destinations.write(
        {
            "table": lambda answer: text.render(answer, top, all_sizes=all_sizes, why=why, columns=columns),
            "csv": lambda answer: data.as_csv(answer.plans),
            "json": data.as_json,
            "html": page,
            "layouts": tried.as_csv,
        },
        answer,
    )
    if not answer.accepted:
        raise typer.Exit(NO_PLAN_EXIT_CODE)
