"""Who issues the collectives of a real job."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlprof.model import issuers
from tests.integration.dist.conftest import DDLPROF, HERE, Job, ranks_of
from tests.integration.dist.issuing import STEPS

pytestmark = [pytest.mark.dist, pytest.mark.slow]


def line(comment: str) -> str:
    """The line of the script that ends with a comment."""
    lines = (HERE / "issuing.py").read_text().splitlines()
    return f"issuing.py:{1 + next(n for n, text in enumerate(lines) if text.endswith(f'# {comment}'))}"


def test_each_collective_has_its_issuer(job: Job, tmp_path: Path) -> None:
    job(tmp_path, 2, [*DDLPROF, "--out", "run", str(HERE / "issuing.py")])
    expected = {
        (issuers.BUFFERS, "broadcast", ""),
        (issuers.REDUCER, "allreduce", ""),
        (issuers.IN_FORWARD, "allreduce", line("forward")),
        (issuers.IN_BACKWARD, "allreduce", line("backward")),
        (issuers.SCRIPT, "broadcast", line("loop")),
    }
    for rank in ranks_of(tmp_path / "run", 2):
        table = rank.collectives
        found = []
        for shape in table.shape[table.row == STEPS - 1]:
            place = rank.places[table.shapes[shape].issuer]
            text = place.text.rpartition("/")[2].partition(" ")[0]
            found.append((place.what, table.shapes[shape].op, text))
        assert set(found) == expected
        assert len(found) == len(expected)
