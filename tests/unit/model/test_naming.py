"""Names of run directories: predictable, and never shared by two runs."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from ddlprof.base.errors import UserError
from ddlprof.model.naming import default_directory, require_unused


def noon() -> datetime:
    return datetime(2026, 1, 2, 12, 0, 0)


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_name_and_time() -> None:
    assert default_directory("train", noon) == Path("ddlprof-runs/train-20260102-120000")


def test_runs_of_the_same_second_get_directories_of_their_own() -> None:
    names = [default_directory("train", noon).name for _ in range(3)]
    assert names == ["train-20260102-120000", "train-20260102-120000-2", "train-20260102-120000-3"]


def test_a_default_directory_counts_as_unused() -> None:
    require_unused(default_directory("train", noon))


@pytest.mark.parametrize("make", [lambda p: p.write_text(""), lambda p: p.symlink_to("nowhere")])
def test_something_else_in_the_way(make: object, tmp_path: Path) -> None:
    assert callable(make)
    make(tmp_path / "ddlprof-runs")
    with pytest.raises(UserError, match="--out"):
        default_directory("train", noon)


def test_used_directory_is_refused() -> None:
    Path("run").mkdir()
    require_unused(Path("run"))
    require_unused(Path("not-there"))
    Path("run/manifest.json").touch()
    with pytest.raises(UserError, match="run directory run exists already: choose another with --out, or remove it"):
        require_unused(Path("run"))
    with pytest.raises(UserError, match="Not a directory"):
        require_unused(Path("run/manifest.json"))
