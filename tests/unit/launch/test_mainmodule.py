"""The script's own functions with a decorator, and nothing else changed."""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from ddlprof.collect.loader import data_calls
from ddlprof.launch.mainmodule import functions_of_script, marked_code
from ddlprof.launch.target import LaunchTarget
from ddlprof.model.options import DataCall

SOURCE = '''\
"""The script's docstring."""
from __future__ import annotations
import functools

def keep(function):
    @functools.wraps(function)
    def kept(*args):
        return function(*args)
    return kept

if True:
    @keep
    @keep
    def get_batch(size: int) -> list:
        """Makes a batch."""
        return [1 / size]

class Batches:
    @staticmethod
    def next():
        return 1

    def __next__(self):
        return 2

async def later():
    pass

def main():
    def local():
        return 3
    return local()
'''


def calls(*functions: str) -> list[DataCall]:
    return [DataCall("__main__", function) for function in functions]


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were marked, when their definitions ran."""
    made: list[str] = []

    def marked(name: str) -> Any:
        made.append(name)
        return lambda function: function

    monkeypatch.setattr(data_calls, "marked", marked)
    return made


@pytest.fixture
def script(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "script.py"
    path.write_text(SOURCE)
    yield str(path)
    linecache.clearcache()


def executed(code: CodeType) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "script"}
    exec(code, namespace)
    return namespace


def test_everything_else_is_as_it_was(script: str, marks: list[str]) -> None:
    plain = executed(compile(SOURCE, script, "exec", dont_inherit=True))
    namespace = executed(marked_code(SOURCE.encode(), script, calls("get_batch", "Batches.__next__")))
    assert len(marks) == 2
    assert sorted(namespace) == sorted(plain)
    assert namespace["__doc__"] == "The script's docstring."
    for name in ("get_batch", "keep", "main"):
        one, other = namespace[name], plain[name]
        assert inspect.getsource(one) == inspect.getsource(other)
        assert inspect.signature(one) == inspect.signature(other)
        assert (one.__doc__, one.__qualname__) == (other.__doc__, other.__qualname__)
        assert inspect.unwrap(one).__code__.co_firstlineno == inspect.unwrap(other).__code__.co_firstlineno


def test_code_without_them_is_what_python_makes(script: str) -> None:
    plain = compile(SOURCE, script, "exec", dont_inherit=True)
    assert marked_code(SOURCE, script, []) == plain
    assert marked_code(SOURCE, script, calls("gone")) == plain


def test_a_syntax_error_is_pythons() -> None:
    with pytest.raises(SyntaxError) as error:
        marked_code("def get_batch(:\n", "script.py", calls("get_batch"))
    with pytest.raises(SyntaxError) as expected:
        compile("def get_batch(:\n", "script.py", "exec")
    assert error.value.args == expected.value.args


@pytest.mark.parametrize(
    ("target", "names"),
    [
        (LaunchTarget(["dir/train.py"]), ["__main__", "train"]),
        (LaunchTarget(["package.train"], module=True), ["__main__", "package.train", "package.train.__main__"]),
    ],
)
def test_names_of_the_script(target: LaunchTarget, names: list[str]) -> None:
    texts = [f"{name}:f" for name in (*names, "other", "dir.train")]
    assert [call.module for call in functions_of_script(target, texts)] == names


def test_nothing_is_marked_in_other_processes(script: str) -> None:
    """A spawned child imports the script again, without a session."""
    namespace = executed(marked_code(SOURCE, script, calls("get_batch")))
    assert namespace["get_batch"].__code__.co_filename == script
    assert "ddlprof.collect.loader.data_calls" in sys.modules
