"""Advice as jobs of Volcano (1.11 and later): `networkTopology` on a tree of HyperNodes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from ddlprof.cluster.machines import Level
from ddlprof.report.advice.data import JobAdvice
from ddlprof.report.advice.text import spread_comments
from ddlprof.report.text import text_of

_NAME_CHARACTERS = 52
"""The most characters of a job's name: the names of its pods must have room in the 63 of a label."""


def render(jobs: Sequence[JobAdvice], rack_tier: int = 1) -> str:
    """A document for each job; `rack_tier` is the tier of the HyperNodes that are racks."""
    lines: list[str] = []
    for job in jobs:
        lines += ["---", *_job(job, rack_tier)]
    return text_of(lines)


def job_name(text: str) -> str:
    """A name that Kubernetes takes: lower-case letters, digits and hyphens, beginning with a letter."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower())[:_NAME_CHARACTERS].strip("-")
    return name if name[:1].isalpha() else f"job-{name}".rstrip("-")


def _job(job: JobAdvice, rack_tier: int) -> Iterator[str]:
    advice = job.advice
    yield from spread_comments(advice)
    yield "apiVersion: batch.volcano.sh/v1alpha1"
    yield "kind: Job"
    yield "metadata:"
    yield f"  name: {json.dumps(job_name(advice.name))}"  # quoted, as true is no text to YAML
    yield "spec:"
    yield "  schedulerName: volcano"
    yield f"  minAvailable: {len(advice.closest)}"
    yield from _topology(job, rack_tier)
    yield "  tasks:"
    for gpus in sorted(set(advice.closest), reverse=True):
        yield f"    - name: workers-{gpus}"
        yield f"      replicas: {advice.closest.count(gpus)}"
        yield "      template:"
        yield "        spec:"
        yield "          restartPolicy: OnFailure"
        yield "          containers:"
        yield "            - name: worker"
        yield "              image: IMAGE # yours"
        if job.command:
            yield f"              command: {json.dumps(['python', *job.command])}"
        yield "              resources:"
        yield "                limits:"
        yield f"                  nvidia.com/gpu: {gpus}"


def _topology(job: JobAdvice, rack_tier: int) -> Iterator[str]:
    """The `networkTopology` of a job. Volcano knows no timers: one rack is either required or preferred."""
    if len(job.advice.closest) == 1:
        yield "  # one pod: its GPUs are those of one machine"
    elif job.stays_together(Level.NETWORK):
        yield "  networkTopology:"
        yield "    mode: hard"
        yield f"    highestTierAllowed: {rack_tier}"
    elif job.hint_s(Level.NETWORK):
        yield "  networkTopology:"
        yield "    mode: soft"
    else:
        yield "  # no networkTopology: no wait is known to pay"
