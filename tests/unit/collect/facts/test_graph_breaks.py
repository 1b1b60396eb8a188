"""Where torch.compile breaks graphs, each place once."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddlprof.collect.facts.graph_breaks import GraphBreaks
from ddlprof.collect.process.stacks import CodeLocator
from ddlprof.model.records import GraphBreak
from ddlprof.torch_private.compile import graph_breaks

NET = "net.py"


def broken(line: int, reason: str = "Unsupported call\n  Explanation: none", file: str = NET) -> Any:
    frames = [traceback.FrameSummary("train.py", 9, "main"), traceback.FrameSummary(file, line, "forward")]
    return SimpleNamespace(reason=reason, user_stack=[*frames, traceback.FrameSummary(torch.__file__, 3, "inside")])


def test_each_place_is_told_once_with_the_first_line_of_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    every = [broken(17), broken(17)]
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(graph_break_reasons=every))
    seen = GraphBreaks(CodeLocator())
    assert seen.news() == [GraphBreak(0, "net.py:17 forward", "Unsupported call")]
    every += [broken(17), broken(30, "print"), broken(5, file=torch.__file__)]
    assert seen.news() == [
        GraphBreak(1, "net.py:30 forward", "print"),
        GraphBreak(2, "train.py:9 main", "Unsupported call"),
    ]
    assert seen.news() == []


def test_without_torch_compile_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    assert GraphBreaks(CodeLocator()).news() == []
    assert graph_breaks() == []
