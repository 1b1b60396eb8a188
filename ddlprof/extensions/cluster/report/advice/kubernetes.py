"""Advice as JobSets of Kubernetes: with topology requests for Kueue, or with affinities for the scheduler of
Kubernetes itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ddlprof.emit import kubernetes, pods
from ddlprof.emit.start import FILL_IN_SCRIPT
from ddlprof.emit.yaml_text import yaml_text
from ddlprof.extensions.cluster.report.advice.data import JobAdvice
from ddlprof.extensions.cluster.report.advice.text import spread_comments
from ddlprof.extensions.cluster.report.advice.workers import workers_of

_RACK = "YOUR_RACK_LABEL"
_HEAVIEST = 100
"""The weight of a preference, of at most 100."""


def render(jobs: Sequence[JobAdvice], kueue: bool) -> str:
    """A document for each job. Neither scheduler knows timers: one rack is required where it never pays to take
    several, and preferred where it is worth a wait."""
    return yaml_text([_job(job, kueue) for job in jobs])


def _job(job: JobAdvice, kueue: bool) -> tuple[list[str], dict[str, Any]]:
    advice = job.advice
    name = pods.job_name(advice.name)
    required = job.requires_rack
    annotations, affinity = {}, {}
    if required is not None and kueue:
        annotations = {pods.REQUIRED if required else pods.PREFERRED: _RACK}
    elif required is not None:
        affinity = {"affinity": {"podAffinity": _affinity(name, required)}}
    labels = {pods.QUEUE_LABEL: "YOUR_QUEUE"} if kueue else {}
    parts = list(_parts(job, name, annotations, affinity))
    fill_in = {
        **pods.FILL_IN,
        **(pods.QUEUE if kueue else {}),
        **({} if job.command else FILL_IN_SCRIPT),
        **({_RACK: "the label that is equal on all nodes of a rack"} if required is not None else {}),
    }
    comments = [
        *spread_comments(advice),
        _why(job),
        "Fill in:",
        *(f"  {each}: {what}" for each, what in fill_in.items()),
    ]
    if not kueue:
        comments.append("Kubernetes alone starts pods one by one, not all or none: with Kueue none waits for another.")
    return comments, kubernetes.job_set(name, labels, {"replicatedJobs": parts})


def _why(job: JobAdvice) -> str:
    """Why the job is kept in a rack, or is not."""
    if len(job.advice.closest) == 1:
        return "one pod: its GPUs are those of one machine"
    return {
        True: "it never pays to take several racks: it waits for one",
        False: "one rack is better, but several are taken where none is free",
        None: "no rack is asked for: no wait is known to pay",
    }[job.requires_rack]


def _affinity(name: str, required: bool) -> dict[str, Any]:
    """What draws the pods of a JobSet to each other's rack."""
    term = {"labelSelector": {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": name}}, "topologyKey": _RACK}
    if required:
        return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": _HEAVIEST, "podAffinityTerm": term}]}


def _parts(
    job: JobAdvice, name: str, annotations: dict[str, str], affinity: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """One part for each number of GPUs that a machine gives to the job."""
    for workers in workers_of(job, "JOB_COMPLETION_INDEX", lambda first: kubernetes.address_of(name, first)):
        pod = pods.pod("train", workers.command, {"nvidia.com/gpu": workers.gpus}, affinity)
        yield kubernetes.replicated(workers.name, workers.number, pod, annotations)
