"""Advice as jobs of Volcano (1.11 and later): `networkTopology` on a tree of HyperNodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddlprof.emit.pods import job_name, unexpanded
from ddlprof.emit.yaml_text import yaml_text
from ddlprof.extensions.cluster.report.advice.data import JobAdvice
from ddlprof.extensions.cluster.report.advice.text import spread_comments


def render(jobs: Sequence[JobAdvice], rack_tier: int = 1) -> str:
    """A document for each job; `rack_tier` is the tier of the HyperNodes that are racks."""
    return yaml_text([_job(job, rack_tier) for job in jobs])


def _job(job: JobAdvice, rack_tier: int) -> tuple[list[str], dict[str, Any]]:
    advice = job.advice
    why, topology = _topology(job, rack_tier)
    tasks = [_task(job, gpus) for gpus in sorted(set(advice.closest), reverse=True)]
    return [*spread_comments(advice), why, "YOUR_IMAGE: an image with torch and the script"], {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": job_name(advice.name)},
        "spec": {
            "schedulerName": "volcano",
            "minAvailable": len(advice.closest),
            **({"networkTopology": topology} if topology else {}),
            "tasks": tasks,
        },
    }


def _task(job: JobAdvice, gpus: int) -> dict[str, Any]:
    container = {
        "name": "worker",
        "image": "YOUR_IMAGE",
        **({"command": ["python", *map(unexpanded, job.command)]} if job.command else {}),
        "resources": {"limits": {"nvidia.com/gpu": gpus}},
    }
    return {
        "name": f"workers-{gpus}",
        "replicas": job.advice.closest.count(gpus),
        "template": {"spec": {"restartPolicy": "OnFailure", "containers": [container]}},
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
