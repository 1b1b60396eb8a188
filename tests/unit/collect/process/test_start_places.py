"""The line that a job is at before its first step."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from torch import distributed
from torch.utils.data import Subset

from ddlprof.collect.process.frames import StackFrame
from ddlprof.collect.process.stacks import CodeLocator
from ddlprof.collect.process.start_places import start_place

SCRIPT = """
class Texts:
    def __getitem__(self, i):
        return i

def lengths(data):
    return [len(x) for x in data]

lengths(Texts())
"""


@pytest.fixture
def frames(tmp_path: Path) -> dict[str, StackFrame]:
    """The frames of a script by their names."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    module = compile(SCRIPT, str(path), "exec")
    codes = {"<module>": module}
    for code in module.co_consts:
        if hasattr(code, "co_consts"):
            codes[code.co_name] = code
            codes |= {each.co_name: each for each in code.co_consts if hasattr(each, "co_consts")}
    return {name: StackFrame(code, len(code.co_code) - 2, "train") for name, code in codes.items()}


def test_a_line_is_told_with_the_one_that_led_there(frames: dict[str, StackFrame]) -> None:
    place = start_place(CodeLocator(), [frames["lengths"], frames["<module>"]])
    assert place is not None
    assert (place.what, place.text.partition("train.py:")[2]) == ("start-up", "7 lengths")
    assert place.caller.endswith("train.py:9 <module>")


def test_samples_made_before_the_training_are_told(frames: dict[str, StackFrame]) -> None:
    of_library = StackFrame(Subset.__getitem__.__code__, 0, "torch.utils.data.dataset")
    for inner in ([frames["__getitem__"]], [of_library]):
        place = start_place(CodeLocator(), [*inner, frames["lengths"], frames["<module>"]])
        assert place is not None
        assert place.what == "start-up items"


def test_imports_and_the_start_of_the_process_group_are_no_work_of_a_line(frames: dict[str, StackFrame]) -> None:
    imports = StackFrame(Subset.__len__.__code__, 0, "importlib._bootstrap")
    starts = StackFrame(
        inspect.unwrap(distributed.init_process_group).__code__, 0, "torch.distributed.distributed_c10d"
    )
    for inner in (imports, starts):
        assert start_place(CodeLocator(), [inner, frames["<module>"]]) is None
        assert start_place(CodeLocator(), [inner]) is None


def test_a_wait_for_other_ranks_is_told_as_one(frames: dict[str, StackFrame]) -> None:
    waits = StackFrame(inspect.unwrap(distributed.barrier).__code__, 0, "torch.distributed.distributed_c10d")
    place = start_place(CodeLocator(), [waits, frames["lengths"], frames["<module>"]])
    assert place is not None
    assert place.what == "start-up waits"
    assert start_place(CodeLocator(), [waits]) is None
