"""Torch's reasons for compiling again, each kind once."""

from __future__ import annotations

import sys

import pytest

from ddlprof.collect.facts import recompilations
from ddlprof.collect.facts.recompilations import Recompilations
from ddlprof.model.records import RecompileReason

SIZES = "0/{}: tensor 'args[0]' size mismatch at index 0. expected {}, actual 6"
VALUE = '1/0: k == 0          # y=x*k  # train.py:8 in g\nUser stack trace:\n  File "train.py", line 8'


def test_reasons_that_differ_in_numbers_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = [SIZES.format(0, 5)]
    monkeypatch.setattr(recompilations, "recompile_reasons", lambda: reasons)
    seen = Recompilations()
    told = RecompileReason(0, "tensor 'args[0]' size mismatch at index 0. expected 5, actual 6")
    assert seen.news() == [told]
    reasons += [SIZES.format(1, 6), VALUE]
    assert seen.news() == [RecompileReason(1, "k == 0")]
    assert seen.news() == []


def test_without_torch_compile_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    assert Recompilations().news() == []
