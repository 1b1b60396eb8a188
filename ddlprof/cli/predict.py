"""`ddlprof predict`: the step of a job on one target, or on several side by side."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from ddlprof.base.errors import UserError
from ddlprof.cli import layout_options, options
from ddlprof.cli.latest import run_argument
from ddlprof.cli.options import JOB_HELP, names_in, whole_numbers
from ddlprof.cli.output import Out, Wanted, format_option, wanted
from ddlprof.cli.panels import job_option, machines_option

if TYPE_CHECKING:
    from ddlprof.planning.job import DescribedJob
    from ddlprof.recommender import Settings

FORMATS = ("table", "json")
MOST_TARGETS = 1000
MOST_NODES = 10_000


_Instances = Annotated[
    list[str] | None, machines_option(metavar="TYPE,...", help="Instance types of the catalogue, side by side.")
]
_Gpus = Annotated[
    list[str] | None, machines_option(metavar="MODEL,...", help="GPUs outside a cloud, such as 'RTX 3090', too.")
]
_Placement = Annotated[
    str | None,
    machines_option(
        metavar="N,...",
        help="GPUs used on each machine: 4,4 means two machines with four each [1; with --layout: what it needs].",
    ),
]
_Nodes = Annotated[
    int | None,
    machines_option(metavar="N", min=1, max=MOST_NODES, help="In place of --placement: all GPUs of N machines."),
]
_Batch = Annotated[
    int | None, job_option(metavar="B", min=1, help="Samples per GPU and forward pass [as in RUN; of a layout: mb].")
]


def predict(
    run: Annotated[list[str] | None, run_argument(JOB_HELP)] = None,
    instance: _Instances = None,
    gpu: _Gpus = None,
    placement: _Placement = None,
    nodes: _Nodes = None,
    interconnect: layout_options.Interconnect = None,
    network_gbps: layout_options.NetworkGbps = None,
    host_launch_us: options.HostLaunchUs = None,
    batch: _Batch = None,
    precision: options.Precisions = None,
    strategy: options.Strategy = None,
    optimizer: options.Optimizer = None,
    grad_accum: options.GradAccum = None,
    checkpointing: options.Checkpointing = None,
    compiled: options.Compiled = None,
    channels_last: options.ChannelsLast = None,
    layout: layout_options.LayoutText = None,
    vary: layout_options.Vary = None,
    global_batch: layout_options.GlobalBatch = None,
    lora: options.Lora = None, qlora: options.Qlora = None, lora_targets: options.LoraTargets = None,
    lora_precision: options.LoraPrecision = None, qlora_format: options.QloraFormat = None,
    lora_dropout: options.LoraDropout = None,
    other_job: options.OtherJobs = None,
    learned: options.LearnedFile = None,
    out: Out = None,
    format: Annotated[str | None, format_option(FORMATS)] = None,
) -> None:  # fmt: skip
    """Predict the step time of a job on one target, class by class, with an 80 % interval, or on several side by side.

    What is asked for in place of the run's own settings is shown beside the step with those.
    """
    from ddlprof.planning.learned import load_job_with

    destinations = wanted(out, format, FORMATS)
    machines = _machines(instance, gpu, placement, nodes, interconnect, network_gbps)
    asked: dict[str, Any] = {
        "strategy": strategy, "checkpointing": checkpointing, "compiled": compiled, "channels_last": channels_last,
        "lora": lora, "qlora": qlora, "lora_targets": lora_targets, "lora_precision": lora_precision,
        "qlora_format": qlora_format, "lora_dropout": lora_dropout, "host_launch_us": host_launch_us,
    }  # fmt: skip
    if layout is None:
        layout_options.refuse("it is part of a --layout, which is not there", vary=vary, global_batch=global_batch)
        asked |= {"optimizer": optimizer, "grad_accum": grad_accum}
        settings = [options.settings_of(precision=name, **asked) for name in names_in(precision or "") or (None,)]
        described = {"interconnect": interconnect, "network_gbps": network_gbps}
        job = load_job_with(learned, run or [], (batch,) if batch else (), other_job or ())
        _write_targets(destinations, job, batch, (placement, nodes), machines, settings, described)
        return
    layout_options.refuse("it goes without --layout, which says zero1 and the like, and selective or full", **asked)
    question = layout_options.question_of(
        layout, placement=whole_numbers(placement, "--placement") if placement else None, nodes=nodes,
        micro_batch=batch, grad_accum=grad_accum, global_batch=global_batch, precision=precision, optimizer=optimizer,
        interconnect=interconnect, network_gbps=network_gbps,
    )  # fmt: skip
    layout_options.write_layouts(
        destinations, load_job_with(learned, run or [], (), other_job or ()), machines, question, vary
    )


def _machines(
    instance: list[str] | None,
    gpu: list[str] | None,
    placement: str | None,
    nodes: int | None,
    interconnect: str | None,
    network_gbps: float | None,
) -> list[tuple[str, str]]:
    """The field of `Target` and its value for each machine that is asked for."""
    if placement and nodes:
        raise UserError("give --placement or --nodes, not both")
    if not gpu:
        layout_options.refuse(
            "describes a --gpu; an --instance tells its links", interconnect=interconnect, network_gbps=network_gbps
        )
    machines = [("instance_type", name) for name in names_in(",".join(instance or []))]
    machines += [("gpu_model", name) for name in names_in(",".join(gpu or []))]
    found = list(dict.fromkeys(machines))
    if not 0 < len(found) <= MOST_TARGETS:
        raise UserError(f"name 1 to {MOST_TARGETS} targets, by --instance TYPE, or --gpu MODEL outside of a cloud")
    return found


def _write_targets(
    destinations: Wanted,
    job: DescribedJob,
    batch: int | None,
    where: tuple[str | None, int | None],
    machines: list[tuple[str, str]],
    settings: list[Settings],
    described: dict[str, Any],
) -> None:
    """Predicts a job without a layout on each machine with each of the settings, and writes the predictions."""
    from ddlprof.planning.choose import placement_on, predictions
    from ddlprof.report.plans import prediction

    placement, nodes = where
    if nodes and any(field == "gpu_model" for field, _ in machines):
        raise UserError("--nodes takes all GPUs of an --instance: with --gpu, give --placement")
    questions = [(machine, each) for machine in machines for each in dict.fromkeys(settings)]
    if len(questions) > MOST_TARGETS:
        raise UserError(f"name 1 to {MOST_TARGETS} targets, by --instance TYPE, or --gpu MODEL outside of a cloud")
    used = whole_numbers(placement or "1", "--placement")
    found = predictions(job, batch, placement_on(used, nodes), questions, described)
    renderers = {"table": prediction.render, "json": prediction.as_json}
    destinations.write({name: partial(render, job.workload.name) for name, render in renderers.items()}, found)
