"""Facts about input of which the rules speak, and those about which they must not say a word."""

from __future__ import annotations

from dataclasses import replace

from ddlprof.analysis.data_lines import DataLines
from ddlprof.analysis.features import SampleCost
from ddlprof.analysis.job_time import JOB_PARTS, JobTime, Skipped
from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.rules.signals import DataWaitBursts
from ddlprof.analysis.sources import Sources, SourceShare, StartSources
from ddlprof.model.source_locations import START, START_ITEMS, SourceLocation
from tests.unit.analysis.rules.made_up import ddp, facts

WAITING: dict[str, float | None] = {"compute": 70.0, "data": 30.0, "data_fetch": 3.0, "data_prep": 26.0}
BLOCKED: dict[str, float | None] = {"compute": 70.0, "data": 30.0, "data_fetch": 27.0, "data_prep": 2.0}
SLEEPING: dict[str, float | None] = {"compute": 10.0, "data": 90.0, "data_fetch": 80.0, "data_prep": 5.0}
HANDED: dict[str, float | None] = {"compute": 70.0, "data": 30.0, "data_fetch": 0.0, "data_prep": 4.0}
BURSTS = DataWaitBursts(number=5, longest_s=0.4, calm_share=0.8, calm_wait_share=0.05, steps=100)


def job(part: str, seconds: float, times: int = 5) -> JobTime:
    parts: dict[str, float | None] = dict.fromkeys(JOB_PARTS, 0.0)
    parts |= {part: seconds, "steps": 1000 - seconds}
    return JobTime(1000.0, parts, evaluations=times, checkpoints=times)


def made_at(what: str, share: float = 0.9, sure: bool = True) -> DataLines:
    return DataLines(Sources(40, [SourceShare(SourceLocation("train.py:9 D.__getitem__", what), share, sure)]))


def first_at(what: str, sure: bool = True) -> DataLines:
    return DataLines(first=Sources(40, [SourceShare(SourceLocation("train.py:9 D.__iter__", what), 0.9, sure)]))


def start_at(what: str, share: float = 0.9, sure: bool = True, turns_s: float = 0.0) -> StartSources:
    """500 s of a job of 1000 s before its first step, most of them at one line."""
    line = SourceShare(SourceLocation("data.py:9 lengths", what), share, sure)
    wider = [SourceShare(SourceLocation("train.py:3 <module>", what), 1.0, True)] if sure else []
    return StartSources(2000, [line], wider, share * 500, "train.py:3 <module>", turns_s)


def starting(seconds: float) -> JobTime:
    """A job that starts its workers in so many seconds."""
    return replace(job("epoch_start", seconds), epochs=5, steps=10_000)


SPEAKS: dict[str, list[Facts]] = {
    "loader_workers": [
        facts(WAITING),
        facts(WAITING, loader_workers=0),
        facts(WAITING, loader_workers=None),
        facts(WAITING, loader_workers=8),
        facts({"compute": 70.0, "data": 30.0}),
        facts(WAITING, queued_share=0.4),
        facts(WAITING, job=starting(1.0)),
    ],
    "prefetch_factor": [facts(WAITING, bursts=BURSTS), facts(BLOCKED, bursts=BURSTS),
                        facts(WAITING, bursts=BURSTS, loader=SampleCost(0.008, None, 0.0))],
    "delivery_order": [
        facts(SLEEPING, loader_workers=2, in_order=True, loader=SampleCost(1e-5, None, 0.003), bursts=BURSTS),
        facts(SLEEPING, loader_workers=2, loader=SampleCost(1e-5, None, 0.003)),
        facts(SLEEPING, loader_workers=2, in_order=True, loader=SampleCost(0.003, None, 0.0), queued_share=0.2),
    ],
    "hand_over": [
        facts(HANDED, batch_tensors=300, batch_bytes=90_000),
        facts(HANDED, batch_tensors=2, batch_bytes=200 * 2**20),
        facts(HANDED, loader=SampleCost(1e-5, None, 1e-5)),
    ],
    "data_line": [
        facts(WAITING, loader_workers=0, data_lines=made_at("data tokenises")),
        facts(WAITING, data_lines=made_at("data")),
        facts(WAITING, data_lines=made_at("data opens"), queued_share=0.5),
    ],
    "reads_beyond": [
        facts(WAITING, loader=SampleCost(1e-3, 16e6, 0.0), batch_bytes=32_000),
        facts(WAITING, loader=SampleCost(1e-3, 16e6, 0.0), batch_bytes=32_000, data_lines=made_at("data")),
    ],
    "same_samples": [ddp(2, same_batches=True), ddp(2, same_batches=True, data_parallel_ranks=2)],
    "same_order": [facts(repeated_orders=2)],
    "repeated_samples": [facts(repeated_batches=True), facts(WAITING, repeated_batches=True, loader_workers=2)],
    "start_up": [
        facts(job=job("start_up", 500), starting=start_at(START_ITEMS)),
        facts(job=job("start_up", 500), starting=start_at(START)),
        ddp(2, job=job("start_up", 500), starting=start_at(START, turns_s=200)),
    ],
    "skipped_batches": [facts(job=replace(job("epoch_start", 400.0), skipped=Skipped(220, 350.0)))],
    "new_iterators": [
        facts(WAITING, job=replace(starting(300), epochs=100, steps=100), dataset_samples=20_000, global_batch=32),
        facts(WAITING, job=replace(starting(300), epochs=60, steps=100), dataset_samples=64, global_batch=32,
              loader_workers=0),
    ],
    "epoch_start": [
        facts(job=starting(300), persistent_workers=False, loader=SampleCost(1e-3, None, 0.0)),
        facts(job=starting(300), loader_workers=0, data_lines=first_at("data sampler")),
        facts(job=starting(300), persistent_workers=True, data_lines=first_at("data")),
    ],
}  # fmt: skip

SILENT: dict[str, list[Facts]] = {
    "loader_workers": [
        facts(),
        facts(BLOCKED),
        facts(WAITING, repeated_batches=True),
        facts(WAITING, loader=SampleCost(1e-3, 16e6, 0.0), batch_bytes=32_000),
        facts(WAITING, bursts=BURSTS),
        facts(WAITING, steady_steps=9),
        facts(HANDED),
        facts(SLEEPING | {"data_fetch": 40.0}, loader_workers=2, in_order=True, loader=SampleCost(0.003, None, 0.0)),
        facts(WAITING, job=starting(2000.0)),
        facts(WAITING, data_lines=made_at("data opens")),
        facts({"compute": 70.0, "data": None, "other": 30.0}),
    ],
    "prefetch_factor": [
        facts(WAITING),
        facts(WAITING, bursts=DataWaitBursts(2, 0.4, 0.8, 0.05, 100)),
        facts(WAITING, bursts=DataWaitBursts(5, 0.4, 0.3, 0.05, 100)),
        facts(WAITING, bursts=DataWaitBursts(5, 0.4, 0.8, 0.5, 100)),
        facts(WAITING, bursts=BURSTS, loader=SampleCost(0.011, None, 0.0)),
        facts(HANDED, bursts=BURSTS),
    ],
    "delivery_order": [
        facts(SLEEPING, loader_workers=2, in_order=False, loader=SampleCost(1e-5, None, 0.003)),
        facts(SLEEPING, loader_workers=1, in_order=True, loader=SampleCost(1e-5, None, 0.0015)),
        facts(SLEEPING, loader_workers=2, in_order=True, loader=SampleCost(1e-5, None, 0.006)),  # both are busy
        facts(SLEEPING, loader_workers=2, in_order=True, loader=SampleCost(0.003, None, 0.0), cpu_percent=95.0),
        facts(SLEEPING, loader_workers=2, in_order=True),
        facts(WAITING, loader_workers=4, in_order=True, loader=SampleCost(1e-5, None, 0.003)),  # fast on average
    ],
    "hand_over": [
        facts(HANDED),
        facts(HANDED, batch_tensors=2, batch_bytes=90_000, loader=SampleCost(1e-3, None, 0.0)),
        facts(HANDED, batch_tensors=300, loader_workers=0),
        facts(HANDED, loader=SampleCost(1e-5, None, 1e-5), cpu_percent=95.0),
        facts({name: ms and ms / 20 for name, ms in HANDED.items()}, loader=SampleCost(1e-6, None, 0.0)),
        facts(WAITING, batch_tensors=300),
        facts({"compute": 70.0, "data": 30.0}, batch_tensors=300),
    ],
    "data_line": [
        facts(data_lines=made_at("data tokenises")),
        facts(WAITING),
        facts(WAITING, data_lines=made_at("data opens", share=0.3, sure=False)),
        facts(WAITING, data_lines=made_at("data opens", share=0.04)),
        facts(HANDED, data_lines=made_at("data opens")),
        facts(WAITING, data_lines=made_at("data opens"), bursts=BURSTS),
        facts(WAITING, data_lines=made_at("data whole"), loader_workers=0),
    ],
    "reads_beyond": [
        facts(WAITING),
        facts(loader=SampleCost(1e-3, 16e6, 0.0), batch_bytes=32_000),
        facts(WAITING, loader=SampleCost(1e-3, 16e6, 0.0), batch_bytes=320_000_000),
        facts(WAITING, loader=SampleCost(1e-3, 1e5, 0.0), batch_bytes=3200),
        facts(WAITING, loader=SampleCost(1e-3, None, 0.0), batch_bytes=32_000),
    ],
    "same_samples": [ddp(2), ddp(2, same_batches=True, strategy="none"),
                     ddp(2, same_batches=True, data_parallel_ranks=1)],
    "same_order": [facts(), facts(repeated_orders=0)],
    "repeated_samples": [facts(), facts(repeated_batches=False), facts(repeated_batches=True, loader_workers=1)],
    "start_up": [
        facts(),
        facts(job=job("start_up", 500)),
        facts(job=job("start_up", 50), starting=start_at(START_ITEMS)),
        facts(job=job("start_up", 500), starting=start_at(START_ITEMS, share=0.15)),
        facts(job=job("start_up", 500), starting=start_at(START, sure=False)),
    ],
    "skipped_batches": [
        facts(), facts(job=job("epoch_start", 400.0)),
        facts(job=replace(job("epoch_start", 400.0), skipped=Skipped(220, 50.0))),
        facts(job=replace(job("epoch_start", 400.0), skipped=Skipped(3, 350.0))),  # a filter of single batches
    ],
    "new_iterators": [
        facts(WAITING, dataset_samples=20_000, global_batch=32),
        facts(WAITING, job=starting(300), dataset_samples=20_000, global_batch=32),
        facts(WAITING, job=replace(starting(300), epochs=100, steps=100), dataset_samples=32, global_batch=32),
        facts(WAITING, job=replace(starting(300), epochs=100, steps=100), global_batch=32),
        facts(job=replace(starting(300), epochs=100, steps=100), dataset_samples=20_000, global_batch=32),
        facts(WAITING, job=replace(starting(300), epochs=100, steps=100), dataset_samples=20_000, global_batch=32,
              micro_batches=4),
    ],
    "epoch_start": [
        facts(job=starting(300)),
        facts(job=starting(300), persistent_workers=True),
        facts(job=starting(50), persistent_workers=False),
        facts(job=replace(starting(300), epochs=1), persistent_workers=False),
        facts(job=starting(300), persistent_workers=False, loader=SampleCost(1.5, None, 0.0)),  # as long as a batch
        facts(job=starting(300), persistent_workers=True, data_lines=first_at("data starts")),
        facts(job=starting(300), loader_workers=0, data_lines=first_at("data", sure=False)),
        facts(job=replace(starting(300), several_first=True), loader_workers=0, data_lines=first_at("data")),
    ],
}  # fmt: skip
