"""The line below the title of a run's page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ddlprof.analysis.run import analyse
from ddlprof.model.records import End
from ddlprof.report.run.data import build_report
from ddlprof.report.run.page.subject import Subject
from ddlprof.report.run.page.subtitle import subtitle
from ddlprof.store import load_run
from tests.golden.runs import MS, NOW_UNIX_NS, header, manifest, step, write_golden_run, write_rank

YEAR_2000_UNIX_NS = 946_684_800_000_000_000


def subtitle_of(run: Path) -> str:
    data = load_run(run)
    attempts = analyse(data)
    return subtitle(Subject(data, attempts, build_report(data, attempts, NOW_UNIX_NS)))


def test_where_when_and_for_how_long(tmp_path: Path) -> None:
    write_golden_run(tmp_path)
    assert " · host host-a · DDP · " in subtitle_of(tmp_path)
    assert subtitle_of(tmp_path).endswith(" · 30 steps · 2026-01-01 09:59 UTC · took 4.8 s")


def test_many_hosts_are_counted_and_the_time_is_that_of_the_attempt(tmp_path: Path) -> None:
    end = [End("ok", 0, 100_000 * MS)]
    for attempt in (0, 1):
        for rank, node in enumerate("abc"):
            head = header(rank, 3, attempt, node)
            write_rank(tmp_path, head, [step(number) for number in range(30)], records=end)
    manifest(3).write(tmp_path)
    text = subtitle_of(tmp_path)
    assert " · 3 hosts · " in text
    assert "host-a" not in text
    assert text.endswith(" · attempt 1 of 0-1 · 2026-01-01 10:00 UTC · took 1 min 40 s")


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    """An import whose traces name no host and no date, and a shared run, which begins in 2000 whenever it was."""
    for name, began in (("imported", 5_000), ("shared", YEAR_2000_UNIX_NS)):
        head = replace(header(), host="unknown", origin_unix_ns=began)
        write_rank(tmp_path / name, head, [step(number) for number in range(30)])
        text = subtitle_of(tmp_path / name)
        assert text == "1 node, 1 rank on cpu · 30 steps · took 0.3 s"
