"""`ddlprof cluster import`, from the history to the simulation."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ddlprof.extensions.cluster.advice import read_history
from ddlprof.extensions.cluster.trace import load_trace
from tests.unit.cli.commands import ddlprof

HISTORIES = Path(__file__).parents[2] / "cluster/history"
SACCT = str(HISTORIES / "sacct.txt")
TRACES = "shared/data/traces"
PUBLISHED = next((found for above in Path(__file__).parents if (found := above / TRACES).is_dir()), None)
Typed = Callable[..., tuple[int, str, str]]

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Types a command in an empty folder; gives its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        return ddlprof(monkeypatch, *words), *capsys.readouterr()

    return call


def test_a_real_history_is_simulated(typed: Typed) -> None:
    code, out, err = typed("cluster", "import", "sacct", SACCT, "-o", "jobs.csv")
    assert (code, out) == (0, "")
    assert err.splitlines() == [
        "ddlprof: left out jobs without GPUs: 1",
        "ddlprof: left out jobs that never started, or still wait: 1",
        "ddlprof: left out jobs that still run: their length is not known: 1",
        "ddlprof: left out steps of jobs: 16",
        "ddlprof: started more than once, their times added: 1 job",
        "ddlprof: wrote jobs.csv",
    ]
    trace = load_trace(Path("jobs.csv"))
    assert len(trace.jobs) == 12
    simulate = ["cluster", "simulate", "--trace", "jobs.csv", "--cluster", "4x8", "--policy", "fifo", "--restart", "0"]
    code, out, err = typed(*simulate, "-o", "-", "-o", "page.html", "-o", "found.json")
    assert code == 0
    assert "Past     Load: 1: jobs asked" in out
    page = Path("page.html").read_text()
    assert page.index('id="cluster"') < page.index('id="policies"')
    past = json.loads(Path("found.json").read_text())["question"]["past"]
    assert (past["jobs"], past["gpus"], past["most_at_once"], past["wait_median_s"]) == (12, 32, 32, 8)


def test_what_is_shown_is_what_is_simulated(typed: Typed) -> None:
    """The figures of the past are the same before and after the file of jobs."""
    _, out, _ = typed("cluster", "import", "sacct", SACCT, "--gpus", "32", "--format", "json")
    before = json.loads(out)["cluster"]
    typed("cluster", "import", "sacct", SACCT, "-o", "jobs.csv")
    _, out, _ = typed("cluster", "import", "csv", "jobs.csv", "--gpus", "32", "--format", "json")
    assert json.loads(out)["cluster"] == before


def test_waits_for_the_advice(typed: Typed) -> None:
    typed("cluster", "import", "sacct", SACCT, "-o", "past.waits.csv")
    waits = sorted((wait.gpus, wait.waited_s) for wait in read_history(Path("past.waits.csv")))
    assert waits == [(2, 0), (2, 8), (2, 8), (2, 12), (2, 12), (4, 7), (8, 0), (8, 0), (8, 8)]


def test_a_page_for_people(typed: Typed) -> None:
    code, out, err = typed("cluster", "import", "sacct", SACCT, "--gpus", "40")
    assert (code, err) == (0, "")
    for words in (
        "12 jobs",
        "Load ",
        "Waits ",
        "Idle ",
        "Fragments ",
        "GPUS  JOBS",
        "Note     left out steps of jobs: 16",
    ):
        assert words in out
    _, out, _ = typed("cluster", "import", "sacct", SACCT, "--gpus", "4")
    assert "held 32 GPUs at once, more than the 4 that are said" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["sacct", "no.txt"], "no.txt: cannot be read: No such file or directory"),
        (["sacct", SACCT, "--columns", "gpus=x"], "--columns names those of csv"),
        (["csv", SACCT, "--columns", "cards=x"], "--columns: cards=x: give WHAT=NAME, WHAT one of job_id, "),
        (["csv", SACCT, "--columns", "gpus"], "--columns: gpus: give WHAT=NAME"),
        (["sacct", SACCT, "--queue", "gone"], "no job ran on GPUs and ended (left out jobs of other queues: "),
        (["pbs", SACCT], "pbs"),
    ],
)
def test_bad_input_is_one_line(words: list[str], says: str, typed: Typed) -> None:
    code, out, err = typed("cluster", "import", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_standard_input(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path(SACCT).read_bytes())))
    code, out, _ = typed("cluster", "import", "sacct", "-", "--format", "csv")
    assert code == 0
    assert len(list(csv.DictReader(io.StringIO(out)))) == 12


@pytest.mark.skipif(PUBLISHED is None, reason=f"there are no published traces in {TRACES} beside the repository")
@pytest.mark.parametrize("name", ["philly", "alibaba_openb", "itp"])
def test_published_traces_keep_their_jobs(name: str, typed: Typed) -> None:
    assert PUBLISHED is not None
    path = PUBLISHED / f"{name}.csv"
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    code, _, _ = typed("cluster", "import", "csv", str(path), "-o", "jobs.csv")
    assert code == 0
    hours = sum(float(row["gpus"]) * float(row["duration_s"] or 0) for row in rows) / 3600
    with Path("jobs.csv").open(encoding="utf-8") as file:
        kept = list(csv.DictReader(file))
    assert sum(float(row["gpus"]) * float(row["duration_s"]) for row in kept) / 3600 == pytest.approx(hours)
    assert len(kept) == sum(float(row["duration_s"] or 0) > 0 for row in rows)
    assert len(load_trace(Path("jobs.csv")).jobs) == len(kept)
