"""Single-thread speeds by the names of processors, in the catalogue and as systems tell them."""

from __future__ import annotations

import pytest

from ddlprof import instance_catalog
from ddlprof.instance_catalog.processors import single_thread_speed


@pytest.mark.parametrize(
    ("slower", "faster"),
    [
        ("Intel Xeon E5-2686 v4 (Broadwell)", "Intel Xeon Platinum 8259CL (Cascade Lake)"),
        ("Intel(R) Xeon(R) Platinum 8275CL CPU @ 3.00GHz", "Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz"),
        ("AMD EPYC 7R32 (Rome)", "AMD EPYC 7R13 Processor"),
        ("AMD EPYC 7R13 (Milan)", "AMD EPYC 9R14"),
    ],
)
def test_newer_families_are_faster(slower: str, faster: str) -> None:
    one, other = single_thread_speed(slower), single_thread_speed(faster)
    assert one is not None
    assert other is not None
    assert one < other


def test_a_family_that_nobody_published_is_not_known() -> None:
    assert [single_thread_speed(name) for name in (None, "", "AMD EPYC", "AWS Graviton2")] == [None] * 4


def test_most_processors_of_the_catalogue_are_known() -> None:
    named = {row.cpu_model for row in instance_catalog.load().instances if row.cpu_model}
    unknown = {name for name in named if single_thread_speed(name) is None}
    assert unknown == {
        "AWS Graviton2",
        "Intel Xeon (API: 3.9 GHz)",
        "Intel Xeon E5-2670 (Sandy Bridge)",
        "NVIDIA Grace",
    }
