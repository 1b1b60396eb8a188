"""What is told to torch's launcher, which itself is replaced by a recorder here."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from ddlprof.base.errors import UserError
from ddlprof.launch import terminal, torchrun
from ddlprof.launch.target import BOOTSTRAP, LaunchTarget
from ddlprof.model.options import OPTIONS_VARIABLE, Options

SCRIPT = LaunchTarget(["train.py", "--", "--lr", "1"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["torchrun", "--nnodes", "2", "train.py"], ["--nnodes", "2", "train.py"]),
        (["/env/bin/torchrun", "train.py"], ["train.py"]),
        (["python", "-m", "torch.distributed.run", "train.py"], ["train.py"]),
        (["/env/bin/python3.12", "-u", "-m", "torch.distributed.run", "train.py"], ["train.py"]),
        (["train.py", "torchrun"], None),
        (["python", "train.py", "-m", "torch.distributed.run"], None),
        (["python", "-c", "pass"], None),
        (["pythonic.py"], None),
    ],
)
def test_torchrun_is_recognised(words: list[str], expected: list[str] | None) -> None:
    assert torchrun.torchrun_words(LaunchTarget(words)) == expected


def test_torchrun_as_a_module_is_recognised() -> None:
    assert torchrun.torchrun_words(LaunchTarget(["torch.distributed.run", "x.py"], module=True)) == ["x.py"]
    assert torchrun.torchrun_words(LaunchTarget(["torchrun", "x.py"], module=True)) is None


def test_words_for_torchrun() -> None:
    assert not torchrun.LauncherOptions().asked_for()
    assert torchrun.LauncherOptions("2").torchrun_words() == ["--standalone", "--nproc-per-node=2"]
    assert torchrun.LauncherOptions("2", 1, 0, None, 29501).torchrun_words()[-1] == "--master-port=29501"
    two_machines = torchrun.LauncherOptions("gpu", 2, 1, "host0", 29501)
    assert two_machines.asked_for()
    assert two_machines.torchrun_words() == [
        "--nproc-per-node=gpu", "--nnodes=2", "--node-rank=1", "--master-addr=host0", "--master-port=29501"
    ]  # fmt: skip


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Namespace]:
    """The arguments with which torch's launcher is called."""
    run = pytest.importorskip("torch.distributed.run")
    calls: list[Namespace] = []
    monkeypatch.setattr(run, "run", calls.append)
    monkeypatch.setenv(OPTIONS_VARIABLE, "")
    monkeypatch.setattr(terminal, "print_card", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    return calls


def test_workers_run_the_bootstrap_and_share_one_directory(launched: list[Namespace]) -> None:
    assert torchrun.launch_target(torchrun.LauncherOptions("2"), SCRIPT, Options(stop_after=5)) == 0
    [arguments] = launched
    assert [arguments.training_script, *arguments.training_script_args] == [BOOTSTRAP, "train.py", "--", "--lr", "1"]
    assert (arguments.nproc_per_node, arguments.standalone) == ("2", True)
    options = Options.from_environment()
    assert options.out
    assert Path(options.out).is_dir()
    assert options.stop_after == 5
    assert options.job_id
    assert not options.card


def test_several_machines_leave_directory_and_card_to_rank_0(launched: list[Namespace]) -> None:
    job = torchrun.LauncherOptions("2", nnodes=2, node_rank=1, master_addr="host0")
    assert torchrun.launch_target(job, SCRIPT, Options()) == 0
    assert not launched[0].standalone
    assert Options.from_environment() == Options()
    assert not Path("ddlprof-runs").exists()


def test_torchrun_command_with_a_module(launched: list[Namespace]) -> None:
    torchrun.launch_torchrun(["--nproc_per_node", "2", "-m", "package.train", "--lr", "1"], Options(out="run"))
    [arguments] = launched
    assert not arguments.module
    assert [arguments.training_script, *arguments.training_script_args] == [
        BOOTSTRAP, "-m", "package.train", "--lr", "1"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--no-python", "train.sh"], "leave out --no-python"),
        (["--nproc-per-node", "many", "train.py"], "many"),
        (["--nproc-per-node", "0", "train.py"], "--nproc-per-node 0: give at least 1"),
        (["--nproc-per-node=-2", "train.py"], "--nproc-per-node -2: give at least 1"),
        (["--nnodes", "a:b:c", "train.py"], "a:b:c"),
        (["--nnodes", "0", "train.py"], "--nnodes 0: give at least 1"),
        (["--nnodes", "2:1", "train.py"], "--nnodes 2:1: give at least 1, as N or MIN:MAX"),
        (["gone.py"], "cannot open gone.py"),
    ],
)
def test_what_cannot_be_launched(words: list[str], message: str, launched: list[Namespace]) -> None:
    with pytest.raises(UserError, match=message):
        torchrun.launch_torchrun(words, Options())
    assert not launched


def test_used_run_directory_is_refused_before_the_start(launched: list[Namespace]) -> None:
    Path("used").mkdir()
    Path("used/manifest.json").touch()
    with pytest.raises(UserError, match="exists already"):
        torchrun.launch_target(torchrun.LauncherOptions("2"), SCRIPT, Options(out="used"))
    assert not launched


class Failed(Exception):
    """As torch's `ChildFailedError` has it."""

    def __init__(self, rank: int, exitcode: int) -> None:
        self._first = rank, Namespace(exitcode=exitcode)

    def get_first_failure(self) -> tuple[int, Namespace]:
        return self._first


@pytest.mark.parametrize(("error", "said"), [(Failed(1, -9), True), (Failed(1, -15), False), (Failed(1, 1), False),
                                             (RuntimeError(), False)])  # fmt: skip
def test_only_a_rank_that_was_killed_first_is_named(error: Exception, said: bool, tmp_path: Path) -> None:
    (tmp_path / "attempt-0").mkdir()
    for rank in (0, 1):
        (tmp_path / "attempt-0" / f"rank-{rank}.fatal").touch()
    torchrun._note_killed(tmp_path, [error])
    texts = [(tmp_path / "attempt-0" / f"rank-{rank}.fatal").read_text() for rank in (0, 1)]
    assert [bool(text) for text in texts] == [False, said]
