"""Each rule on facts that it speaks of, and on those about which it must not say a word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddlprof.analysis.experts import ExpertLoad
from ddlprof.analysis.features import SampleCost
from ddlprof.analysis.findings import Finding
from ddlprof.analysis.issued import Issued, IssuedTraffic
from ddlprof.analysis.late_rank import LateRank
from ddlprof.analysis.pauses import BrokenGraphs, Pauses
from ddlprof.analysis.rules.apply import RULES, apply_rules
from ddlprof.analysis.rules.compute import free_processors, starved_words
from ddlprof.analysis.rules.facts import Facts, ProfilerWindow, Reductions
from ddlprof.analysis.rules.ranks import help_late_rank
from ddlprof.analysis.rules.signals import ThrottledDevice, UnevenWork
from ddlprof.analysis.saves import AfterSaves
from ddlprof.analysis.sources import Sources, SourceShare
from ddlprof.analysis.stages import Stages
from ddlprof.analysis.traffic import CommTotals
from ddlprof.model import issuers, source_locations
from ddlprof.model.operators import Operator
from ddlprof.model.records import GraphBreak
from ddlprof.model.source_locations import SourceLocation
from tests.golden.runs import MS
from tests.unit.analysis.rules import hook_cases, input_cases, loop_cases, memory_cases
from tests.unit.analysis.rules.input_cases import BLOCKED, BURSTS, WAITING, job
from tests.unit.analysis.rules.loop_cases import PAUSES, line
from tests.unit.analysis.rules.made_up import WINDOW, ddp, facts, summary

GIB = 2**30
COPYING: dict[str, float | None] = {"compute": 70.0, "h2d": 30.0}
FOUR_TIMES: dict[str, Any] = {
    "micro_batches": 4,
    "comm": CommTotals(40 * MS, None, ["allreduce"], reduced_bytes=400_000_000),
}
SMALL = Reductions(400, 100_000_000, 300_000, 0.03, 0.03, 0.00005)
TINY = Reductions(2, 0, 1000, 0.03, 0.03, 0.005)
HUGE = Reductions(1, 0, 100_000_000, 0.03, 0.03, 0.03)
BUFFER = Issued(SourceLocation("", issuers.BUFFERS), "broadcast", 1, 67e6, largest_bytes=67_000_000, moving_s=0.02)
GRADIENTS = Issued(SourceLocation("", issuers.REDUCER), "allreduce", 4, 1e8, moving_s=0.01)

NUMBER = Issued(SourceLocation("train.py:9 main", issuers.SCRIPT), "allreduce", 1, 4, largest_bytes=4)
JOINED: dict[str, Any] = {"world_size": 2, "backend": "gloo", "strategy": "none"}
ALONE: dict[str, float | None] = {"compute": 98.0, "comm": 0.0, "other": 2.0}
SCATTERED = Issued(SourceLocation("", issuers.FSDP2), "reduce_scatter_base", 16, 4e8, moving_s=0.02)
UNITS = Issued(SourceLocation("", issuers.FSDP2), "allgather_base", 60, 3e6, moving_s=0.02, fastest_s=3e-4)
ONE_BY_ONE = replace(UNITS, place=SourceLocation("", issuers.SHARDED_OPTIMIZER), op="broadcast")
GATHERED = Issued(SourceLocation("", issuers.FSDP2), "allgather_base", 32, 8e8, moving_s=0.02)


def at_line(number: float, size: float, moving_s: float = 0.03, what: str = issuers.SCRIPT) -> Issued:
    return Issued(SourceLocation("train.py:9 main", what), "allreduce", number, size, moving_s=moving_s, fastest_s=4e-4)


def by(*kinds: Issued, **known: Any) -> Facts:
    """Two ranks that wait 30 ms for these, in place of DDP where `strategy` says so."""
    return ddp(30, issued=IssuedTraffic(list(kinds)), **known)


CPU: dict[str, Any] = {"device": "cpu", "cpu_threads": 16, "cpu_percent": 99.0}
HELD_UP = CPU | {"cpu_threads": 8, "cores_per_rank": 8, "other_cores": 3.2, "queued_share": 0.6}
UPLOADS = AfterSaves(0, 30, 5.0, 0.1, SourceLocation("train.py:49 main", ""))
STEPPING: dict[str, Any] = {"job": job("steps", 0), "gradient_bytes": 10**8, "comm": CommTotals(20 * MS, None, [])}
UNEVEN = UnevenWork(samples_spread=0.3, correlation=0.9, steps=100)
STAGES = Stages("1F1B", 1, 4, 1, 8, (0.010, 0.010, 0.0115, 0.010), 2, (2,), (2,), ("head",), 0.0115, 0.012, 3 / 11)
PIPELINE = facts({"compute": 70.0, "comm": 30.0, "straggler": 5.0, "bubble": 25.0}, stages=STAGES, world_size=4)
LOAD = ExpertLoad(1.8, 3, 1.6, 8, 20)
MIXTURE = facts({"compute": 70.0, "comm": 30.0}, experts=LOAD, world_size=8,
                comm=CommTotals(30 * MS, None, ["alltoall_base"], alltoall_s=0.03))  # fmt: skip
HOT = ThrottledDevice(0, 0.5, 60, 1200.0, 1800.0, 88.0, True, 0.012)


ON_CPU: dict[str, Any] = {"device": "cpu", "cores_per_rank": 8, "busy_cores_per_rank": 1.0, "cpu_threads": 1}
UNDERFLOWS: dict[str, Any] = {
    "device": "cpu", "subnormal_of": "gradients", "subnormal_share": 0.2, "subnormal_times": 5.0,
}  # fmt: skip
PASSING: dict[str, float | None] = {
    "compute": 97.0, "compute_backward": 50.0, "compute_optimizer": 3.0, "data": 1.0, "other": 2.0,
}  # fmt: skip
UPDATING: dict[str, float | None] = {"compute": 97.0, "compute_optimizer": 30.0, "data": 1.0, "other": 2.0}
LOOPED: dict[str, Any] = {
    "optimizer": "AdamW", "optimizer_loops": True, "optimizer_switch": "fused", "optimizer_tensors": 400,
}  # fmt: skip
DOUBLE: dict[str, Any] = {
    "precision": "fp64", "forward_flops_per_sample": 1e7, "backward_flops_per_sample": 2e7,
}  # fmt: skip
CHECKPOINTED: dict[str, Any] = {
    "forward_flops_per_sample": 1e9, "backward_flops_per_sample": 3e9, "recomputed_flops_per_sample": 1e9,
    "peak_bytes": 20 * GIB,
}  # fmt: skip
HALF: dict[str, Any] = {"precision": "fp16", "device": "cpu", "cpu_16bit": ()}
NEEDLESS: dict[str, Any] = {"needless_share": 0.5, "needless_parameters": 16}
DROPPED: dict[str, Any] = {"needless_share": 0.2, "needless_parameters": 0, "dropped_gradients": 16}
REPEATED: dict[str, Any] = {"repeated_share": 0.6, "micro_batches": 6}


def table(rows: int, head: bool = False) -> tuple[Operator, ...]:
    """An embedding of rows of 64, of which a batch looks up 1,280; `head`: its weight is that of a product, too."""
    gradient = 4.0 * 64 * rows
    found = [
        Operator("embedding", "backward", "embedding_dense_backward", "fp32", (1280, 64), 0.0, gradient + 1e6, 2.0,
                 1.0, grows=0, fixed_bytes=gradient),
        Operator("optimizer", "optimizer", "adam", "fp32", (64 * rows + 20_000, 5), 0.0, 1e9, 14.0, 1.0),
    ]  # fmt: skip
    if head:
        found.append(Operator("product", "forward", "mm", "fp32", (1, 1280, rows, 64), 1e9, 1e6, 1.0, 1.0, grows=1))
    return tuple(found)


def products(vocabulary: int, dtype: str = "bf16", tokens: int = 8192) -> tuple[Operator, ...]:
    """A product with the weights of a vocabulary, and one of about as many operations."""
    return tuple(
        Operator("product", "forward", "mm", dtype, (1, tokens, n, 768), 2.0 * tokens * n * 768, 2.0 * tokens * n,
                 launches=1.0, count=1.0, grows=1)
        for n in (vocabulary, 50_304)
    )  # fmt: skip


ODD: dict[str, Any] = {"operators": products(50_257), "compiled": False}


def loops(*shares: float, what: str = source_locations.LOOP) -> Sources:
    found = [SourceShare(SourceLocation(f"loss.py:{n} slow", what), share, False) for n, share in enumerate(shares)]
    return Sources(40, [*found, SourceShare(SourceLocation("train.py:9 main"), 1 - sum(shares), False)])


def after_backward(*shares: float, what: str = source_locations.BETWEEN, called: bool = False) -> Sources:
    """Loops of these shares after the backward; `called`: from one line of the training loop."""
    found = [SourceShare(SourceLocation(f"clip.py:{n} clip", what), s, s > 0.5) for n, s in enumerate(shares)]
    caller = [SourceShare(SourceLocation("train.py:9 main", what), sum(shares), True)] if called else []
    return Sources(40, found, caller)


def own_loop(share: float) -> Sources:
    """A loop that calls no module, and surely has most of forward and loss."""
    return Sources(40, [SourceShare(SourceLocation("model.py:7 mask", source_locations.OWN_LOOP), share, True)])


MASKED: dict[str, float | None] = {
    "compute": 60.0,
    "compute_forward": 50.0,
    "compute_backward": 5.0,
    "compute_optimizer": 5.0,
}
LOOPING: dict[str, Any] = {
    "device": "cpu", "computing": loops(0.6, 0.1), "graph_nodes": 2000, "layers": 4, "compiled": False,
}  # fmt: skip
ACCUMULATING: dict[str, Any] = {
    "device": "cpu", "micro_batches": 16, "batch_per_rank": 1, "graph_nodes": 200, "compiled": False,
    "repeated_share": 0.0,
}  # fmt: skip
SMALL_PASSES: dict[str, float | None] = {"compute": 97.0, "compute_optimizer": 1.0, "data": 1.0, "other": 2.0}
SINGLE: dict[str, Any] = ACCUMULATING | {"micro_batches": None, "graph_nodes": 3000}
OWN_UPDATE: dict[str, Any] = {
    "optimizer": "Mine", "optimizer_tensors": 400,
    "updating": Sources(40, [SourceShare(SourceLocation("opt.py:7 step", source_locations.UPDATE), 1.0, True)]),
}  # fmt: skip
SIZES = Pauses(0.3, 0.03, 0.2, reason="tensor 'args[0]' size mismatch at index 0. expected 5, actual 6", steps=100)
BREAKS = [
    GraphBreak(0, "net.py:17 Layer.forward", "Unsupported Tensor.item() call"),
    GraphBreak(1, "net.py:30 Head.forward", "Failed to trace builtin `print`"),
]
BROKEN = BrokenGraphs(BREAKS, 0.6, 40)
SPEAKS: dict[str, list[Facts]] = {
    **input_cases.SPEAKS,
    **(memory_cases.SPEAKS | hook_cases.SPEAKS),
    **loop_cases.SPEAKS,
    "collector": [facts(collector=PAUSES),
                  facts({"compute": 70.0, "other": 30.0}, collector=PAUSES, sources=line(source_locations.COLLECT))],
    "recompilation": [facts(recompiled=SIZES), facts(recompiled=replace(SIZES, reason="")),
                      facts(recompiled=replace(SIZES, seconds=0.3))],
    "graph_breaks": [facts(broken_graphs=BROKEN), facts(broken_graphs=replace(BROKEN, places=BROKEN.places[1:]))],
    "python_loop": [facts(**LOOPING), facts(**LOOPING | {"device": "NVIDIA A10G"}, lag_share=0.01),
                    facts({"compute": 970.0}, **LOOPING, queued_share=0.8),
                    facts(**LOOPING | {"computing": own_loop(0.6), "layers": 100}),
                    facts(**LOOPING | {"computing": loops(0.6, what=source_locations.EACH), "layers": 100}),
                    facts(MASKED, **LOOPING | {"computing": own_loop(0.6), "graph_nodes": 20})],
    "padding": [facts(padding_share=0.6, tokens_per_sample=512.0), facts(padding_share=0.2)],
    "anomaly_mode": [facts(anomaly_share=0.9), facts(anomaly_share=0.9, layers=200)],
    "double_precision": [facts(**DOUBLE), facts(**DOUBLE, device="cpu")],
    "subnormals": [facts(**UNDERFLOWS), facts(PASSING, **UNDERFLOWS | {"subnormal_of": "parameters"})],
    "deterministic": [facts(deterministic=True)],
    "debug_modes": [facts(debug_modes="torch.profiler"), facts(debug_modes="CUDA_LAUNCH_BLOCKING"),
                    ddp(5, debug_modes="TORCH_DISTRIBUTED_DEBUG"),
                    facts(device="cpu", debug_modes="tracemalloc")],
    "interpreter_hook": [facts(device="cpu", interpreter_hook="line: pydevd"),
                         facts(device="cpu", interpreter_hook="line: pydevd", debug_modes="tracemalloc"),
                         facts(lag_share=0.01, interpreter_hook="call: cProfile")],
    "few_threads": [facts(**ON_CPU, graph_nodes=100), facts(**ON_CPU, graph_nodes=50, micro_batches=2)],
    "optimizer_loop": [facts(UPDATING, **OWN_UPDATE),
                       facts(UPDATING, **LOOPED), facts(UPDATING, **LOOPED | {"optimizer": "Lamb",
                                                                              "optimizer_switch": "foreach"})],
    "recomputation": [facts(**CHECKPOINTED),
                      facts(**CHECKPOINTED, device="cpu", peak_process_memory_bytes=GIB, free_bytes=2 * GIB)],
    "gradient_loop": [facts(UPDATING, optimizer_tensors=400, after_backward=after_backward(0.9)),
                      facts(UPDATING, optimizer_tensors=400, after_backward=after_backward(0.3, 0.3, called=True))],
    "half_precision": [facts(**HALF), facts(**HALF | {"precision": "amp-bf16"}),
                       facts(**HALF | {"cpu_16bit": ("bf16",)})],
    "dense_embedding": [facts(UPDATING, operators=table(400_000)),
                        facts(UPDATING, operators=table(400_000), strategy="ddp", micro_batches=2),
                        facts(UPDATING, operators=table(400_000), strategy="ddp", world_size=2, backend="gloo")],
    "alignment": [facts(**ODD), facts(**ODD | {"operators": products(50_257, "fp16")}, device="Tesla T4")],
    "needless_gradients": [facts(**NEEDLESS), facts(**NEEDLESS, strategy="ddp", device="cpu"), facts(**DROPPED),
                           facts(**NEEDLESS | {"dropped_gradients": 3})],
    "repeated_backward": [facts(PASSING, **REPEATED), facts(PASSING, **REPEATED, device="cpu")],
    "storage": [facts(BLOCKED), facts(BLOCKED, loader_workers=0, loader=SampleCost(1e-3, 1e5))],
    "pinning": [facts(COPYING), facts(COPYING, pin_memory=False), facts(COPYING, pin_memory=None)],
    "no_sync": [ddp(30, **FOUR_TIMES), by(SCATTERED, GATHERED, **FOUR_TIMES | {"strategy": "fsdp"}),
                by(SCATTERED, **FOUR_TIMES | {"strategy": "fsdp"}, device="cpu", free_bytes=GIB)],
    "bucket_size": [ddp(30, reductions=SMALL), ddp(30, reductions=HUGE), by(UNITS, strategy="fsdp"),
                    by(replace(UNITS, place=SourceLocation("", issuers.FSDP)), strategy="fsdp"),
                    by(ONE_BY_ONE, strategy="zero")],
    "gradient_traffic": [ddp(30, reductions=TINY), ddp(30), ddp(30, strategy="fsdp", reductions=None),
                         ddp(15, straggler_ms=30),
                         by(replace(GRADIENTS, moving_s=0.02), at_line(1, 1e6, 0.01))],
    "buffer_broadcast": [by(BUFFER, GRADIENTS), by(BUFFER, **FOUR_TIMES),
                         by(BUFFER, buffers_change=False, batch_statistics=False)],
    "unused_search": [by(GRADIENTS, unused_iterations=4), ddp(5, unused_iterations=4)],
    "many_messages": [by(at_line(60, 5e4, what=issuers.IN_FORWARD), GRADIENTS), by(at_line(60, 1e7), strategy="none")],
    "sent_objects": [by(at_line(2, 1e6, 0.01, issuers.OBJECTS), GRADIENTS),
                     facts({"compute": 70.0, "other": 30.0}, sources=line(""), world_size=2,
                           issued=IssuedTraffic([at_line(2, 1e6, 0.0, issuers.OBJECTS)]))],
    "own_messages": [by(at_line(1, 1e8), GRADIENTS), by(at_line(8, 1e8), micro_batches=8),
                     by(at_line(6, 1e8), strategy="none"), by(at_line(5, 5e4))],
    "precision": [facts(precision="fp32"), facts(precision="tf32"), facts(precision="fp32", device="Tesla T4"),
                  facts(precision="fp32", device="NVIDIA A10G"), facts(precision="fp32", device="NVIDIA RTX 4090"),
                  facts(precision="fp32", device="NVIDIA GeForce RTX 3090")],
    "launch_bound": [
        facts(window=WINDOW),
        facts(lag_share=0.01),
        facts(lag_share=0.01, window=WINDOW),
        facts(lag_share=0.01, window=ProfilerWindow(2, 0.35, 900.0, 8e-6)),
    ],
    "micro_batches": [facts(SMALL_PASSES, **ACCUMULATING), facts(SMALL_PASSES | {"compute": 96.0}, **ACCUMULATING),
                      facts(**ACCUMULATING | {"device": "NVIDIA A10G", "peak_bytes": 30 * GIB}, lag_share=0.01)],
    "few_samples": [facts(SMALL_PASSES, **SINGLE)],
    "batch_size": [ddp(25, peak_bytes=30 * GIB)],
    "host_contention": [facts(**CPU), facts(**CPU, queued_share=0.4), facts(**HELD_UP)],
    "shared_machine": [facts(queued_share=0.4), facts(WAITING, queued_share=0.4, loader_workers=8),
                       ddp(2, 30, queued_share=0.3, device="cpu", late_rank=LateRank(1, 0.9, "other"))],
    "ranks_apart": [facts(ALONE, **JOINED), facts(ALONE, **JOINED, issued=IssuedTraffic([NUMBER]))],
    "straggler": [ddp(2, 30, late_rank=LateRank(1, 0.9, "data", 50 * MS, 10 * MS)),
                  ddp(2, 30, queued_share=0.3, late_rank=LateRank(1, 0.9, queued_share=0.3))],
    "uneven_input": [ddp(2, 30, uneven=UNEVEN), ddp(2, 30, uneven=replace(UNEVEN, unit="tokens")),
                     ddp(2, 30, uneven=replace(UNEVEN, unit="values"))],
    "uneven_steps": [by(GRADIENTS, rank_steps={0: 300, 1: 100}, **STEPPING)],
    "slow_host": [ddp(2, 30, rank_compute_s={0: [0.05, 0.05], 1: [0.08, 0.082]})],
    "bubble": [PIPELINE],
    "uneven_stages": [PIPELINE, replace(PIPELINE, stages=replace(STAGES, own=(2, 6), virtual=2))],
    "expert_imbalance": [MIXTURE],
    "evaluation_share": [facts(job=job("evaluation", 300))],
    "checkpoint_share": [facts(job=job("checkpoint", 150)),
                         facts(job=job("checkpoint", 150), after_saves=AfterSaves(0, 30, 1.0, 5.0))],
    "after_checkpoints": [facts(job=job("checkpoint", 150), after_saves=UPLOADS),
                          ddp(2, 5, job=job("checkpoint", 150), after_saves=UPLOADS)],
    "throttling": [facts(throttled=[HOT])],
}  # fmt: skip

SILENT: dict[str, list[Facts]] = {
    **input_cases.SILENT,
    **(memory_cases.SILENT | hook_cases.SILENT),
    **loop_cases.SILENT,
    "collector": [facts(), facts(collector=PAUSES, recompiled=SIZES),
                  facts(collector=replace(PAUSES, seconds=0.004)), facts(collector=replace(PAUSES, longest_s=0.5)),
                  facts(collector=replace(PAUSES, steps=9))],
    "recompilation": [facts(), facts(recompiled=replace(SIZES, number=0.02)),
                      facts(recompiled=replace(SIZES, seconds=0.005))],
    "graph_breaks": [facts(), facts(broken_graphs=replace(BROKEN, share=0.05)),
                     facts(broken_graphs=BROKEN, recompiled=SIZES)],
    "python_loop": [facts(), facts(**LOOPING | {"computing": loops()}), facts(**LOOPING | {"graph_nodes": None}),
                    facts(**LOOPING | {"graph_nodes": 150}), facts(**LOOPING | {"layers": 100}),
                    facts(**LOOPING | {"compiled": True}), facts(**LOOPING | {"device": "NVIDIA A10G"}),
                    facts(**LOOPING | {"computing": loops(0.3, 0.3)}), facts({"compute": 970.0}, **LOOPING),
                    facts(**LOOPING | {"computing": loops(0.05)}),
                    facts(**LOOPING | {"computing": loops(0.6, what="")}),
                    facts(**LOOPING | {"computing": own_loop(0.6), "graph_nodes": 20}),
                    facts(MASKED, **LOOPING | {"computing": loops(0.6), "graph_nodes": 20})],
    "padding": [facts(), facts(padding_share=0.05), facts(padding_share=0.6, lag_share=0.01),
                facts({"compute": 40.0, "data": 60.0}, padding_share=0.9)],
    "anomaly_mode": [facts(), facts(anomaly_share=0.0), facts(anomaly_share=0.2),
                     facts({"compute": 40.0, "data": 60.0}, anomaly_share=1.0)],
    "double_precision": [facts(precision="fp64"), facts(**DOUBLE | {"precision": "fp32"}),
                         facts(**DOUBLE | {"forward_flops_per_sample": 1e5, "backward_flops_per_sample": 1e5}),
                         facts(**DOUBLE, lag_share=0.01)],
    "subnormals": [facts(**UNDERFLOWS | {"subnormal_times": 1.5}), facts(**UNDERFLOWS | {"subnormal_share": 0.0}),
                   facts(**UNDERFLOWS | {"subnormal_of": ""}), facts({"compute": 40.0, "data": 60.0}, **UNDERFLOWS),
                   facts(PASSING, **UNDERFLOWS | {"subnormal_of": "states of the optimizer"})],  # 3 of 100 ms
    "debug_modes": [facts(), facts(debug_modes=""), facts(debug_modes="tracemalloc")],  # the device has enough to do
    "interpreter_hook": [facts(device="cpu"), facts(device="cpu", interpreter_hook=""),
                         facts(device="cpu", interpreter_hook="call: C", debug_modes="torch.profiler"),
                         facts(interpreter_hook="line: pydevd")],
    "deterministic": [facts(), facts(deterministic=False),
                      facts({"compute": 40.0, "data": 60.0}, deterministic=True)],
    "few_threads": [facts(**ON_CPU), facts(**ON_CPU, graph_nodes=1000), facts(**ON_CPU | {"cpu_threads": 8},
                    graph_nodes=100), facts(**ON_CPU | {"busy_cores_per_rank": 7.0}, graph_nodes=100),
                    facts(**ON_CPU, graph_nodes=100, queued_share=0.4), facts(graph_nodes=100),
                    facts(**ON_CPU | {"busy_cores_per_rank": 0.3}, graph_nodes=100),
                    facts(**ON_CPU, graph_nodes=100, other_cores=0.7)],
    "optimizer_loop": [facts(UPDATING), facts(UPDATING, **OWN_UPDATE | {"updating": Sources(0, [])}),
                       facts(UPDATING, **OWN_UPDATE | {"optimizer_tensors": 10}),
                       facts(UPDATING, **OWN_UPDATE | {"updating": line(source_locations.PRECONDITIONS)}),
                       facts({"compute": 970.0, "compute_optimizer": 300.0}, **OWN_UPDATE),
                       facts(UPDATING, **LOOPED | {"optimizer_loops": False}), facts(**LOOPED),
                       facts(UPDATING, **LOOPED | {"optimizer": "SGD"}), facts(UPDATING, **LOOPED | {
                           "optimizer_switch": ""}), facts(UPDATING, **LOOPED | {"optimizer_switch": "foreach",
                                                                                 "optimizer_tensors": 10})],
    "recomputation": [facts(), facts(**CHECKPOINTED | {"recomputed_flops_per_sample": 0.0}),
                      facts(**CHECKPOINTED | {"peak_bytes": 70 * GIB}), facts(**CHECKPOINTED, device="cpu"),
                      facts(**CHECKPOINTED, device="cpu", peak_process_memory_bytes=2 * GIB, free_bytes=GIB)],
    "gradient_loop": [facts(UPDATING, optimizer_tensors=400),
                      facts(UPDATING, optimizer_tensors=20, after_backward=after_backward(0.9)),
                      facts(UPDATING, optimizer_tensors=400, after_backward=after_backward(0.3)),
                      facts({"compute": 970.0, "compute_optimizer": 300.0}, optimizer_tensors=400,
                            after_backward=after_backward(0.9)),
                      facts(optimizer_tensors=400, after_backward=after_backward(0.9)),
                      facts(UPDATING, optimizer_tensors=400,
                            after_backward=after_backward(0.9, what=source_locations.STEPPING))],
    "half_precision": [facts(**HALF | {"cpu_16bit": ("bf16", "fp16")}), facts(**HALF | {"cpu_16bit": None}),
                       facts(**HALF | {"precision": "fp32"}), facts(**HALF | {"device": "NVIDIA A10G"}),
                       facts({"compute": 40.0, "data": 60.0}, **HALF)],
    "dense_embedding": [facts(UPDATING), facts(UPDATING, operators=table(5_000)),
                        facts(operators=table(400_000)), facts(UPDATING, operators=table(400_000), strategy="fsdp"),
                        facts(UPDATING, operators=table(400_000, head=True)),
                        facts(UPDATING, operators=table(400_000), micro_batches=40),
                        facts(UPDATING, operators=table(400_000), strategy="ddp", world_size=2, backend="nccl"),
                        facts(UPDATING, operators=table(400_000), strategy="ddp", world_size=64, backend="gloo")],
    "alignment": [facts(), facts(**ODD | {"compiled": True}), facts(**ODD | {"compiled": None}),
                  facts(**ODD | {"operators": products(50_304)}), facts(**ODD, lag_share=0.01),
                  facts(**ODD | {"operators": products(50_257, "fp32")}), facts(**ODD, device="cpu"),
                  facts(**ODD | {"operators": products(50_304, tokens=8191)}),
                  facts(**ODD, device="Tesla P100-PCIE-16GB"), facts({"compute": 40.0, "data": 60.0}, **ODD)],
    "repeated_backward": [facts(PASSING), facts(PASSING, **REPEATED | {"repeated_share": 0.05}), facts(**REPEATED),
                          facts(PASSING, **REPEATED, lag_share=0.01)],
    "needless_gradients": [facts(), facts(**NEEDLESS | {"needless_share": None}), facts(**NEEDLESS, strategy="fsdp"),
                           facts(**DROPPED | {"dropped_gradients": 0}),
                           facts(**NEEDLESS | {"needless_share": 0.04}), facts(**NEEDLESS, lag_share=0.01),
                           facts({"compute": 40.0, "data": 60.0}, **NEEDLESS)],
    "after_checkpoints": [facts(), facts(job=job("checkpoint", 150)), facts(after_saves=UPLOADS),
                          facts(job=job("checkpoint", 150), after_saves=AfterSaves(0, 2, 1.0, 0.1)),
                          facts(job=job("checkpoint", 150), after_saves=AfterSaves(0, 30, 5.0, 6.0))],
    "storage": [facts(), facts(WAITING), facts(BLOCKED, bursts=BURSTS)],
    "pinning": [facts(), facts(COPYING, device="cpu")],
    "no_sync": [ddp(30), ddp(5, **FOUR_TIMES), ddp(30, **FOUR_TIMES | {"strategy": "fsdp"}),
                ddp(30, **FOUR_TIMES, comm_hook="a_hook"), ddp(30, micro_batches=4),
                by(SCATTERED, GATHERED, micro_batches=4, strategy="fsdp", comm=CommTotals(40 * MS, None, []),
                   gradient_bytes=400_000_000),  # synchronised once
                by(replace(SCATTERED, moving_s=0.001), GATHERED, **FOUR_TIMES | {"strategy": "fsdp"}),
                by(SCATTERED, **FOUR_TIMES | {"strategy": "fsdp"}, peak_bytes=int(79.95 * GIB)),  # no room
                by(GRADIENTS, at_line(1, 3e8), **FOUR_TIMES)],  # an average of weights is no exchange of gradients
    "bucket_size": [by(replace(UNITS, number=11), strategy="fsdp"), by(GATHERED, SCATTERED, strategy="fsdp"),
                    by(replace(UNITS, fastest_s=None), strategy="fsdp"), by(UNITS, strategy="zero"),
                    by(replace(ONE_BY_ONE, number=2), strategy="zero"), by(ONE_BY_ONE, strategy="ddp"),
                    by(replace(ONE_BY_ONE, place=SourceLocation("engine.py:9 step", issuers.PACKAGE)), strategy="zero"),
                    ddp(30, strategy="zero"),  # DeepSpeed's, and where nobody knows whose
                    ddp(30), ddp(5, reductions=SMALL), ddp(30, reductions=SMALL, strategy="fsdp"),
                    ddp(30, reductions=Reductions(400, 1_000_000, 26_214_400, 0.03, 0.03, 0.00005)),
                    ddp(30, reductions=HUGE, gradient_bytes=None)],
    "gradient_traffic": [ddp(30, reductions=TINY, unused_iterations=8), ddp(5),
                         by(GRADIENTS, at_line(2, 5e4), reductions=TINY),  # which takes longer, and is as small
                         replace(by(GRADIENTS, at_line(2, 5e4, 0.0, issuers.OBJECTS), reductions=TINY),
                                 sources=line(""), summary=summary({"compute": 50, "comm": 15, "other": 35})),
                         ddp(5, straggler_ms=40), facts(), ddp(30, **FOUR_TIMES), ddp(30, reductions=SMALL),
                         by(BUFFER), by(at_line(1, 1e8))],
    "buffer_broadcast": [ddp(30), by(GRADIENTS), by(replace(BUFFER, moving_s=0.001), GRADIENTS),
                         by(BUFFER, buffers_change=True, batch_statistics=False)],
    "unused_search": [ddp(30), by(GRADIENTS, unused_iterations=3), facts(unused_iterations=9)],
    "many_messages": [ddp(30), by(at_line(5, 5e4)), by(at_line(60, 6e9)), by(replace(at_line(60, 5e4), fastest_s=None)),
                      by(at_line(60, 5e4, 0.001), GRADIENTS), by(at_line(60, 5e4), strategy="tp"),
                      by(at_line(60, 5e4, what=issuers.IN_FORWARD), micro_batches=30)],
    "sent_objects": [ddp(30), by(at_line(1, 1e8), GRADIENTS), by(at_line(2, 1e6, 0.0001, issuers.OBJECTS), GRADIENTS)],
    "own_messages": [by(at_line(1, 1e8, what=issuers.OBJECTS)),
                     ddp(30), by(GRADIENTS), by(at_line(60, 5e4)), by(at_line(1, 1e8, 0.001), GRADIENTS),
                     by(at_line(1, 1e8), strategy="fsdp+tp")],
    "precision": [facts(), facts(precision=None), facts(precision="fp32", device="cpu"),
                  facts(precision="fp32", lag_share=0.01),
                  facts({"compute": 40.0, "other": 60.0}, precision="fp32"), facts(precision="fp64"),
                  facts(precision="fp32", device="Tesla P100-PCIE-16GB"), facts(precision="fp32", device="Tesla K80"),
                  facts(precision="fp32", device="NVIDIA GeForce GTX 1080")],
    "launch_bound": [
        facts(),
        facts(window=ProfilerWindow(6, 0.05, 900.0, 8e-6)),
        facts(window=ProfilerWindow(6, 0.35, 20.0, 8e-6)),
        facts(window=ProfilerWindow(6, 0.35, 900.0, 2e-4)),
        facts(window=ProfilerWindow(6, 0.35, None, None)),
        facts(window=ProfilerWindow(2, 0.35, 900.0, 8e-6)),
        facts({"compute": 70.0, "data": 30.0}, window=WINDOW),
        facts(lag_share=0.1),
        facts(lag_share=0.01, steady_steps=2),
        facts(lag_share=0.01, window=ProfilerWindow(6, 0.05, 900.0, 8e-6)),
        facts({"compute": 5.0, "data": 95.0}, lag_share=0.01),
    ],
    "few_samples": [facts(), facts(SMALL_PASSES, **SINGLE | {"graph_nodes": 200}),  # each operator takes long
                    facts(SMALL_PASSES, **SINGLE | {"batch_per_rank": 4}), facts(SMALL_PASSES, **ACCUMULATING),
                    facts({"compute": 15.0, "data": 83.0, "other": 2.0}, **SINGLE)],
    "micro_batches": [facts(), facts(SMALL_PASSES, **ACCUMULATING | {"micro_batches": 3}),
                      facts(SMALL_PASSES, **ACCUMULATING | {"repeated_share": None}),
                      facts(SMALL_PASSES, **SINGLE),
                      facts(SMALL_PASSES | {"compute_backward": 60.0}, **ACCUMULATING | {"repeated_share": 0.6}),
                      facts(SMALL_PASSES, **ACCUMULATING, passes_in_update=20),
                      facts(SMALL_PASSES, **ACCUMULATING | {"graph_nodes": 30}),
                      facts(SMALL_PASSES, **ACCUMULATING | {"compiled": True}),
                      facts(SMALL_PASSES | {"compute_optimizer": 90.0}, **ACCUMULATING),
                      facts(**ACCUMULATING | {"device": "NVIDIA A10G", "peak_bytes": 30 * GIB}),
                      facts(**ACCUMULATING | {"device": "NVIDIA A10G"}, lag_share=0.01)],
    "batch_size": [ddp(25), ddp(5, peak_bytes=30 * GIB), ddp(25, peak_bytes=None),
                   ddp(25, peak_bytes=30 * GIB, device="cpu")],
    "host_contention": [facts(), facts(**CPU | {"cpu_threads": 8}), facts(**CPU | {"cpu_threads": None}),
                        facts(**CPU | {"cpu_percent": 80.0}),
                        facts(**CPU | {"device": "H100"}), facts(**HELD_UP | {"cpu_threads": 4}),
                        facts(**HELD_UP | {"queued_share": 0.05}), facts(**HELD_UP | {"other_cores": None})],
    "shared_machine": [facts(), facts(**CPU, queued_share=0.4), facts(queued_share=0.05),
                       facts(queued_share=0.4, steady_steps=9),
                       ddp(2, 30, queued_share=0.3, late_rank=LateRank(1, 0.9, queued_share=0.3))],
    "ranks_apart": [facts(ALONE, **JOINED | {"world_size": 1}), facts(ALONE, **JOINED | {"backend": None}),
                    facts({"compute": 98.0, "comm": None, "other": 2.0}, **JOINED), facts({"comm": 5.0}, **JOINED),
                    facts(ALONE, **JOINED, issued=IssuedTraffic([replace(NUMBER, largest_bytes=4096)])),
                    facts(ALONE, **JOINED, issued=IssuedTraffic([replace(NUMBER, op="send")])),
                    facts(ALONE, **JOINED | {"gradient_bytes": 8}, issued=IssuedTraffic([NUMBER, GRADIENTS]))],
    "straggler": [ddp(2, 30)],
    "uneven_input": [ddp(2, 30), ddp(2, 5, uneven=UNEVEN), ddp(2, 30, uneven=UnevenWork(0.3, 0.2, 100)),
                     ddp(2, 30, uneven=UnevenWork(0.0, 0.9, 100)),
                     ddp(2, 30, uneven=UNEVEN, late_rank=LateRank(1, 0.9))],
    "uneven_steps": [by(GRADIENTS, rank_steps={0: 300, 1: 270}, **STEPPING), by(GRADIENTS, **STEPPING),
                     by(GRADIENTS, rank_steps={0: 300, 1: 100}, **STEPPING | {"job": None}),
                     by(replace(GRADIENTS, bytes=5e7), rank_steps={0: 300, 1: 100}, **STEPPING),
                     by(GRADIENTS, rank_steps={0: 300, 1: 100}, **STEPPING, strategy="pp")],
    "slow_host": [ddp(2, 30), ddp(2, 30, rank_compute_s={0: [0.05, 0.05], 1: [0.05, 0.09]}),
                  ddp(2, 30, rank_compute_s={0: [0.05], 1: [0.09]}),
                  ddp(2, 5, rank_compute_s={0: [0.05, 0.05], 1: [0.08, 0.082]})],
    "bubble": [facts(stages=STAGES), facts({"compute": 80.0, "comm": 20.0, "bubble": 20.0})],
    "uneven_stages": [facts(), replace(PIPELINE, stages=replace(STAGES, least_s=0.0103)),
                      replace(PIPELINE, stages=replace(STAGES, gain_s=0.001))],
    "expert_imbalance": [facts(), replace(MIXTURE, experts=None),
                         replace(MIXTURE, experts=replace(LOAD, imbalance=1.1)),
                         replace(MIXTURE, comm=CommTotals(30 * MS, None, ["alltoall_base"], alltoall_s=0.002))],
    "evaluation_share": [facts(), facts(job=job("evaluation", 50)), facts(job=job("checkpoint", 300)),
                         facts(job=replace(job("evaluation", 290, times=1), trains_on=True))],
    "checkpoint_share": [facts(), facts(job=job("checkpoint", 50)), facts(job=job("evaluation", 300))],
    "throttling": [facts(), facts(throttled=[ThrottledDevice(0, 0.5, 6, 1200.0, 1800.0, 88.0, True, 0.012)])],
}  # fmt: skip


def found(rule: str, given: Facts) -> list[Finding]:
    return [finding for finding in apply_rules(given, RULES) if finding.rule == rule]


CASES = [(rule, number) for rule in SPEAKS for number in range(len(SPEAKS[rule]))]


@pytest.mark.parametrize(("rule", "number"), CASES)
def test_it_speaks(rule: str, number: int) -> None:
    (finding,) = found(rule, SPEAKS[rule][number])
    for text in (finding.title, finding.evidence, finding.next):
        assert text
        assert not any(wrong in text for wrong in ("None", "\n", "nan", "()  "))
    assert finding.severity in ("critical", "warning", "info")
    step_s = SPEAKS[rule][number].mean_s("step") or 0.0
    assert finding.gain_s is None or 0 < finding.gain_s < step_s


@pytest.mark.parametrize(("rule", "number"), [(rule, n) for rule in SILENT for n in range(len(SILENT[rule]))])
def test_it_is_silent(rule: str, number: int) -> None:
    assert found(rule, SILENT[rule][number]) == []


def test_threads_that_wait_for_one_another_are_no_shared_machine() -> None:
    own, others = facts(**CPU, queued_share=0.4), facts(queued_share=0.4)
    assert "shared" not in starved_words(own)
    assert "shared" in starved_words(others)
    assert free_processors(own).startswith("OMP_NUM_THREADS=")
    assert "OMP_NUM_THREADS" not in free_processors(others)


def test_one_slow_rank_of_several_pipelines_is_no_slow_stage() -> None:
    late = LateRank(2, 0.9, "compute", 50 * MS, 40 * MS)
    one = replace(PIPELINE, late_rank=late, stages=replace(STAGES, pipelines=2, ranks=(2, 6), least_s=0.0101))
    assert "straggler" in {each.rule for each in apply_rules(one, RULES)}
    every = replace(one, stages=replace(STAGES, pipelines=2, ranks=(2, 6)))
    assert {each.rule for each in apply_rules(every, RULES)} == {"bubble", "uneven_stages"}


def test_uneven_lengths_come_before_the_machine() -> None:
    given = ddp(2, 30, uneven=replace(UNEVEN, unit="tokens"), queued_share=0.4, device="cpu", cpu_percent=99.0)
    assert "length" in help_late_rank(given)
    assert "length" not in help_late_rank(replace(given, uneven=None))


def test_every_rule_is_tried_both_ways() -> None:
    assert SPEAKS.keys() == SILENT.keys() == {rule.name for rule in RULES}


@pytest.mark.parametrize("given", [facts(), ddp(5, 5), facts(device="cpu", loader_workers=0)])
def test_a_healthy_job_hears_nothing(given: Facts) -> None:
    assert apply_rules(given, RULES) == []
