"""What simulations take for granted, one sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddlprof.base.units import percent
from ddlprof.cluster.jobs import KNOWN_FROM
from ddlprof.cluster.policy import depends_on_seed
from ddlprof.cluster.sweep.cases import Case
from ddlprof.cluster.sweep.run import Setting


def assumed(setting: Setting, cases: Sequence[Case]) -> Iterator[str]:
    """Everything that a reader would otherwise have to guess."""
    others = [job for job in setting.jobs if job.max_gpus is None]
    if len(others) < len(setting.jobs):
        yield (
            "the length of such a job is in samples, which any batch between its bounds is taken to train as well;"
            " a policy that scales no jobs gives it what it asks for"
        )
    if others:
        who = "a job" if len(others) == len(setting.jobs) else "every other job"
        yield (
            f"{who} runs on as many GPUs as it asks for, all at once, with its own batch; it takes the time of its"
            " trace where they are as close together as can be, and elsewhere longer by measured penalties of"
            " placements, which are counted as communication"
        )
    if others and any(model is not None for model in setting.cluster.gpu_models):
        yield "GPU models tell which penalties count: on the best placement a job takes the time of its trace on each"
    if setting.costs.restart_s:
        yield f"a job that moves or starts again makes no progress for {setting.costs.restart_s:g} s"
    if setting.draws_arrivals:
        yield "jobs are submitted in a random order, with exponential gaps between them"
    shares = list(dict.fromkeys(case.predictable for case in cases))
    if shares == [None]:
        yield "policies that ask how long a job takes are told exactly, from its submission on"
    else:
        yield (
            f"the length of a predictable job is told once {percent(KNOWN_FROM)} of it is done, times exp(x), x normal"
            f" with standard deviation {setting.pred_error:g}; that of others never"
        )
    if _are_alike(setting, cases):
        yield "nothing here is drawn, so all seeds are alike: draw submissions with --arrivals poisson"


def _are_alike(setting: Setting, cases: Sequence[Case]) -> bool:
    forecast = any(case.predictable is not None and (setting.pred_error or 0 < case.predictable < 1) for case in cases)
    drawn = setting.draws_arrivals or forecast or any(depends_on_seed(case.policy) for case in cases)
    return not drawn and len({case.seed for case in cases}) > 1
