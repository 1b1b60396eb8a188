"""`ddlprof learn` on run directories of a team, and the commands that take what it wrote."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.extensions.learn.planning import learn_from
from ddlprof.model.manifest import ModelFacts
from ddlprof.model.records import End, Overhead
from ddlprof.recommender.learned import read_learned
from tests.extensions.learn.teams import team
from tests.golden.runs import HERE, MS, Record, header, manifest, simple_run, step, write_rank
from tests.short import first_short
from tests.unit.cli.commands import WORK, ddlprof, write_workload

MACHINES = [{"gpu": "T4", "gpus": 2, "network": "10 Gbit/s"}, {"gpu": "V100", "network": "10 Gbit/s"}]
Capture = pytest.CaptureFixture[str]


def write_run(directory: Path, number: int, slower: float = 1.0) -> None:
    """A run of job `number` on a T4, whose FLOPs and step follow from the number."""
    flops = 4e9 * 1.5**number
    step_ms = slower * 32 * flops / 3e12 * 1e3
    rows = [step(n, compute_ms=step_ms, data_ms=1) for n in range(40)]
    ended: list[Record] = [Overhead(20_000 * 40, 40, 5 * MS, 1000 * MS), End("ok", 0, 40 * 10 * MS)]
    write_rank(directory, header(device="Tesla T4"), rows, records=ended)
    facts = ModelFacts(
        f"Net{number}", 50 + number, 150 + number, 25_000_000 + number, 100_000_000, flops, 2 * flops, False
    )
    replace(manifest(), name=f"secret-{number}", job_id=f"id-{number}", model=facts).write(directory)


@pytest.fixture
def runs(alone: None, tmp_path: Path) -> Path:
    for number in range(6):
        write_run(tmp_path / f"runs/deep/run-{number}", number, slower=4.0)
    shutil.copytree(tmp_path / "runs/deep/run-1", tmp_path / "runs/copy")
    simple_run(tmp_path / "runs/on-cpu")
    (tmp_path / "runs/torn/attempt-0").mkdir(parents=True)
    (tmp_path / "runs/torn/manifest.json").write_text("{")
    return tmp_path / "runs"


def test_a_file_and_a_page(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    assert ddlprof(monkeypatch, "learn", "runs", "-o", "mine.json", "-o", "-") == 0
    out, err = capsys.readouterr()
    assert "from 6 runs of 6 jobs in runs" in out
    assert "computation of T4 fp32, by flops" in out
    assert "whole steps, nothing measured" in out
    for reason in ("on-cpu: ran on a CPU", "a copy of another run", "torn: "):
        assert reason in out.replace("\n         ", " ")
    assert err.splitlines()[-1] == "ddlprof: wrote mine.json"
    text = Path("mine.json").read_text()
    assert "secret" not in text
    assert "runs/" not in text
    learned = read_learned(Path("mine.json"))
    assert [source.name for source in learned.sources] == [f"job {n}" for n in range(1, 7)]


def test_the_file_alone_leaves_a_line(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    assert ddlprof(monkeypatch, "learn", "runs", "-o", "mine.json") == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "learned from 6 runs: 6 jobs left out in turn" in err
    assert "3 runs not used" in err


def test_what_was_learned_is_used(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, bert: str) -> None:
    ddlprof(monkeypatch, "learn", "runs", "-o", "mine.json")
    unmeasured = replace(team(1)[0], measurements=())
    write_workload(unmeasured, Path("next.json"))
    predict = ["predict", "next.json", "--instance", "g4dn.xlarge", "--batch", "32", "--format", "json"]
    capsys.readouterr()

    def step_s(*words: str) -> tuple[float, str]:
        assert ddlprof(monkeypatch, *predict, *words) == 0
        out = capsys.readouterr().out
        return json.loads(out)["estimate"]["step_s"], out

    shipped, _ = step_s()
    given, text = step_s("--learned", "mine.json")
    assert given > 1.2 * shipped
    assert "learned from 6 jobs of yours on T4 (mine.json)" in text
    Path("no-overlay").mkdir()
    shutil.copy("mine.json", "no-overlay/learned.json")
    found, text = step_s()
    assert found == given
    assert "no-overlay/learned.json" in text


@pytest.mark.parametrize(
    "words",
    first_short(
        [
            ["recommend", "bert.json", *WORK],
            ["plan", "bert.json", "--machines", "machines.json", "--global-batch", "48"],
            ["elastic", "--jobs", "jobs.json", "--gpus", "8"],
            ["cluster", "advise", "bert.json", "--gpus", "8", "--instance", "g4dn.12xlarge"],
            [
                "cluster",
                "simulate",
                "--trace",
                "trace.csv",
                "--cluster",
                "2x4",
                "--policy",
                "fifo",
                "--models",
                "jobs.json",
            ],
        ]
    ),
    ids=lambda words: " ".join(words[:2]),
)
def test_every_command_takes_it(
    words: list[str], runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, bert: str
) -> None:
    Path("jobs.json").write_text(json.dumps([{"name": "a", "run": "bert.json", "batch": 48}]))
    Path("trace.csv").write_text("job_id,submit_s,gpus,duration_s,model\na,0,1,100,a\n")
    Path("machines.json").write_text(json.dumps({"machines": MACHINES}))
    ddlprof(monkeypatch, "learn", "runs", "-o", "mine.json")
    assert ddlprof(monkeypatch, *words, "--learned", "mine.json") == 0, capsys.readouterr().err
    for name in ("gone.json", "trace.csv"):
        capsys.readouterr()
        assert ddlprof(monkeypatch, *words, "--learned", name) == 2
        err = capsys.readouterr().err
        assert (err.count("\n"), f"{name}: " in err) == (1, True)


def test_nothing_is_written_where_it_does_not_help(
    alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for number in range(2):
        write_run(tmp_path / f"runs/run-{number}", number)
    assert ddlprof(monkeypatch, "learn", "runs", "-o", "mine.json") == 1
    out, err = capsys.readouterr()
    assert "is learned and no file is written: corrections are judged by jobs left out, which takes 3 jobs" in " ".join(
        out.split()
    )
    assert "wrote" not in err
    assert not Path("mine.json").exists()


def test_a_folder_without_runs(alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    (tmp_path / "empty").mkdir()
    for name, says in (("empty", "no run in it"), ("gone", "no such folder")):
        assert ddlprof(monkeypatch, "learn", name) == 2
        assert says in capsys.readouterr().err


def test_recorded_runs_of_a_cpu_teach_nothing(
    alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    shutil.copytree(HERE / "recorded", tmp_path / "recorded")
    assert ddlprof(monkeypatch, "learn", "recorded") == 1
    assert capsys.readouterr().out.count("ran on a CPU") == 2


@pytest.mark.slow
def test_one_line_of_python(runs: Path) -> None:
    seen: dict[str, list[tuple[int, int]]] = {}

    @contextmanager
    def watch(what: str) -> Iterator[Callable[[int, int], None]]:
        yield lambda done, total: seen.setdefault(what, []).append((done, total))

    found = learn_from("runs", watch)
    assert found.lesson.learned is not None
    assert seen["reading runs"][-1] == (9, 9)
    assert seen["fitting"] == [(done, 7) for done in range(1, 7)]  # without each of six jobs, and then with all
    assert learn_from("runs") == found


def test_a_bucket(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.put(str(runs), "/learned", recursive=True)
    assert ddlprof(monkeypatch, "learn", "memory://learned", "-o", "mine.json", "-o", "-") == 0
    assert "from 6 runs of 6 jobs in memory://learned" in capsys.readouterr().out
    memory.rm("/learned", recursive=True)
