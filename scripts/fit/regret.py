"""Would `recommend` have chosen well? Judged on published measurements: regret over a sweep of budgets.

A case is one job at one batch whose time is known on several machines that can be rented. For each budget, `recommend`
gets what a user would have measured, chooses, and pays the measured time at the catalogue's price. Regret is what its
choice costs over the cheapest choice that meets the budget, minus one; a missed deadline is a choice whose measured
time is over the budget though another meets it. Beside it: the machine that is always cheapest per hour, and the one
that is fastest by the measurements, which no user knows. The own model of a case
is left out of the fits, of computation and of communication. The operators of its step are known. Prints
Markdown for docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, TypeAlias

from ddlprof.recommender import Coefficients, Estimate, Measurement, Predicts, StepTimes, Target, Workload
from ddlprof.recommender.compute.micro_batch import Coefficients as ComputeCoefficients
from ddlprof.recommender.compute.micro_batch import ComputeModel
from ddlprof.recommender.plans.ranking import recommend
from ddlprof.recommender.predictor import Predictor
from ddlprof.recommender.target import default_catalog
from scripts.bench.jobs import Limits, print_table, progress
from scripts.fit import published
from scripts.fit.communication import coefficients_with, fit_general, fit_groups, left_out
from scripts.fit.compute_errors import Fitted
from scripts.fit.placements import read_jobs
from scripts.fit.scaling import read_scaling
from scripts.fit.throughput import on_one

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "throughput"
BUDGETS = 16
MOST_REGRET, MOST_MISSED = 0.05, 0.05
"""The stated limits, for each source as the mean over its models."""
THREE_POINTS = [(4,), (1, 1)]
"""Overheads one GPU: the fullest node and two nodes with one GPU each."""
A100_MEASURED = "one GPU of it measured"
WORK_ON_SLOWEST_S = 200 * 3600.0
"""The work of a case: hours of the slowest machine, so that minutes of start-up do not matter."""

Machines: TypeAlias = tuple[str, int]
"""Instance type and number of nodes."""

RENTED_AS: dict[Machines, tuple[str, tuple[int, ...]]] = {
    ("g4dn.xlarge", 1): ("aws", (1,)),
    **{("g4dn.12xlarge", nodes): ("aws", (4,) * nodes) for nodes in range(1, 5)},
    ("p4d.24xlarge", 1): ("dgx", (8,)),
}
"""Cluster and placement whose measured step stands for machines that can be rented."""


FINDINGS_BATCH = 32
FINDINGS_ON: dict[Machines, int] = {
    ("p2.8xlarge", 1): 8, ("p2.16xlarge", 1): 16, ("p3.2xlarge", 1): 1, ("p3.8xlarge", 1): 4, ("p3.8xlarge", 2): 4,
    ("p3.16xlarge", 1): 8,
}  # fmt: skip
"""Machines of the Stash paper, with the GPUs of a node."""


@dataclass(frozen=True)
class Case:
    """A job with the measured step on machines that can be rented."""

    source: str
    model: str
    workload: Workload
    """With what the user has measured."""
    batch_per_gpu: int
    steps_s: dict[Machines, float]
    gpus: dict[str, int]
    """GPUs of one node."""

    def samples(self) -> float:
        """The work."""
        return WORK_ON_SLOWEST_S / max(self.steps_s[m] / self._batch(m) for m in self.steps_s)

    def time_s(self, machines: Machines) -> float:
        """Measured time of the work."""
        return self.samples() / self._batch(machines) * self.steps_s[machines]

    def cost_usd(self, machines: Machines) -> float:
        """The cost at the measured time."""
        return usd_per_hour(machines) * self.time_s(machines) / 3600

    def _batch(self, machines: Machines) -> int:
        return self.gpus[machines[0]] * machines[1] * self.batch_per_gpu


@dataclass(frozen=True)
class Outcome:
    """What one rule chose for one case and budget."""

    model: str
    regret: float | None
    """None: the deadline was missed."""
    sure: bool
    """False: said that no plan meets the budget, though one did; the soonest plan counts as the choice."""


class Cached:
    """The same predictions for every budget."""

    def __init__(self, predictor: Predicts) -> None:
        self._predictor = predictor
        self._known: dict[Target, Estimate] = {}

    def predict(self, target: Target) -> Estimate:
        """Predicts as the predictor inside does."""
        if target not in self._known:
            self._known[target] = self._predictor.predict(target)
        return self._known[target]


class Alone:
    """One GPU, from coefficients of one's own."""

    def __init__(self, workload: Workload, coefficients: ComputeCoefficients) -> None:
        self._model = ComputeModel(workload, coefficients)

    def predict(self, target: Target) -> Estimate:
        """Computation only."""
        assert target.instance_type
        gpu = default_catalog().gpu(default_catalog().instance(target.instance_type).gpu_model)
        found = self._model.estimate(gpu, target.batch_per_gpu, "fp32")
        mean_s, low_s, high_s = found.seconds.mean_s, found.seconds.low_s, found.seconds.high_s
        times = StepTimes(mean_s, 0.0, 0.0, 0.0, 0.0, 0.0)
        return Estimate(mean_s, low_s, high_s, times, found.extrapolated, found.basis)


def without_model(data: Path) -> dict[str, Coefficients]:
    """Coefficients of communication for each model of the placements, fitted without it."""
    jobs, cases = read_jobs(data), read_scaling(data)
    folds = {model: fit_groups(jobs, without=model) for model in sorted({job.model for job in jobs})}
    left = left_out(jobs, cases, folds, jobs)
    found = {}
    for model, groups in folds.items():
        others = left.calibrations(without=model)
        found[model] = coefficients_with(groups, fit_general(cases, groups), others)
    return found


def with_operators(workload: Workload, network: str) -> Workload:
    """The same with the operators that `ddlprof features` would count."""
    return replace(workload, step=published.steps().get(network))


class Choice(NamedTuple):
    """What a rule takes, and whether it says that this meets the budget."""

    machines: Machines
    sure: bool


def usd_per_hour(machines: Machines) -> float:
    """The on-demand price in us-east-1."""
    price = default_catalog().price(machines[0], "us-east-1")
    assert price is not None
    return price.usd_per_hour * machines[1]


def recommended(case: Case, predictor: Predicts, budget_s: float) -> Choice:
    """The first plan among the machines whose time is known."""
    plans = recommend(
        case.workload,
        samples=case.samples(),
        budget_s=budget_s,
        region="us-east-1",
        max_nodes=max(nodes for _, nodes in case.steps_s),
        instance_types=sorted(case.gpus),
        batch_per_gpu=case.batch_per_gpu,
        startup_s=0.0,
        predictor=predictor,
        memory=lambda *_: None,  # it was measured, so it fits
    )
    first = next(plan for plan in plans if (plan.instance_type, plan.nodes) in case.steps_s)
    return Choice((first.instance_type, first.nodes), not first.reason)


def judge(cases: Sequence[Case], predictor_of: Callable[[Case], Predicts]) -> dict[str, list[Outcome]]:
    """Every rule on every case and every budget that some machine meets."""
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    for number, case in enumerate(cases, 1):
        if number % 50 == 0:
            progress(f"{case.source}: {number} of {len(cases)} cases")
        predictor = Cached(predictor_of(case))
        cheapest = Choice(min(case.steps_s, key=usd_per_hour), True)
        fastest = Choice(min(case.steps_s, key=case.time_s), True)
        for budget_s in budgets_s(case):
            for rule, choice in (
                ("recommend", recommended(case, predictor, budget_s)),
                ("always the cheapest per hour", cheapest),
                ("always the fastest (by the measurements)", fastest),
            ):
                outcomes[rule].append(outcome(case, budget_s, choice))
    return outcomes


def budgets_s(case: Case) -> list[float]:
    """Budgets from just above the fastest machine's time to twice the slowest's, on equal steps of the logarithm."""
    times = [case.time_s(machines) for machines in case.steps_s]
    low, high = 1.02 * min(times), 2 * max(times)
    return [low * (high / low) ** (step / (BUDGETS - 1)) for step in range(BUDGETS)]


def outcome(case: Case, budget_s: float, choice: Choice) -> Outcome:
    """The choice beside the cheapest machines that meet the budget by the measurements."""
    feasible = [machines for machines in case.steps_s if case.time_s(machines) <= budget_s]
    best = min(case.cost_usd(machines) for machines in feasible)
    met = choice.machines in feasible
    return Outcome(case.model, case.cost_usd(choice.machines) / best - 1 if met else None, choice.sure)


def profet_cases(data: Path) -> Iterator[Case]:
    """One GPU of three kinds; the user has measured the T4."""
    facts = models(data)
    steps: dict[tuple[str, int, int], dict[Machines, float]] = defaultdict(dict)
    for row in rows(data / "single_gpu_aws_train.csv"):
        key = (row["model"], int(row["image_px"]), int(row["batch_per_gpu"]))
        steps[key][row["instance_name"], 1] = float(row["step_time_s"])
    for (model, pixels, batch), known in sorted(steps.items()):
        if len(known) == 3:
            measured = [on_one("g4dn.xlarge", batch, known["g4dn.xlarge", 1])]
            workload = workload_of(f"{model} {pixels} px", facts.get(model, {}), measured)
            workload = with_operators(workload, f"{model}|{pixels}px")
            yield Case("PROFET, one GPU", model, workload, batch, known, {name: 1 for name, _ in known})


def pollux_cases(data: Path, placements: Sequence[tuple[int, ...]], a100: str | None) -> Iterator[Case]:
    """T4s in one to four machines; the user has measured one T4 at all batches, and `placements` at the middle one.

    `a100`: a machine with eight of them can be had too; "not measured", or one GPU of it measured at all batches.
    """
    shots = "three points" if placements else "one T4"
    source = f"Pollux, {shots} measured" + (f"; an A100 machine too, {a100}" if a100 else "")
    jobs = {(job.cluster, job.model): job for job in read_jobs(data)}
    for (cluster, model), job in jobs.items():
        if cluster != "aws":
            continue
        workload = with_operators(job.workload(placements), {"bert_base": "bert_base|384"}.get(model, model))
        steps = {("aws", p.placement, p.batch_per_gpu): p.step_s for p in job.points}
        gpus = {"g4dn.xlarge": 1, "g4dn.12xlarge": 4}
        if a100:
            other = jobs["dgx", model]
            steps |= {("dgx", p.placement, p.batch_per_gpu): p.step_s for p in other.points}
            gpus["p4d.24xlarge"] = 8
            if a100 == A100_MEASURED:
                rented = [
                    replace(m, instance_type="p4d.24xlarge", gpu_model=None) for m in other.workload([]).measurements
                ]
                workload = replace(workload, measurements=[*workload.measurements, *rented])
        for batch in sorted(job.alone):
            known = {m: steps[c, at, batch] for m, (c, at) in RENTED_AS.items() if (c, at, batch) in steps}
            if len(known) > 2:
                yield Case(source, model, workload, batch, known, gpus)


def workload_of(name: str, facts: dict[str, str], measurements: Sequence[Measurement]) -> Workload:
    """The job; counts that the tables do not have are not known."""

    def number(column: str, factor: float = 1.0) -> float | None:
        return float(facts[column]) * factor if facts.get(column) else None

    layers, tensors = number("weight_layers"), number("param_tensors")
    return Workload(
        name=name,
        layers=None if layers is None else round(layers),
        parameter_tensors=None if tensors is None else round(tensors),
        gradient_bytes=number("gradient_mb_fp32", 1e6),
        flops_per_sample=number("fwd_gflops_per_sample", 3e9),
        measurements=measurements,
    )


def rows(path: Path) -> list[dict[str, str]]:
    """A CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def models(data: Path) -> dict[str, dict[str, str]]:
    """Counts by model."""
    return {row["model"]: row for row in rows(data / "models.csv")}


def print_scores(by_source: dict[str, dict[str, list[Outcome]]], limits: Limits) -> None:
    """One line a source and rule; shares are means over the models."""
    table = []
    for source, by_rule in by_source.items():
        for rule, outcomes in by_rule.items():
            models = {o.model: [x for x in outcomes if x.model == o.model] for o in outcomes}
            regrets = {m: fmean([o.regret for o in of if o.regret is not None] or [0.0]) for m, of in models.items()}
            regret = fmean(regrets.values())
            missed = fmean(fmean(o.regret is None for o in of) for of in models.values())
            unsure = fmean(fmean(not o.sure for o in of) for of in models.values())
            worst = max(regrets, key=lambda model: regrets[model])
            table.append(
                [source, rule, len(outcomes), f"{regret:.1%}", f"{worst} {regrets[worst]:.1%}", f"{missed:.1%}",
                 f"{unsure:.1%}"]
            )  # fmt: skip
            if rule == "recommend":
                limits.at_most(f"mean regret, {source}", regret, MOST_REGRET)
                limits.at_most(f"missed deadlines, {source}", missed, MOST_MISSED)
    header = ["source", "rule", "choices", "mean regret", "worst model", "missed deadlines", "said none meets"]
    print_table(header, table)


def print_findings(data: Path) -> None:
    """Samples a second that are predicted for AWS's P2 and P3, from one-GPU times of a K80 and a V100.

    What measurements of such machines found: Stash (Sharma et al., ICDCS 2023).
    """
    facts = models(data)
    one_gpu = {
        (row["model"].lower(), row["image_px"], int(row["batch_per_gpu"]), row["instance_name"]): row["step_time_s"]
        for row in rows(data / "single_gpu_aws_train.csv")
    }
    table: list[list[str]] = []
    rates: dict[tuple[str, Machines], float] = {}
    for model in ("resnet50", "vgg16"):
        measured = [
            on_one(name, FINDINGS_BATCH, float(one_gpu[model, "224", FINDINGS_BATCH, name]))
            for name in ("p3.2xlarge", "p2.xlarge")
        ]
        predictor = Predictor(workload_of(model, facts[model], measured))
        for machines, gpus in FINDINGS_ON.items():
            estimate = predictor.predict(Target(machines[0], (gpus,) * machines[1], FINDINGS_BATCH))
            rate = gpus * machines[1] * FINDINGS_BATCH / estimate.step_s
            rates[model, machines] = rate
            exposed = (estimate.interconnect_s + estimate.network_s) / estimate.step_s
            table.append(
                [f"{model}, {machines[1]} x {machines[0]}", f"{usd_per_hour(machines):.2f}", f"{rate:.0f}",
                 f"{100 * exposed:.0f} %", f"{1e6 * usd_per_hour(machines) / 3600 / rate:.2f}"]
            )  # fmt: skip
    print_table(["job and machines", "USD/h", "samples/s", "exposed communication", "USD for a million samples"], table)
    print_table(["finding", "predicted ratio", "confirmed if at most", "confirmed"], list(found_in(rates)))


def found_in(rates: dict[tuple[str, Machines], float]) -> Iterator[list[str]]:
    """One row a finding of the paper, as a ratio of predicted rates."""

    def lost(model: str) -> float:
        return rates[model, ("p3.8xlarge", 2)] / rates[model, ("p3.16xlarge", 1)]

    eight, sixteen = rates["resnet50", ("p2.8xlarge", 1)], rates["resnet50", ("p2.16xlarge", 1)]
    for finding, ratio, most in (
        ("a dearer machine is not always faster: vgg16 on p2.8xlarge over p3.2xlarge",
         rates["vgg16", ("p2.8xlarge", 1)] / rates["vgg16", ("p3.2xlarge", 1)], 1.0),
        ("vgg16: two p3.8xlarge over one p3.16xlarge, at one price", lost("vgg16"), 0.6),
        ("resnet50 loses less by that: vgg16's ratio over resnet50's", lost("vgg16") / lost("resnet50"), 0.9),
        ("shared PCIe: resnet50 on p2.16xlarge over twice p2.8xlarge", sixteen / (2 * eight), 0.8),
    ):  # fmt: skip
        yield [finding, f"{ratio:.2f}", f"{most:g}", "yes" if ratio <= most else "no"]


def main() -> int:
    """Exit code 1 if a limit is missed, 2 without the data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the published measurements")
    data: Path = parser.parse_args().data
    if not (data / "placements_train.csv").exists():
        print(f"{data}: the published measurements are not there", file=sys.stderr)
        return 2
    sources = [
        list(profet_cases(data)),
        list(pollux_cases(data, [], None)),
        list(pollux_cases(data, THREE_POINTS, None)),
        list(pollux_cases(data, THREE_POINTS, "not measured")),
        list(pollux_cases(data, THREE_POINTS, A100_MEASURED)),
    ]
    limits = Limits()
    fits = Fitted.as_shipped(data)
    placed = {
        model: replace(coefficients, compute=fits.without_model(model))
        for model, coefficients in without_model(data).items()
    }
    alone: dict[str, ComputeCoefficients] = {}

    def predictor_of(case: Case) -> Predicts:
        if case.model in placed:
            return Predictor(case.workload, coefficients=placed[case.model])
        if case.model not in alone:
            alone[case.model] = fits.without_model(case.model)
        return Alone(case.workload, alone[case.model])

    scores = {cases[0].source: judge(cases, predictor_of) for cases in sources}
    print_scores(scores, limits)
    print_findings(data)
    return limits.exit_code()


if __name__ == "__main__":
    raise SystemExit(main())
