"""What findings about computing and pauses say to do, and what that gains at most."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddlprof.analysis.rules.facts import Facts
from tests.golden.runs import MS
from tests.unit.analysis.rules.made_up import facts
from tests.unit.analysis.rules.test_rules import (
    CHECKPOINTED,
    DOUBLE,
    LOOPED,
    ON_CPU,
    SIZES,
    SPEAKS,
    UPDATING,
    found,
)


@pytest.mark.parametrize(
    ("rule", "given", "gain_ms"),
    [
        ("padding", facts(UPDATING, padding_share=0.5), 33.5),  # the update takes the same without it
        ("double_precision", facts(UPDATING, **DOUBLE), 33.5),
        ("optimizer_loop", facts(UPDATING, **LOOPED), 19.5),
        ("few_threads", facts(**ON_CPU, graph_nodes=100), 97 * 7 / 8),
        ("recomputation", facts(**CHECKPOINTED), 97 / 4),
        ("anomaly_mode", facts(anomaly_share=1.0, layers=200), 20),
        ("anomaly_mode", facts(anomaly_share=1.0, layers=2000), 0.9 * 97),
    ],
)
def test_what_a_switch_gains_at_most(rule: str, given: Facts, gain_ms: float) -> None:
    (finding,) = found(rule, given)
    assert finding.gain_s == pytest.approx(gain_ms / 1000)


def test_an_update_that_is_measured_well_is_told_though_the_passes_vary() -> None:
    given = facts(UPDATING, **LOOPED)
    spreads = dict(given.summary.spreads)
    noisy = replace(spreads["compute"], standard_error_ns=20.0 * MS)
    varies = replace(given, summary=replace(given.summary, spreads=spreads | {"compute": noisy}))
    assert found("optimizer_loop", varies)
    own = replace(spreads["compute_optimizer"], standard_error_ns=20.0 * MS)
    varies = replace(given, summary=replace(given.summary, spreads=spreads | {"compute_optimizer": own}))
    assert not found("optimizer_loop", varies)


def test_the_cure_of_pauses_depends_on_who_calls_the_collector() -> None:
    own, called = (found("collector", given)[0].next for given in SPEAKS["collector"])
    assert own.startswith("gc.collect(); gc.freeze(); gc.disable() before the loop")
    assert called.startswith("call gc.collect() only")
    assert not found("slow_line", SPEAKS["collector"][1])  # it is told once


@pytest.mark.parametrize(
    ("reason", "action"),
    [
        (SIZES.reason, "dynamic=True"),
        ("", "dynamic=True"),
        ("k == 0", "as a tensor or an argument that stays the same"),
    ],
)
def test_the_cure_of_compiling_again_depends_on_the_reason_of_torch(reason: str, action: str) -> None:
    (finding,) = found("recompilation", facts(recompiled=replace(SIZES, reason=reason)))
    assert action in finding.next
    assert reason in finding.evidence
