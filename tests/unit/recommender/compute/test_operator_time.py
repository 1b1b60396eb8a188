"""Seconds of operators: in the right order, additive, with errors in one line."""

from __future__ import annotations

import dataclasses
import math

import pytest

from ddlprof import instance_catalog
from ddlprof.instance_catalog import Gpu, Reached
from ddlprof.model.operators import BY_PLACE, Operator, StepOperators
from ddlprof.recommender.compute.gpu_peaks import matrix_of, peak_of, peak_tflops, peaks_of, precision_class
from ddlprof.recommender.compute.operator_time import OperatorModel
from ddlprof.recommender.errors import PredictionError

CATALOG = instance_catalog.load()
MODEL = OperatorModel.shipped()


def product(m: int, n: int, k: int, b: int = 1, dtype: str = "fp32", count: float = 1) -> Operator:
    element = 4 if dtype == "fp32" else 2
    moved = element * b * (m * k + k * n + m * n)
    return Operator("product", "forward", "mm", dtype, (b, m, n, k), 2.0 * b * m * n * k, moved, 1, count, grows=1)


def elementwise(elements: int, phase: str = "forward", count: float = 1) -> Operator:
    return Operator("elementwise", phase, "add", "fp32", (elements,), 0, 12.0 * elements, 1, count, grows=0)


def step(*operators: Operator, precision: str = "fp32") -> StepOperators:
    return StepOperators(8, precision, operators)


def test_a_faster_data_sheet_never_takes_longer() -> None:
    gpu = CATALOG.gpu("A100-SXM4-40GB")
    assert gpu.memory_bandwidth_gb_s
    assert gpu.fp32_tflops
    work = [product(4096, 4096, 4096), product(64, 64, 64), elementwise(10**8)]
    before = MODEL.operators(work, gpu)
    faster_memory = dataclasses.replace(gpu, memory_bandwidth_gb_s=2 * gpu.memory_bandwidth_gb_s)
    faster_cores = dataclasses.replace(gpu, fp32_tflops=2 * gpu.fp32_tflops)
    assert (MODEL.operators(work, faster_memory) <= before).all()
    assert MODEL.operators(work, faster_memory)[2] < 0.6 * before[2]
    assert (MODEL.operators(work, faster_cores) <= before).all()
    assert MODEL.operators(work, faster_cores)[0] < 0.8 * before[0]


def attention(name: str, dtype: str, width: int = 128) -> Operator:
    return Operator("attention", "forward", f"scaled_dot_product_{name}_attention", dtype, (32, 8192, 8192, width),
                    4.0 * 32 * 8192 * 8192 * width, 1e6, 1, 1, grows=0)  # fmt: skip


def test_attention_in_fp32_takes_three_to_four_times_as_long() -> None:
    """In torch's memory-efficient kernel, which is half as fast as flash attention."""
    work = [attention("flash", "bf16"), attention("efficient", "bf16"), attention("efficient", "fp32")]
    gpu, older = CATALOG.gpu("A100-SXM4-40GB"), CATALOG.gpu("V100-SXM2-16GB")
    flash_s, half_s, fp32_s = MODEL.operators(work, gpu)
    assert half_s == pytest.approx(2 * flash_s, rel=0.01)
    assert fp32_s == pytest.approx(3.6 * half_s, rel=0.01)  # xformers 467 and 587: 3.1 to 4.3
    assert MODEL.operators(work[2:], gpu, tf32=True)[0] == fp32_s
    assert older.fp32_tflops is not None
    assert MODEL.operators(work[2:], older)[0] > work[2].flops / (older.fp32_tflops * 1e12)


def test_memory_efficient_attention_has_tiles_for_heads_of_64_and_128() -> None:
    """Heads between have a whole tile in their results, and sums of wider ones are in registers in no kernel of it."""
    widths, gpu = (64, 96, 128, 256), CATALOG.gpu("A100-SXM4-40GB")
    flash, half, fp32 = (
        [MODEL.operators([attention(name, dtype, width)], gpu)[0] for width in widths]
        for name, dtype in (("flash", "bf16"), ("efficient", "bf16"), ("efficient", "fp32"))
    )
    assert [slow / fast for slow, fast in zip(half, flash, strict=True)] == pytest.approx([2, 2.19, 2, 4], rel=0.01)
    assert half[1] / half[2] == pytest.approx((96 + 128) / (2 * 128), rel=0.01)
    assert fp32[3] < 2 * fp32[2]


@pytest.mark.parametrize(
    ("name", "kernel", "share"),
    [
        ("A100-SXM4-80GB", "flash", 0.6), ("H100-SXM5-80GB", "flash", 0.35), ("RTX-5090", "flash", 0.89),
        ("H100-SXM5-80GB", "efficient", 0.16), ("RTX-5090", "efficient", 0.3), ("H100-SXM5-80GB", "cudnn", 0.6),
        ("B200", "flash", 0.6),
    ],
)  # fmt: skip
def test_kernels_of_ampere_use_less_of_wide_sms(name: str, kernel: str, share: float) -> None:
    """The level of a generation is up to an eighth from one."""
    gpu, work = CATALOG.gpu(name), attention(kernel, "bf16")
    assert gpu.bf16_tflops is not None
    assert work.flops / MODEL.operators([work], gpu)[0] / (gpu.bf16_tflops * 1e12) == pytest.approx(share, rel=0.13)


def test_bytes_in_the_kernel_of_another_operator_take_time_and_no_start() -> None:
    """torch.compile joins operators: the launch of the kernel is counted with one of them, its bytes with all."""
    gpu = CATALOG.gpu("A100-SXM4-40GB")
    alone = elementwise(10**8)
    joined, small = alone.fused(alone.bytes, 0.0), elementwise(8).fused(96.0, 0.0)
    own, within, nothing = MODEL.operators([alone, joined, small], gpu)
    assert within == pytest.approx(own, rel=0.1)
    assert within < own
    assert nothing < 0.01 * MODEL.operators([elementwise(8)], gpu)[0]


def test_tensor_cores_where_the_type_has_them() -> None:
    gpu = CATALOG.gpu("A100-SXM4-40GB")
    fp32, half = MODEL.operators([product(4096, 4096, 4096), product(4096, 4096, 4096, dtype="bf16")], gpu)
    tf32 = MODEL.operators([product(4096, 4096, 4096)], gpu, tf32=True)[0]
    assert half < 0.7 * tf32 < 0.3 * fp32
    volta = CATALOG.gpu("V100-SXM2-16GB")
    work = [product(4096, 4096, 4096)]
    assert MODEL.operators(work, volta, tf32=True)[0] == MODEL.operators(work, volta)[0]


@pytest.mark.parametrize(
    ("name", "tflops"), [("A100-SXM4-80GB", 271.0), ("H100-SXM5-80GB", 795.0), ("RTX-PRO-6000-Blackwell-SE", 417.3)]
)
def test_large_products_take_what_was_published(name: str, tflops: float) -> None:
    """scripts/fit/large_products.csv has the sources. Other figures of the same GPU differ by a sixth."""
    [seconds] = MODEL.operators([product(8192, 8192, 8192, dtype="bf16")], CATALOG.gpu(name))
    assert 2e-12 * 8192**3 / seconds == pytest.approx(tflops, rel=0.15)


@pytest.mark.parametrize("name", ["T4", "V100-SXM2-16GB"])
def test_bf16_without_tensor_cores_is_slow_and_says_so(name: str) -> None:
    gpu = CATALOG.gpu(name)
    bf16 = MODEL.step(step(product(4096, 4096, 4096, dtype="bf16")), gpu)
    fp16 = MODEL.step(step(product(4096, 4096, 4096, dtype="fp16")), gpu)
    assert bf16.step_s > 2 * fp16.step_s
    assert any("no tensor cores for bf16" in line for line in bf16.basis)
    assert bf16.sd > MODEL.step(step(product(4096, 4096, 4096)), gpu).sd


def test_what_a_gpu_lacks_is_one_line() -> None:
    with pytest.raises(PredictionError, match="T4 has no fp8: ask for bf16") as error:
        MODEL.step(step(product(64, 64, 64, dtype="fp8")), CATALOG.gpu("T4"))
    assert "\n" not in str(error.value)
    with pytest.raises(PredictionError, match="knows no peak speed"):
        MODEL.step(step(product(64, 64, 64)), Gpu("X1"))


@pytest.mark.parametrize("gpu", CATALOG.gpus, ids=lambda gpu: gpu.gpu_model)
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp8", "tf32"])
def test_a_peak_that_the_catalogue_does_not_know_is_no_lack_of_tensor_cores(gpu: Gpu, dtype: str) -> None:
    """A GPU that is said to have no tensor figures, whatever it is, computes on CUDA cores or not predictably."""
    emptied = dataclasses.replace(
        gpu, fp16_tensor_tflops=None, bf16_tflops=None, tf32_tflops=None, fp32_tflops=10.0, memory_bandwidth_gb_s=100.0
    )
    work = [product(4096, 4096, 4096, dtype="fp32" if dtype == "tf32" else dtype)]
    first = {"fp16": 7.0, "bf16": 8.0, "tf32": 8.0, "fp8": 8.9}[dtype]
    # GPUs of AMD have matrix cores; those for fp8 follow from the architecture, and TF32 is there where its peak is.
    matrix = matrix_of(gpu)
    has = float(gpu.compute_capability or 0) >= first
    if matrix is not None:
        has = {"tf32": False, "fp8": matrix.fp8}.get(dtype, True)
    if has:
        with pytest.raises(PredictionError, match=f"{gpu.gpu_model}: the catalogue does not know its peak in {dtype}"):
            MODEL.operators(work, emptied, tf32=dtype == "tf32")
    elif dtype != "fp8":
        assert MODEL.operators(work, emptied, tf32=dtype == "tf32")[0] > 0
    assert MODEL.operators([product(4096, 4096, 4096)], emptied)[0] > 0
    if dtype in ("fp16", "tf32"):
        known = peak_tflops(emptied, precision_class(dtype, emptied))
        assert (known is None) == has


def test_gpus_of_amd_are_computed_from_their_data_sheets() -> None:
    """Peaks by type, and the wider interval of a GPU of which nothing was fitted."""
    work = step(product(8192, 8192, 8192, dtype="bf16"))
    h100, mi300x = (MODEL.step(work, CATALOG.gpu(name)) for name in ("H100", "MI300X"))
    assert mi300x.extrapolated
    assert mi300x.sd > h100.sd
    assert any("data sheet, with the efficiencies of NVIDIA's Ampere" in line for line in mi300x.basis)
    machine = peaks_of(CATALOG.gpu("MI355X"))
    assert peak_of(machine, "fp8", False).flops_s == pytest.approx(5033.2e12)
    assert peak_of(machine, "fp32", True).flops_s == pytest.approx(157.3e12)  # it has no TF32
    assert peak_of(peaks_of(CATALOG.gpu("MI300X")), "fp32", True).flops_s == pytest.approx(653.7e12)
    with pytest.raises(PredictionError, match="MI250X has no fp8"):
        peak_of(peaks_of(CATALOG.gpu("MI250X")), "fp8", False)
    assert precision_class("tf32", CATALOG.gpu("MI355X")) == "fp32"
    assert precision_class("tf32", CATALOG.gpu("MI325X")) == "tf32"


def test_matrix_cores_do_a_power_of_two_of_operations_in_a_clock() -> None:
    widths = {name: peaks_of(CATALOG.gpu(name)).tensor for name in ("MI250X", "MI300X", "MI355X")}
    assert [found.width for found in widths.values() if found] == [1024, 2048, 4096]
    assert widths["MI300X"] is not None
    assert widths["MI300X"].clock_hz == pytest.approx(2.1e9, rel=0.001)
    assert (widths["MI300X"].l2_bytes, widths["MI300X"].shares_loads) == (256e6, False)


@pytest.mark.parametrize("capability", ["", None, "unknown", "12.0"])
def test_a_gpu_of_unknown_capability_may_have_tensor_cores(capability: str | None) -> None:
    gpu = Gpu("X1", compute_capability=capability, fp32_tflops=10.0, memory_bandwidth_gb_s=100.0)
    assert peak_tflops(gpu, "half") is None
    with pytest.raises(PredictionError, match="X1: the catalogue does not know its peak in fp16: choose another GPU"):
        MODEL.operators([product(64, 64, 64, dtype="fp16")], gpu)


def test_a_probe_takes_the_place_of_what_was_learned() -> None:
    gpu = CATALOG.gpu("L4")
    job = step(product(8192, 8192, 8192), elementwise(10**9))
    seconds = MODEL.operators(job.operators, gpu)
    reached = Reached("L4", fp32_tflops=5.0, memory_gb_s=100.0)
    probed = MODEL.operators(job.operators, gpu, reached=reached)
    assert math.isclose(probed[0], 2 * 8192**3 / 5e12, rel_tol=0.01)
    assert math.isclose(probed[1], 12e9 / 100e9, rel_tol=0.01)
    assert (probed > seconds).all()
    assert MODEL.step(job, gpu, reached=reached).sd < MODEL.step(job, gpu).sd


def test_an_operator_that_nobody_fitted_is_named_and_widens() -> None:
    gpu = CATALOG.gpu("T4")
    strange = Operator("other", "forward", "fft_r2c", "fp32", (10**9,), 0, 8e9, 1, 1, grows=0)
    plain, mixed = MODEL.step(step(elementwise(10**9)), gpu), MODEL.step(step(elementwise(10**9), strange), gpu)
    assert mixed.sd > plain.sd
    assert 0.2 < mixed.unfitted_share < 0.8
    assert any("fft_r2c" in line for line in mixed.basis)


def convolution(dtype: str) -> Operator:
    flops, moved = 2.0 * 64 * 3136 * 64 * 576, 2.0 * 2 * 64 * 3136 * 64
    return Operator("convolution", "forward", "convolution", dtype, (64, 3136, 64, 576, 1, 9), flops, moved, 1.0, 50.0)


@pytest.mark.parametrize(
    ("name", "dtype", "faster"),
    [("A100-SXM4-40GB", "fp16", True), ("V100-SXM2-16GB", "fp16", True), ("A100-SXM4-40GB", "fp32", False),
     ("P100-PCIE-16GB", "fp16", False)],
)  # fmt: skip
def test_channels_last_make_convolutions_faster_in_half_precision_on_tensor_cores(
    name: str, dtype: str, faster: bool
) -> None:
    first, gpu = step(convolution(dtype), precision="amp-fp16"), CATALOG.gpu(name)
    last = dataclasses.replace(first, channels_last=True)
    before, after = MODEL.step(first, gpu), MODEL.step(last, gpu)
    assert (after.step_s < 0.95 * before.step_s) is faster
    assert (after.sd > before.sd) is faster
    if not faster:
        assert after.step_s == before.step_s
    assert MODEL.spent(last, gpu).computing_s <= MODEL.spent(first, gpu).computing_s


def by_place(elements: int, dtype: str, accesses: int) -> Operator:
    moved = accesses * elements * (4 if dtype == "fp32" else 2)
    return Operator("elementwise", "forward", f"mul{BY_PLACE}", dtype, (elements,), 0, moved, 1, 1, grows=0)


def test_kernels_that_compute_places_take_the_clocks_of_sms() -> None:
    """9.2 million elements took 25 to 32 us on an H100 in 16 bits (TraceLens), by their bytes 13; with graphics memory
    bytes take longer, and torch.compile makes other kernels."""
    placed = by_place(9_158_656, "bf16", 2)
    plain = dataclasses.replace(placed, name="mul")
    h100, l40s = CATALOG.gpu("H100-SXM5-80GB"), CATALOG.gpu("L40S")
    compiled = dataclasses.replace(step(placed), compiled=True)
    assert 25e-6 < elementwise_s(step(placed), h100) < 32e-6
    assert elementwise_s(step(plain), h100) < 16e-6
    assert elementwise_s(compiled, h100) < 16e-6
    assert elementwise_s(step(placed), l40s) == elementwise_s(step(plain), l40s)


def elementwise_s(work: StepOperators, gpu: Gpu) -> float:
    return MODEL.kernel_seconds(work, gpu)["elementwise"]
