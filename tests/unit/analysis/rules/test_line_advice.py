"""What is advised for a line of the script, by what is known of it."""

from __future__ import annotations

import pytest

from ddlprof.model import source_locations
from tests.unit.analysis.rules.loop_cases import job as of_job
from tests.unit.analysis.rules.loop_cases import line
from tests.unit.analysis.rules.made_up import facts
from tests.unit.analysis.rules.test_rules import found


@pytest.mark.parametrize(
    ("what", "cure"),
    [
        (source_locations.OWN_LOOP, "whole arrays or tensors in place of this loop"),
        (source_locations.TABLES, "to_numpy()"),
        (source_locations.LISTS, "np.stack"),
        (source_locations.PROGRAMS, "one pool"),
        (source_locations.DRAWS, "as a deque walks to each item"),
        ("", "see what this line does"),
    ],
)
def test_the_cure_of_a_slow_line_depends_on_what_it_does(what: str, cure: str) -> None:
    for data, loads_itself in ((None, True), (1.0, False)):
        (finding,) = found("slow_line", facts({"compute": 70.0, "data": data, "other": 30.0}, sources=line(what)))
        assert cure in finding.next
        makes = (
            loads_itself and what in source_locations.data_work()
        )  # of others nobody knows whether they make batches
        assert ("DataLoader" in finding.next) == makes


def test_a_program_that_is_waited_for_need_not_make_batches() -> None:
    """It may copy a checkpoint, or compute a score."""
    waits = line(source_locations.PROGRAMS)
    (slow,) = found("slow_line", facts({"compute": 70.0, "data": 1.0, "other": 30.0}, sources=waits))
    (between,) = found("between_steps", facts(job=of_job(60.0, 20.0), between=waits))
    for finding in (slow, between):
        assert "waiting for a program" in finding.evidence
        assert finding.next.startswith("a program in the background (subprocess.Popen")
        assert "soundfile" not in finding.next
    (loads,) = found("slow_line", facts({"compute": 70.0, "data": None, "other": 30.0}, sources=waits))
    assert "if a batch is made there: a library that does the same" in loads.next
