"""`ddlprof probe` on a real GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddlprof.instance_catalog import load

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu


def test_a_gpu_is_measured_within_its_data_sheet(tmp_path: Path) -> None:
    environment = {**os.environ, "DDLPROF_CATALOG": str(tmp_path / "catalog")}
    command = [sys.executable, "-m", "ddlprof", "probe", "--seconds", "20", "--out", "probe.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stderr) == (0, "ddlprof: wrote probe.json\n")
    probed = json.loads((tmp_path / "probe.json").read_text(encoding="utf-8"))
    found = {figure["key"]: figure["value"] for figure in probed["figures"]}
    assert probed["is_gpu"]
    assert not [sentence for sentence in probed["missing"] if not sentence.startswith(("clock", "products in fp8"))]
    assert {"fp32_tflops", "memory_gb_s", "host_to_device_gb_s", "launch_us", "round_trip_us"} <= set(found)
    assert found["round_trip_us"] > found["bare_launch_us"]
    catalog = load(tmp_path / "catalog")
    (reached,) = catalog.reached
    known = [gpu for gpu in catalog.gpus if gpu.gpu_model == reached.gpu_model]
    for gpu in known:
        for peak, value in ((gpu.fp32_tflops, reached.fp32_tflops), (gpu.memory_bandwidth_gb_s, reached.memory_gb_s)):
            assert peak is None or 0.3 * peak < (value or 0.0) < 1.1 * peak
        if gpu.bf16_tflops and reached.bf16_tflops:
            assert reached.bf16_tflops > 2 * (reached.fp32_tflops or 0.0)
