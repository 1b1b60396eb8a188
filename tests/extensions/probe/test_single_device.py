"""Which precisions are measured on which device, and what one figure is."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from ddlprof.extensions.probe.single_device import precisions, products, sustained


def device(**fields: Any) -> Any:
    return SimpleNamespace(torch=SimpleNamespace(version=SimpleNamespace(hip=None)), **fields)


@pytest.mark.parametrize(
    ("capability", "names"),
    [((3, 7), ["fp32"]), ((7, 5), ["fp32", "fp16"]), ((8, 0), ["fp32", "tf32", "bf16", "fp16"]),
     ((9, 0), ["fp32", "tf32", "bf16", "fp16", "fp8"])],
)  # fmt: skip
def test_a_gpu_is_measured_in_what_it_has_in_hardware(capability: tuple[int, int], names: list[str]) -> None:
    assert precisions(device(is_gpu=True, capability=capability)) == names


def test_a_processor_has_no_tf32_and_no_fp8() -> None:
    assert precisions(device(is_gpu=False, capability=(0, 0))) == ["fp32", "bf16", "fp16"]


def test_the_first_figure_is_of_the_large_square() -> None:
    torch = pytest.importorskip("torch")
    from ddlprof.extensions.probe.device import ProbeDevice

    if torch.cuda.is_available():
        pytest.skip("of a processor")
    found = list(products(ProbeDevice(torch), "fp32", 0.05))
    assert [figure.key for figure in found] == ["fp32_tflops", "fp32_quarter_tflops", "fp32_flat_tflops"]
    assert all(figure.value > 0 and figure.unit == "TFLOP/s" for figure in found)
    side, *rest = found[0].what.removeprefix("fp32 ").replace(" by", " x").split(" x ")
    assert set(rest) == {side}
    assert torch.get_float32_matmul_precision() == "highest"


class Clock:
    """A clock that goes on only while something is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)


def test_a_device_that_only_notes_what_is_asked_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU does: calls take no time, the wait takes all of it."""
    clock, asked = Clock(monkeypatch), [0]

    def run() -> None:
        asked[0] += 1

    def finish() -> None:
        clock.now += 1e-5 * asked[0]
        asked[0] = 0

    assert sustained(run, finish, 1.0).per_s == pytest.approx(1e5)
