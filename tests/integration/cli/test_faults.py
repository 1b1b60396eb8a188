"""What is left of a run that ends badly, and what is said when a run cannot begin."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddlprof.store import load_run
from tests.integration.processes import PATIENCE_S, Processes, until

Execute = Callable[..., subprocess.CompletedProcess[bytes]]
Write = Callable[..., str]

SLOW = pytest.mark.slow
ENDLESS = 1_000_000


def logged_step_times(folder: Path) -> list[float]:
    """The script's own account of its steps; a torn last line is not counted."""
    lines = (folder / "steps.log").read_text().split("\n") if (folder / "steps.log").exists() else [""]
    return [float(line) for line in lines[:-1]]


@pytest.fixture
def exported_steps(ddlprof: Execute, tmp_path: Path) -> Callable[[], int]:
    """Reads what is left of the run with `report` and `export`, and counts the steps."""

    def read() -> int:
        report = ddlprof("report", "run")
        assert (report.returncode, report.stderr) == (0, b"")
        assert report.stdout
        export = ddlprof("export", "run", "--format", "csv", "--out", "csv")
        assert export.returncode == 0, export.stderr
        with (tmp_path / "csv" / "steps.csv").open(newline="") as file:
            numbers = [int(row["step"]) for row in csv.DictReader(file)]
        assert numbers == list(range(len(numbers)))
        return len(numbers)

    return read


@pytest.mark.parametrize(
    ("after", "exit_code"),
    [
        ("raise ValueError('diverged')", 1),
        pytest.param("sys.exit(7)", 7, marks=SLOW),
        pytest.param("sys.exit('enough')", 1, marks=SLOW),
    ],
)
def test_program_that_ends_itself(
    after: str, exit_code: int, ddlprof: Execute, write_training: Write, exported_steps: Callable[[], int]
) -> None:
    done = ddlprof("run", "--out", "run", write_training(50, after))
    assert done.returncode == exit_code
    assert done.stdout.startswith(b"trained 50 ")
    assert exported_steps() == 50


def test_program_that_leaves_without_an_end(
    ddlprof: Execute, write_training: Write, exported_steps: Callable[[], int]
) -> None:
    written = "any(path.stat().st_size for path in Path('run').glob('*/rank-0.steps'))"
    wait = f"import os, time\nfrom pathlib import Path\nwhile not {written}:\n    time.sleep(0.05)\n"
    done = ddlprof("run", "--out", "run", write_training(50, f"{wait}os._exit(7)\n"))
    assert done.returncode == 7
    assert done.stderr == b"ddlprof: the script ended by os._exit: no card; its last steps: ddlprof report run\n"
    assert exported_steps() > 0


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize(
    "number",
    [*(pytest.param(number, marks=SLOW) for number in (signal.SIGINT, signal.SIGTERM)), signal.SIGKILL],
    ids=lambda n: n.name,
)
def test_program_that_is_stopped(
    number: signal.Signals, processes: Processes, write_training: Write, exported_steps: Callable[[], int],
    tmp_path: Path,
) -> None:  # fmt: skip
    command = [sys.executable, "-m", "ddlprof", "run", "--quiet", "--out", "run", write_training(ENDLESS)]
    process = processes.start(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: len(logged_step_times(tmp_path)) >= 200 and steps_there(tmp_path), process)
    written = steps_there(tmp_path)
    process.send_signal(number)
    assert process.wait(PATIENCE_S) == -number
    kept = exported_steps()
    assert kept >= written
    if number == signal.SIGINT:  # Python ends in order: nothing is lost, the step under way may be too many
        assert kept >= len(logged_step_times(tmp_path))


def steps_there(folder: Path) -> int:
    """How many steps can be read of the run while it goes on."""
    run = folder / "run"
    return sum(len(rank.steps) for rank in load_run(run).ranks) if list(run.glob("attempt-*/rank-*")) else 0


def assert_one_line(done: subprocess.CompletedProcess[bytes], *says: str) -> None:
    assert done.returncode == 2
    assert done.stdout == b""
    text = done.stderr.decode()
    assert text.startswith("ddlprof: ")
    assert text.count("\n") == 1
    for part in says:
        assert part in text


def test_missing_script(ddlprof: Execute, tmp_path: Path) -> None:
    assert_one_line(ddlprof("run", "train.py"), "cannot open train.py")
    assert_one_line(ddlprof("run", "--nproc-per-node", "2", "train.py"), "cannot open train.py")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", [[], ["--nproc-per-node", "2"]], ids=["one process", "launched"])
def test_existing_run_directory(form: list[str], ddlprof: Execute, write_training: Write, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    done = ddlprof("run", "--out", "run", *form, write_training(1))
    assert_one_line(done, "run exists already: choose another with --out, or remove it")
    assert not logged_step_times(tmp_path)


def test_run_directory_that_cannot_be_made(ddlprof: Execute, write_training: Write, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert_one_line(ddlprof("run", "--out", "file", write_training(1)), "file", "--out")
    assert_one_line(ddlprof("run", "--out", "file/run", "train.py"), "file/run", "--out")
    assert not logged_step_times(tmp_path)


@pytest.mark.parametrize(
    "command", [["report"], ["export", "--format", "csv", "--out", "csv"]], ids=["report", "export"]
)
def test_unknown_run(command: list[str], ddlprof: Execute, tmp_path: Path) -> None:
    assert_one_line(ddlprof(*command, "nowhere"), "nowhere")
    (tmp_path / "empty").mkdir()
    assert_one_line(ddlprof(*command, "empty"), "empty")


@pytest.mark.parametrize("damaged", [pytest.param("manifest.json", marks=SLOW), "attempt-0/rank-0.jsonl"])
def test_damaged_run_file(damaged: str, ddlprof: Execute, write_training: Write, tmp_path: Path) -> None:
    """What can be read is still shown, with a line that names the file."""
    ddlprof("run", "--quiet", "--out", "run", write_training(30))
    (tmp_path / "run" / damaged).write_bytes(b"\x00\xff{]\n" * 20)
    done = ddlprof("report", "run")
    said = (done.stdout + done.stderr).decode().splitlines()
    assert done.returncode in (0, 2)
    assert len([line for line in said if damaged in line]) == 1
    assert not any("Traceback" in line for line in said)


@pytest.mark.slow
def test_full_disk_does_not_stop_the_training(ddlprof: Execute, write_training: Write, small_disk: Path) -> None:
    done = ddlprof("run", "--out", str(small_disk / "run"), write_training(600, "sys.exit(3)"))
    assert done.stdout.startswith(b"trained 600 ")
    assert done.returncode == 3
    complaints = [line for line in done.stderr.decode().splitlines() if line.startswith("ddlprof: ")]
    # One line about the steps and, if even a summary is too large for the disk, one about that.
    assert ["summary.json" in line for line in complaints] in ([False], [False, True]), complaints
    assert all("No space left" in line for line in complaints)
    report = ddlprof("report", str(small_disk / "run")).stdout.decode()
    assert "Stopped  rank 0: ended by exit" in report
    assert "the disk was full when this rank ended" in report


ODD = """
from pathlib import Path
Path("run/attempt-0.bak").mkdir(parents=True, exist_ok=True)
Path("run/attempt-0/rank-7.jsonl").mkdir(parents=True, exist_ok=True)
"""
FORMS = {
    "plain": ["train.py"],
    "module": ["-m", "train"],
    "ranks": ["--nproc-per-node", "1", "train.py"],
    "torchrun": ["--", "torchrun", "--standalone", "--nproc-per-node", "1", "train.py"],
    "command": ["--", "sh", "-c", f"{sys.executable} train.py"],
}


@pytest.mark.skipif(os.name == "nt", reason="POSIX shells and signals")
@pytest.mark.parametrize(
    ("form", "after", "code"),
    [
        ("command", "sys.exit(7)", 7),
        *(
            pytest.param(form, after, code, marks=SLOW)
            for form, after, code in [
                ("plain", "", 0), ("command", "", 0), ("plain", "sys.exit(7)", 7), ("module", "sys.exit(7)", 7),
                ("module", "", 0), ("ranks", "", 0),
                ("ranks", "raise ValueError", 1), ("torchrun", "", 0), ("torchrun", "sys.exit(7)", 1),
                ("command", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
                ("plain", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15),
                ("command", "import os; os._exit(9)", 9), ("plain", "import os; os._exit(9)", 9),
            ]
        ),
    ],
)  # fmt: skip
def test_whatever_is_in_the_run_directory_the_exit_code_is_the_scripts(
    form: str, after: str, code: int, ddlprof: Execute, write_training: Write
) -> None:
    write_training(50, f"{ODD}{after}\n")
    done = ddlprof("run", "--out", "run", *FORMS[form], LOCAL_WORLD_SIZE="abc")
    assert done.returncode == code, done.stderr
    assert b"bug" not in done.stderr
    assert b"Exception ignored" not in done.stderr
