"""What stands for hooks."""

from __future__ import annotations

import sys
from types import FrameType

from ddlprof.collect.process.overhead import bare_hook


def test_it_is_a_function_around_another_that_asks_for_torch_compile() -> None:
    calls: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            calls.append(frame.f_code.co_name if event == "call" else "in C")

    hook, before = bare_hook(), sys.getprofile()
    sys.setprofile(note)
    try:
        hook()
        hook()
    finally:
        sys.setprofile(before)
    assert calls.count("hook") == calls.count("is_compiling") == 2
