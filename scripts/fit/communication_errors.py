"""How far predictions of step time are off, on published measurements that the fit has not seen. Prints Markdown.

Placements: every model is left out of the fit in turn (on all clusters) and predicted through `recommender.predict`
from its one-GPU times at all batches and nothing else (zero), with the fullest node and one GPU on each of two nodes,
both at the middle batch and with their exposed communication (few), and with both machines full as well (second).
All other placements and batches are compared. The intervals are calibrated on the models that were not left out.
Scaling: every source is left out in turn; its jobs are predicted from their one-GPU time.

    python -m scripts.fit.communication_errors --data ../shared/data/throughput
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from ddlprof.recommender import Coefficients, Predictor
from scripts.fit.calibration import shots_of
from scripts.fit.communication import (
    FAR_CLUSTER,
    NEAR_NODES,
    coefficients_with,
    fit_general,
    fit_groups,
    left_out,
)
from scripts.fit.placements import PublishedJob, read_jobs
from scripts.fit.scaling import ScalingCase, read_scaling

SHOTS = ("zero", "few", "exposed", "second")


@dataclass(frozen=True)
class Outcome:
    """One predicted point beside its measurement."""

    source: str
    model: str
    shots: str
    nodes: int
    error: float
    """Predicted over measured, less one."""
    covered: bool
    width: float
    """Upper over lower end of the interval."""


def predict_job(
    job: PublishedJob, shots: str, coefficients: Coefficients, more_than_nodes: int = 0, source: str | None = None
) -> list[Outcome]:
    """All points of a job that were not given."""
    given = shots_of(job)[shots]
    predictor = Predictor(job.workload(given.placements, given.batch), coefficients=coefficients)
    outcomes = []
    for point in job.together:
        if not given.have(point) and len(point.placement) > more_than_nodes:
            estimate = predictor.predict(job.target(point))
            outcomes.append(
                Outcome(
                    source or job.cluster, job.model, shots, len(point.placement), estimate.step_s / point.step_s - 1,
                    estimate.low_s <= point.step_s <= estimate.high_s, estimate.high_s / estimate.low_s,
                )
            )  # fmt: skip
    return outcomes


def predict_case(case: ScalingCase, coefficients: Coefficients) -> Outcome:
    """One case of scaling."""
    estimate = Predictor(case.workload, coefficients=coefficients).predict(case.target)
    covered = estimate.low_s <= case.step_s <= estimate.high_s
    return Outcome(
        case.source, case.model, "zero", case.nodes, estimate.step_s / case.step_s - 1, covered,
        estimate.high_s / estimate.low_s,
    )  # fmt: skip


def placement_outcomes(jobs: Sequence[PublishedJob], cases: Sequence[ScalingCase]) -> list[Outcome]:
    """The outcomes of leaving one model out; on the cluster with many nodes, also of leaving the many nodes out."""
    models = sorted({job.model for job in jobs})
    near_jobs = [job.up_to(NEAR_NODES[0]) if job.cluster == FAR_CLUSTER else job for job in jobs]
    outcomes = []
    for fitted, nodes in ((jobs, None), (near_jobs, NEAR_NODES[0])):
        folds = {model: fit_groups(fitted, without=model) for model in models}
        left = left_out(fitted, cases, folds, jobs)
        for model in models:
            general, others = fit_general(cases, folds[model]), left.calibrations(without=model)
            coefficients = coefficients_with(folds[model], general, others, nodes)
            for job in jobs:
                if job.model == model and (nodes is None or job.cluster == FAR_CLUSTER):
                    source = f"{job.cluster}, fit on {nodes} nodes" if nodes else None
                    for shots in SHOTS:
                        outcomes += predict_job(job, shots, coefficients, nodes or 0, source)
    return outcomes


def scaling_outcomes(jobs: Sequence[PublishedJob], cases: Sequence[ScalingCase]) -> list[Outcome]:
    """The outcomes of leaving one source out."""
    groups = fit_groups(jobs)
    folds = {model: fit_groups(jobs, model) for model in {job.model for job in jobs}}
    left = left_out(jobs, cases, folds, jobs)
    outcomes = []
    for source in sorted({case.source for case in cases}):
        general = fit_general([case for case in cases if case.source != source], groups)
        coefficients = coefficients_with(groups, general, left.calibrations(source))
        outcomes += [predict_case(case, coefficients) for case in cases if case.source == source]
    return outcomes


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The table as Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]
    return "\n".join(lines) + "\n"


def median_error(outcomes: Sequence[Outcome]) -> float:
    """The median of the absolute errors; NaN without any."""
    return median(abs(row.error) for row in outcomes) if outcomes else math.nan


def by_model(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Grouped, in the order of the names."""
    found: dict[str, list[Outcome]] = defaultdict(list)
    for row in outcomes:
        found[row.model].append(row)
    return dict(sorted(found.items()))


def error_rows(outcomes: Sequence[Outcome]) -> Iterable[list[str]]:
    """Cluster and evidence: mean over the models, worst, and each model; three and four nodes apart."""
    for shots in SHOTS:
        for cluster in sorted({row.source for row in outcomes}):
            mine = by_model(row for row in outcomes if (row.source, row.shots) == (cluster, shots))
            errors = {model: median_error(rows) for model, rows in mine.items()}
            many = [median_error([row for row in rows if row.nodes >= 3]) for rows in mine.values()]
            yield [
                cluster,
                shots,
                f"{fmean(errors.values()):.1%}",
                f"{max(errors.values()):.1%}",
                "" if any(map(math.isnan, many)) else f"{fmean(many):.1%}",
                ", ".join(f"{model} {error:.1%}" for model, error in errors.items()),
            ]


def coverage_rows(outcomes: Sequence[Outcome]) -> Iterable[list[str]]:
    """Share of the points inside their 80 % interval: mean over the models."""
    for source in sorted({row.source for row in outcomes}):
        for shots in SHOTS:
            mine = by_model(row for row in outcomes if (row.source, row.shots) == (source, shots))
            if mine:
                held = [fmean(row.covered for row in rows) for rows in mine.values()]
                width = median(row.width for rows in mine.values() for row in rows)
                yield [source, shots, f"{fmean(held):.0%}", f"{min(held):.0%}", f"{width:.2f}"]


def scaling_rows(outcomes: Sequence[Outcome]) -> Iterable[list[str]]:
    """Source: mean over the models of their median errors, one machine and several apart."""
    for source in sorted({row.source for row in outcomes}):
        mine = by_model(row for row in outcomes if row.source == source)
        shown = []
        for several in (False, True):
            kept = [[row for row in rows if (row.nodes > 1) == several] for rows in mine.values()]
            errors = [median_error(rows) for rows in kept if rows]
            shown.append(f"{fmean(errors):.1%} (worst {max(errors):.1%})" if errors else "")
        held = fmean(fmean(row.covered for row in rows) for rows in mine.values())
        yield [source, str(len(mine)), *shown, f"{held:.0%}"]


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the published measurements")
    parser.add_argument("--json", type=Path, help="also write every outcome there")
    arguments = parser.parse_args()
    jobs, cases = read_jobs(arguments.data), read_scaling(arguments.data)
    placed, scaled = placement_outcomes(jobs, cases), scaling_outcomes(jobs, cases)
    header = ("cluster", "measured", "mean of models", "worst model", "3-4 nodes", "models")
    print(table(header, error_rows(placed)))
    print(table(("source", "measured", "covered", "worst model", "upper / lower"), coverage_rows(placed)))
    print(table(("source", "models", "one machine", "several", "covered"), scaling_rows(scaled)))
    if arguments.json:
        arguments.json.write_text(json.dumps([vars(row) for row in placed + scaled]), encoding="utf-8")


if __name__ == "__main__":
    main()
