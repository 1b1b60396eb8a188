"""The load of experts in a real job with all-to-alls, whose imbalance is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlprof.analysis.run import analyse
from ddlprof.report.run import text as card
from ddlprof.report.run.data import build_report
from ddlprof.store import load_run
from tests.integration.dist.conftest import DDLPROF, HERE, Job, ranks_of
from tests.integration.dist.experts import SHARE, STEPS, tokens_to

pytestmark = [pytest.mark.dist, pytest.mark.slow]

MIXTURES, ALL_TO_ALLS = 2, 4
"""Mixtures in the model, and the all-to-alls of each: there and back, in forward and in backward."""


@pytest.mark.parametrize(("ranks", "fullest"), [(2, 1), (4, 2)])
def test_the_load_of_experts_is_what_the_router_chose(job: Job, tmp_path: Path, ranks: int, fullest: int) -> None:
    job(tmp_path, ranks, [*DDLPROF, "--out", "run", str(HERE / "experts.py"), str(fullest)])
    recorded = ranks_of(tmp_path / "run", ranks)
    sent = tokens_to(ranks, fullest)
    for rank in recorded:
        assert [routed.step for routed in rank.routed] == list(range(STEPS))
        there, back = f"{ranks * sent[rank.rank]}/{sum(sent)}", f"{sum(sent)}/{ranks * sent[rank.rank]}"
        assert rank.routed[5].rows.split(",") == [there, back] * MIXTURES * (ALL_TO_ALLS // 2)
    run = load_run(tmp_path / "run")
    report = build_report(run, analyse(run), run.origin_unix_ns)
    experts = report.experts
    assert experts is not None
    mean = sum(sent) / ranks
    assert experts.imbalance == pytest.approx(max(sent) / mean)
    assert experts.imbalance == pytest.approx(SHARE, rel=0.02)
    assert (experts.fullest_rank, experts.ranks, experts.looked_at_steps) == (fullest, ranks, STEPS)
    assert experts.alltoall_share is not None
    assert experts.alltoall_share > 0.9  # there is no other communication
    assert f"the fullest of {ranks} ranks gets 1.5 times" in card.render(report)
