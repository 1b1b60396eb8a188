"""Where steps begin and end, on the host and on the device, and what cannot be told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddlprof.base.errors import UserError
from ddlprof.importing.job import as_job
from ddlprof.importing.names import Message
from ddlprof.importing.reading import OutsideEvents
from ddlprof.importing.trace import RankTrace, as_rank
from ddlprof.importing.trace_columns import Collector
from ddlprof.importing.writing import groups_of
from ddlprof.model.records import GroupFacts
from tests.unit.importing.test_properties import read, rows
from tests.unit.importing.traces import (
    BACKWARD_THREAD,
    GEMM,
    NCCL,
    Device,
    Event,
    backward,
    device_trace,
    event,
    forward,
    host_trace,
    mark,
    of_rank,
    update,
)


def unmarked(events: list[Event]) -> list[Event]:
    return [each for each in events if not each["name"].startswith("ProfilerStep")]


def test_without_marks_updates_tell_the_steps() -> None:
    trace = read(unmarked(host_trace(steps=5)))
    assert [row.step for row in rows(trace)] == [0, 1, 2, 3]
    assert {row.step_ns for row in rows(trace)} == {10_000_000}
    assert "no ProfilerStep ranges" in " ".join(trace.notes)


def test_several_optimizers_make_one_update() -> None:
    events = unmarked(host_trace(steps=5))
    events += [update(1_000_000 + 10_000 * number + 9100, 50, "Adam") for number in range(5)]
    assert [row.step_ns for row in rows(read(events))] == [10_000_000] * 4


def test_without_either_the_trace_is_one_step() -> None:
    events = [each for each in unmarked(device_trace(steps=2)) if not each["name"].startswith("Optimizer")]
    trace = read(events)
    assert [row.step for row in rows(trace)] == [0]
    assert "all of it is taken as one step" in " ".join(trace.notes)


def test_a_step_that_the_end_of_the_trace_cuts_off_is_left_out() -> None:
    trace = read([*host_trace(steps=5), mark(15, 1_050_000, 40)])
    assert [row.step for row in rows(trace)] == [10, 11, 12, 13, 14]
    assert "ProfilerStep#15 left out" in " ".join(trace.notes)


def test_steps_of_a_device_that_lags_behind_are_its_own() -> None:
    """The host needs 10 µs for each step and is done before the device has begun the second."""
    device = Device()
    for number in range(4):
        device.run(GEMM, 1000 + 10 * number, 1005 + 300 * number, 300)
    marks = [mark(number, 998 + 10 * number, 10) for number in range(4)]
    found = rows(read([*marks, *device.events]))
    assert [row.step_ns for row in found] == [307_000, 300_000, 300_000, 300_000]
    assert [row.compute_ns for row in found] == [300_000] * 4


def test_work_from_before_the_trace_belongs_to_no_step() -> None:
    """Its launches are not there, and it comes first on its stream."""
    device = Device()
    device.run(GEMM, 1010, 1500, 100)
    before = event("kernel", GEMM, 900, 600, 7, device=0, stream=7, correlation=77)
    (row,) = rows(read([mark(3, 1000, 20), before, *device.events]))
    assert (row.step_ns, row.compute_ns) == (100_000, 100_000)


def test_a_graph_has_no_parts() -> None:
    device = Device()
    device.run(GEMM, 1010, 1020, 100)
    for call in device.events[:1]:
        call["name"] = "cudaGraphLaunch"
    events = [mark(0, 1000, 200), forward(1001, 1), backward(1003, 1), update(1150, 20), *device.events]
    assert rows(read(events))[0].compute_forward_ns is None


def test_a_job_with_a_device_whose_trace_has_none_has_no_communication() -> None:
    events = [each for each in host_trace() if not each["name"].startswith("gloo")]
    trace = read(events, **of_rank(0, 2, "nccl"))
    assert trace.device_name == "NVIDIA A100-SXM4-80GB"
    of_data_alone(trace)


def of_data_alone(trace: RankTrace) -> None:
    assert rows(trace)
    for row in rows(trace):
        assert row.compute_ns is row.compute_forward_ns is row.h2d_ns is row.comm_ns is None
        assert row.data_ns
        assert row.data_ns + row.other_ns == row.step_ns
    assert "does not show what the job's device" in " ".join(trace.notes)


@pytest.mark.parametrize(
    ("category", "name"),
    [
        ("mtia_ccp_events", "mtia"),
        ("hpu_op", "hpu"),
        ("xpu_driver", "xpu"),
        ("async_npu", "npu"),
        ("privateuse1_runtime", "privateuse1"),
    ],
)
def test_a_trace_of_a_device_that_is_not_understood_is_none_of_a_cpu(category: str, name: str) -> None:
    trace = read([*host_trace(), {**event(category, "something", 1_000_100, 50), "ph": "s"}])
    assert trace.device_name == name
    of_data_alone(trace)


def test_a_trace_of_an_xpu_has_the_classes_of_one_of_cuda() -> None:
    """The same work under the names that Kineto gives it there, and calls of the driver beside those of the runtime."""
    xpu: list[Event] = []
    for each in device_trace():
        if each["cat"] == "gpu_memcpy":
            xpu.append({**each, "name": "Memcpy M2D (MEMORY(Unknown) -> DEVICE)"})
        elif each["cat"] == "cuda_runtime":
            xpu.append({**each, "cat": "xpu_runtime", "name": "urEnqueueKernelLaunch"})
            xpu.append({**each, "cat": "xpu_driver", "name": "zeCommandListAppendLaunchKernel", "ts": each["ts"] + 0.1})
        else:
            xpu.append(each)
    found, cuda = read(xpu), read(device_trace())
    assert rows(found) == rows(cuda)
    assert all(row.h2d_ns == 100_000 for row in rows(found)[1:])
    assert found.device_name == "xpu"


def test_launches_without_kernels_are_of_a_device_that_was_not_recorded() -> None:
    trace = read([*host_trace(), event("cuda_runtime", "cudaLaunchKernel", 1_000_100, 5, correlation=3)])
    of_data_alone(trace)


def test_categories_of_the_script_itself_are_no_device() -> None:
    trace = read([*host_trace(), event("python_function", "npu.py: to_hpu", 1_000_100, 5), event("my_op", "xpu", 1, 1)])
    assert trace.device_name == "cpu"
    assert all(row.compute_ns for row in rows(trace))


def test_without_a_loader_data_is_not_measured() -> None:
    events = [each for each in device_trace() if not each["name"].startswith("enumerate")]
    assert all(row.data_ns is None for row in rows(read(events)))


def test_backward_passes_are_counted_and_recomputing_is_none() -> None:
    events: list[Event] = [mark(0, 1000, 100)]
    for at in (1010, 1040):
        events += [forward(at, 5), backward(at + 10, 10, BACKWARD_THREAD), forward(at + 12, 2)]
    trace = read([*events, update(1090, 5)])
    assert trace.passes.tolist() == [2]


def test_kernels_that_no_pattern_knows_are_named() -> None:
    device = Device()
    device.run("mystery_7", 1010, 1020, 30)
    device.run(GEMM, 1011, 1050, 70)
    notes = " ".join(read([mark(0, 1000, 200), *device.events]).notes)
    assert "30.0 % of the time in kernels" in notes
    assert "mystery_7" in notes


def test_the_kernel_of_a_collective_may_come_before_what_describes_it() -> None:
    """Older torch writes the group into an operator that has the kernel's external id."""
    device = Device()
    device.run(NCCL, 1010, 1020, 50)
    device.events[-1]["args"]["External id"] = 5
    args: dict[str, Any] = {"External id": 5, "Collective name": "allreduce", "dtype": "Float", "Group size": 2,
                            "In msg nelems": 7, "Process Group Name": "0"}  # fmt: skip
    trace = read([*device.events, event("cpu_op", "record_param_comms", 1009, 5, **args), mark(0, 1000, 200)])
    assert trace.transfers.messages == [Message("allreduce", "0", 2, 28)]
    assert trace.transfers.exposed.tolist() == [50_000]
    assert groups_of(trace) == []


def test_descriptions_of_groups_tell_their_dimensions() -> None:
    device = Device()
    for number, description in enumerate(("mesh_tp", "default_pg", "mesh_tp")):
        device.run(NCCL, 1010 + 100 * number, 1020 + 100 * number, 50)
        device.events[-1]["args"] |= {
            "Collective name": "allreduce", "dtype": "Float", "Group size": 2, "In msg nelems": 7,
            "Process Group Name": description[-1], "Process Group Description": description,
        }  # fmt: skip
    trace = read([*device.events, mark(0, 1000, 400)])
    assert groups_of(trace) == [GroupFacts("p", "tensor", "tensor", 2)]


def test_ranks_of_jobs_of_two_sizes() -> None:
    traces = [read(device_trace(), **of_rank(rank, size)) for rank, size in ((0, 2), (1, 4))]
    with pytest.raises(UserError, match=r"of a job of 2 ranks and .* of 4 ranks"):
        as_job(traces)


def test_cycles_of_one_process_are_no_ranks() -> None:
    cycles = [read(device_trace(begin=begin)) for begin in (2e6, 1e6)]
    with pytest.raises(UserError, match="of one process, one after the other"):
        as_job(cycles)
    at_once = [read(device_trace(late_us=late)) for late in (0, 50)]  # in containers, whose numbers are alike
    assert len(as_job(at_once).ranks) == 2


def test_traces_without_a_rank_are_numbered_by_their_names() -> None:
    from dataclasses import replace

    traces = [replace(read(device_trace()), path=Path(f"rank{number}.json")) for number in (10, 2, 1)]
    job = as_job(traces)
    assert [trace.path.name for trace in job.ranks.values()] == ["rank1.json", "rank2.json", "rank10.json"]
    assert job.world_size == 3
    assert "numbered in the order of their names" in " ".join(job.notes)


def test_pauses_inside_a_backward_pass_are_computing_and_others_are_not() -> None:
    """Torch's engine is at work between two of its functions; between forward and backward it may be the script."""
    events = [mark(0, 0, 10_000), forward(1000, 1000), backward(3000, 1000), backward(5000, 1000), update(8000, 1000)]
    (row,) = rows(read(events))
    assert (row.compute_forward_ns, row.compute_backward_ns, row.compute_optimizer_ns) == (10**6, 3 * 10**6, 10**6)
    assert row.other_ns == 5 * 10**6


def test_being_woken_is_waiting() -> None:
    events = [mark(0, 0, 10_000), forward(1000, 1000), backward(2000, 1000), update(6800, 1000)]
    events += [
        event("cpu_op", "c10d::allreduce_", 2900, 50),
        event("user_annotation", "gloo:all_reduce", 2950, 3050, 9),
    ]
    (row,) = rows(read(events))
    assert row.comm_ns == 3_800_000
    assert row.compute_ns == 3_000_000


def test_a_trace_of_a_device_alone_has_its_own_marks() -> None:
    kernels = [event("kernel", GEMM, 1000 + 100 * number, 60, 7, device=0) for number in range(3)]
    marks = [event("gpu_user_annotation", f"ProfilerStep#{number}", 1000 + 100 * number, 60, 7) for number in range(3)]
    assert [(row.step_ns, row.compute_ns) for row in rows(read([*kernels, *marks]))] == [(60_000, 60_000)] * 3


def torn(events: list[Event]) -> RankTrace:
    collector = Collector()
    for each in events:
        collector.add(each)
    return as_rank(Path("a.json"), collector.finish(), OutsideEvents({}, has_events=True, torn=True))


def test_steps_whose_kernels_were_torn_off_are_no_idle_steps() -> None:
    """Kineto writes a stream after all threads."""
    events = device_trace(steps=10)
    whole = [each for each in events if each["cat"] != "kernel"] + [each for each in events if each["cat"] == "kernel"]
    kernels = sum(each["cat"] == "kernel" for each in events)
    assert torn(whole[: -kernels // 2]).steps.number.tolist() == [10, 11, 12, 13, 14]
    assert not len(torn(whole[:-kernels]).steps)


def test_steps_of_a_host_whose_collectives_were_torn_off_are_left_out() -> None:
    events = sorted(host_trace(steps=10), key=lambda each: (each["tid"], each["ts"]))
    assert torn(events[:-4]).steps.number.tolist() == [10, 11, 12, 13, 14, 15, 16]
