"""The call after the script's own import, and nothing else that a script could notice."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddlprof.collect.process.on_import import after_import, after_imports, around_import


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "made_up.py").write_text("value = 1\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    yield "made_up"
    sys.modules.pop("made_up", None)
    assert sys.meta_path == before


def test_called_once_right_after_the_import(name: str) -> None:
    calls: list[int] = []
    after_import(name, lambda: calls.append(sys.modules[name].value))
    assert calls == []
    module = importlib.import_module(name)
    assert calls == [1]
    importlib.reload(module)
    assert calls == [1]


def test_called_at_once_if_imported(name: str) -> None:
    importlib.import_module(name)
    calls: list[int] = []
    after_import(name, lambda: calls.append(1))
    assert calls == [1]


def test_modules_of_packages(name: str, tmp_path: Path) -> None:
    (tmp_path / "made_up_package").mkdir()
    for file in ("__init__.py", "inner.py"):
        (tmp_path / "made_up_package" / file).write_text("value = 2\n")
    calls: list[str] = []

    def note(what: str) -> Callable[[], None]:
        return lambda: calls.append(f"{what} {sys.modules[what].value}")

    inner = "made_up_package.inner"
    cancel = after_imports({name: [note(name)], inner: [note(inner), note(inner)], "never_imported": [note("-")]})
    importlib.import_module(inner)
    importlib.import_module(name)
    assert calls == [f"{inner} 2", f"{inner} 2", f"{name} 1"]
    cancel()
    for module in ("made_up_package", inner):
        del sys.modules[module]


def test_asking_whether_it_is_there_is_no_import(name: str) -> None:
    """transformers, accelerate and others do so before anybody imports torch."""
    calls: list[int] = []
    after_import(name, lambda: calls.append(1))
    for _ in range(2):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        assert spec.origin.endswith("made_up.py")
        assert spec.loader is not None
        assert spec.loader.get_filename(name) == spec.origin  # type: ignore[attr-defined]
    assert calls == []
    importlib.import_module(name)
    assert calls == [1]


def test_the_module_is_as_without_us(name: str) -> None:
    plain = importlib.import_module(name)
    expected = (type(plain.__loader__), type(plain.__spec__.loader), plain.__spec__.origin)  # type: ignore[union-attr]
    del sys.modules[name]
    after_import(name, lambda: None)
    module = importlib.import_module(name)
    assert (type(module.__loader__), type(module.__spec__.loader), module.__spec__.origin) == expected  # type: ignore[union-attr]
    assert inspect.getsource(module) == "value = 1\n"


def test_cancel(name: str) -> None:
    calls: list[int] = []
    cancel = after_import(name, lambda: calls.append(1))
    cancel()
    cancel()
    importlib.import_module(name)
    assert calls == []


def test_an_import_that_fails_fails_as_without_us(name: str) -> None:
    calls: list[int] = []
    cancel = after_import("broken", lambda: calls.append(1))
    with pytest.raises(ZeroDivisionError):
        importlib.import_module("broken")
    assert calls == []
    assert "broken" not in sys.modules
    cancel()
    cancel = after_import("not_there_at_all", lambda: calls.append(1))
    with pytest.raises(ModuleNotFoundError, match="No module named 'not_there_at_all'"):
        importlib.import_module("not_there_at_all")
    cancel()


def test_called_before_and_after(name: str) -> None:
    calls: list[str] = []

    def note(when: str) -> Callable[[], None]:
        return lambda: calls.append(f"{when} {hasattr(sys.modules.get(name), 'value')}")

    around_import(name, note("before"), note("after"))
    importlib.util.find_spec(name)
    assert calls == []
    importlib.import_module(name)
    assert calls == ["before False", "after True"]
    around_import(name, note("before"), note("after"))
    assert calls[2:] == ["after True"]


def test_called_before_an_import_that_fails(name: str) -> None:
    calls: list[str] = []
    cancel = around_import("broken", lambda: calls.append("before"), lambda: calls.append("after"))
    with pytest.raises(ZeroDivisionError):
        importlib.import_module("broken")
    cancel()
    assert calls == ["before"]
