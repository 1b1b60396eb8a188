"""The plans that need no search: the batch split evenly or by speed, every gradient exchanged in the same way."""

from __future__ import annotations

from collections.abc import Sequence

from ddlprof.hetero.problem import Problem, Strategy

EVEN_AR = "even, all-reduce"
EVEN_PS = "even, parameter server"
SPEED_AR = "by speed, all-reduce"
SPEED_PS = "by speed, parameter server"


def uniform(problem: Problem) -> dict[str, Strategy]:
    """The four plans that HeteroG is compared with, by name; all devices are used where the batch is large enough."""
    even = shares(problem.batch, [1.0] * len(problem.devices))
    by_speed = shares(problem.batch, speeds(problem))
    everywhere = (None,) * len(problem.groups)
    return {
        EVEN_AR: Strategy(even, everywhere),
        EVEN_PS: Strategy(even, _servers(problem, even)),
        SPEED_AR: Strategy(by_speed, everywhere),
        SPEED_PS: Strategy(by_speed, _servers(problem, by_speed)),
    }


def _servers(problem: Problem, samples: Sequence[int]) -> tuple[int, ...]:
    """Servers that share the work: each group goes where the network has least to carry yet, the largest first."""
    devices, fast = problem.devices, speeds(problem)
    used = sorted((index for index, count in enumerate(samples) if count), key=lambda index: (-fast[index], index))
    carried = dict.fromkeys(range(len(devices.machines)), 0.0)
    found = [used[0]] * len(problem.groups)
    for group in sorted(range(len(found)), key=lambda group: -problem.groups[group].gradient_bytes):
        found[group] = min(used, key=lambda index: carried[devices.all[index].machine])
        machine = devices.all[found[group]].machine
        carried[machine] += problem.groups[group].gradient_bytes / (devices.machines[machine].network_gb_s or 1.0)
    return tuple(found)


def speeds(problem: Problem) -> list[float]:
    """The samples per second of each device alone, at the share that it would have of an even split."""
    each = max(problem.batch // len(problem.devices), 1)
    return [each / problem.times.work(device, each).total_s for device in range(len(problem.devices))]


def shares(whole: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers in proportion to the weights, with that sum: what is left goes to the largest remainders."""
    total = sum(weights)
    exact = [whole * weight / total for weight in weights]
    found = [int(each) for each in exact]
    by_remainder = sorted(range(len(weights)), key=lambda index: (found[index] - exact[index], index))
    for index in by_remainder[: whole - sum(found)]:
        found[index] += 1
    return tuple(found)
