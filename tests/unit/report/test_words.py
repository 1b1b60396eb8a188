"""Units, and the words of a verdict."""

from __future__ import annotations

from typing import Any

import pytest

from ddlprof.analysis.diagnosis import LateRank, Verdict
from ddlprof.analysis.summary import TIMES, Spread, Summary
from ddlprof.analysis.traffic import CommTotals
from ddlprof.report.advice import Facts, advise
from ddlprof.report.units import ago, count, gib, listed, percent, ranges, scale_for
from tests.golden.runs import MS


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(12.34, "12.3 s"), (1.2345, "1234 ms"), (0.3181, "318 ms"), (0.0952, "95.2 ms"), (0.00123, "1.23 ms"),
     (0.00043, "430 µs"), (0.0000512, "51.2 µs"), (0.0, "0.0 µs")],
)  # fmt: skip
def test_times_have_about_three_digits(seconds: float, text: str) -> None:
    assert scale_for(seconds).time(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (0.0003, "<0.1 %"), (0.0012, "0.1 %"), (0.0094, "0.9 %"), (0.0096, "1 %"), (0.224, "22 %")],
)  # fmt: skip
def test_small_shares_are_not_zero(share: float, text: str) -> None:
    assert percent(share) == text


def test_counts_are_singular_and_plural() -> None:
    assert [count(n, "step") for n in (0, 1, 2, 12345)] == ["0 steps", "1 step", "2 steps", "12,345 steps"]
    assert count(2, "process", "processes") == "2 processes"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 seconds ago"),
        (1.5, "1 second ago"),
        (240, "4 minutes ago"),
        (3700, "1 hour ago"),
        (200_000, "2 days ago"),
    ],
)
def test_ago(seconds: float, text: str) -> None:
    assert ago(seconds) == text


def test_sizes_and_lists() -> None:
    assert gib(3 << 29) == "1.5 GiB"
    assert gib(400 << 20) == "400 MiB"
    assert listed(["a", "b"]) == "a, b"
    assert listed(["a", "b", "c"], most=2) == "a, b and 1 more"
    assert ranges([9, 3, 1, 2, 5, 6, 3]) == "1-3, 5, 6, 9"
    assert ranges(range(0, 20, 2), most=3) == "0, 2, 4 and 7 more"
    assert ranges([]) == ""


def facts(**known: Any) -> Facts:
    means = {
        "step": 100.0, "compute": 60.0, "data": 30.0, "data_fetch": 20.0, "data_prep": 8.0, "h2d": 1.0,
        "comm": 5.0, "straggler": 2.0, "other": 4.0,
    }  # fmt: skip
    summary = Summary({n: Spread(means[n] * MS if n in means else None) for n in TIMES}, 50, 0)
    values: dict[str, Any] = {
        "summary": summary, "late_rank": None, "comm": None, "looking_s": None, "other_lines": [],
        "loader_workers": 2, "cores_per_rank": 4, "precision": "fp32", "device": "cpu",
        "cpu_percent": 50.0,
    }  # fmt: skip
    return Facts(**(values | known))


@pytest.mark.parametrize(
    ("cause", "workers", "cores", "expected"),
    [
        ("prep", 0, 4, "DataLoader(num_workers=4)"),
        ("prep", 0, None, "DataLoader(num_workers=2)"),
        ("fetch", 2, 4, "more than 2 loader workers (they wait"),
        ("fetch", 8, 4, "more than 8 loader workers (they wait"),
        ("prep", 2, 4, "more than 2 loader workers (4 cores a rank)"),
        ("prep", 4, 4, "4 workers already fill 4 cores a rank"),
        (None, None, 4, "torch.utils.data.DataLoader"),
    ],
)
def test_advice_for_data(cause: str | None, workers: int | None, cores: int | None, expected: str) -> None:
    verdict = Verdict("DATA-BOUND", "critical", "data", 0.3, cause)
    why, action = advise(verdict, facts(loader_workers=workers, cores_per_rank=cores))
    assert expected in action
    assert why.startswith("the loop waits 30 ms a step for its batches")


@pytest.mark.parametrize("stall", ["data", "h2d", "comm", "interconnect", "network", "straggler", "other"])
def test_every_verdict_has_one_line_of_why_and_one_of_next(stall: str) -> None:
    for known in ({}, {"late_rank": LateRank(3, 0.9, "data", 40 * MS, 10 * MS), "other_lines": [("a.py:1 f", 0.5)]}):
        lines = advise(Verdict(f"{stall.upper()}-BOUND", "warning", stall, 0.15), facts(**known))
        assert all(lines)
        assert not any("\n" in line or "None" in line for line in lines)


def test_advice_names_what_was_found() -> None:
    straggler = Verdict("STRAGGLER-BOUND", "warning", "straggler", 0.15)
    for cause in ("data", "compute", "h2d", "other", None):
        why, action = advise(straggler, facts(late_rank=LateRank(3, 0.9, cause)))
        assert "rank 3" in why
        assert "rank 3" in action
    network = Verdict("NETWORK-BOUND", "warning", "network", 0.05)
    why, _ = advise(network, facts(comm=CommTotals(14 * MS, 0.93, ["allreduce", "broadcast", "barrier"])))
    assert why == (
        "communication between machines: 5 ms of a step is not hidden behind computing, of 14 ms in allreduce and "
        "broadcast, 0.93 GB/s bus bandwidth"
    )


def test_compute_bound_depends_on_the_device_and_names_the_largest_stall() -> None:
    why, action = advise(Verdict("COMPUTE-BOUND", "ok"), facts())
    assert why == "computing takes 60 % of the step, the largest stall is waiting for data with 30 %"
    assert "accelerator" in action
    assert "autocast" in advise(Verdict("COMPUTE-BOUND", "ok"), facts(device="NVIDIA A10G"))[1]
    assert "autocast" not in advise(Verdict("COMPUTE-BOUND", "ok"), facts(device="NVIDIA A10G", precision="bf16"))[1]


def test_ranks_that_compete_for_cores_are_told() -> None:
    verdict = Verdict("STRAGGLER-BOUND", "warning", "straggler", 0.15)
    assert "cores (95 % busy)" in advise(verdict, facts(cpu_percent=95.0))[1]
    assert "cores" not in advise(verdict, facts(cpu_percent=95.0, device="NVIDIA A10G"))[1]
    assert "cores" not in advise(verdict, facts(cpu_percent=None))[1]


@pytest.mark.parametrize("reason", ["few_steps", "looking", "noise"])
def test_undecided_says_why(reason: str) -> None:
    verdict = Verdict("UNDECIDED", "unknown", "other", 0.2, reason=reason)
    assert all(advise(verdict, facts(looking_s=0.03)))
