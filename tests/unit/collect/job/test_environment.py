"""The identity of a machine: what makes two processes neighbours, and what must not."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ddlprof.collect.job import environment
from ddlprof.collect.job.environment import node_identity

PRINT_IDENTITY = [
    sys.executable,
    "-c",
    "from ddlprof.collect.job.environment import node_identity; print(node_identity())",
]


@pytest.fixture(autouse=True)
def no_host_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_HOSTID", raising=False)


def identity_in(*prefix: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    return subprocess.check_output([*prefix, *PRINT_IDENTITY], env=environment, text=True).strip()


def test_ranks_of_a_launcher_and_cloned_machine_ids_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = node_identity()
    for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK"):
        monkeypatch.setenv(name, "3")
    assert node_identity() == plain
    assert identity_in() == plain


def test_cloned_hosts_differ_by_name_and_by_boot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain = node_identity()
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("another-boot\n")
    monkeypatch.setattr(environment, "_BOOT_ID", boot_id)
    rebooted = node_identity()
    monkeypatch.setattr(socket, "gethostname", lambda: "another-host")
    assert len({plain, rebooted, node_identity()}) == 3


def test_host_id_of_nccl_replaces_name_and_boot_but_not_the_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_HOSTID", "pod-7")
    assert node_identity().split("/")[0] == "pod-7"
    assert socket.gethostname() not in node_identity()
    namespace = environment._network_namespace()
    assert node_identity() == ("pod-7/" + namespace if namespace else "pod-7")


def test_without_proc_the_host_name_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "_BOOT_ID", tmp_path / "missing")
    monkeypatch.setattr(environment, "_NETWORK_NAMESPACE", tmp_path / "missing")
    assert node_identity() == socket.gethostname()


@pytest.mark.root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_a_network_namespace_is_a_node_of_its_own() -> None:
    assert identity_in("unshare", "--net") != node_identity()
    assert identity_in("unshare", "--pid", "--fork") == node_identity()
