"""Which kernels communicate: by the names of their functions, not by words in them."""

from __future__ import annotations

import pytest

from ddlprof.importing import names
from ddlprof.importing.names import ActivityKind, message_of, sizes_of


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymkDevKernel_ReduceScatter_LD(ncclSymkDevWorkArgs)",
        "rcclGenericKernel",
        "ncclDevKernel_Generic_2(ncclDevKernelArgsStorage<4096ul>) [clone .kd]",
        "void rocshmem::rocshmem_alltoall_kernel<float>(float*)",
        "void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8>(aiter::RankData*)",
        "mscclKernel_Sum_float_LL_false(ncclDevComm*)",
        "void mscclpp::allreduce::kernel<float>(float*)",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
        "void c10d::symmetric_memory::(anonymous namespace)::one_shot_all_reduce_kernel<float>(float**)",
        "void c10d::symmetric_memory::barrier_kernel(unsigned int**)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 8>(AllReduceParams)",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<4>(Params)",
        "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)",
        "void deep_ep::internode_ll::combine<true>(void*)",
        "nvshmemi_transfer_kernel",
        "userbuffers_fp16_sum_inplace_gpu_rw<8>(int, int)",
        "void quickreduce::allreduce_prototype_twoshot<half>(half const*)",
    ],
)
def test_communication(name: str) -> None:
    assert names.kernel_kind(name) is ActivityKind.COMMUNICATION


@pytest.mark.parametrize(
    "name",
    [
        "triton_poi_fused__c10d_functional_all_reduce_add_3",
        "triton_red_fused_nccl_broadcast_mul_1",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>(ReduceOp)",
        "void splitKreduce_kernel<float, float>(cublasSplitKParams<float>)",
        "void at::native::_scatter_gather_elementwise_kernel<128, 4, at::native::gather>(int)",
        "void cub::DeviceReduceKernel<allreduce_policy>(int*)",
        "void at::native::vectorized_elementwise_kernel<4, broadcast_functor>(int)",
        "ampere_sgemm_128x64_tn",
    ],
)
def test_words_in_a_name_are_no_evidence(name: str) -> None:
    assert names.kernel_kind(name) is ActivityKind.COMPUTE
    assert names.is_known(name)


@pytest.mark.parametrize(
    ("name", "launches", "graph"),
    [
        ("hipGraphLaunch", True, True), ("cudaGraphLaunch", True, True), ("hipLaunchKernel", True, False),
        ("hipExtModuleLaunchKernel", True, False), ("hipMemcpyWithStream", True, False),
        ("hipStreamSynchronize", False, False),
    ],
)  # fmt: skip
def test_calls_of_either_driver(name: str, launches: bool, graph: bool) -> None:
    assert (names.is_launch(name), names.is_graph_launch(name)) == (launches, graph)


@pytest.mark.parametrize(
    "name",
    [
        "cudaLaunchKernel",
        "hipExtModuleLaunchKernel",
        "hipMemcpyWithStream",
        "urEnqueueKernelLaunch",
        "urEnqueueMemBufferWrite",
        "zeCommandListAppendMemoryCopy",
    ],
)
def test_calls_that_start_something_on_the_device(name: str) -> None:
    assert names.is_launch(name)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Memcpy HtoD (Pinned -> Device)", ActivityKind.TO_DEVICE),
        ("Memcpy HtoD (Pageable -> Device)", ActivityKind.TO_DEVICE),
        ("Memcpy HtoD (Host -> Device)", ActivityKind.TO_DEVICE),
        ("CopyHostToDevice", ActivityKind.TO_DEVICE),
        ("Memcpy DtoH (Device -> Pageable)", ActivityKind.FROM_DEVICE),
        ("Memcpy DtoH (Device -> Pinned)", ActivityKind.FROM_DEVICE),
        ("CopyDeviceToHost", ActivityKind.FROM_DEVICE),
        ("Memcpy DtoD (Device -> Device)", ActivityKind.COMPUTE),
        ("Memcpy PtoP (Device -> Device)", ActivityKind.COMMUNICATION),
        ("Memcpy M2D (MEMORY(Unknown) -> DEVICE)", ActivityKind.TO_DEVICE),
        ("Memcpy H2D (HOST -> DEVICE)", ActivityKind.TO_DEVICE),
        ("Memcpy D2M (DEVICE -> MEMORY(Unknown))", ActivityKind.FROM_DEVICE),
        ("Memcpy D2D (DEVICE -> DEVICE)", ActivityKind.COMPUTE),
    ],
)
def test_copies(name: str, kind: ActivityKind) -> None:
    assert names.copy_kind(name) is kind


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("allreduce_", "allreduce"), ("_allgather_base_", "allgather"), ("_reduce_scatter_base", "reducescatter"),
        ("alltoall_base_", "alltoall"), ("all_to_allv", "alltoall"), ("broadcast_", "broadcast"), ("reduce_", "reduce"),
        ("recv_any_source_", "recv"), ("sum", None),
    ],
)  # fmt: skip
def test_operations(name: str, op: str | None) -> None:
    assert names.plain_op(name) == op


def test_what_torch_writes_beside_a_collective() -> None:
    args = {"Collective name": "_allgather_base", "In msg nelems": 10, "Out msg nelems": 80, "dtype": "BFloat16",
            "Group size": 8, "Process Group Name": "3", "Process Group Ranks": "[0, 1]"}  # fmt: skip
    assert message_of(args, None) == names.Message("allgather", "3 [0,1]", 8, 160)
    assert message_of({**args, "dtype": "strange"}, None) == names.Message("allgather", "3 [0,1]", 8, None)
    described = message_of({**args, "Process Group Description": "mesh_tp"}, None)
    assert described == names.Message("allgather", "3 [0,1]", 8, 160, "tensor")
    assert message_of({**args, "Process Group Description": 7}, None) == names.Message("allgather", "3 [0,1]", 8, 160)
    assert message_of({**args, "Collective name": "send"}, None) is None
    assert message_of({"Collective name": "allreduce"}, None) is None
    assert sizes_of({"Input Dims": [[2, 3], []], "Input type": ["float", "long int"]}) == 32
    assert sizes_of({"Input Dims": [["x"]], "Input type": ["float"]}) is None
    assert sizes_of({}) is None
