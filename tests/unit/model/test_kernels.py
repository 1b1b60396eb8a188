"""Which kernels are communication, and whose."""

from __future__ import annotations

import pytest

from ddlprof.model.kernels import Activity, is_communication, match_kernels

COMPUTATION = [
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(at::native::ReduceOp<float>)",
    "triton_poi_fused_all_reduce_wait_tensor_0",
    "triton_red_fused_add_all_gather_into_tensor_mean_3",
    "void gemm<nccl_like_tile>(float*)",
    "all_reduce_rms_norm_reference(float*)",
    "Memcpy DtoD (Device -> Device)",
    "Memcpy HtoD (Pageable -> Device)",
    "Memset (Device)",
    "void at::native::(anonymous namespace)::indexSelectLargeIndex<float>(sendrecv_info)",
    "",
]  # fmt: skip


@pytest.mark.parametrize("name", COMPUTATION)
def test_what_only_mentions_a_collective_computes(name: str) -> None:
    assert not is_communication(name)


def kernel(name: str, begin: int, end: int) -> Activity:
    return Activity(f"ncclDevKernel_{name}(ncclDevKernelArgsStorage<4096ul>)", begin, end)


def test_a_kernel_for_each_collective() -> None:
    kernels = [
        kernel("AllGather_RING_LL", 0, 5),
        kernel("ReduceScatter_Sum_f32_RING_LL", 5, 15),
        kernel("AllReduce_Sum_f32_TREE_LL", 20, 22),
        kernel("SendRecv", 22, 23),
        kernel("Generic_4", 30, 34),
        kernel("AllReduce_Sum_u32_RING_LL", 40, 41),
    ]
    ops = ["_allgather_base", "_reduce_scatter_base", "allreduce_coalesced", "alltoall_base", "broadcast", "barrier"]
    assert match_kernels(ops, kernels) == [5, 10, 2, 1, 4, 1]


def test_nothing_is_told_where_numbers_or_kinds_differ() -> None:
    kernels = [kernel("AllReduce_Sum_f32_RING_LL", 0, 5), kernel("AllGather_RING_LL", 5, 8)]
    assert match_kernels(["allreduce"], kernels) is None
    assert match_kernels(["_allgather_base", "allreduce"], kernels) is None
    assert match_kernels(["reduce", "_allgather_base"], kernels) is None
    assert match_kernels(["allreduce", "_allgather_base"], kernels) == [5, 3]
    assert match_kernels([], []) == []
