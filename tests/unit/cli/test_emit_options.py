"""`ddlprof recommend --emit ENGINE` as a user types it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddlprof.model.manifest import Manifest
from tests.golden.runs import simple_run
from tests.unit.cli.commands import WORK, ddlprof, rows

pytestmark = pytest.mark.usefixtures("alone")


def test_a_task_for_skypilot_is_written_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = simple_run(tmp_path / "run")
    manifest = Manifest.read(run)
    arguments = ["recommend", str(run), "--budget", "30d", "--epochs", "3", "--emit", "skypilot"]
    assert ddlprof(monkeypatch, *arguments) == 0
    assert "sky launch train.sky.yaml" in capsys.readouterr().err
    text = Path("train.sky.yaml").read_text(encoding="utf-8")
    assert text.endswith(f"  {' '.join(manifest.argv)}\n")
    assert "# Plan 1: " in text
    assert ddlprof(monkeypatch, *arguments) == 2
    assert "train.sky.yaml exists already" in capsys.readouterr().err


def test_any_plan_is_written_to_any_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bert: str
) -> None:
    """The file of the engine is the one whose ending tells no format of the page, and replaces what is there."""
    Path("job.sh").write_text("old", encoding="utf-8")
    words = ["recommend", bert, *WORK, "--emit", "slurm", "--plan", "3", "-o", "r.csv", "-o", "job.sh"]
    assert ddlprof(monkeypatch, *words) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", "ddlprof: wrote r.csv\nddlprof: wrote job.sh; read it, then: sbatch job.sh\n")
    third = rows("r.csv")[2]
    text = Path("job.sh").read_text(encoding="utf-8")
    assert f"# Plan 3: {third['nodes']} x {third['instance_type']} ({third['gpu_model']}), aws us-east-1" in text
    assert f"#SBATCH --nodes={third['nodes']}\n" in text
    assert "  YOUR_SCRIPT\n" in text
    limit = re.search(r"--time=(?:(\d+)-)?(\d+):(\d+):00", text)
    assert limit is not None
    days, hours, minutes = (int(part or 0) for part in limit.groups())
    assert days * 24 + hours + minutes / 60 == pytest.approx(float(third["time_high_h"]), abs=1 / 60)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--plan", "2"], "--plan K says which plan to write: give --emit ENGINE, too"),
        (["--emit", "slurm", "--plan", "99999"], "--plan 99999: the table has"),
        (["--emit", "slurm", "--plan", "0"], "Invalid value for '--plan'"),
        (["--emit", "slurm", "-o", "a.sh", "-o", "b.sh"], "a.sh and b.sh: one file is enough for --emit slurm"),
        (["--emit", "slurm", "-o", "none/a.sh"], "none/a.sh: cannot be written: there is no folder none"),
        (["--emit", "sagemaker", "--cloud", "gcp"], "SageMaker has no ml."),
    ],
)
def test_what_cannot_be_emitted_is_said_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bert: str, words: list[str], says: str
) -> None:
    assert ddlprof(monkeypatch, "recommend", bert, *WORK, *words) == 2
    err = capsys.readouterr().err
    assert (says in err, err.count("\n")) == (True, 1)
    assert not list(Path().glob("*.sh"))
