"""Which jobs of a trace are predictable, how wrong their forecasts are, and from when on there is one."""

from __future__ import annotations

import math
import random

from ddlprof.cluster.jobs import Job
from ddlprof.cluster.simulation.core import Expect

KNOWN_FROM = 0.0
"""The share of its work that a job has behind it when there is a forecast: 0 as for jobs that have run before; a loss
curve needs the begin of the training."""


def forecasts(predictable_share: float, error: float, seed: int, known_from: float = KNOWN_FROM) -> Expect:
    """Each job is predictable with this probability, and its expected samples are the true ones times exp(x), x normal
    with mean 0 and standard deviation `error`. There is a forecast once the share `known_from` is done.

    The same for a job and a seed in whatever order jobs are asked for. A job that is predictable stays so with a larger
    share, and with the same forecast, so that shares can be compared.
    """

    def expect(job: Job) -> tuple[float | None, float]:
        drawn = random.Random(f"{seed}/{job.job_id}")  # seeded by a hash of the text, the same in every process
        is_predictable = drawn.random() < predictable_share
        expected = job.samples * math.exp(drawn.gauss(0.0, error))
        return (expected, known_from * job.samples) if is_predictable else (None, 0.0)

    return expect
