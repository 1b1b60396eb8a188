"""The names of this room that users' scripts depend on."""

from __future__ import annotations

import inspect
from importlib import import_module

from ddlprof.extensions.fusion.report import COLUMNS as TRIAL_COLUMNS
from tests.unit.test_interface import options_of_room

OPTIONS = {
    "fuse": (
        "--clip-norm --data --device --dry-run --epochs --eval --first-rung --force --format --grad-accum"
        " --halving --help --loss --max-models --max-steps --metric --optimizer --out --param-groups --precision"
        " --processes --save --schedule --seed --sweep --trials -o"
    ),
}


def test_commands_and_options() -> None:
    assert options_of_room("fusion") == OPTIONS


def test_python_api_of_fusion() -> None:
    fusion = import_module("ddlprof.fusion")
    assert fusion.__all__ == ["Fused", "Scaler", "ask_tell"]
    public = {name for name in dir(fusion.Fused) if not name.startswith("_")}
    assert " ".join(sorted(public)) == (
        "backward broken eval forward gradients load_optimizer_states models optimizer_state recordings set"
        " state_dict step train"
    )
    assert str(inspect.signature(fusion.Fused, eval_str=False)).startswith(
        "(models: 'Sequence[nn.Module]', optimizer: 'str' = 'sgd', *, traced: 'bool' = False,"
        " groups: 'Grouping | None' = None, **values"
    )


def test_columns_of_fused_trials() -> None:
    assert ",".join(TRIAL_COLUMNS) == "trial,fused,steps,loss,eval_loss,metric,diverged,stopped"
