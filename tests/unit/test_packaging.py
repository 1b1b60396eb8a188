"""What pyproject.toml claims, against what continuous integration tries, what is pinned, and what the code imports."""

from __future__ import annotations

import ast
import re
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddlprof import doctor, registry
from tests.unit.sources import ROOT, all_statements, parsed, sources, trees

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomllib")

__all__ = ["trees"]
pytestmark = pytest.mark.usefixtures("trees")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
DISTRIBUTIONS = {
    "sklearn": "scikit-learn", "pynvml": "nvidia-ml-py", "yaml": "pyyaml", "botocore": "boto3", "urllib3": "boto3",
    "mkdocs": "mkdocs-material",
    "prometheus_client": "prometheus-client", "mlflow": "mlflow-skinny",
    "opentelemetry": "opentelemetry-exporter-otlp-proto-http",
}  # fmt: skip
"""The name on PyPI where it is another, or the package that brings it."""
WHEEL = ("ddlprof", "recommender", "instance_catalog")
"""The folders that the wheel is made of; the last two lie in the first one there."""
RIGHTS = {
    "Publish on PyPI": {"id-token"},
    "Publish the documentation": {"id-token", "pages"},
    "Keep the history of benchmarks": {"contents"},
}
"""The jobs of workflows that may do more than read the repository."""
FRAMEWORKS = {"accelerate", "datasets", "lightning", "torchdata", "transformers", "webdataset"}
"""scripts/bench/compatibility.py installs them beside the development environment."""


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!;~ ]", requirement, maxsplit=1)[0].lower() for requirement in requirements}


def dev() -> set[str]:
    return names([*PROJECT["dependencies"], *(line for extra in EXTRAS.values() for line in extra)])


def jobs(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load(path.read_text())["jobs"].values())


def matrix() -> list[dict[str, Any]]:
    found = [
        job["strategy"]["matrix"]["include"] for job in jobs(ROOT / ".github/workflows/ci.yml") if "strategy" in job
    ]
    return list(found[0])


def minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def oldest_torch() -> str:
    return re.fullmatch(r"torch>=([\d.]+)", EXTRAS["torch"][0])[1]  # type: ignore[index]


def imported(*folders: str, by_name: bool = False) -> set[str]:
    """Packages that any file of these folders imports, the standard library's and its neighbours' left out."""
    found = set()
    files = sources(*folders)
    for path in files:
        calls = by_name and "importlib.import_module" in path.read_text(encoding="utf-8")
        for node in ast.walk(parsed(path)) if calls else all_statements(parsed(path)):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
            elif calls and isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.import_module":
                found |= {
                    str(ast.literal_eval(argument)) for argument in node.args if isinstance(argument, ast.Constant)
                }
    ours = {"ddlprof", "recommender", "instance_catalog", "scripts", "tests"} | {path.stem for path in files}
    ours |= {path.parent.name for path in files}
    if folders == WHEEL:  # which imports its own modules by their whole names: one may be called as what it connects to
        ours = {"ddlprof", "sitecustomize"}
    return {DISTRIBUTIONS.get(name, name) for name in found - ours - sys.stdlib_module_names}


def test_the_oldest_and_the_newest_python_are_tried() -> None:
    listed = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)]
    tried = sorted((job["python"] for job in matrix()), key=minor)
    assert [tried[0], tried[-1]] == [listed[0], listed[-1]]
    assert PROJECT["requires-python"] == f">={listed[0]}"
    assert PYPROJECT["tool"]["mypy"]["python_version"] == listed[0]
    assert PYPROJECT["tool"]["ruff"]["target-version"] == "py" + listed[0].replace(".", "")


def test_the_oldest_and_the_newest_torch_are_tried() -> None:
    tried = sorted((job["torch"] for job in matrix()), key=minor)
    pinned = re.search(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert minor(tried[0]) == minor(oldest_torch()) == doctor._OLDEST_TORCH
    assert pinned is not None
    assert tried[-1] == pinned[1]


def test_macos_is_tried() -> None:
    assert any(job["os"].startswith("macos") for job in matrix())


def test_torch_is_installed_only_where_it_is_asked_for() -> None:
    assert not any("torch" in requirement for requirement in PROJECT["dependencies"])
    assert {name for name, extra in EXTRAS.items() if "torch" in names(extra)} == {"torch"}
    assert any(each.startswith("ddlprof[remote,torch,") for each in EXTRAS["dev"])  # what the tests need


def test_what_the_wheel_imports_is_declared_and_used() -> None:
    extras = (
        "torch",
        "amd",
        "remote",
        "parquet",
        "metrics",
        "otel",
        "optuna",
        "tensorboard",
        "wandb",
        "mlflow",
    )
    declared = names([*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])])
    found = imported(*WHEEL, by_name=True)
    found |= (
        {"nvidia-ml-py"}
        if 'import_module("pynvml")' in (ROOT / "ddlprof/collect/facts/machine.py").read_text()
        else set()
    )
    assert found - declared - {"torchvision.models"} == set()  # named_models loads what the user asks for
    assert declared - found <= {"rich"}


def test_what_scripts_and_tests_import_is_declared() -> None:
    assert imported("scripts", "examples", "tests") - dev() - FRAMEWORKS == set()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_take_actions_by_commit_and_few_rights(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for job in jobs(path):
        assert job["timeout-minutes"] <= 60
        assert set(job.get("permissions", {})) <= RIGHTS.get(job["name"], set())
        for step in job["steps"]:
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step.get("uses", "a@" + 40 * "0")), step


@pytest.mark.parametrize(
    "path", sorted({*ROOT.glob(".github/**/*.yml"), ROOT / ".pre-commit-config.yaml"}), ids=lambda path: path.name
)
def test_yaml_can_be_read(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_the_wheel_is_tried_on_every_python_before_it_is_published() -> None:
    jobs_by_key = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    listed = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)]
    assert jobs_by_key["try"]["strategy"]["matrix"]["python"] == listed
    assert "try" in jobs_by_key["publish"]["needs"]


def test_the_suite_is_tried_without_each_room_at_night() -> None:
    jobs_by_key = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())["jobs"]
    assert jobs_by_key["rooms"]["strategy"]["matrix"]["room"] == list(registry.EXTENSIONS)


def test_the_version_is_in_one_place_and_changes_come_before_it() -> None:
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "ddlprof.base.package.VERSION"}
    sections = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sections[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", section) for section in sections[1:])


def test_commands_of_workflows_are_there() -> None:
    steps = [step for path in WORKFLOWS for job in jobs(path) for step in job["steps"]]
    commands = " ".join(step.get("run", "") for step in steps)
    assert re.findall(r"scripts/\S+", commands)
    assert all((ROOT / name).is_file() for name in re.findall(r"scripts/\S+", commands))
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"make ([a-z]+)", commands)) <= set(targets)


def test_no_folder_of_tests_is_passed_over(pytestconfig: pytest.Config) -> None:
    passed_over = pytestconfig.getini("norecursedirs")
    folders = {path.parent.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert "dist" in folders
    assert not [name for name in folders for pattern in passed_over if fnmatch(name, pattern)]
