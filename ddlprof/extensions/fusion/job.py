"""Runs a sweep: groups its trials, predicts the gain of fusing, trains, and measures the gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ddlprof.base.errors import UserError
from ddlprof.extensions.fusion.apart import SPAWN, way_of_processes
from ddlprof.extensions.fusion.hyperparameters import Values, partition, per_model
from ddlprof.extensions.fusion.part import Advance, FusedPart
from ddlprof.extensions.fusion.planner import FuseOptions, PartSpec
from ddlprof.extensions.fusion.results import Result
from ddlprof.extensions.fusion.sweeps import Choices, for_optimizers, trials_of
from ddlprof.extensions.fusion.task import SEED, Task, TaskSpec


def run(
    names: TaskSpec, sweeps: Mapping[str, Choices], options: FuseOptions, advance: Advance = lambda done, total: None
) -> Result:
    """Predicts, decides, trains and measures. Raises UserError for a sweep that cannot be trained at all."""
    task = names.load()
    trials = trials_of(sweeps, options.draws, names.seed)
    optimizers = list(dict.fromkeys(task.optimizer_of(trial) for trial in trials))
    task.check_names(sweeps, optimizers)
    trials = for_optimizers(trials, task.optimizer, task.other_names())
    if len(trials) < 2:
        raise UserError("one trial: nothing to fuse; the optimizer has none of the values that differ")
    return run_trials(task, trials, options, names, advance)


def run_trials(
    task: Task,
    trials: Sequence[Values],
    options: FuseOptions,
    names: TaskSpec | None = None,
    advance: Advance = lambda done, total: None,
) -> Result:
    """The same for given trials. `names`: those of the task, for other processes to compare with."""
    _check_values(task, trials)
    optimizers = dict.fromkeys(task.optimizer_of(trial) for trial in trials)
    result = Result(
        task.factory_name, ", ".join(optimizers), task.device.type, torch.get_num_threads(),
        names.metric if names is not None else None, [], [], not options.dry_run, task.precision,
    )  # fmt: skip
    way = way_of_processes(can_spawn=names is not None)
    for common, numbers in partition(trials, task.shared_names()):
        source = names if way == SPAWN and names is not None else task
        spec = PartSpec(source, trials, common, numbers, options, names)
        found, trained = FusedPart(spec, way, task.device).trained(advance)
        result.trials.extend(trained)
        result.parts.append(found)
    result.trials.sort(key=lambda trial: trial.number)
    return result


def _check_values(task: Task, trials: Sequence[Values]) -> None:
    for values in trials:
        given = {name: [value] for name, value in task.optimizer_values(values).items()}
        per_model(task.optimizer_of(values), 1, given)
        seed = values.get(SEED, task.seed)
        if not isinstance(seed, int):
            raise UserError(f"--sweep {SEED}: {seed} is no whole number: give choice(0,1,2) or a list")
        if not -(2**63) <= seed < 2**64:
            raise UserError(f"{SEED} {seed}: torch takes whole numbers of 64 bits: give a smaller one")
        task.values_at(0, 1, values)
