"""The names of this room that users' scripts depend on."""

from __future__ import annotations

import inspect
from importlib import import_module

from tests.unit.test_interface import options_of_room

OPTIONS = {
    "plan": "--format --global-batch --help --learned --machines --out -o",
}


def test_commands_and_options() -> None:
    assert options_of_room("hetero") == OPTIONS


def test_python_api_of_plans() -> None:
    hetero = import_module("ddlprof.hetero")
    assert hetero.__all__ == ["apply", "apply_stages"]
    assert list(inspect.signature(hetero.apply).parameters) == ["plan", "model", "loader"]
    stages = inspect.signature(hetero.apply_stages).parameters
    assert list(stages) == ["plan", "model", "loss", "example", "device"]
