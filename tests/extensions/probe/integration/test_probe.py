"""`ddlprof probe` as a user types it: the real command for a few seconds on the processor."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.processes import PATIENCE_S, Processes, free_port

pytest.importorskip("torch")

Ddlprof = Callable[..., subprocess.CompletedProcess[str]]
PROCESSOR = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def ddlprof(processes: Processes, tmp_path: Path) -> Ddlprof:
    def run(*arguments: str, catalog: Path = tmp_path / "catalog") -> subprocess.CompletedProcess[str]:
        environment = {**PROCESSOR, "DDLPROF_CATALOG": str(catalog)}
        return processes.run(sys.executable, "-m", "ddlprof", *arguments, text=True, env=environment)

    return run


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_processor_is_measured_and_its_figures_are_kept(ddlprof: Ddlprof, tmp_path: Path) -> None:
    done = ddlprof("probe", "--seconds", "2", "--instance", "c-none", "--out", "probe.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ddlprof: unknown instance type 'c-none'")
    done = ddlprof("probe", "--seconds", "1", "--out", "probe.json", "--out", "-")
    assert (done.returncode, done.stderr) == (0, "ddlprof: wrote probe.json\n")
    probed = json.loads((tmp_path / "probe.json").read_text(encoding="utf-8"))
    found = {figure["key"]: figure["value"] for figure in probed["figures"]}
    assert {"fp32_tflops", "bf16_tflops", "memory_gb_s", "launch_us", "gloo_allreduce_intra_gb_s"} <= set(found)
    assert all(value > 0 for value in found.values())
    assert (probed["is_gpu"], probed["ranks"], probed["nodes"], probed["missing"]) == (False, 2, 1, [])
    (reached,) = rows(tmp_path / "catalog" / "reached.csv")
    assert float(reached["fp32_tflops"]) == found["fp32_tflops"]
    assert reached["measured_at"] == probed["measured_at"]
    links = {row["what"]: row for row in rows(tmp_path / "catalog" / "links.csv")}
    assert links["gloo_allreduce_intra_gb_s"]["machine"] == probed["host"]
    assert "predictions are of GPUs" in " ".join(done.stdout.split())


def test_a_file_from_elsewhere_is_added(ddlprof: Ddlprof, tmp_path: Path) -> None:
    from ddlprof.report.json_csv import json_of
    from tests.extensions.probe.test_report import PROBED

    (tmp_path / "probe.json").write_text(json_of(PROBED), encoding="utf-8")
    done = ddlprof("probe", "--add", "probe.json", "--dry-run")
    assert (done.returncode, (tmp_path / "catalog").exists()) == (0, False)
    done = ddlprof("probe", "--add", "probe.json", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [row["gpu_model"] for row in rows(tmp_path / "catalog" / "reached.csv")] == ["A100-SXM4-40GB"]
    shown = ddlprof("instances", "show", "p4d.24xlarge").stdout
    assert "products in TFLOPS: fp32 18.5, bf16 250" in shown
    done = ddlprof("probe", "--add", "probe.json", "--instance", "g4dn.xlarge")
    assert done.returncode == 2
    assert done.stderr.startswith("ddlprof: g4dn.xlarge has T4, and a A100-SXM4-40GB was measured")


@pytest.mark.skipif(sys.platform != "linux", reason="nobody can write into /proc")
def test_figures_that_cannot_be_kept_are_shown_all_the_same(ddlprof: Ddlprof, tmp_path: Path) -> None:
    from ddlprof.report.json_csv import json_of
    from tests.extensions.probe.test_report import PROBED

    (tmp_path / "probe.json").write_text(json_of(PROBED), encoding="utf-8")
    done = ddlprof("probe", "--add", "probe.json", catalog=Path("/proc/self/nowhere/catalog"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("ddlprof: not kept: /proc/self/nowhere/catalog")
    assert "Not kept the catalogue is as it was" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "what"),
    [(["--seconds", "0"], "Invalid value for '--seconds'"), (["--seconds", "soon"], "Invalid value for '--seconds'"),
     (["--add", "none.json"], "none.json: "), (["--add", "torn.json"], "torn.json: ")],
)  # fmt: skip
def test_errors_are_one_line(ddlprof: Ddlprof, tmp_path: Path, arguments: list[str], what: str) -> None:
    (tmp_path / "torn.json").write_text('{"device": "T4", "is', encoding="utf-8")
    done = ddlprof("probe", *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("ddlprof: ")
    assert what in done.stderr


@pytest.mark.slow
@pytest.mark.dist
def test_two_machines_measure_what_is_between_them(processes: Processes, tmp_path: Path) -> None:
    """Two of torchrun's agents stand for two machines."""
    port = str(free_port())
    agents = [
        processes.start(
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node),
            "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", port,
            "-m", "ddlprof", "probe", "--seconds", "2", "--out", "probe.json", "--out", "-",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**PROCESSOR, "DDLPROF_CATALOG": str(tmp_path / "catalog")},
        )
        for node in (0, 1)
    ]  # fmt: skip
    outputs = [agent.communicate(timeout=PATIENCE_S) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    assert outputs[0][0].startswith("ddlprof  probe ")
    assert outputs[1][0] == ""
    probed = json.loads((tmp_path / "probe.json").read_text(encoding="utf-8"))
    keys = {figure["key"] for figure in probed["figures"]}
    assert {"gloo_allreduce_inter_gb_s", "gloo_send_inter_gb_s"} <= keys
    assert not any("_intra_" in key for key in keys)
    assert (probed["ranks"], probed["nodes"]) == (2, 2)
