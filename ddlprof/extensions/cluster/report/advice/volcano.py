"""Advice as jobs of Volcano (1.11 and later): `networkTopology` on a tree of HyperNodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ddlprof.emit import pods
from ddlprof.emit.start import FILL_IN_SCRIPT
from ddlprof.emit.yaml_text import yaml_text
from ddlprof.extensions.cluster.report.advice.data import JobAdvice
from ddlprof.extensions.cluster.report.advice.text import spread_comments
from ddlprof.extensions.cluster.report.advice.workers import workers_of


def render(jobs: Sequence[JobAdvice], rack_tier: int = 1) -> str:
    """A document for each job; `rack_tier` is the tier of the HyperNodes that are racks."""
    return yaml_text([_job(job, rack_tier) for job in jobs])


def _job(job: JobAdvice, rack_tier: int) -> tuple[list[str], dict[str, Any]]:
    advice, name = job.advice, pods.job_name(job.advice.name)
    why, topology = _topology(job, rack_tier)
    fill_in = {**pods.FILL_IN, **({} if job.command else FILL_IN_SCRIPT)}
    comments = [*spread_comments(advice), why, "Fill in:", *(f"  {each}: {what}" for each, what in fill_in.items())]
    return comments, {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "volcano",
            "minAvailable": len(advice.closest),
            **({"plugins": {"env": [], "svc": []}} if len(advice.closest) > 1 else {}),
            **({"networkTopology": topology} if topology else {}),
            "tasks": list(_tasks(job, name)),
        },
    }


def _tasks(job: JobAdvice, name: str) -> Iterator[dict[str, Any]]:
    """One task for each number of GPUs that a machine gives to the job. Volcano's plugins give pods their number in the
    task, and names."""
    for workers in workers_of(job, "VC_TASK_INDEX", lambda first: f"{name}-{first}-0.{name}"):
        yield {
            "name": workers.name,
            "replicas": workers.number,
            "template": {"spec": pods.pod("train", workers.command, {"nvidia.com/gpu": workers.gpus})},
        }


def _topology(job: JobAdvice, rack_tier: int) -> tuple[str, dict[str, object] | None]:
    """Why a job has this `networkTopology`. Volcano knows no timers: one rack is either required or preferred."""
    if len(job.advice.closest) == 1:
        return "one pod: its GPUs are those of one machine", None
    required = job.requires_rack
    if required is None:
        return "no networkTopology: no wait is known to pay", None
    if required:
        return "it never pays to take several racks", {"mode": "hard", "highestTierAllowed": rack_tier}
    return "one rack is better, but several are taken", {"mode": "soft"}
