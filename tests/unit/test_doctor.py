"""`ddlprof doctor`: every check on made-up machines, and the whole on this one."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from ddlprof import doctor
from ddlprof.base import cores
from ddlprof.cli import doctor as command
from ddlprof.collect import core
from ddlprof.collect.facts import capabilities, machine
from ddlprof.model.checks import LIMITED, MISSING, OK, Check, can_run
from ddlprof.report.doctor import as_json, as_table

ROOT = Path(__file__).parents[3]
ANSWERS: dict[str, Any] = {
    "torch": "2.13.0+cpu",
    "cuda": None,
    "devices": [],
    "device_timeline": False,
    "backends": ["gloo"],
    "interception": "",
    "gloo_address": "10.0.0.5",
}


PRESENT = {"present": 105, "missing": {}}


def run_doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ddlprof", "doctor", *arguments]
    paths = {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, env={**os.environ, **paths, **environment}, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_this_machine_can_run() -> None:
    done = run_doctor("--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    states = {check["name"]: check["state"] for check in found["checks"]}
    assert found["can_run"]
    assert states["torch"] == OK
    assert set(states.values()) <= {OK, LIMITED, MISSING}
    if sys.platform == "linux":
        assert states["communication"] == OK
    assert states["private names"] == OK


def test_without_torch_the_exit_code_is_1_and_the_rest_is_still_checked(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')\n")
    done = run_doctor(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.returncode == 1
    assert "libcudart.so.12" in done.stdout
    assert "shared memory" in done.stdout
    assert done.stderr == ""


def test_a_torch_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*args: object, timeout: float, **kwargs: object) -> None:
        raise subprocess.TimeoutExpired("python", timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    assert doctor.ask_torch() == ({}, "no answer within 60 s")


def test_doctor_prints_and_exits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "ask_torch", lambda: (ANSWERS, ""))
    command.doctor()
    assert capsys.readouterr().out.splitlines()[0].split()[:2] == ["check", "state"]
    monkeypatch.setattr(doctor, "ask_torch", lambda: ({}, "No module named 'torch'"))
    with pytest.raises(typer.Exit) as stopped:
        command.doctor(format="json")
    assert stopped.value.exit_code == 1
    assert not json.loads(capsys.readouterr().out)["can_run"]


def test_only_what_is_needed_stops_a_run() -> None:
    assert can_run([Check("gpu counters", MISSING, ""), Check("torch", OK, "", needed=True)])
    assert not can_run([Check("torch", MISSING, "", needed=True)])


def test_the_table_is_aligned_and_the_json_complete() -> None:
    checks = [Check("torch", OK, "2.13.0", needed=True), Check("gpu counters", MISSING, "no NVML")]
    assert as_table(checks).splitlines() == [
        "check         state    what it means / what to do",
        "torch         ok       2.13.0",
        "gpu counters  missing  no NVML",
    ]
    assert json.loads(as_json(checks)) == {
        "can_run": True,
        "checks": [
            {"name": "torch", "state": "ok", "meaning": "2.13.0", "needed": True},
            {"name": "gpu counters", "state": "missing", "meaning": "no NVML", "needed": False},
        ],
    }


@pytest.mark.parametrize(("system", "state"), [("Linux", OK), ("Darwin", LIMITED), ("Windows", LIMITED)])
def test_platforms(system: str, state: str) -> None:
    assert doctor.check_platform(system).state == state


@pytest.mark.parametrize(
    ("version", "state"), [("2.13.0+cpu", OK), ("2.6.0", OK), ("2.5.1", LIMITED), ("3.0.0a0+git", OK)]
)
def test_versions_of_torch(version: str, state: str) -> None:
    check = doctor.check_torch({**ANSWERS, "torch": version}, "")
    assert (check.state, version in check.meaning) == (state, True)


@pytest.mark.parametrize(("quota", "state"), [(None, OK), (8.0, OK), (1.5, LIMITED)])
def test_cores(monkeypatch: pytest.MonkeyPatch, quota: float | None, state: str) -> None:
    monkeypatch.setattr(cores, "available_cores", lambda: 8)
    monkeypatch.setattr(machine, "cpu_quota_cores", lambda: quota)
    assert doctor.check_cores().state == state


@pytest.mark.parametrize(("resolution", "state"), [(1e-9, OK), (1e-7, OK), (0.015, LIMITED)])
def test_clock(monkeypatch: pytest.MonkeyPatch, resolution: float, state: str) -> None:
    clock = SimpleNamespace(implementation="clock()", resolution=resolution, monotonic=True)
    monkeypatch.setattr(time, "get_clock_info", lambda name: clock)
    assert doctor.check_clock().state == state


@pytest.mark.parametrize(
    ("in_c", "python_only", "state", "words"),
    [(True, "", OK, "in C"), (False, "1", LIMITED, core.PYTHON_ONLY), (False, "", LIMITED, "compiler")],
)
def test_hooks(monkeypatch: pytest.MonkeyPatch, in_c: bool, python_only: str, state: str, words: str) -> None:
    monkeypatch.setattr(core, "IN_C", in_c)
    monkeypatch.setenv(core.PYTHON_ONLY, python_only)
    check = doctor.check_hooks()
    assert check.state == state
    assert words in check.meaning


def test_hooks_of_an_older_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "IN_C", False)
    monkeypatch.setattr(core, "STALE", True)
    monkeypatch.setenv(core.PYTHON_ONLY, "")
    check = doctor.check_hooks()
    assert (check.state, core.REBUILD in check.meaning) == (LIMITED, True)


@pytest.mark.parametrize(
    ("text", "state"), [("594020 41445 2", OK), ("0 0 0", MISSING), ("", MISSING), (None, MISSING)]
)
def test_fetch_prep_split(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, state: str) -> None:
    if text is not None:
        (tmp_path / "schedstat").write_text(text)
    monkeypatch.setattr(doctor, "_SCHEDSTAT", tmp_path / "schedstat")
    assert doctor.check_fetch_prep_split().state == state


@pytest.mark.parametrize(("free", "state"), [(2**26, LIMITED), (2**32, OK)])
def test_shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, state: str) -> None:
    monkeypatch.setattr(doctor, "_SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=2**33, free=free))
    assert doctor.check_shared_memory().state == state
    monkeypatch.setattr(doctor, "_SHARED_MEMORY", tmp_path / "missing")
    assert doctor.check_shared_memory().state == OK


def test_run_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert doctor.check_run_directory(tmp_path).state == OK
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    assert doctor.check_run_directory(tmp_path).state == LIMITED
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    check = doctor.check_run_directory(tmp_path)
    assert check.state == MISSING
    assert "--out" in check.meaning
    (tmp_path / "ddlprof-runs").write_text("a file")
    monkeypatch.undo()
    assert doctor.check_run_directory(tmp_path).state == MISSING


def test_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "host_facts", lambda: {"gpus": ["Tesla T4"], "gpu_driver": "570.1"})
    with_device = doctor.check_accelerator({**ANSWERS, "cuda": "12.8", "devices": ["Tesla T4"]})
    assert with_device.state == OK
    assert "built without CUDA" in doctor.check_accelerator(ANSWERS).meaning
    assert "12.8 does not reach Tesla T4" in doctor.check_accelerator({**ANSWERS, "cuda": "12.8"}).meaning
    assert doctor.check_gpu_counters().state == OK
    monkeypatch.setattr(machine, "host_facts", dict)
    assert doctor.check_accelerator(ANSWERS).state == MISSING
    assert doctor.check_gpu_counters().state == MISSING


def test_torchs_private_names_are_one_line_if_all_are_there() -> None:
    (check,) = doctor.check_private_names({**ANSWERS, "private_names": PRESENT})
    assert (check.state, check.meaning) == (OK, "torch 2.13.0+cpu: all 105 private names found")
    assert doctor.check_private_names({}) == []


def test_each_private_name_that_is_missing_is_a_line_with_what_is_lost() -> None:
    lost = {"torch._C._a": "copies are not measured", "torch._b": "waits are not measured"}
    checks = doctor.check_private_names({**ANSWERS, "private_names": {"present": 103, "missing": lost}})
    assert [check.state for check in checks] == [LIMITED, LIMITED]
    assert checks[0].meaning == "torch 2.13.0+cpu has no torch._C._a: copies are not measured"
    assert json.loads(as_json(checks))["checks"][1]["meaning"].endswith("torch._b: waits are not measured")
    assert can_run(checks)


@pytest.mark.slow
def test_the_process_that_doctor_asks_finds_names_that_are_gone(tmp_path: Path) -> None:
    """A torch from which one of them was taken away before it is looked at."""
    (tmp_path / "sitecustomize.py").write_text("import torch\ndel torch._C._current_graph_task_id\n")
    done = run_doctor("--format", "json", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    found = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "private name"]
    assert [check["state"] for check in found] == [LIMITED]
    assert "has no torch._C._current_graph_task_id: optimizers that step inside the backward" in found[0]["meaning"]


def test_distributed() -> None:
    assert doctor.check_backends(ANSWERS).meaning == "gloo (not nccl, mpi)"
    assert doctor.check_backends({}).state == MISSING
    assert doctor.check_communication(ANSWERS).state == OK
    broken = doctor.check_communication({**ANSWERS, "interception": "RuntimeError: no such operator"})
    assert broken.state == MISSING
    assert "no such operator" in broken.meaning


@pytest.mark.parametrize(
    ("address", "interface", "state"),
    [
        ("10.0.0.5", None, OK),
        ("127.0.1.1", None, LIMITED),
        (None, None, LIMITED),
        (None, "eth7", OK),
        ("10.0.0.5", "eth7,wlan9", MISSING),
    ],
)
def test_gloo_network(monkeypatch: pytest.MonkeyPatch, address: str | None, interface: str | None, state: str) -> None:
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth7")])
    assert doctor.check_gloo_address(address, interface).state == state


def resolves_to(*addresses: str) -> Callable[..., list[Any]]:
    return lambda *args, **kwargs: [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (a, 0)) for a in addresses]


def test_gloo_listens_on_the_first_address_that_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolves_to("192.0.2.1", "127.0.0.1"))  # the first: documentation only
    assert capabilities.gloo_address() == "127.0.0.1"
    monkeypatch.setattr(socket, "getaddrinfo", resolves_to("192.0.2.1"))
    assert capabilities.gloo_address() is None


@pytest.mark.slow
def test_the_command_does_not_import_torch() -> None:
    program = "import sys; from ddlprof import doctor; doctor.all_checks(); sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0
