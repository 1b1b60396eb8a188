"""The file of the devices: what it may say, and one line for what it may not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddlprof.base.errors import UserError
from ddlprof.extensions.hetero.devices import read_devices

YAML = """
latency_us: 20
machines:
  - {gpu: V100, gpus: 2, network: 100 Gbit/s, link: 12 GB/s}
  - {gpu: GTX 1080 Ti, count: 2, network: 50 Gbps, link: pcie3, name: desk}  # two alike
  - {instance: p3.8xlarge}
"""


def written(folder: Path, text: str, name: str = "c.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_machines_of_a_description_and_of_the_catalogue(tmp_path: Path) -> None:
    devices = read_devices(written(tmp_path, YAML))
    assert [machine.name for machine in devices.machines] == ["V100-SXM2-16GB", "desk-1", "desk-2", "p3.8xlarge"]
    assert [machine.gpus for machine in devices.machines] == [2, 1, 1, 4]
    assert [machine.network_gb_s for machine in devices.machines][:3] == [12.5, 6.25, 6.25]
    assert [machine.link_gb_s for machine in devices.machines][:2] == [12.0, 15.75]
    assert devices.machines[3].network_gb_s is not None
    assert devices.latency_s == pytest.approx(20e-6)
    assert [device.name for device in devices.all][:3] == ["V100-SXM2-16GB/0", "V100-SXM2-16GB/1", "desk-1"]
    assert devices.machines[0].memory_gib == pytest.approx(0.985 * 16)


def test_json_is_the_same(tmp_path: Path) -> None:
    text = json.dumps({"machines": [{"gpu": "T4", "network": "10 Gbit/s", "count": 2}]})
    one, other = read_devices(written(tmp_path, text, "c.json")), read_devices(written(tmp_path, text))
    assert one == other
    assert len(one) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "`machines:` with a list is expected"),
        ("machines: []", "machines"),
        ("machines: [{gpu: V100}, {gpu: T4}]", r"machines\[0\]: with several machines each needs its network"),
        ("machines: [{gpu: V100, network: fast}]", r"machines\[0\].network: a speed such as 12 GB/s"),
        ("machines: [{gpu: V100, network: 0 GB/s}]", "a speed such as 12 GB/s"),
        ("machines: [{gpu: V100, link: cable}]", "a link such as pcie4"),
        ("machines: [{gpu: V1000}]", r"machines\[0\]: .*V1000"),
        ("machines: [{instance: p3.9xlarge}]", "closest"),
        ("machines: [{}]", "either gpu or instance"),
        ("machines: [{gpu: V100, instance: p3.2xlarge}]", "either gpu or instance"),
        ("machines: [{instance: p3.2xlarge, gpus: 2}]", "has 1 GPU, not 2"),
        ("machines: [{gpu: V100, gpus: 0}]", "gpus"),
        ("machines: [{gpu: V100, gpus: 64}, {gpu: T4, gpus: 64, network: 1 GB/s}]", "network"),
        ("machines: [{gpu: V100, count: 64, gpus: 64, network: 1 GB/s}]", "64 at most"),
        ("machines: [{gpu: V100, netwrok: 10 GB/s}]", "'netwrok' is not a field"),
        ("maschines: []", "'maschines' is not a field"),
        ("machines: [{gpu: V100}]\nlatency_us: -1", "latency_us"),
        ("machines: [{gpu: V100}]\nlatency_us: .nan", "NaN"),
        ("machines: &a [*a]", r"references \(\*NAME\)"),
        ("machines: [", "not YAML"),
        ("machines: 2020-01-01", "not YAML of plain values"),
        ("[" * 100, "nested more than 32 deep"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        read_devices(written(tmp_path, text))
    assert "\n" not in str(error.value)
    assert "c.yaml: " in str(error.value)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_devices(tmp_path / "none.yaml")
    with pytest.raises(UserError, match="a directory"):
        read_devices(tmp_path)
