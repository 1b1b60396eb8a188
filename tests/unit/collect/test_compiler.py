"""When dynamo looks at the script's code: around its import and around each frame, whatever comes of it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from ddlprof.collect.compiler import around_tracing


@pytest.fixture
def calls() -> list[str]:
    return []


def watch(calls: list[str]) -> Any:
    return around_tracing(
        lambda: calls.append("begin"), lambda: calls.append("end"), lambda tells: calls.append(f"imported {tells}")
    )


def test_export_without_dynamos_callbacks(calls: list[str]) -> None:
    restore = watch(calls)
    calls.clear()
    torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),), strict=True)
    restore()
    assert calls[:2] == ["begin", "end"]
    assert calls.count("begin") == calls.count("end")


def test_dynamo_may_not_tell(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._dynamo.convert_frame", ModuleType("torch._dynamo.convert_frame"))
    watch(calls)()
    assert calls == ["begin", "imported False"]
