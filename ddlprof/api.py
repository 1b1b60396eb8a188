"""The Python API: `ddlprof.load(path)` gives a `Run`, whose tables are pandas data frames."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from ddlprof.analysis.loss_curve import LossCurve
    from ddlprof.analysis.run import Attempt
    from ddlprof.model.manifest import Manifest, ModelFacts, TrainingFacts
    from ddlprof.model.operators import StepOperators
    from ddlprof.recommender import Measurement, Workload
    from ddlprof.recommender.workload import JobFacts
    from ddlprof.report.run.data import ReportData
    from ddlprof.store import RunData

_ROUNDED = 0.1
"""How far the work of a whole number of mean samples may be from what was counted."""


def load(path: str | Path, *more: str | Path) -> Run:
    """Reads a run directory (complete or torn), or a URL that fsspec can read. Several paths are parts of one run.

    Raises `ddlprof.base.errors.UserError` if there is no run that this version can read.
    """
    from ddlprof.analysis.run import analyse
    from ddlprof.store import load_run

    data = load_run([path, *more])
    return Run(data, analyse(data))


class Run:
    """A profiled run. Times are seconds; values that were not measured are NaN or NA."""

    def __init__(self, data: RunData, attempts: list[Attempt]) -> None:
        self._data = data
        self._attempts = attempts

    def __repr__(self) -> str:
        return f"<ddlprof run {self._data.typed}>"

    def __str__(self) -> str:
        """The card, as `ddlprof report` shows it."""
        from ddlprof.report.run import text as card

        return card.render(self._report())

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        from ddlprof.report.run import notebook

        return notebook.render(self._report())

    def _report(self) -> ReportData:
        from ddlprof.report.run.formats import Analysed

        return Analysed(self._data, self._attempts, time.time_ns()).report

    @property
    def manifest(self) -> Manifest | None:
        """What was run and on which machine; None if the job died before the manifest was written."""
        return self._data.manifest

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row for each step and rank, with the columns of `steps.csv`.

        Take columns by name, `steps["flags"]`: `.flags` and `.rank` are attributes that pandas has itself.
        """
        return self._frame("steps")

    @cached_property
    def collectives(self) -> pd.DataFrame:
        """One row for each collective and rank, with the columns of `collectives.csv`."""
        return self._frame("collectives")

    @cached_property
    def ranks(self) -> pd.DataFrame:
        """One row for each rank, with the columns of `ranks.csv`."""
        return self._frame("ranks")

    @cached_property
    def job(self) -> pd.DataFrame:
        """One row for each attempt and part of its wall time, with the columns of `job.csv`."""
        return self._frame("job")

    def summary(self) -> pd.DataFrame:
        """Mean, share of the step, median and 95th percentile over the steady steps, with the class as index."""
        means: pd.DataFrame = self._frame("summary").set_index("class")
        return means

    def _frame(self, name: str) -> pd.DataFrame:
        from ddlprof.report.run.tables import frame

        return frame(self._data, self._attempts, name)

    def loss_curve(self) -> LossCurve:
        """The training's loss in bins, the curve fitted to it, and whether the curve can be extrapolated.

        Raises `UserError` if no loss was noted.
        """
        from ddlprof.analysis.run import headline_attempt
        from ddlprof.base.errors import UserError

        headline = headline_attempt(self._attempts)
        curve = headline.loss_curve if headline else None
        if curve is None:
            raise UserError(f"{self._data.typed} has no losses: they are noted on the CPU, by `ddlprof run`")
        return curve

    def workload(self, batch_per_rank: int | None = None) -> Workload:
        """What a predictor needs to know about this job: facts of the model, and the means of the steady steps.

        `batch_per_rank`: used if the run does not tell how many samples a rank had in one forward pass. Raises
        `UserError` if no step was measured, or if the manifest or the batch is not known.
        """
        from ddlprof.analysis.run import headline_attempt
        from ddlprof.base.errors import UserError
        from ddlprof.recommender import PredictionError

        headline = headline_attempt(self._attempts)
        manifest = headline.manifest(self.manifest) if headline else self.manifest
        if headline is None or not headline.steady_steps:
            raise UserError(f"{self._data.typed}: no step was measured; see: ddlprof report {self._data.typed}")
        if manifest is None:
            raise UserError(
                f"{self._data.typed}: no manifest.json, so nothing is known about its model; profile it again"
            )
        batch = manifest.training.batch_per_rank or batch_per_rank
        if batch is None:
            raise UserError(
                f"{self._data.typed}: the batch size could not be told from the run; say what it was: one number with"
                " --batch, or workload(batch_per_rank=...)"
            )
        try:
            of_first = headline.phases is None or headline.phases.shown.number == 1
            workload = _workload(headline, manifest, batch, self._data.step if of_first else None)
        except PredictionError as error:  # counts or times that are impossible
            raise UserError(f"{self._data.typed}: {error}; profile it again") from None
        if headline.phases is not None and len(headline.phases.lines) > 1:
            of = headline.phases.shown
            said = f"phase {of.number} of the run's {len(headline.phases.lines)} ({of.name}) is the job"
            workload = replace(workload, assumed=[*workload.assumed, said])
        if manifest.training.batch_per_rank is None:
            return replace(workload, assumed=[*workload.assumed, f"batch of the run: {batch}, as given"])
        return workload


def _workload(headline: Attempt, manifest: Manifest, batch_per_rank: int, step: StepOperators | None) -> Workload:
    from ddlprof.analysis.features import kernels_per_step, loader_cost, reductions_per_step

    measured = _measurement(headline, manifest, batch_per_rank)
    work, assumed_work = _work(headline)
    if step is not None and not any(each.phase == "forward" for each in step.operators):
        step = None
    model = model_workload(manifest.model, manifest.name)
    global_batch = manifest.training.global_batch or _global_batch(manifest, measured)
    loader = loader_cost(headline)
    reductions = reductions_per_step(headline)
    return replace(
        model,
        flops_per_sample=None if model.flops_per_sample is None else model.flops_per_sample * work,
        global_batch=global_batch,
        loader_cpu_s_per_sample=loader.cpu_s if loader else None,
        loader_bytes_per_sample=loader.read_bytes if loader else None,
        loader_blocked_s_per_sample=loader.blocked_s if loader else None,
        loader_workers=manifest.training.loader_workers,
        peak_memory_bytes=manifest.training.peak_device_memory_bytes,
        measurements=[measured],
        kernels_per_step=kernels_per_step(headline),
        buckets=None if reductions is None else round(reductions),
        assumed=[*_assumed_of_strategy(manifest.training, manifest.world_size), *_disturbed(headline), *assumed_work],
        step=_of_mean_samples(step, work) if step is not None else None,
        job=_job_facts(headline, manifest, measured, global_batch),
    )


def _job_facts(headline: Attempt, manifest: Manifest, measured: Measurement, global_batch: int) -> JobFacts | None:
    from ddlprof.analysis.features import recurring_work
    from ddlprof.analysis.job_time import job_time
    from ddlprof.recommender.workload import JobFacts, Recurring

    job = job_time(headline)
    if job is None or not job.timed:
        return None

    def recurring(name: str) -> Recurring | None:
        habit = found.get(name)
        if habit is None:
            return None
        every = None if habit.every_steps is None else habit.every_steps * global_batch
        if name == "epoch_start" and manifest.training.dataset_samples:
            every = float(manifest.training.dataset_samples)
        return Recurring(habit.seconds, every)

    found = recurring_work(headline, job)
    without_comm_s = (measured.compute_s or 0.0) + sum(measured.elsewhere_s)
    samples = measured.batch_per_gpu * measured.grad_accum
    return JobFacts(
        start_up_s=(job.parts_s["start_up"] or 0.0) + (job.parts_s["compilation"] or 0.0),
        evaluation=recurring("evaluation"),
        checkpoint=recurring("checkpoint"),
        epoch_start=recurring("epoch_start"),
        compute_s_per_sample=measured.compute_s / samples if measured.compute_s else None,
        compute_share=(measured.compute_s or 0.0) / without_comm_s if without_comm_s else 1.0,
        queued_share=measured.queued_share,
    )


def model_workload(model: ModelFacts, name: str) -> Workload:
    """What a predictor needs to know about a model without any measurement. `name`: used if the model has none."""
    from ddlprof.recommender import Workload

    forward, backward = model.forward_flops_per_sample, model.backward_flops_per_sample
    again = model.recomputed_flops_per_sample or 0.0
    return Workload(
        name=model.name or name,
        layers=model.layers,
        parameter_tensors=model.parameter_tensors,
        gradient_bytes=model.gradient_bytes,
        flops_per_sample=None if forward is None or backward is None else forward + backward - again,
    )


def _measurement(headline: Attempt, manifest: Manifest, batch_per_rank: int) -> Measurement:
    from ddlprof.recommender import Measurement
    from ddlprof.recommender.estimate import CARRIED

    def seconds(name: str) -> float | None:
        mean = headline.summary.mean_ns(name)
        return None if mean is None else mean / 1e9

    carried: dict[str, Any] = {f"{name}_s": seconds(name) for name in CARRIED}
    training = manifest.training
    device = headline.ranks[0].data.header.device
    ranks_on = Counter(rank.data.node for rank in headline.ranks)
    return Measurement(
        # From a run on a CPU only the features of the model count, not the machine.
        instance_type=None if device == "cpu" else _catalogued(manifest.host.get("instance_type")),
        placement=tuple(ranks_on[node] for node in sorted(ranks_on)),
        batch_per_gpu=batch_per_rank,
        step_s=seconds("step") or 0.0,
        compute_s=seconds("compute") or None,
        data_s=seconds("data"),
        exposed_comm_s=seconds("comm"),
        precision=training.precision or "fp32",
        strategy=predicted_strategy(training),
        grad_accum=training.micro_batches or 1,
        gpu_model=None if device == "cpu" else device,
        queued_share=headline.queued_share,
        reduced_in=training.reduced_in,
        launch_us=training.launch_us or None,
        cpu_model=_processor(manifest.host),
        **carried,
    )


def _processor(host: dict[str, Any]) -> str | None:
    """The processor's name, with that of its family where the system tells it by numbers."""
    name, family = host.get("cpu_model"), host.get("cpu_family")
    return f"{name[:100]} ({family[:100]})" if name and family else name and name[:100]


def _work(headline: Attempt) -> tuple[float, list[str]]:
    """The work of the mean sample of all ranks over that of the counted samples of one, and words where they differ."""
    from ddlprof.analysis.thresholds import MORE_WORK
    from ddlprof.base.units import significant

    amounts = headline.amounts
    work = amounts.work_of_mean if amounts is not None and amounts.is_text else None
    if work is None or 1 / MORE_WORK < work < MORE_WORK:
        return 1.0, []
    return work, [
        f"a mean sample of all ranks has {significant(work)} times the tokens of those whose operations were counted:"
        " as many times the work and the memory, and ranks that share it equally"
    ]


def _of_mean_samples(step: StepOperators, work: float) -> StepOperators | None:
    """The counted operators as those of samples of mean length: the same work is that of more of these, or of fewer.

    `work`: that of a mean sample over that of a counted one. None where no whole number of them has that work.
    """
    samples = round(step.batch / work)
    if samples < 1 or abs(samples * work / step.batch - 1) > _ROUNDED:
        return None
    return step if samples == step.batch else replace(step, batch=samples)


def _global_batch(manifest: Manifest, measured: Measurement) -> int:
    ranks = manifest.training.data_parallel_ranks or manifest.world_size
    return measured.batch_per_gpu * measured.grad_accum * ranks


def predicted_strategy(training: TrainingFacts) -> str:
    """The strategy by its name in the predictor; strategies that it does not know keep their name."""
    strategy, stage = training.strategy or "none", training.zero_stage
    if strategy == "none":  # a single process has none; on more processes it would become plain data parallelism
        return "ddp"
    if strategy in ("fsdp", "zero", "ddp+fsdp"):
        return "zero" if stage in (1, 2) else "fsdp"  # in stages 1 and 2 every rank holds all parameters
    return strategy


def _assumed_of_strategy(training: TrainingFacts, world_size: int) -> list[str]:
    if training.strategy == "ddp+fsdp":
        return ["hybrid sharding (ddp+fsdp): taken for sharding over all GPUs"]
    if training.strategy == "none" and world_size > 1:
        return [f"no parallelism of the {world_size} ranks was recognised: taken for ddp"]
    return []


def _disturbed(headline: Attempt) -> list[str]:
    from ddlprof.analysis.contention import is_starved
    from ddlprof.base.units import percent

    queued = headline.queued_share
    if queued is None or not is_starved(queued):
        return []
    return [
        f"the machine of the run was shared: it waited for a processor for {percent(queued)} of the time, which is not"
        " carried over; a run on a quiet machine would tell more"
    ]


def _catalogued(instance_type: str | None) -> str | None:
    """The instance type if it is in the catalogue; otherwise None, so that the device's name counts."""
    from ddlprof.instance_catalog import CatalogError, load

    if instance_type is None:
        return None
    catalog = load()
    try:
        return catalog.instance(instance_type).instance_type
    except CatalogError:
        return None
