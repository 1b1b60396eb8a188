"""What a cluster is like, against figures worked out by hand and by counting second for second."""

from __future__ import annotations

import math
import random

import pytest

from ddlprof.extensions.cluster.profile import HeldGpus, profile


def test_a_cluster_worked_out_by_hand() -> None:
    jobs = [
        HeldGpus(0, 4, 100, start_s=0, nodes=1),
        HeldGpus(0, 8, 100, start_s=100, nodes=2),  # waits for 100 s; 4 GPUs are free, too few
        HeldGpus(50, 2, 50, start_s=150, nodes=2),  # from 50 to 100 it waits although 4 GPUs are free
        HeldGpus(200, 1, 10, start_s=200, nodes=1),
    ]
    found = profile(jobs, gpus=8)
    assert (found.gpus, found.gpus_are_known, found.most_at_once) == (10, False, 10)
    found = profile([*jobs[:2], jobs[3]], gpus=8)
    assert (found.gpus, found.gpus_are_known, found.most_at_once) == (8, True, 8)
    assert found.load == pytest.approx((400 + 800 + 10) / (8 * 200))
    assert found.idle == pytest.approx(4 * 100 / (8 * 200))
    assert found.idle_while_one_fits == 0
    assert found.wait_mean_s == pytest.approx(100 / 3)
    assert (found.wait_median_s, found.wait_p95_s) == (0, 100)
    found = profile(jobs, gpus=12)
    assert found.idle == pytest.approx((8 * 100 + 4 * 50 + 2 * 50) / (12 * 200))
    assert found.idle_while_one_fits == pytest.approx((8 * 100 + 4 * 50) / (12 * 200))
    assert found.gpus_per_machine == 4
    assert found.spread == pytest.approx(1 / 3)


def test_classes_of_sizes_hold_every_job_once() -> None:
    jobs = [HeldGpus(0, gpus, 60, start_s=gpus) for gpus in (0.5, 1, 2, 3, 4, 9, 64, 65, 300)]
    found = profile(jobs)
    assert [(line.least, line.most, line.jobs) for line in found.sizes] == [
        (1, 1, 2), (2, 2, 1), (3, 4, 2), (9, 16, 1), (33, 64, 1), (65, None, 2),
    ]  # fmt: skip
    assert sum(line.gpu_hours for line in found.sizes) == pytest.approx(found.gpu_hours)
    assert found.sizes[-1].wait_median_s == 65


@pytest.mark.parametrize("seed", range(5))
def test_idle_is_what_counting_seconds_finds(seed: int) -> None:
    drawn = random.Random(seed)
    jobs = []
    for _ in range(40):
        submit_s = drawn.randrange(100)
        start_s = submit_s + drawn.choice([0, 0, 5, 20])
        jobs.append(HeldGpus(submit_s, drawn.choice([1, 2, 4]), drawn.randrange(1, 30), start_s))
    first_s, last_s = min(job.submit_s for job in jobs), max(job.submit_s for job in jobs)
    gpus, idle, fits = 200, 0.0, 0.0
    for second in range(math.floor(first_s), math.floor(last_s)):
        used = sum(j.gpus for j in jobs if j.start_s is not None and j.start_s <= second < j.start_s + j.duration_s)
        waiting = [j.gpus for j in jobs if j.start_s is not None and j.submit_s <= second < j.start_s]
        idle += gpus - used
        fits += gpus - used if waiting and min(waiting) <= gpus - used else 0
    found = profile(jobs, gpus)
    assert found.idle == pytest.approx(idle / (gpus * (last_s - first_s)))
    assert found.idle_while_one_fits == pytest.approx(fits / (gpus * (last_s - first_s)))
