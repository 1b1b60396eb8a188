"""The counters of a sick machine, from files such as Linux's."""

from __future__ import annotations

from pathlib import Path

from ddlprof.collect.facts.health import HealthSampler
from ddlprof.model.health import COUNTERS, EVERY_S

S = 10**9
NETWORK = """Inter-|   Receive                      |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo:    1  1  9  9  0  0  0  0  1  1  9  9  0  0  0  0
  eth0: 6097 20  1  2  0  0  0  0  3088 19  3  {dropped}  0  0  0  0
"""
FILES = {
    "proc/vmstat": "nr_free_pages 7\npswpin 100\npswpout 20\n",
    "proc/stat": "cpu  10 20 30 40 50 60 70 250 0 0\ncpu0 1 2 3 4 5 6 7 8 9 9\n",
    "proc/pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=9000000\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=5000000\n",
    "proc/net/snmp": "Ip: Forwarding DefaultTTL\nIp: 1 64\nTcp: RtoAlgorithm RetransSegs InErrs\nTcp: 1 77 0\n",
    "proc/net/dev": NETWORK.format(dropped=4),
    "sys/fs/cgroup/cpu.stat": "usage_usec 5\nnr_throttled 3\nthrottled_usec 6000\n",
    "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count": "3\n",
    "sys/devices/system/cpu/cpu0/topology/physical_package_id": "0\n",
    "sys/devices/system/cpu/cpu1/thermal_throttle/package_throttle_count": "3\n",
    "sys/devices/system/cpu/cpu1/topology/physical_package_id": "0\n",
    "sys/devices/system/edac/mc/mc0/ce_count": "2\n",
    "sys/devices/system/edac/mc/mc0/ue_count": "0\n",
    "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error": "6\n",
    "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed": "1\n",
    "sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence": "10\n",
}


def machine(root: Path) -> Path:
    for name, text in FILES.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


class Clock:
    ns = 1000 * S

    def __call__(self) -> int:
        return self.ns


def test_all_counters_of_a_machine_and_then_what_changed(tmp_path: Path) -> None:
    clock, device = Clock(), {("gpu_xid", "79"): 1}
    sampler = HealthSampler(990 * S, clock, lambda: device, machine(tmp_path))
    first = sampler.changes()
    assert {reading.time_ns for reading in first} == {10 * S}
    assert {(reading.counter, reading.where): reading.value for reading in first} == {
        ("swap_pages", ""): 120, ("steal_ms", ""): 2500, ("io_stall_ms", ""): 5000, ("cpu_quota_ms", ""): 6,
        ("cpu_hot", ""): 3, ("memory_corrected", ""): 2, ("memory_uncorrected", ""): 0, ("tcp_retransmits", ""): 77,
        ("network_errors", "eth0"): 4, ("network_dropped", "eth0"): 6, ("infiniband_errors", "mlx5_0/1"): 17,
        ("gpu_xid", "79"): 1,
    }  # fmt: skip
    (tmp_path / "proc/net/dev").write_text(NETWORK.format(dropped=9))
    clock.ns += round(EVERY_S * S) - 1
    assert sampler.changes() == []
    clock.ns += 1
    assert [(r.counter, r.where, r.value, r.time_ns) for r in sampler.changes()] == [
        ("network_dropped", "eth0", 11, 20 * S)
    ]
    device["gpu_xid", "79"] = 2
    assert [reading.counter for reading in sampler.changes(last=True)] == ["gpu_xid"]


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    def broken() -> dict[tuple[str, str], int]:
        raise RuntimeError("no driver")

    clock = Clock()
    sampler = HealthSampler(0, clock, broken, machine(tmp_path))
    (tmp_path / "proc/vmstat").unlink()
    (tmp_path / "proc/stat").write_text("damaged\n")
    names = {reading.counter for reading in sampler.changes()}
    assert names == {name for name in COUNTERS if not COUNTERS[name].of_device} - {"swap_pages", "steal_ms"}
    machine(tmp_path)
    assert sampler.changes(last=True) == []


def test_this_machine_tells_what_it_has_by_known_names() -> None:
    readings = HealthSampler(0, Clock(), dict).changes()
    assert {reading.counter for reading in readings} <= set(COUNTERS)
    assert "tcp_retransmits" in {reading.counter for reading in readings}
