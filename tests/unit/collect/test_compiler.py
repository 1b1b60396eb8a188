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


def compile_something(size: int = 2) -> None:
    torch.compile(lambda x: x + 1, backend="eager", dynamic=False)(torch.ones(size))


def test_around_each_frame(calls: list[str]) -> None:
    import torch._dynamo

    torch._dynamo.reset()
    restore = watch(calls)
    assert calls == ["begin", "imported True"]
    calls.clear()
    compile_something()
    assert calls == ["begin", "end"]
    torch._dynamo.reset()  # forgets what was registered for compilations
    compile_something()
    assert calls == ["begin", "end"] * 2
    restore()
    compile_something(3)
    assert calls == ["begin", "end"] * 2


def test_frames_that_cannot_be_compiled_end_too(calls: list[str]) -> None:
    restore = watch(calls)
    calls.clear()

    @torch.compile(backend="eager", fullgraph=True)
    def breaking(x: Any) -> Any:
        torch._dynamo.graph_break()
        return x

    with pytest.raises(torch._dynamo.exc.Unsupported):
        breaking(torch.ones(2))
    restore()
    assert calls == ["begin", "end"]


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
