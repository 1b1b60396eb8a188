"""Jobs of a made-up team, measured on machines that are not as fast as the shipped coefficients say."""

from __future__ import annotations

from dataclasses import replace

from ddlprof.recommender import Measurement, Predictor, Target, Workload

GPU = "g4dn.12xlarge"
SIZES = (4e9, 7e9, 1.2e10, 2e10, 3.1e10, 5e10, 8e10)


def job(number: int, factor: float = 1.0, gpus: int = 1, scatter: float = 0.0) -> Workload:
    """Job `number`, whose computation takes `factor` times as long as predicted, on one GPU or with others."""
    model = Workload(
        f"job-{number}", layers=50 + number, parameter_tensors=150 + 10 * number,
        gradient_bytes=1e8 + 3e7 * number, flops_per_sample=SIZES[number % len(SIZES)],
    )  # fmt: skip
    measured = []
    for place, batch in enumerate((8, 32)):
        found = Predictor(model).predict(Target(GPU, (gpus,), batch))
        off = 1 + scatter * (-1) ** (number + place)
        compute_s = found.times.compute_s * factor * off
        exposed_s = found.times.interconnect_s * 2
        measured.append(
            Measurement(
                GPU, placement=(gpus,), batch_per_gpu=batch, step_s=compute_s + exposed_s, compute_s=compute_s,
                exposed_comm_s=exposed_s,
            )
        )  # fmt: skip
    return replace(model, measurements=measured)


def team(jobs: int, factor: float = 1.0, gpus: int = 1, scatter: float = 0.0) -> list[Workload]:
    return [job(number, factor, gpus, scatter) for number in range(jobs)]
