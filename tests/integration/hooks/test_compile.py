"""torch.compile: no graph break, recompilation or warning more than without us, and the steps are still seen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.hooks.compile_loops import BATCH, EVALUATED, LOOPS, STEPS

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.slow,
    pytest.mark.nightly,
]  # the loops of two processes, in the first test
COMPILES_WITHIN_THE_UPDATE = ("optimizer.step under a gradient scaler",)
"""Counted at the next update, as the hook around this one has already asked."""

Results = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Results]:
    """Without us and with us, each in a process of its own, as dynamo remembers what it saw before."""
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-m", "tests.integration.hooks.compile_loops"]
    directory = str(tmp_path_factory.mktemp("runs"))
    running = [
        subprocess.Popen([*command, *words], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for words in ([], [directory])
    ]
    outputs = [process.communicate() for process in running]
    for process, (_, errors) in zip(running, outputs, strict=True):
        assert process.returncode == 0, errors
    plain, profiled = (json.loads(output) for output, _ in outputs)
    return plain, profiled


@pytest.mark.parametrize("name", LOOPS)
def test_compiles_as_without_us(name: str, results: tuple[Results, Results]) -> None:
    plain, profiled = (each[name] for each in results)
    for key in ("unique_graphs", "calls_captured", "graph_breaks", "warnings", "parameters"):
        assert profiled.get(key) == plain.get(key)
    if name != "loop over batches":  # there dynamo looks at what the loader's hooks call of Python's library, in vain
        assert profiled["frames"] <= plain["frames"]
    assert profiled["notes"] == []


@pytest.mark.parametrize("name", LOOPS)
def test_steps_are_seen_whatever_is_compiled(name: str, results: tuple[Results, Results]) -> None:
    profiled = results[1][name]
    steps = 2 * STEPS if "after" in name else STEPS
    assert profiled["microbatches"] == [1] * steps
    assert profiled["samples"] == [BATCH] * steps
    assert profiled["skipped"] == []
    assert profiled["evaluation"] == ([EVALUATED] if name == "evaluation in a function" else [])
    if "unique_graphs" in profiled:
        first = STEPS if "after" in name else 0
        assert profiled["compiling"][0] == first + (name in COMPILES_WITHIN_THE_UPDATE)
