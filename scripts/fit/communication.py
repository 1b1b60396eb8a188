"""Fits the coefficients that the package ships, from the published measurements.

Communication: links and jobs of the placement measurements (`link_groups`), then links that no placement was measured
on, from how other published jobs scale (`scaling`). Intervals are calibrated on jobs whose model was left out.
Computation: see `compute_fit`.

    python -m scripts.fit.communication --data ../shared/data/throughput
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from ddlprof.recommender.communication.coefficients import Prior, with_buckets
from ddlprof.recommender.communication.exposed import Array, Link, Links, Load, placing_of, step_s
from ddlprof.recommender.communication.job_parameters import JobFit
from ddlprof.recommender.target import RDMA_FROM_GBPS, Machine, default_catalog, machine_of
from scripts.fit.calibration import FEW, Residuals, calibrate, calibrate_reach, covered, residuals_of, shots_of
from scripts.fit.link_groups import GROUPS, JOB_SD, Group, fit_group, tcp_link
from scripts.fit.placements import SCATTERING, PublishedJob, read_jobs, scattering
from scripts.fit.scaling import ScalingCase, read_scaling

OUT = Path(__file__).resolve().parents[2] / "recommender" / "communication" / "coefficients.json"
AS_OF = "2026-12-01"
SOURCES = (
    "Pollux (Qiao et al., OSDI 2021): AWS g4dn.12xlarge, 4x T4, 50 Gbit/s, up to 4 nodes; five models",
    "Sia (Jayaram Subramanya et al., SOSP 2023): 8x RTX 2080 Ti, 50 Gbit/s, 2 nodes; five models",
    "Sia (Jayaram Subramanya et al., SOSP 2023): 8x A100-40GB, 1600 Gbit/s, 2 nodes; five models",
    "general links: NVIDIA DeepLearningExamples, Lambda, OneFlow DLPerf, PaddlePaddle, HKBU, TensorFlow (2017) and"
    " tensorpack benchmarks, one GPU against several",
    "reductions over NVLink: the performance tables of XLA (openxla/xla, Apache-2.0) and of aiconfigurator"
    " (Apache-2.0), A100, H100, B200, GB200 and B300",
)
NAMES = {"flow_capped": "T4 over PCIe", "ethernet": "RTX 2080 Ti over PCIe", "rdma": "A100 over NVLink"}
GPU_MODELS = {
    "flow_capped": ("T4", "T4G"), "ethernet": ("RTX-2080Ti",), "rdma": ("A100-SXM4-40GB", "A100-SXM4-80GB"),
}  # fmt: skip
LINK_KINDS = {"flow_capped": "pcie", "ethernet": "pcie", "rdma": "nvlink"}
LINK_GB_S = {"flow_capped": 7.875, "ethernet": 15.75, "rdma": 300.0}
NETWORK_GBPS = {"flow_capped": 10.0, "ethernet": 50.0, "rdma": 1600.0}
"""What the groups' links are on the data sheet; of the capped network: one flow in a placement group."""
NODES = {"flow_capped": 4, "ethernet": 2, "rdma": 2}
GENERAL_REFERENCE = {"pcie": 15.75, "nvlink": 150.0, "rdma": 400.0}
GENERAL_START = np.array([np.log(2.0), 0.3, np.log(0.4), np.log(0.5), np.log(40e-6), 0.4, np.log(40e-6), 0.7])
GENERAL_SD = np.array([1.0, 0.1, 0.4, 0.4, 0.7, 0.3, 0.7, 0.4])
"""PCIe: logarithm of GB/s at the reference and growth with data-sheet speed. NVLink and RDMA: logarithm of the share of
the data sheet's bandwidth that jobs get. Launches over NVLink and RDMA: logarithm of seconds and growth, for each."""
COLLECTIVES_SHARE = 0.63
"""The share of NVLink's bandwidth that large collectives reach in published tables (`scripts/fit/collectives.py` of
commit 011fcb36)."""
NETWORK_SHARE = 0.8
"""The largest share of a network's line rate that a job may get."""
GENERAL_LEAST = np.log([0.01, 1e-9, COLLECTIVES_SHARE / 3, NETWORK_SHARE / 3, 5e-6, 1.0, 5e-6, 1.0])
GENERAL_MOST = np.array([5.0, 1.0, np.log(COLLECTIVES_SHARE), np.log(NETWORK_SHARE), -8.0, 1.5, -8.0, 2.0])
"""No job without a measurement of its cluster is predicted to reduce slower than a third of what collectives reach, nor
faster than they do."""
GENERAL_NODES = 32
GENERAL_KINDS = ("pcie", "nvlink")
"""The kinds of links inside a machine that there are general links of."""
FULL_SPEED_GPUS = {"pcie": 8}
"""The lanes of a host serve eight GPUs. In the placements, the cost does not grow with the GPUs up to eight (fitted
exponent 0.0); MXNet's table of p2.16xlarge (2017) has 2.4 times the cost on sixteen."""
SPREAD = 0.5
"""Spread of the logarithm of the cost between machines with equal data sheets: the published ones differ by so much."""
CLUSTER_SD = np.concatenate([np.hypot(JOB_SD[:2], SPREAD), JOB_SD[2:]])
"""The prior of a job on a cluster that nothing was measured on."""
BUCKET_S = 28e-6
"""The lead of a reduction over eight GPUs with NVLink (`scripts/fit/collectives.py` of
commit 011fcb36)."""
_NOISE = 0.1
FAR_CLUSTER, NEAR_NODES = "aws", (2, 3)
"""The cluster with more than two nodes; what lies beyond a fit is learned from fits on up to two, and up to three."""
LEAST_REACH = 0.1
"""The least reach: how flows and hops grow with nodes was found on the cluster that calibrates it."""
Calibration = dict[str, tuple[float, float, float, float, float, float]]
"""Widen, floor and reach of each prior, each without and with measured placements."""


def general_links(
    numbers: Array, groups: dict[str, Group], machine_gb_s: float, gbps: float, kind: str, bucket_s: float = BUCKET_S
) -> Links:
    """Links of a machine that no placement was measured on. `numbers`: as `GENERAL_START`; launches over PCIe cost what
    they do on the measured machine with Ethernet."""
    log_pcie, power, log_nvlink, log_rdma, log_inside_s, inside_growth, log_between_s, between_growth = numbers
    if kind == "nvlink":
        gb_s = with_buckets(float(np.exp(log_nvlink)) * machine_gb_s, bucket_s)
        intra = Link(gb_s, float(np.exp(log_inside_s)), float(inside_growth))
    else:
        like = next(groups[key].links.intra for key in ("ethernet", "flow_capped") if key in groups)
        gb_s = float(np.exp(log_pcie) * (machine_gb_s / GENERAL_REFERENCE["pcie"]) ** power)
        intra = Link(gb_s, like.launch_s, like.launch_growth, full_speed_gpus=FULL_SPEED_GPUS["pcie"])
    inter = Link(float(np.exp(log_rdma)) * gbps / 8.0, float(np.exp(log_between_s)), float(between_growth))
    return Links(intra, inter)


def case_links(numbers: Array, groups: dict[str, Group], case: ScalingCase, machine: Machine) -> Links:
    """The general links of a case; PCIe 3 and 400 Gbit/s where its source does not say."""
    gb_s = machine.link_gb_s or GENERAL_REFERENCE["pcie"]
    gbps = case.network_gbps or GENERAL_REFERENCE["rdma"]
    return general_links(numbers, groups, gb_s, gbps, machine.link or "pcie")


def fit_general(cases: Sequence[ScalingCase], groups: dict[str, Group]) -> Array:
    """The numbers of `GENERAL_START`: every source and kind of machine counts the same."""
    catalog = default_catalog()
    prior = general_prior_mean(groups)
    weights = _weights(cases)
    rows = []
    for case, weight in zip(cases, weights, strict=True):
        machine = machine_of(case.target, catalog)
        if not over_ethernet(case):
            rows.append((case, machine, load_of(case), weight))

    def residuals(numbers: Array) -> Array:
        parts = list((numbers - GENERAL_START) / GENERAL_SD)
        for key, group in groups.items():
            links = general_links(numbers, groups, LINK_GB_S[key], NETWORK_GBPS["rdma"], LINK_KINDS[key])
            if LINK_KINDS[key] == "pcie":
                parts.append(float(np.log(links.intra.gb_s / group.links.intra.gb_s)) / SPREAD)
        for case, machine, load, weight in rows:
            links = case_links(numbers, groups, case, machine)
            rest, exposed = step_s(prior, links, placing_of(case.target.placement), load)
            parts.append(weight * float(np.log((rest + exposed) / case.step_s)) / _NOISE)
        return np.array(parts)

    bounds = (GENERAL_LEAST, GENERAL_MOST)
    return np.asarray(least_squares(residuals, GENERAL_START, loss="soft_l1", bounds=bounds).x)


def over_ethernet(case: ScalingCase) -> bool:
    """Whether the case is of several machines without RDMA, of which there are no general links."""
    return case.nodes > 1 and (case.network_gbps or 0.0) < RDMA_FROM_GBPS


def load_of(case: ScalingCase) -> Load:
    """The computation and the bytes of a case."""
    tensors = case.tensors or case.gradient_bytes / 1e6
    return Load(case.alone_s, case.alone_s / case.grad_accum, case.alone_s, case.gradient_bytes, tensors)


def _weights(cases: Sequence[ScalingCase]) -> list[float]:
    of = [(case.source, case.gpu_model, case.nodes > 1) for case in cases]
    return [1.0 / np.sqrt(of.count(key)) for key in of]


def general_prior_mean(groups: dict[str, Group]) -> Array:
    """What the jobs of all groups have in common."""
    return np.asarray(np.mean([group.prior_mean for group in groups.values()], axis=0))


def content_of(groups: dict[str, Group], general: Array, calibration: Calibration) -> dict[str, Any]:
    """What the predictor needs, as the JSON file holds it."""

    def row(name: str, kind: str, models: Sequence[str], link: Link, **rest: float | str) -> dict[str, Any]:
        numbers = {field: _rounded(value) for field, value in vars(link).items()}
        return {"name": name, "kind": kind, "gpu_models": list(models), **numbers, **rest}

    inside = [
        row(NAMES[key], LINK_KINDS[key], GPU_MODELS[key], _sharing(group.links.intra, LINK_KINDS[key]),
            reference=LINK_GB_S[key], power=0.5, most=4 if key == "flow_capped" else 8, network=key)
        for key, group in groups.items()
    ]  # fmt: skip
    measured = replace(groups["rdma"].links.inter, launch_growth=float(general[7]))  # two nodes do not tell it
    between = [
        row("rdma, A100", "rdma", GPU_MODELS["rdma"], measured, reference=NETWORK_GBPS["rdma"], power=1.0,
            most=GENERAL_NODES)
    ]  # fmt: skip
    powers = {"pcie": _rounded(general[1]), "nvlink": 1.0, "rdma": 1.0}
    for kind, reference in GENERAL_REFERENCE.items():
        links = general_links(general, groups, reference, reference, kind if kind != "rdma" else "nvlink", 0.0)
        link, into = (links.inter, between) if kind == "rdma" else (links.intra, inside)
        into.append(
            row(kind, kind, (), link, reference=reference, power=powers[kind],
                most=GENERAL_NODES if kind == "rdma" else 16, bucket_s=BUCKET_S if kind == "nvlink" else 0.0)
        )  # fmt: skip
    between += [
        row(key, key, (), groups[key].links.inter, reference=NETWORK_GBPS[key], power=1.0,
            most=NODES[key])
        for key in ("flow_capped", "ethernet")
    ]  # fmt: skip
    means = {NAMES[key]: group.prior_mean for key, group in groups.items()}
    means |= {kind: general_prior_mean(groups) for kind in GENERAL_KINDS}
    priors = {
        name: {
            "mean": [_rounded(number) for number in mean],
            "sd": [_rounded(number) for number in (CLUSTER_SD if name in GENERAL_KINDS else JOB_SD)],
            "widen": [_rounded(number) for number in calibration[name][:2]],
            "floor": [_rounded(number) for number in calibration[name][2:4]],
            "reach": [_rounded(number) for number in calibration[name][4:]],
        }
        for name, mean in means.items()
    }
    sizes = [job.gradient_bytes for group in groups.values() for job in group.jobs]
    return {"inside": inside, "between": between, "priors": priors, "gradient_bytes": [min(sizes), max(sizes)]}


def _sharing(link: Link, kind: str) -> Link:
    return replace(link, full_speed_gpus=FULL_SPEED_GPUS.get(kind, 0.0))


def _rounded(number: float) -> float:
    return float(f"{number:.4g}") if abs(number) > 1e-9 else 0.0


def fit_groups(jobs: Sequence[PublishedJob], without: str | None = None) -> dict[str, Group]:
    """All groups, with one model left out."""
    return {
        key: fit_group(key, [job for job in jobs if job.cluster in clusters and job.model != without])
        for key, clusters in GROUPS.items()
    }


@dataclass(frozen=True)
class LeftOut:
    """Every job predicted from fits without its model, at every level of evidence."""

    near: list[Residuals]
    far: list[Residuals]
    """On more nodes than the fit has seen."""
    elsewhere: list[Residuals]
    """From fits without its cluster, or its publication, as well; and all jobs on the made-up cluster that scatters."""

    def calibrations(self) -> Calibration:
        """The calibration on all models."""
        return calibrations(self.near, self.far, self.elsewhere)


def left_out(
    jobs: Sequence[PublishedJob],
    cases: Sequence[ScalingCase],
    folds: dict[str, dict[str, Group]],
    far: Sequence[PublishedJob],
) -> LeftOut:
    """The residuals of all jobs. `folds`: groups without each model; `far`: jobs with all nodes that were measured."""
    group_of = {cluster: key for key, clusters in GROUPS.items() for cluster in clusters}
    near = [
        residuals_of(job, shots, folds[job.model][group_of[job.cluster]]) for job in jobs for shots in shots_of(job)
    ]
    unmeasured = {
        (key, model): as_unmeasured(key, folds[model], cases)
        for key, model in {(group_of[job.cluster], job.model) for job in jobs}
    }
    elsewhere = [
        residuals_of(job, shots, unmeasured[group_of[job.cluster], job.model], prior_sd=CLUSTER_SD)
        for job in jobs
        for shots in shots_of(job)
    ]
    elsewhere += [
        replace(
            residuals_of(scattering(job), shots, unmeasured[group_of[job.cluster], job.model], prior_sd=CLUSTER_SD),
            source=SCATTERING,
        )
        for job in jobs
        for shots in shots_of(job)
    ]
    return LeftOut(near, far_residuals(far), elsewhere + scaling_residuals(cases, fit_groups(jobs)))


def as_unmeasured(key: str, groups: dict[str, Group], cases: Sequence[ScalingCase]) -> Group:
    """What is assumed of a group of clusters if none of its placements is known."""
    others = {name: group for name, group in groups.items() if name != key}
    numbers = fit_general(cases, others)
    links = general_links(numbers, others, LINK_GB_S[key], NETWORK_GBPS[key], LINK_KINDS[key])
    if key != "rdma":  # the machine and its launches are those of the other network over TCP
        other = next(groups[name].links.inter for name in ("ethernet", "flow_capped") if name != key)
        links = Links(links.intra, tcp_link(key, other.gb_s / (1.0 - other.line_share), other.launch_s))
    return Group(links, {}, general_prior_mean(others))


def scaling_residuals(cases: Sequence[ScalingCase], groups: dict[str, Group]) -> list[Residuals]:
    """Every job of another publication from a fit without it, one row a model."""
    catalog, mean, rows = default_catalog(), tuple(general_prior_mean(groups)), []
    fit = JobFit(Prior(mean, tuple(CLUSTER_SD), (1.0, 1.0), (0.0, 0.0)), [])
    for source in sorted({case.source for case in cases}):
        numbers = fit_general([case for case in cases if case.source != source], groups)
        found: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
        for case in (case for case in cases if case.source == source and not over_ethernet(case)):
            links = case_links(numbers, groups, case, machine_of(case.target, catalog))
            step = fit.predict(links, placing_of(case.target.placement), load_of(case))
            error = float(np.log((step.rest_s + step.exposed_s) / case.step_s))
            found[case.model].append((error, step.sd, case.nodes))
        for model, of_model in found.items():
            log_error, sd, nodes = (np.array(column, dtype=float) for column in zip(*of_model, strict=True))
            rows.append(Residuals(source, model, "zero", log_error, sd, np.ones(len(sd)), nodes, GENERAL_NODES))
    return rows


def far_residuals(jobs: Sequence[PublishedJob]) -> list[Residuals]:
    """Every job on more nodes than the fit has seen, of which its model was left out."""
    key = next(key for key, clusters in GROUPS.items() if FAR_CLUSTER in clusters)
    rows = []
    for job in (job for job in jobs if job.cluster == FAR_CLUSTER):
        for nodes in NEAR_NODES:
            others = [j.up_to(nodes) for j in jobs if j.cluster == FAR_CLUSTER and j.model != job.model]
            group = fit_group(key, others)
            rows += [residuals_of(job, shots, group, nodes) for shots in shots_of(job)]
    return rows


def calibrations(rows: Sequence[Residuals], far: Sequence[Residuals], elsewhere: Sequence[Residuals]) -> Calibration:
    """Widen and floor of each prior: those of measured links from models left out, general ones from clusters and
    publications left out. The reach is that of the cluster with many nodes."""
    shots = {"zero": ("zero",), "few": FEW}
    names = [*((NAMES[key], GROUPS[key]) for key in GROUPS), *((kind, None) for kind in GENERAL_KINDS)]
    near = {
        (name, level): calibrate(
            [
                row
                for row in (rows if clusters else elsewhere)
                if (clusters is None or row.source in clusters) and row.shots in of
            ]
        )
        for name, clusters in names
        for level, of in shots.items()
    }
    far_name = next(name for name, clusters in names if clusters and FAR_CLUSTER in clusters)
    reach = {
        level: max(calibrate_reach([row for row in far if row.shots in of], *near[far_name, level]), LEAST_REACH)
        for level, of in shots.items()
    }
    return {
        name: (
            near[name, "zero"][0], near[name, "few"][0], near[name, "zero"][1], near[name, "few"][1],
            reach["zero"], reach["few"],
        )
        for name, _ in names
    }  # fmt: skip


def coverage_elsewhere(rows: Sequence[Residuals]) -> dict[str, float]:
    """The share of the points of each source that lie in their interval, calibrated on the others."""
    shares = {}
    for source in sorted({row.source for row in rows}):
        mine, others = ([row for row in rows if (row.source == source) == same] for same in (True, False))
        widen, floor = calibrate(others)
        shares[source] = covered(mine, [row.sd(widen, floor) for row in mine])
    return shares


def error_table(residuals: Iterable[Residuals]) -> list[dict[str, Any]]:
    """Median errors of jobs whose model was left out."""
    return [
        {"cluster": row.source, "model": row.model, "measured": row.shots,
         "median_error": _rounded(row.median_error), "points": len(row.log_error)}
        for row in residuals
    ]  # fmt: skip


def main() -> None:
    """Fits and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the published measurements")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    jobs = read_jobs(arguments.data)
    groups = fit_groups(jobs)
    cases = read_scaling(arguments.data)
    general = fit_general(cases, groups)
    folds = {model: fit_groups(jobs, without=model) for model in sorted({job.model for job in jobs})}
    left = left_out(jobs, cases, folds, jobs)
    content = {
        "about": "Coefficients of `communication.exposed`; the fields are in `communication.coefficients`.",
        "as_of": AS_OF,
        "sources": SOURCES,
        **content_of(groups, general, left.calibrations()),
        "left_out_errors": error_table(left.near),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for cluster in sorted({row.source for row in left.near}):
        for shots in ("zero", "few", "exposed", "second"):
            errors = [row.median_error for row in left.near if (row.source, row.shots) == (cluster, shots)]
            print(
                f"{cluster:8} {shots:7} mean of the models' median errors {fmean(errors):.1%}, worst {max(errors):.1%}"
            )
    print_elsewhere(left)


def print_elsewhere(left: LeftOut) -> None:
    """Errors and coverage of sources left out whole."""
    for source in dict.fromkeys(row.source for row in left.elsewhere):
        known: dict[str, list[float]] = {}
        for row in (row for row in left.elsewhere if row.source == source):
            known.setdefault(row.shots, []).append(row.median_error)
        print(f"{source} left out whole: " + ", ".join(f"{shots} {fmean(of):.1%}" for shots, of in known.items()))
    for level, of in (("zero", ("zero",)), ("few", FEW)):
        shares = coverage_elsewhere([row for row in left.elsewhere if row.shots in of])
        print(
            f"left out as a source, {level}: {fmean(shares.values()):.0%} in their 80 % interval; "
            + ", ".join(f"{source} {share:.0%}" for source, share in shares.items())
        )


if __name__ == "__main__":
    main()
