"""Advice as directives for sbatch: the form of its manual page, under --nodes, --gpus-per-node and --switches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddlprof.base.text import plain, text_of
from ddlprof.emit.slurm import clock
from ddlprof.extensions.cluster.machines import Level
from ddlprof.extensions.cluster.report.advice.data import JobAdvice, rounded_s
from ddlprof.extensions.cluster.report.advice.text import spread_comments, wait_words


def render(jobs: Sequence[JobAdvice]) -> str:
    """Directives for each job, with their reasons as comments."""
    lines = [
        "# --switches counts leaf switches, taken as racks here. The scheduler waits no longer than max_switch_wait of",
        "# SchedulerParameters, 300 s unless slurm.conf says more.",
    ]
    for job in jobs:
        lines += ["", *_job(job)]
    return text_of(lines)


def switch_time(seconds: float) -> str:
    """Slurm's [days-]hours:minutes:seconds, of a time that is rounded."""
    return clock(rounded_s(seconds))


def _job(job: JobAdvice) -> Iterator[str]:
    advice = job.advice
    yield f"# {plain(advice.name)}"
    yield from (f"# {comment}" for comment in spread_comments(advice))
    yield f"#SBATCH --nodes={len(advice.closest)}"
    if len(set(advice.closest)) == 1:
        yield f"#SBATCH --gpus-per-node={advice.closest[0]}"
    else:
        yield f"#SBATCH --gpus={advice.gpus}"
    wait_s = job.hint_s(Level.NETWORK)
    if len(advice.closest) > 1:
        if wait_s is None:
            yield "# no --switches: no wait is known to pay"
            return
        yield f"# a wait for one rack pays up to {wait_words(wait_s)}"
        yield f"#SBATCH --switches=1@{switch_time(wait_s.mean)}"
    elif advice.gpus > 1:
        rack_s = job.hint_s(Level.RACK)
        yield "# one machine: Slurm has no timer for that, the job waits for it as long as it takes"
        if rack_s:
            yield f"# it pays up to {wait_words(rack_s)}; after that --nodes={len(advice.losses[0].placement)}"
        if wait_s:
            yield f"# on several machines: --switches=1@{switch_time(wait_s.mean)}, {wait_words(wait_s)}"
