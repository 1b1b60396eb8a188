"""`recommender` and `instance_catalog`, as the packages were called, beside packages of the user's with these names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SAME = """
import recommender, recommender.workload, ddlprof.recommender.workload
from recommender import Layout, Measurement, Target, Workload, predict, recommend, transformer
from instance_catalog.records import Gpu
from ddlprof.instance_catalog import Gpu as today
assert recommender is ddlprof.recommender and recommender.workload is ddlprof.recommender.workload
assert Workload is ddlprof.recommender.Workload and Gpu is today
assert recommender.workload.__spec__.name == "ddlprof.recommender.workload"
"""
INSTALLED = f"import sys; import ddlprof; sys.path[:] = [path for path in sys.path if path != {str(ROOT)!r}]\n"


def python(program: str, *before: Path) -> subprocess.CompletedProcess[str]:
    paths = ":".join(map(str, (*before, ROOT)))
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env={"PYTHONPATH": paths}, cwd="/", capture_output=True, text=True, check=False)


@pytest.mark.parametrize("program", [SAME, INSTALLED + SAME], ids=["checkout", "installed"])
def test_the_old_names_are_the_same_modules(program: str) -> None:
    done = python(program)
    assert done.returncode == 0, done.stderr


def test_a_package_of_the_users_goes_first(tmp_path: Path) -> None:
    (tmp_path / "recommender.py").write_text("mine = True")
    program = (
        "import ddlprof.recommender, recommender; print(recommender.mine, ddlprof.recommender.Workload.__module__)"
    )
    done = python(program, tmp_path)
    assert done.stdout.split() == ["True", "ddlprof.recommender.workload"], done.stderr
    done = python("import ddlprof.recommender, recommender, recommender.workload", tmp_path)
    assert "No module named 'recommender.workload'" in done.stderr


def test_a_training_that_is_measured_has_only_its_own_names() -> None:
    done = python(INSTALLED + "import ddlprof.collect.session\nimport recommender")
    assert "No module named 'recommender'" in done.stderr
