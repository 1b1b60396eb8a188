"""The identity of a machine: what makes two processes neighbours, and what must not."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ddlprof.collect.job import environment
from ddlprof.collect.job.environment import node_identity


@pytest.fixture(autouse=True)
def no_host_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_HOSTID", raising=False)


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
