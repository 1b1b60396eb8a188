"""Predicts step times: (job, placement, batch) -> seconds, composed of computation, communication and input.

`Predictor` learns from the measurements of a job once and then predicts any number of targets; `predict` does both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from ddlprof.instance_catalog import Catalog
from ddlprof.recommender.basis import basis_of_measurements, communication_basis
from ddlprof.recommender.coefficients import Coefficients
from ddlprof.recommender.communication.coefficients import MachineLinks, Prior
from ddlprof.recommender.communication.exposed import Array, Load, Placing, placing_of
from ddlprof.recommender.communication.job_parameters import MEASURED, FitEstimate, JobFit, Observation
from ddlprof.recommender.compute.host import TYPICAL, Host, host_of
from ddlprof.recommender.compute.micro_batch import ComputeEstimate, ComputeModel
from ddlprof.recommender.compute.step_parts import AS_COUNTED, Changes
from ddlprof.recommender.data_and_other import carried_over, data_wait_s
from ddlprof.recommender.errors import PredictionError
from ddlprof.recommender.estimate import Z80, Estimate, StepTimes, Suggestion
from ddlprof.recommender.exchanged import exchanged_by
from ddlprof.recommender.layouts.data_parallel import as_strategy, has_operators, with_figures_of_layouts
from ddlprof.recommender.layouts.predict import LayoutPredictor
from ddlprof.recommender.learned import Learned
from ddlprof.recommender.measured_steps import MeasuredSteps, Whole
from ddlprof.recommender.settings import check_settings, measured_settings
from ddlprof.recommender.strategy import STRATEGIES, check_measured_strategy
from ddlprof.recommender.target import Machine, Machines, Target, check_target, default_catalog
from ddlprof.recommender.workload import Measurement, Workload

_EXTRAPOLATION_SD = 0.08
"""The standard deviation (of the logarithm of the step) added for each way in which a target lies outside the fit."""
_CARRIED_SD = 0.5
"""The standard deviation of the time of input, copies and other, as a share of it, where no machine of the target's
kind was measured. An assumption, not fitted: with another processor and disk such work takes half to twice the time (80
%)."""
_MAX_SD = 20.0
"""Predictions with a larger standard deviation of the logarithm are refused: their intervals say nothing."""
_SHARDED_SD = 0.1
"""The standard deviation added for a sharded strategy that was not measured: coefficients were fitted on plain data
parallelism."""

_NOT_MEASURED_THERE = "input, copies and other time: not measured on such a GPU, half to twice as long is allowed for"


class Predicts(Protocol):
    """What searching and ranking ask, and consumers may put in the place of `Predictor`."""

    def predict(self, target: Target) -> Estimate:
        """The step on a target. Raises PredictionError if it cannot be predicted."""


def predict(
    workload: Workload, target: Target, *, catalog: Catalog | None = None, coefficients: Coefficients | None = None
) -> Estimate:
    """Predicts the step of a job on a target, with its 80 % interval.

    Raises `PredictionError` where too little is known of the job or the target cannot be predicted, and `CatalogError`
    for names that are not in the catalogue.
    """
    return Predictor(workload, catalog=catalog, coefficients=coefficients).predict(target)


@dataclass(frozen=True)
class _Ask:
    """A target with the settings of the measured job filled in."""

    machine: Machine
    placement: tuple[int, ...]
    batch_per_gpu: int
    precision: str
    strategy: str
    grad_accum: int
    changes: Changes = AS_COUNTED
    reduced_in: str | None = None
    host: Host = TYPICAL

    @cached_property
    def placing(self) -> Placing:
        return placing_of(self.placement)


class Predictor:
    """Predicts one job on many targets; learns from its measurements once."""

    def __init__(
        self,
        workload: Workload,
        *,
        catalog: Catalog | None = None,
        coefficients: Coefficients | None = None,
        others: Sequence[Workload] = (),
        learned: Learned | None = None,
    ) -> None:
        """`others` are jobs of the same software: their measured steps also inform the predictions for the GPUs that
        they ran on. `learned` corrects the coefficients; see `ddlprof.recommender.learned`.

        Raises `PredictionError` for a strategy that cannot be predicted and where too little is known, and
        `CatalogError` for unknown machines.
        """
        self.workload = workload
        self._catalog = catalog or default_catalog()
        shipped = coefficients or Coefficients.shipped()
        self._coefficients = learned.applied_to(shipped) if learned else shipped
        self._machines = Machines(self._catalog)
        self._computes: dict[tuple[object, ...], ComputeEstimate] = {}
        self._links: dict[Machine, MachineLinks] = {}
        self._fits: dict[tuple[tuple[str, str | None], Prior], JobFit] = {}
        self._references: dict[tuple[str, str | None], float | None] = {}
        self._layouts: LayoutPredictor | None = None
        for measurement in workload.measurements:
            check_measured_strategy(measurement.strategy)
        self._measured_as = measured_settings(workload)
        self._measured = MeasuredSteps([(m, self._machines.of(m)) for m in workload.measurements])
        self._compute_model = ComputeModel(
            _without_single_gpu_communication(workload), self._coefficients.compute, self._catalog, others
        )
        if workload.transformer is None:
            self._compute_model.require_something()

    @np.errstate(all="ignore")  # absurd input overflows here; the check of step_s and sd below refuses it
    def predict(self, target: Target) -> Estimate:
        """Predicts the step of the job on a target, like the function `predict`."""
        from_operators = has_operators(self.workload)
        plain = as_strategy(target) if from_operators else None
        if plain is not None:
            ask = self._ask(plain)
            return with_figures_of_layouts(self.predict(plain), self.workload, plain, ask.machine.gpu, ask.precision)
        if target.layout is not None or (self.workload.transformer and not self.workload.step):
            alone_s = self._alone_s if from_operators else None
            self._layouts = self._layouts or LayoutPredictor(self.workload, self._catalog, alone_s=alone_s)
            return self._layouts.predict(target)
        ask = self._ask(target)
        compute, samples = self._compute(ask), ask.batch_per_gpu * ask.grad_accum
        basis = [*self.workload.assumed, *basis_of_measurements(self.workload, self._measured), *compute.basis]
        outside = {"computation": _EXTRAPOLATION_SD} if compute.extrapolated else {}
        if ask.placing.gpus == 1:
            (rest_s, exposed_s, sd), inside_s = FitEstimate(self._step_s(ask), 0.0, 0.0), 0.0
        else:
            (rest_s, exposed_s, sd), inside_s = self._communicated(ask)
            fit, links = self._fit(ask.machine), self._links_of(ask.machine)
            basis += communication_basis(self.workload, fit, links, STRATEGIES[ask.strategy], ask.grad_accum)
            outside |= self._outside(ask)
        nearest = self._measured.nearest(ask.machine.kind, ask.batch_per_gpu, ask.placing.gpus, ask.placing.nodes)
        carried_sd = 0.0 if self._measured.on(ask.machine.kind) else _CARRIED_SD
        carried, waited_s = carried_over(nearest, samples, basis)
        busy_s = sum(carried.values(), start=rest_s + exposed_s)
        step = (ask.batch_per_gpu, ask.grad_accum, ask.precision, ask.strategy)
        here = self._measured.has(ask.machine, ask.placement, step)
        data = data_wait_s(self.workload, ask.machine, max(ask.placement), samples, busy_s, nearest, is_measured=here)
        basis += data.basis
        step_s = busy_s + data.seconds
        carried_s = sum(carried.values()) + data.seconds
        if carried_sd and carried_s:
            basis.append(_NOT_MEASURED_THERE)
        sd = math.hypot(sd * (rest_s + exposed_s), _sd(compute) * rest_s, carried_sd * carried_s) / step_s
        sd = math.hypot(sd, *outside.values())
        if not (0 < step_s < math.inf and sd < _MAX_SD):
            raise self._contradictory()
        if outside:
            basis.append(f"outside what was fitted: {', '.join(outside)}")
        least_s = compute.least.step_s(ask.grad_accum, min(self._update_share(ask), 1.0))
        return Estimate(
            step_s=step_s,
            low_s=max(step_s * math.exp(-Z80 * sd), min(least_s, step_s)),
            high_s=step_s * math.exp(math.hypot(Z80 * sd, _slower(compute, rest_s / step_s))) + waited_s,
            times=StepTimes(
                compute_s=rest_s,
                data_s=data.seconds,
                interconnect_s=min(inside_s, exposed_s),
                network_s=max(exposed_s - inside_s, 0.0),
                **{f"{name}_s": seconds for name, seconds in carried.items()},
            ),
            extrapolated=bool(outside),
            basis=tuple(dict.fromkeys(basis)),
            phases=compute.phases_of(rest_s, ask.grad_accum, self._update_share(ask)),
        )

    @np.errstate(all="ignore")
    def step_seconds(
        self, target: Target, placements: Sequence[tuple[int, ...]], which: Whole, samples: Whole, passes: Whole
    ) -> Array:
        """The `step_s` of `predict` for many steps at once, except for the last digits: with `samples` a GPU in each of
        `passes` passes, each on the placement of the number in `which`. Those of `target` itself do not count."""
        at = Placing(*(np.array(column)[which] for column in zip(*map(placing_of, placements), strict=True)))
        one_by_one = np.ones(len(which), dtype=bool)
        found = np.zeros(len(which))
        if target.layout is None and not (self.workload.transformer and not self.workload.step):
            for most in np.unique(at.most).tolist():
                rows = np.flatnonzero(at.most == most)
                ask = self._ask(replace(target, placement=(most,), batch_per_gpu=1, grad_accum=1))
                placing = Placing(*(column[rows] for column in at))
                found[rows] = self._step_seconds(ask, placing, samples[rows], passes[rows])
            one_by_one = self._measured.may_have(at, samples, passes)
        for row in np.flatnonzero(one_by_one).tolist():
            one = replace(target, placement=placements[which[row]], batch_per_gpu=int(samples[row]))
            found[row] = self.predict(replace(one, grad_accum=int(passes[row]))).step_s
        if not ((found > 0) & (found < np.inf)).all():
            raise self._contradictory()
        return found

    def _step_seconds(self, ask: _Ask, at: Placing, samples: Whole, passes: Whole) -> Array:
        """The seconds of steps on machines of one kind with as many GPUs in the fullest, none of them measured."""
        batches, of_batch = np.unique(samples, return_inverse=True)
        share = np.broadcast_to(self._measured.update_share(ask.strategy, at.gpus), at.gpus.shape)
        micro_batch_s, compute_s = np.zeros((2, len(samples)))
        by_batch = np.split(np.argsort(of_batch, kind="stable"), np.cumsum(np.bincount(of_batch))[:-1])
        for batch, rows in zip(batches.tolist(), by_batch, strict=True):
            compute = self._compute(ask, batch)
            micro_batch_s[rows] = compute.seconds.mean_s
            compute_s[rows] = compute.step_s(passes[rows], self._measured.passes, share[rows])
        busy_s = compute_s.copy()
        if at.gpus.max() > 1:
            several = at.gpus > 1
            load = self._load_of(ask, compute_s[several], micro_batch_s[several], passes[several])
            rest_s, exposed_s = self._fit(ask.machine).seconds(
                self._links_of(ask.machine).links, Placing(*(column[several] for column in at)), load
            )
            busy_s[several] = rest_s + exposed_s
        for nearest, rows in self._measured.by_nearest(ask.machine.kind, at, samples):
            total = samples[rows] * passes[rows]
            part_s = sum(carried_over(nearest, total, []).seconds.values(), start=busy_s[rows])
            most = int(at.most[0])
            busy_s[rows] = part_s + data_wait_s(self.workload, ask.machine, most, total, part_s, nearest).seconds
        return np.asarray(busy_s)

    def _contradictory(self) -> PredictionError:
        return PredictionError(
            f"{self.workload.name}: no step time follows from these measurements, they contradict each other by orders"
            " of magnitude; check their times, bytes and batches"
        )

    def next_measurement(
        self, target: Target, usd_of: Callable[[tuple[int, ...]], float] = lambda placement: 1.0
    ) -> Suggestion | None:
        """Suggests the one further measurement, on machines like the target's, that narrows its interval most for each
        dollar that it costs; None if no further measurement would narrow it."""
        ask, estimate = self._ask(target), self.predict(target)
        # Communication hidden behind computation cannot be measured, so the smallest batch tells most.
        smallest = min((m.batch_per_gpu for m, _ in self._measured.rows), default=ask.batch_per_gpu)
        here = [m for m, machine in self._measured.rows if machine.kind == ask.machine.kind]
        measured = {(m.placement, smallest if m.placement == (1,) else m.batch_per_gpu) for m in here}
        most = ask.machine.gpus or max(max(p) for p in (*(m.placement for m in here), ask.placement))
        now, gains = math.log(estimate.high_s / estimate.step_s) / Z80, []
        for placement in dict.fromkeys([(1,), (most,), (1, 1), (most, most), ask.placement]):
            if (placement, smallest) not in measured:
                then = self._sd_after(ask, estimate, placement, smallest)
                gain = (now - then) / usd_of(placement)
                gains.append((round(gain, 9), then, placement))  # the last digits differ between processors
        gain, then, placement = max(gains, default=(0.0, now, ()), key=lambda row: row[0])
        if gain <= 0:
            return None
        batch = ask.batch_per_gpu if placement == (1,) else smallest
        return Suggestion(placement, batch, math.expm1(Z80 * now), math.expm1(Z80 * then))

    def _ask(self, target: Target) -> _Ask:
        machine = self._machines.of(target)
        check_target(target, machine)
        check_settings(target, machine.gpu)
        measured = self.workload.measurements[0] if self.workload.measurements else None
        strategy = target.strategy or self._measured_as.strategy or "ddp"
        return _Ask(
            machine=machine,
            placement=target.placement,
            batch_per_gpu=target.batch_per_gpu,
            precision=target.precision or self._measured_as.precision or "fp32",
            strategy=strategy,
            grad_accum=target.grad_accum or self._measured_as.grad_accum or 1,
            changes=Changes.of(target),
            reduced_in=measured.reduced_in if measured and measured.strategy == strategy else None,
            host=host_of(
                self._catalog, machine.gpu, machine.cpu_model, target.host_launch_us, self.workload.measurements
            ),
        )

    def _compute(self, ask: _Ask, batch_per_gpu: int | None = None) -> ComputeEstimate:
        """The computation of one micro-batch on one GPU, of so many samples, or as many as asked for."""
        if ask.machine.gpu is None:
            raise PredictionError("target without a GPU: give an instance type or a GPU model")
        batch = batch_per_gpu or ask.batch_per_gpu
        key = (ask.machine.gpu_model, batch, ask.precision, ask.changes, ask.host)
        if key not in self._computes:
            self._computes[key] = self._compute_model.estimate(
                ask.machine.gpu, batch, ask.precision, ask.changes, ask.host
            )
        return self._computes[key]

    def _step_s(self, ask: _Ask) -> Any:
        """The computation of a step on one GPU: every micro-batch, and one update."""
        return self._compute(ask).step_s(ask.grad_accum, self._measured.passes, self._update_share(ask))

    def _update_share(self, ask: _Ask) -> Any:
        return self._measured.update_share(ask.strategy, ask.placing.gpus)

    def _alone_s(self, target: Target) -> float | None:
        """The seconds of a step on one GPU of the target, without a layout; None: it cannot be predicted."""
        try:
            return float(self._step_s(self._ask(target)))
        except PredictionError:
            return None

    def _communicated(self, ask: _Ask) -> tuple[FitEstimate, float]:
        """The step over several GPUs, and the exposed communication (s) that it would have with all of them in one
        machine."""
        fit = self._fit(ask.machine)
        links = self._links_of(ask.machine).links
        load = self._load(ask)
        at = ask.placing
        estimate = fit.predict(links, at, load)
        if STRATEGIES[ask.strategy].basis and all(m.strategy != ask.strategy for m, _ in self._measured.rows):
            estimate = estimate._replace(sd=math.hypot(estimate.sd, _SHARDED_SD))
        if at.nodes == 1:
            return estimate, estimate.exposed_s
        together = min(at.gpus, max(ask.machine.gpus or at.most, at.most))
        return estimate, fit.predict(links, at._replace(nodes=1, most=together), load).exposed_s

    def _links_of(self, machine: Machine) -> MachineLinks:
        if machine not in self._links:
            self._links[machine] = self._coefficients.communication.of(machine)
        return self._links[machine]

    def _fit(self, machine: Machine) -> JobFit:
        """The fit of the job on machines of this kind; cached by kind and prior of the links."""
        kind, prior = machine.kind, self._links_of(machine).prior
        if (kind, prior) not in self._fits:
            observations = [self._observation(m, there) for m, there in self._measured.on(kind) if sum(m.placement) > 1]
            try:
                self._fits[kind, prior] = JobFit(prior, observations)
            except np.linalg.LinAlgError:
                raise self._contradictory() from None
        return self._fits[kind, prior]

    def fits(self) -> dict[tuple[str, str | None], JobFit]:
        """The fit of communication on each kind of machine on which the job was measured on several GPUs."""
        several = (machine for m, machine in self._measured.rows if sum(m.placement) > 1 and machine.gpu)
        return {machine.kind: self._fit(machine) for machine in several}

    def _observation(self, measured: Measurement, machine: Machine) -> Observation:
        ask = _Ask(
            machine, measured.placement, measured.batch_per_gpu,
            measured.precision, measured.strategy, measured.grad_accum, reduced_in=measured.reduced_in,
        )  # fmt: skip
        busy_s = max(measured.step_s - sum(measured.elsewhere_s), 1e-3 * measured.step_s)
        return Observation(self._links_of(machine).links, ask.placing, self._load(ask), busy_s, measured.exposed_comm_s)

    def _load(self, ask: _Ask) -> Load:
        return self._load_of(ask, self._step_s(ask), self._compute(ask).seconds.mean_s, ask.grad_accum)

    def _load_of(self, ask: _Ask, compute_s: Any, micro_batch_s: Any, passes: Any) -> Load:
        """The load of a step, or of many: the last three arguments are numbers or arrays."""
        reference_s = self._reference_s(ask)
        exchanged = exchanged_by(self.workload, STRATEGIES[ask.strategy], ask.changes, ask.precision, ask.reduced_in)
        return Load(
            compute_s=compute_s,
            hiding_s=micro_batch_s * passes if exchanged.again else micro_batch_s,
            reference_s=reference_s * passes if reference_s else compute_s,
            bytes=exchanged.bytes + (passes - 1) * exchanged.again,
            tensors=exchanged.tensors,
        )

    def _reference_s(self, ask: _Ask) -> float | None:
        """The median computation of a micro-batch over the batches measured on machines of this kind."""
        kind = ask.machine.kind
        if kind not in self._references:
            batches = {(m.batch_per_gpu, m.precision) for m, _ in self._measured.on(kind)}
            times = [
                self._compute(replace(ask, batch_per_gpu=batch, precision=precision)).seconds.mean_s
                for batch, precision in batches
            ]
            self._references[kind] = float(np.median(times)) if times else None
        return self._references[kind]

    def _sd_after(self, ask: _Ask, estimate: Estimate, placement: tuple[int, ...], batch: int) -> float:
        """The standard deviation of the logarithm of the target's step if that placement were measured as well."""
        compute_sd = _sd(self._compute(ask))
        if not self._measured.on(ask.machine.kind):
            compute_sd = min(compute_sd, MEASURED)
        compute_sd *= estimate.times.compute_s / estimate.step_s
        if ask.placing.gpus == 1:
            return compute_sd
        fit = self._fit(ask.machine)
        links = self._links_of(ask.machine).links
        load = self._load(ask)
        if sum(placement) == 1:
            sd = fit.sd_of(links, ask.placing, load)
        else:
            extra = self._load(replace(ask, batch_per_gpu=batch))
            sd = fit.sd_after(links, ask.placing, load, placing_of(placement), extra)
        times = estimate.times
        communicated_s = times.compute_s + times.interconnect_s + times.network_s
        return math.hypot(sd * communicated_s / estimate.step_s, compute_sd)

    def _outside(self, ask: _Ask) -> dict[str, float]:
        """How the target lies outside the measurements behind the coefficients, and the standard deviation that each
        way adds; more nodes, or more GPUs in a machine, add it with each doubling."""
        links = self._links_of(ask.machine)
        at = ask.placing
        fit = self._fit(ask.machine)
        seen = [row.placing for row in fit.observations]
        least, most = self._coefficients.communication.gradient_bytes
        nodes = math.log2(at.nodes / max([links.fitted_nodes, *(row.nodes for row in seen)]))
        gpus = math.log2(at.most / max([links.fitted_gpus or at.most, *(row.most for row in seen)]))
        outside = {}
        if nodes > 0:
            outside[f"{at.nodes} nodes"] = fit.reach * nodes
        if gpus > 0:
            outside[f"{at.most} GPUs in one machine"] = fit.reach * gpus
        if not links.fitted_gpus and not seen:  # such intervals are calibrated on clusters left out, and wide enough
            outside[f"links of {ask.machine.name}"] = 0.0
        if not least / 2 <= self._load(ask).bytes <= 2 * most:  # over NVLink bytes cost what collectives do at any size
            outside["gradient bytes"] = 0.0 if ask.machine.link == "nvlink" else _EXTRAPOLATION_SD
        return outside


def _without_single_gpu_communication(workload: Workload) -> Workload:
    """The workload with no communication in single-GPU steps: what was timed as communication there is part of the
    step."""
    measurements = [replace(m, exposed_comm_s=0.0) if sum(m.placement) == 1 else m for m in workload.measurements]
    return replace(workload, measurements=measurements)


def _slower(compute: ComputeEstimate, share: float) -> float:
    """The logarithm of how much longer a step takes on a slow host, of which computation has such a share."""
    return math.log1p(share * (compute.slower - 1))


def _sd(compute: ComputeEstimate) -> float:
    """The standard deviation of the logarithm of the seconds, by the upper end of their interval."""
    seconds = compute.seconds
    return math.log(seconds.high_s / seconds.mean_s) / Z80 if seconds.mean_s > 0 else 1.0
