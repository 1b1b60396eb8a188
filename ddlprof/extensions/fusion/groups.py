"""Groups of parameters with values of their own, as torch.optim takes them: weights that decay, biases that do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ddlprof.base.errors import UserError
from ddlprof.base.text import closest
from ddlprof.extensions.fusion.hyperparameters import check_value, defaults_of
from ddlprof.launch.users_code import users_own

Grouping = Callable[[nn.Module], Any]
"""The groups of a model's parameters: `[{"params": [...], "weight_decay": 0.0}, {"params": [...]}]`."""


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters of a model that share values."""

    names: list[str]
    fixed: dict[str, float]
    """The values of this group, which those of trials and of a schedule do not change."""


def groups_of(model: nn.Module, optimizer: str, grouping: Grouping | None) -> list[ParameterGroup]:
    """The groups of all trained parameters; without a grouping it is one. Raises UserError."""
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    if grouping is None:
        return [ParameterGroup(list(trained), {})]
    names = {id(each): name for name, each in trained.items()}
    given = users_own("--param-groups", lambda: [dict(each) for each in grouping(model)])
    found = []
    for group in given:
        fixed = _fixed(optimizer, {name: value for name, value in group.items() if name != "params"})
        own = [names.pop(id(each), None) for each in group.get("params", ())]
        if None in own:
            raise UserError("--param-groups: a group has what is no trained parameter, or is in another group")
        found.append(ParameterGroup([name for name in own if name is not None], fixed))
    if names:
        raise UserError(f"--param-groups: {next(iter(names.values()))} is in no group: add a group of all others")
    return [each for each in found if each.names]


def _fixed(optimizer: str, given: Mapping[str, Any]) -> dict[str, float]:
    values = {name: value for name, value in given.items() if name != "betas"}
    if "betas" in given:
        values["beta1"], values["beta2"] = given["betas"]
    known = defaults_of(optimizer)
    for name in values:
        if name not in known:
            raise UserError(
                f"--param-groups: {optimizer} has no {name}{closest(name, known)}; it has {', '.join(known)}"
            )
    return {name: check_value(name, value) for name, value in values.items()}
