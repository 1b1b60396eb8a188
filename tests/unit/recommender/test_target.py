"""What is made of a machine's name or description."""

from __future__ import annotations

import pytest

from ddlprof.recommender.communication.coefficients import shipped
from ddlprof.recommender.target import Machine, Machines, Target, default_catalog, machine_of


def machine(**description: object) -> Machine:
    return machine_of(Target(**description), default_catalog())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "kind", "gb_s"),
    [
        ("PCIe3 (no NVLink)", "pcie", 15.75),
        ("PCIe 4.0", "pcie", 31.5),
        ("NVLink3/NVSwitch", "nvlink", 300.0),
        ("nvlink2", "nvlink", 150.0),
        ("NVLINK Gen4 900 GB/s + NVSWITCH Gen3", "nvlink", 450.0),
    ],
)
def test_spellings_of_links(text: str, kind: str, gb_s: float) -> None:
    found = machine(gpu_model="A100-40GB", interconnect=text)
    assert (found.link, found.link_gb_s) == (kind, gb_s)


@pytest.mark.parametrize("text", ["XGMI", "xgmi", "Infinity Fabric Link", "infinity_fabric", "AMD Infinity-Fabric"])
def test_infinity_fabric_is_like_nvlink_at_the_speed_of_the_gpu(text: str) -> None:
    found = machine(gpu_model="MI300X", interconnect=text, placement=(8,))
    assert (found.link, found.link_gb_s) == ("nvlink", 448.0)
    assert machine(gpu_model="MI355X", placement=(8,)).link_gb_s == pytest.approx(537.6)
    assert machine(gpu_model="MI355X", interconnect="PCIe 5.0", placement=(8,)).link == "pcie"


@pytest.mark.parametrize(("used", "gb_s"), [(8, 448.0), (4, 192.0), (2, 64.0), (1, 64.0)])
def test_a_mesh_without_a_switch_has_a_link_to_each_gpu_in_use(used: int, gb_s: float) -> None:
    by_hand = machine(gpu_model="MI300X", placement=(used,))
    rented = machine(instance_type="Standard_ND96isr_MI300X_v5", placement=(used, used))
    assert by_hand.link_gb_s == rented.link_gb_s == pytest.approx(gb_s)
    assert rented.rdma
    assert machine(gpu_model="H100", placement=(2,)).link_gb_s == machine(gpu_model="H100", placement=(8,)).link_gb_s


def test_flows_are_capped_without_rdma() -> None:
    capped, free = machine(instance_type="g4dn.12xlarge"), machine(instance_type="p4d.24xlarge")
    assert capped.flow_gbps is not None
    assert not capped.rdma
    assert free.rdma
    assert free.flow_gbps is None


def test_links_without_measurements_are_said_to_be_assumed() -> None:
    assert not shipped().of(machine(instance_type="g4dn.12xlarge")).assumed
    assert shipped().of(machine(instance_type="g5.48xlarge")).assumed
    unknown = shipped().of(machine(gpu_model="T4"))
    assert any("network not known" in line for line in unknown.assumed)


def test_machines_are_made_once_for_the_gpus_in_use() -> None:
    machines = Machines(default_catalog())
    used = [Target("Standard_ND96isr_MI300X_v5", placement=(gpus,)) for gpus in (2, 8, 2)]
    found = [machines.of(target) for target in used]
    assert [each.link_gb_s for each in found] == [pytest.approx(64.0), 448.0, pytest.approx(64.0)]
    assert found[0] is found[2]
