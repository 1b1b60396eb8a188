"""The names of this room that users' scripts depend on."""

from __future__ import annotations

import inspect
from importlib import import_module

from ddlprof.extensions.sparsity.report import TABLE
from tests.unit.test_interface import options_of_room

OPTIONS = {
    "sparsity": "--every --format --help --max-steps --module --out -m -o",
}


def test_commands_and_options() -> None:
    assert options_of_room("sparsity") == OPTIONS


def test_lstm_with_structured_dropout_takes_what_the_one_of_torch_takes() -> None:
    StructuredDropoutLSTM = import_module("ddlprof.nn").StructuredDropoutLSTM
    signature = inspect.signature(StructuredDropoutLSTM, eval_str=False)
    assert " ".join(map(str, signature.parameters.values())) == (
        "input_size: 'int' hidden_size: 'int' num_layers: 'int' = 1 bias: 'bool' = True batch_first: 'bool' = False"
        " dropout: 'float' = 0.0 bidirectional: 'bool' = False proj_size: 'int' = 0 device: 'Any' = None"
        " dtype: 'Any' = None recurrent_dropout: 'float' = 0.0 input_dropout: 'float' = 0.0 structured: 'bool' = True"
    )
    last = list(signature.parameters.values())[-3:]
    assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in last)


def test_columns_of_sparsity() -> None:
    assert TABLE.heads == (
        "layer", "kind", "shape", "calls", "macs_share", "input_zeros", "gradient_zeros",
        "forward_macs", "forward_needed", "forward_skippable", "data_macs", "data_needed", "data_skippable",
        "weight_macs", "weight_needed", "weight_skippable", "backward_speedup", "iteration_speedup",
        "structured_speedup", "zero_rows", "zero_columns", "fitting_fours", "padding",
    )  # fmt: skip
