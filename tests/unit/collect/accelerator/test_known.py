"""Which kind torch computes on, and what is said of devices that nobody has timed steps on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddlprof import doctor
from ddlprof.collect.accelerator import known
from ddlprof.model.checks import LIMITED


def build(hip: str | None = None, mps: bool = False, current: str | None = None, there: bool = True) -> Any:
    """A torch with such devices, as far as it is asked. `there`: whether the machine has one of the `current` kind."""
    device = None if current is None else SimpleNamespace(type=current)
    count = int(there)
    return SimpleNamespace(
        version=SimpleNamespace(hip=hip, cuda=None),
        cuda=SimpleNamespace(is_available=lambda: hip is not None),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: mps)),
        accelerator=SimpleNamespace(
            current_accelerator=lambda: device, is_available=lambda: there, device_count=lambda: count,
            current_stream=lambda device=None: None,
        ),
        get_device_module=lambda kind: SimpleNamespace(),
        Event=torch.Event, Stream=torch.Stream, Tensor=torch.Tensor, device=lambda kind, index: f"{kind}:{index}",
        profiler=torch.profiler, autograd=torch.autograd,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def no_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (build(), []),
        (build(current="cuda"), []),
        (build(hip="6.4", current="cuda"), ["ROCm"]),
        (build(mps=True, current="mps"), ["MPS"]),
        (build(mps=False, current="mps"), []),
        (build(current="xpu"), ["XPU"]),
        (build(current="xpu", there=False), []),
        (build(current="npu"), ["NPU"]),
        (SimpleNamespace(), []),
    ],
)
def test_a_line_for_each_device_that_is_there(there: Any, said: list[str]) -> None:
    assert list(known.limits_of(there)) == said


def test_xla_is_known_by_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "find_spec", lambda name: name == "torch_xla" or None)
    assert list(known.limits_of(build())) == ["XLA"]


def test_this_build_of_torch_can_be_asked() -> None:
    assert set(known.limits_of(torch)) <= {*known.LIMITS, "MPS", "XPU", "NPU", "HPU", "MTIA"}


def test_doctor_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is lacking, and that nobody has tried it."""
    answers = {"torch": "2.13.0", "cuda": None, "limits": known.limits_of(build(mps=True, current="mps"))}
    monkeypatch.setattr(doctor, "ask_torch", lambda: (answers, ""))
    (line,) = [check for check in doctor.all_checks() if check.name == "MPS"]
    assert line.state == LIMITED
    assert "not measured: use and power of the device" in line.meaning
    assert "nobody has tried it" in line.meaning
