"""What is said of communication by who issues it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddlprof.analysis.issued import Issued, IssuedTraffic
from ddlprof.analysis.rules.apply import RULES, apply_rules
from ddlprof.analysis.traffic import CommTotals
from ddlprof.model import issuers
from ddlprof.model.source_locations import SourceLocation
from tests.golden.runs import MS
from tests.unit.analysis.rules.hook_cases import hooked
from tests.unit.analysis.rules.loop_cases import line
from tests.unit.analysis.rules.made_up import ddp
from tests.unit.analysis.rules.test_rules import (
    BUFFER,
    FOUR_TIMES,
    GATHERED,
    GRADIENTS,
    SCATTERED,
    UNITS,
    at_line,
    by,
    found,
)


def test_the_switch_is_that_of_the_way_of_sharding() -> None:
    times = FOUR_TIMES | {"strategy": "fsdp"}
    (two,) = found("no_sync", by(SCATTERED, **times))
    assert "set_requires_gradient_sync(False) in all but the last of 4 micro-batches" in two.next
    (one,) = found("no_sync", by(replace(SCATTERED, place=SourceLocation("", issuers.FSDP)), **times))
    assert "with model.no_sync(): in all but the last of 4" in one.next


def test_parameters_are_kept_after_forward_where_fsdp_gathers_them_again_and_memory_has_room() -> None:
    known: dict[str, Any] = {"strategy": "fsdp", "frozen": False, "micro_batches": 1, "device": "cpu"}
    (twice,) = found("gradient_traffic", by(SCATTERED, GATHERED, **known))
    assert twice.next.startswith("reshard_after_forward=False keeps the parameters from forward to backward, 381 MiB")
    assert "again in backward" in twice.evidence
    assert twice.gain_s == pytest.approx(0.0075)  # half of what is waited for gathers
    older = [replace(each, place=SourceLocation("", issuers.FSDP)) for each in (SCATTERED, GATHERED)]
    (one,) = found("gradient_traffic", by(*older, **known))
    assert "ShardingStrategy.SHARD_GRAD_OP" in one.next
    for other in (
        by(SCATTERED, replace(GATHERED, number=16), **known),
        by(SCATTERED, GATHERED, **known | {"frozen": True}),
        by(SCATTERED, GATHERED, **known, free_bytes=10**8),  # no room
        by(SCATTERED, replace(GATHERED, moving_s=0.0001), **known),  # hidden behind computing
        by(SCATTERED, GATHERED, **known | {"micro_batches": 2, "gradient_bytes": 4 * 10**8}),
    ):
        (plain,) = found("gradient_traffic", other)
        assert plain.next == "larger batches, or faster links between the ranks"
        assert plain.gain_s is None


def test_larger_units_save_no_more_than_the_latency_of_a_message() -> None:
    (alone,) = found("bucket_size", by(UNITS, strategy="fsdp"))
    assert alone.gain_s == pytest.approx(57 * 3e-4)  # of 60
    shorter = replace(at_line(40, 1e6, 0.02), fastest_s=1e-4)
    (beside,) = found("bucket_size", by(UNITS, shorter, strategy="fsdp"))
    assert beside.gain_s == pytest.approx(57 * 1e-4)


def test_what_carries_the_bytes_of_the_gradients_may_be_them() -> None:
    (by_hand,) = found("own_messages", by(at_line(6, 1e8), strategy="none"))
    assert "DistributedDataParallel" in by_hand.next
    (other,) = found("own_messages", by(at_line(6, 1e9), strategy="none"))
    assert "DistributedDataParallel" not in other.next


def at(text: str, caller: str = "", moving_s: float = 0.03) -> Issued:
    """An all-reduce of ten megabytes at a line of a helper."""
    return replace(at_line(1, 1e7, moving_s), place=SourceLocation(text, issuers.SCRIPT, caller))


def test_a_helper_is_named_with_the_line_that_called_it() -> None:
    (own,) = found("own_messages", by(at("utils.py:9 mean", "train.py:40 main")))
    assert own.next.startswith("utils.py:9 mean, called at train.py:40 main: ")


def test_lines_of_helpers_are_votes_for_the_line_that_called_them() -> None:
    three = [at(f"utils.py:{n} log", "train.py:40 main", n / 1000) for n in (7, 9, 14)]
    (own,) = found("own_messages", by(*three))
    assert own.next.startswith("train.py:40 main: ")
    assert "3 x allreduce" in own.evidence
    apart = [replace(each, place=each.place._replace(caller=f"train.py:{n} main")) for n, each in enumerate(three)]
    (one,) = found("own_messages", by(*apart))
    assert "1 x allreduce" in one.evidence


@pytest.mark.parametrize("number", [1, 40])
def test_nothing_is_put_together_of_a_barrier(number: int) -> None:
    barrier = replace(at_line(number, number), op="barrier")
    (own,) = found("own_messages", by(barrier, micro_batches=number))
    assert ": without it, as DDP and all collectives wait for one another" in own.next
    assert own.gain_s == pytest.approx(0.03)
    assert not found("many_messages", by(barrier))


def test_objects_are_told_once_with_their_size_and_all_that_they_take() -> None:
    sent = replace(at_line(2, 4e6, 0.02, issuers.OBJECTS), op="allgather")
    given = ddp(20, 30, issued=IssuedTraffic([sent]), sources=line("", 1.0))
    (finding,) = [each for each in apply_rules(given, RULES) if each.rule in ("sent_objects", "slow_line")]
    assert finding.rule == "sent_objects"
    assert "2 x allgather a step for 3.81 MiB of pickled objects" in finding.evidence
    assert finding.share == pytest.approx(0.02 + 0.2)
    assert "all_gather_object" in finding.next


def test_many_messages_are_told_once_with_all_that_their_line_takes() -> None:
    given = ddp(20, 30, issued=IssuedTraffic([at_line(60, 5e4, 0.02)]), sources=line("", 1.0))
    (finding,) = [each for each in apply_rules(given, RULES) if each.rule in ("many_messages", "slow_line")]
    assert finding.rule == "many_messages"
    assert finding.evidence.endswith("computing waits 20 ms for them, and 2 ms a step are at that line itself")
    assert finding.share == pytest.approx(0.2 + 0.02)


KEPT: dict[str, Any] = {"gradient_bytes": 20_000_000, "comm": CommTotals(30 * MS, None, ["allreduce"])}


@pytest.mark.parametrize(("op", "fastest_s", "rule"), [
    ("broadcast", None, "own_messages"), ("allreduce", 4e-4, "many_messages"),
])  # fmt: skip
def test_what_ddp_keeps_the_same_need_not_be_sent(op: str, fastest_s: float | None, rule: str) -> None:
    of_ddp = replace(GRADIENTS, bytes=2e7)
    sent = replace(at_line(40, 2.1e7, 0.02), op=op, fastest_s=fastest_s)
    (finding,) = found(rule, by(sent, of_ddp, **KEPT))
    assert "without it: DDP starts all ranks with the weights of rank 0" in finding.next
    assert finding.gain_s == pytest.approx(0.02)
    for given in (
        by(replace(sent, bytes=1e7), of_ddp, **KEPT),  # a part of the model, such as the ranks' own layers
        by(replace(sent, bytes=3.5e7), of_ddp, **KEPT),
        by(replace(sent, place=SourceLocation("model.py:9 f", issuers.IN_FORWARD)), of_ddp, **KEPT),
        by(sent, of_ddp, **KEPT | {"comm_hook": "a hook"}),  # which may leave weights apart
        by(sent, replace(of_ddp, bytes=1e6), **KEPT),  # DDP has a part of the model
    ):
        assert all("without it: DDP" not in each.next for each in found(rule, given))


def test_backwards_of_collectives_count_for_the_function_that_issues_them() -> None:
    def at(text: str, what: str) -> Issued:
        return replace(at_line(8, 64, 0.01), place=SourceLocation(text, what))

    backward = at("torch/distributed/nn/functional.py:538 _AllReduce.backward", issuers.IN_BACKWARD)
    mean, square = (at(f"norm.py:{n} Norm.forward", issuers.IN_FORWARD) for n in (19, 20))
    (finding,) = found("many_messages", by(mean, square, backward, GRADIENTS))
    assert finding.evidence.startswith("norm.py Norm.forward: 24 x allreduce a step")
    assert "nn.SyncBatchNorm" in finding.next
    other = at("head.py:3 Head.forward", issuers.IN_FORWARD)
    (apart,) = found("many_messages", by(mean, replace(backward, moving_s=0.02), other, GRADIENTS))
    assert apart.evidence.startswith("torch/distributed")  # it is not known of which it is the backward


def test_what_is_gathered_in_small_messages_may_be_added_up() -> None:
    (finding,) = found("many_messages", by(replace(at_line(60, 5e4), op="allgather")))
    assert "all_reduce of those of each rank; otherwise one message" in finding.next


def test_the_words_about_buffers_are_what_was_seen_of_them() -> None:
    (unknown,) = found("buffer_broadcast", by(BUFFER))
    assert "if all ranks make the same buffers" in unknown.next
    assert "BatchNorm" in unknown.next
    (same,) = found("buffer_broadcast", by(BUFFER, buffers_change=False, batch_statistics=False))
    assert same.next == "DistributedDataParallel(broadcast_buffers=False)"


def test_what_a_hook_takes_is_no_promise() -> None:
    """Backward is long, but how much of it is the hook's nobody measured."""
    (told,) = found("comm_hook", hooked())
    assert (told.severity, told.gain_s) == ("info", None)
    assert told.evidence.endswith("8 times the forward; by its operators it is about 2 times")
    assert told.next.startswith("measure once without largest_alone, as what it takes was not measured")
    assert "fp16" not in told.next
