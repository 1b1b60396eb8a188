"""On a CUDA build of torch, whose tensor methods are timed: all that looks at methods finds what it does without us."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.hooks.copy_programs import COMPILED, METHODS, SUBCLASSED

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]  # three processes, in the first test
NAMES = [f"{name}, {fullgraph=}" for name in COMPILED for fullgraph in (False, True)]
UNCOMPILED = [
    "export",
    "strict export",
    "make_fx",
    "vmap",
    "grad",
    "script",
    "trace",
    "symbolic_trace",
    "to a proxy",
    "lazy layer",
    "default device",
    "seen",
]

Outputs = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    """Without us, and with hooks that come before and after dynamo is imported."""
    root = Path(__file__).resolve().parents[3]
    directory = tmp_path_factory.mktemp("runs")
    variants = {"plain": [], "before": [str(directory / "1"), "before"], "after": [str(directory / "2"), "after"]}
    command = [sys.executable, "-m", "tests.integration.hooks.copy_programs"]
    running = {
        name: subprocess.Popen([*command, *words], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for name, words in variants.items()
    }
    results = {name: (process, *process.communicate()) for name, process in running.items()}
    for process, _, errors in results.values():
        assert process.returncode == 0, errors
    return {name: json.loads(output) for name, (_, output, _) in results.items()}


@pytest.mark.parametrize("variant", ["before", "after"])
@pytest.mark.parametrize("name", [*NAMES, *SUBCLASSED, *UNCOMPILED])
def test_is_as_without_us(name: str, variant: str, outputs: Outputs) -> None:
    assert outputs[variant]["results"][name] == outputs["plain"]["results"][name]


@pytest.mark.parametrize("variant", ["before", "after"])
def test_the_hooks_were_there(variant: str, outputs: Outputs) -> None:
    """Between all calls but those after which they were taken back."""
    in_place = outputs[variant]["in_place"]
    assert set(in_place[1::3]) <= {0, len(METHODS)}
    calls = 6
    for program in range(len(NAMES)):
        here = in_place[program * calls : (program + 1) * calls]
        assert here == [len(METHODS), 0, len(METHODS)] * 2


def test_every_program_is_compared(outputs: Outputs) -> None:
    assert set(outputs["plain"]["results"]) == {*NAMES, *SUBCLASSED, *UNCOMPILED}
