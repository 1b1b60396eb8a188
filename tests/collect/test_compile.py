"""torch.compile: no graph break, recompilation or warning more than without us, and the steps are still seen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.collect.compile_loops import LOOPS, STEPS

UPDATES_UNSEEN = ("whole step", "optimizer.step")
"""Here the update is part of the compiled code."""

Results = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Results]:
    """Without us and with us, each in a process of its own, as dynamo remembers what it saw before."""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "tests.collect.compile_loops"]
    directory = str(tmp_path_factory.mktemp("runs"))
    outputs = []
    for words in ([], [directory]):
        done = subprocess.run([*command, *words], cwd=root, capture_output=True, check=False, text=True)
        assert done.returncode == 0, done.stderr
        outputs.append(json.loads(done.stdout))
    return outputs[0], outputs[1]


@pytest.mark.parametrize("name", LOOPS)
def test_compiles_as_without_us(name: str, results: tuple[Results, Results]) -> None:
    plain, profiled = (each[name] for each in results)
    for key in ("unique_graphs", "calls_captured", "graph_breaks", "warnings"):
        assert profiled[key] == plain[key]
    assert profiled["frames"] <= plain["frames"]
    assert profiled["notes"] == []
    if name not in UPDATES_UNSEEN:
        assert profiled["compiling"][:1] == [STEPS if "after" in name else 0]
        assert profiled["microbatches"] == [1] * (2 * STEPS if "after" in name else STEPS)
