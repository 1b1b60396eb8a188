"""The engines that start a plan: schedulers, clouds' own services, and programs that rent machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ddlprof.emit import dstack, kubernetes, parallelcluster, pytorchjob, sagemaker, skypilot, slurm, torchrun
from ddlprof.emit.start import Start


class Engine(NamedTuple):
    """The ending of its file, what says how a file is started, and what makes it."""

    ending: str
    how: Callable[[Start], str]
    render: Callable[[Start], str]


ENGINES = {
    "slurm": Engine(slurm.ENDING, slurm.how, slurm.render),
    "kubernetes": Engine(kubernetes.ENDING, kubernetes.how, kubernetes.render),
    "pytorchjob": Engine(pytorchjob.ENDING, pytorchjob.how, pytorchjob.render),
    "dstack": Engine(dstack.ENDING, dstack.how, dstack.render),
    "skypilot": Engine(skypilot.ENDING, skypilot.how, skypilot.render),
    "parallelcluster": Engine(parallelcluster.ENDING, parallelcluster.how, parallelcluster.render),
    "sagemaker": Engine(sagemaker.ENDING, sagemaker.how, sagemaker.render),
    "torchrun": Engine(torchrun.ENDING, torchrun.how, torchrun.render),
}
