"""What is run, and what is said of a script that cannot be run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddlprof.base.errors import UserError
from ddlprof.launch.target import BOOTSTRAP, Target


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (Target(["some/train.py", "--lr", "1"]), "train"),
        (Target(["train"]), "train"),
        (Target(["some/folder/"]), "folder"),
        (Target(["package.train", "x"], module=True), "package.train"),
    ],
)
def test_name_of_the_job(target: Target, name: str) -> None:
    assert target.name == name


@pytest.mark.parametrize("target", [Target(["train.py", "-m", "x"]), Target(["package.train", "-x"], module=True)])
def test_words_for_python_can_be_read_back(target: Target) -> None:
    assert Target.from_python_words(target.python_words()) == target
    assert target.profiled_words() == [BOOTSTRAP, *target.python_words()]


def test_bootstrap_is_a_file() -> None:
    assert os.path.isfile(BOOTSTRAP)


def test_check_accepts_what_python_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "__main__.py").touch()
    Target([str(tmp_path / "train.py")]).check()
    Target([str(tmp_path)]).check()
    Target(["no.such.module"], module=True).check()


def test_check_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot open gone\.py: no such file"):
        Target(["gone.py"]).check()
    with pytest.raises(UserError, match=r"a directory without a __main__\.py"):
        Target([str(tmp_path)]).check()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads every file")
def test_check_names_an_unreadable_file(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch(mode=0)
    with pytest.raises(UserError, match="permission denied"):
        Target([str(script)]).check()
