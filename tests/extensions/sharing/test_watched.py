"""A shared run in `ddlprof watch`."""

from __future__ import annotations

from pathlib import Path

from ddlprof.extensions.sharing.write import share
from tests.golden.runs import HERE
from tests.unit.live.test_follower import look


def test_a_shared_run_is_watched_as_the_run_is(tmp_path: Path) -> None:
    """Its files have no checksums, and do not grow."""
    share([str(HERE / "two-ranks")], tmp_path / "run.zip")
    shared, run = look(tmp_path / "run.zip"), look(HERE / "two-ranks")
    assert [rank.state for rank in shared.ranks] == [rank.state for rank in run.ranks] == ["exception", "silent"]
    assert shared.times_s == run.times_s
    assert (shared.times_s["straggler"] or 0) > 0
