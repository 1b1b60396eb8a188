"""What a measured job says of the shipped predictor: residuals to learn from, and predictions to judge by.

A job is judged as one that nobody measured: its steps are predicted from its operators or FLOPs and its gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ddlprof.instance_catalog import Catalog
from ddlprof.recommender.coefficients import Coefficients
from ddlprof.recommender.communication.job_parameters import JobFit
from ddlprof.recommender.compute.correction import compute_subject, features_of
from ddlprof.recommender.compute.gpu_peaks import precision_class
from ddlprof.recommender.compute.micro_batch import (
    ComputeEstimate,
    ComputeModel,
    MeasuredStep,
    measured_steps,
    parts_of,
)
from ddlprof.recommender.compute.step_parts import Array, Changes, PartsSource
from ddlprof.recommender.errors import PredictionError
from ddlprof.recommender.estimate import Z80
from ddlprof.recommender.learned import link_subject
from ddlprof.recommender.predictor import Predictor
from ddlprof.recommender.target import Target, default_catalog, machine_of
from ddlprof.recommender.workload import Measurement, Workload

_LEAST_LEFT = 0.5
"""The least share of a step that must be left for its computation to be told so."""
COMPUTATION, COMMUNICATION, STEP = "computation", "communication", "step"
CorrectionKind = tuple[str, str | None]


class CorrectionKey(NamedTuple):
    """What one correction of computation is for."""

    gpu_model: str
    precision: str
    """The class of precision."""
    knowledge: str
    """`operators` or `flops`."""

    @property
    def subject(self) -> str:
        """The cell in words."""
        return compute_subject(*self)


@dataclass(frozen=True)
class ComputePoint:
    """A measured micro-batch beside its prediction from operators or FLOPs alone."""

    cell: CorrectionKey
    features: Array
    log_ratio: float
    """The logarithm of measured over predicted."""


@dataclass(frozen=True)
class HeldOutPrediction:
    """One prediction of a measured step, as if the job had not been measured."""

    what: str
    of: str
    """The `subject` of the correction that it judges; empty: all."""
    log_error: float
    """The logarithm of predicted over measured."""
    sd: float
    """Its standard deviation, by the interval."""

    @property
    def error(self) -> float:
        """The relative error: by how much of the measured time the prediction is off."""
        return abs(math.expm1(self.log_error))


def compute_points(workload: Workload, coefficients: Coefficients) -> Iterator[ComputePoint]:
    """The residuals of computation; none where neither operators nor FLOPs are known."""
    for step, found, source in _alone(workload, coefficients):
        parts = source.at(step.gpu, step.batch, step.precision, Changes())
        yield ComputePoint(
            CorrectionKey(step.gpu.gpu_model, step.kind, source.knowledge),
            features_of(parts, step.batch, workload.parameter_tensors),
            math.log(step.seconds / found.seconds.mean_s),
        )


def fits_of(workload: Workload, coefficients: Coefficients) -> dict[CorrectionKind, JobFit]:
    """The job's parameters of communication by kind of machine."""
    if workload.gradient_bytes is None or not _on_one_gpu(workload):
        return {}  # without the computation, nobody can tell what communication took
    return Predictor(workload, coefficients=coefficients).fits()


def cases_of_parts(workload: Workload, coefficients: Coefficients) -> Iterator[HeldOutPrediction]:
    """The computation of every measured step, and the steps on several GPUs by a user who knows the computation."""
    for step, found, source in _alone(workload, coefficients):
        cell = CorrectionKey(step.gpu.gpu_model, step.kind, source.knowledge)
        seconds = found.seconds
        sd = math.log(seconds.high_s / seconds.mean_s) / Z80
        yield HeldOutPrediction(COMPUTATION, cell.subject, math.log(seconds.mean_s / step.seconds), sd)
    known = _on_one_gpu(workload)
    several = [m for m in workload.measurements if sum(m.placement) > 1]
    if several and known:
        yield from _cases(COMMUNICATION, replace(workload, measurements=known), several, coefficients)


def cases_of_steps(workload: Workload, coefficients: Coefficients) -> Iterator[HeldOutPrediction]:
    """Every measured step, predicted by a user who knows the model and has measured nothing."""
    yield from _cases(STEP, replace(workload, measurements=()), workload.measurements, coefficients)


def _alone(
    workload: Workload, coefficients: Coefficients
) -> Iterator[tuple[MeasuredStep, ComputeEstimate, PartsSource]]:
    """The measured computation beside its prediction from operators or FLOPs; none where neither is known."""
    catalog, unmeasured = default_catalog(), replace(workload, measurements=())
    source = parts_of(unmeasured, (), catalog)
    if source is None:
        return
    model = ComputeModel(unmeasured, coefficients.compute, catalog)
    for step in _computed(workload, unmeasured, coefficients, catalog):
        yield step, model.estimate(step.gpu, step.batch, step.precision), source


def _computed(
    workload: Workload, unmeasured: Workload, coefficients: Coefficients, catalog: Catalog
) -> Iterator[MeasuredStep]:
    """The measured computation. Of steps whose communication nobody told, it is what the predicted one leaves."""
    steps = list(measured_steps(workload, catalog))
    yield from (step for step in steps if not step.is_bound)
    bounds = {(step.gpu.gpu_model, step.kind): step for step in steps if step.is_bound}
    if not bounds or workload.gradient_bytes is None:
        return
    predictor = Predictor(unmeasured, coefficients=coefficients)
    for m in workload.measurements:
        gpu = machine_of(m, catalog).gpu
        bound = bounds.get((gpu.gpu_model, precision_class(m.precision, gpu))) if gpu else None
        if bound is None or m.compute_s is not None or m.exposed_comm_s is not None:
            continue
        times, busy_s = predictor.predict(target_of(m)).times, m.step_s - sum(m.elsewhere_s)
        left_s = busy_s - times.interconnect_s - times.network_s
        if left_s > _LEAST_LEFT * busy_s:
            yield replace(bound, batch=m.batch_per_gpu, seconds=left_s / m.grad_accum, is_bound=False)


def target_of(measured: Measurement) -> Target:
    """The place and the settings of a measurement."""
    names = (
        "instance_type", "placement", "batch_per_gpu", "precision", "strategy", "grad_accum", "gpu_model",
        "interconnect", "network_gbps",
    )  # fmt: skip
    return Target(**{name: getattr(measured, name) for name in names})


def _on_one_gpu(workload: Workload) -> list[Measurement]:
    """What a user has measured on one GPU: those measurements, or else the computation within the others."""
    alone = [m for m in workload.measurements if sum(m.placement) == 1]
    if alone:
        return alone
    found = []
    for m in workload.measurements:
        compute_s = m.compute_s
        if compute_s is None and m.exposed_comm_s is not None:
            compute_s = m.step_s - m.exposed_comm_s - sum(m.elsewhere_s)
        if compute_s is not None and compute_s > 0:
            step_s = compute_s + sum(m.elsewhere_s)
            found.append(replace(m, placement=(1,), compute_s=compute_s, exposed_comm_s=0.0, step_s=step_s))
    return found


def _cases(
    what: str, workload: Workload, measurements: Sequence[Measurement], coefficients: Coefficients
) -> Iterator[HeldOutPrediction]:
    """Computation and communication of the steps; nothing of those that cannot be predicted."""
    try:
        predictor = Predictor(workload, coefficients=coefficients)
    except PredictionError:
        return
    for m in measurements:
        machine, busy_s = machine_of(m, default_catalog()), m.step_s - sum(m.elsewhere_s)
        if machine.gpu is None or busy_s <= 0:
            continue
        try:
            found = predictor.predict(target_of(m))
        except PredictionError:
            continue
        times = found.times
        predicted_s = times.compute_s + times.interconnect_s + times.network_s
        sd = math.log(found.high_s / found.step_s) / Z80
        of = link_subject(machine.kind) if what == COMMUNICATION else ""
        yield HeldOutPrediction(what, of, math.log(predicted_s / busy_s), sd)
