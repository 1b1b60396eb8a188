"""Convolutions in 16 bits on tensor cores by the layout of their channels, with the shipped coefficients."""

from __future__ import annotations

import dataclasses

import pytest

from ddlprof.model.operators import Operator, StepOperators
from ddlprof.recommender.compute.operator_time import OperatorModel
from ddlprof.recommender.target import default_catalog

MODEL, CATALOG = OperatorModel.shipped(), default_catalog()


def step(channels: int, groups: int = 1, window: int = 9, made: int | None = None) -> StepOperators:
    """256 images of 28 x 28 pixels; `channels` in, and `made` or as many out, of each group."""
    images, pixels, made = 256, 784, made or channels
    flops = 2.0 * images * pixels * made * channels * window * groups
    moved = 2.0 * groups * (images * pixels * (made + channels) + made * channels * window)
    shape = (images, pixels, made, channels * window, groups, window)
    operator = Operator("convolution", "forward", "convolution", "fp16", shape, flops, moved, 1.0, 50.0)
    return StepOperators(256, "amp-fp16", (operator,), "none")


def last_over_first(of: StepOperators, gpu: str = "RTX3090-24GB") -> float:
    """The seconds with channels last over those with channels first."""
    last, first = (MODEL.step(dataclasses.replace(of, channels_last=last), CATALOG.gpu(gpu)) for last in (True, False))
    return last.step_s / first.step_s


@pytest.mark.parametrize("gpu", ["RTX3090-24GB", "A100-SXM4-80GB", "H100-SXM5-80GB", "V100-SXM2-16GB"])
def test_channels_last_spare_copies(gpu: str) -> None:
    assert last_over_first(step(128), gpu) < 0.95


def test_wider_sms_do_not_convolve_faster_in_proportion() -> None:
    wide, narrow = CATALOG.gpu("H100-SXM5-80GB"), CATALOG.gpu("RTX3090-24GB")
    operations = [MODEL.step(step(128), gpu).step_s * (gpu.bf16_tflops or 0.0) for gpu in (wide, narrow)]
    assert operations[0] > 2 * operations[1]


def test_only_some_groups_have_fast_kernels_with_channels_last() -> None:
    assert last_over_first(step(8, groups=32)) < 1.0  # ResNeXt
    assert last_over_first(step(128, groups=4)) > 2.0  # RepVGG
    assert last_over_first(step(128, groups=2)) > 2.0  # NFNet
    assert last_over_first(step(16, groups=64, made=32)) > last_over_first(step(32, groups=64))  # SENet-154


def test_groups_of_128_channels_reach_more_with_channels_last() -> None:
    gpu = CATALOG.gpu("RTX3090-24GB")

    def of_an_operation(channels: int) -> float:
        last = dataclasses.replace(step(channels, groups=4), channels_last=True)
        return MODEL.step(last, gpu).step_s / last.operators[0].flops

    assert of_an_operation(64) > 2 * of_an_operation(128)  # ECA-NFNet-L0 and NFNet
    assert of_an_operation(32) == pytest.approx(of_an_operation(64), rel=0.1)


def test_large_depthwise_windows_are_slow_with_channels_last() -> None:
    assert last_over_first(step(1, groups=512, window=25)) < 1.0
    assert last_over_first(step(1, groups=512, window=81)) > 1.5


def test_channels_that_are_no_multiple_of_8_are_padded_with_channels_last() -> None:
    assert last_over_first(step(100)) > 1.05 * last_over_first(step(104))


def test_a_depthwise_convolution_takes_longer_with_more_pixels_in_its_window() -> None:
    gpu = CATALOG.gpu("RTX3090-24GB")
    seconds = [MODEL.step(step(1, groups=512, window=window), gpu).step_s for window in (9, 25, 49)]
    assert seconds == sorted(set(seconds))
