"""What is said of devices that nobody has timed steps on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddlprof import doctor
from ddlprof.collect.accelerator import known
from ddlprof.model.checks import LIMITED


def build(hip: str | None = None, mps: bool = False, current: str | None = None) -> Any:
    """A torch with such devices, as far as it is asked; without `torch.xpu`."""
    device = None if current is None else SimpleNamespace(type=current)
    return SimpleNamespace(
        version=SimpleNamespace(hip=hip),
        cuda=SimpleNamespace(is_available=lambda: hip is not None),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: mps)),
        accelerator=SimpleNamespace(current_accelerator=lambda: device),
    )


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
        (build(current="npu"), ["npu"]),
        (SimpleNamespace(), []),
    ],
)
def test_a_line_for_each_device_that_is_there(there: Any, said: list[str]) -> None:
    assert list(known.limits_of(there)) == said


def test_xla_is_known_by_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "find_spec", lambda name: name == "torch_xla" or None)
    assert list(known.limits_of(build())) == ["XLA"]


def test_this_build_of_torch_can_be_asked() -> None:
    assert set(known.limits_of(torch)) <= {*known.LIMITS, "npu", "hpu", "mtia"}


def test_doctor_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the host's clock, and that nobody has tried it."""
    answers = {"torch": "2.13.0", "cuda": None, "limits": known.limits_of(build(mps=True))}
    monkeypatch.setattr(doctor, "ask_torch", lambda: (answers, ""))
    (line,) = [check for check in doctor.all_checks() if check.name == "MPS"]
    assert line.state == LIMITED
    assert "timed on the training thread" in line.meaning
    assert "nobody has tried it" in line.meaning
