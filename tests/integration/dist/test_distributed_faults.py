"""What is left of a distributed job that loses a rank, a host or an attempt; and that it ends as it would have."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ddlprof.store import load_run
from scripts.lab.hosts import Lab, launchers, missing
from tests.integration.processes import PATIENCE_S, Processes, free_port, until

pytestmark = [pytest.mark.dist, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[3]
COLLECTIVE_TIMEOUT_S = 5
SCRIPT = [
    str(ROOT / "scripts/jobs/sleepers.py"), "--show-steps", f"--timeout-s={COLLECTIVE_TIMEOUT_S}",
    "--width=16", "--layers=3", "--forward-ms=2", "--backward-ms=3", "--data-ms=1",
]  # fmt: skip
ENDLESS = [*SCRIPT, "--steps=1000000"]
LONG_AFTER = 100
"""Steps, of 16 ms at least: then there is something to lose."""
PLAIN = [sys.executable, "-m", "torch.distributed.run"]
PROFILED = [sys.executable, "-m", "ddlprof", "run", "--out", "run"]


class Begun(NamedTuple):
    """A line of the script's own log."""

    rank: int
    process: int
    step: int
    time: float


class Told(NamedTuple):
    """What one `ddlprof report` says."""

    card: str
    report: dict[str, Any]

    @property
    def stopped(self) -> str:
        """The lines of the card about ranks that did not end by themselves."""
        return "\n".join(line for line in self.card.splitlines() if line.startswith("Stopped"))


class Job:
    """Launchers whose ranks log to one file in a folder of their own."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        folder.mkdir()
        self.folder = folder
        self._log = folder / "log"
        self._processes = processes
        self._launchers: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> None:
        """A launcher on this machine."""
        with self._log.open("ab") as log:
            self._launchers.append(self._processes.start(*words, cold=True, cwd=self.folder, stdout=log, stderr=log))

    def start_on(self, lab: Lab, host: int, words: Sequence[str]) -> None:
        """A launcher on a host of the lab."""
        there = ["sh", "-c", f'cd {self.folder} && exec "$@"', "sh", *words]
        with self._log.open("ab") as log:
            process = lab.start(host, there, stdout=log.fileno(), stderr=log.fileno(), PYTHONPATH=str(ROOT))
        self._launchers.append(process)

    def text(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def begun(self) -> list[Begun]:
        found = re.findall(r"^rank (\d+) process (\d+) step (\d+) time ([\d.]+)\n", self.text(), re.MULTILINE)
        return [Begun(int(rank), int(process), int(step), float(at)) for rank, process, step, at in found]

    def await_step(self, number: int, ranks: int, after: float = 0) -> dict[int, int]:
        """Waits until every rank has begun this step, after that time; their processes, by rank."""
        there: dict[int, int] = {}

        def arrived() -> bool:
            there.update(
                (each.rank, each.process) for each in self.begun() if each.step == number and each.time > after
            )
            return len(there) == ranks

        until(arrived, *self._launchers)
        return there

    def await_written(self, ranks: int, runs: Sequence[str] = ("run",)) -> dict[int, int]:
        """Waits until steps of every rank of the latest attempt are in the files; how many, by rank."""
        written: dict[int, int] = {}

        def there() -> bool:
            folders = [self.folder / run for run in runs]
            if not any(list(folder.glob("attempt-*/rank-*.jsonl")) for folder in folders):
                return False
            found = load_run(folders).ranks
            latest = max(rank.attempt for rank in found)
            written.clear()
            written.update((rank.rank, len(rank.steps)) for rank in found if rank.attempt == latest)
            return len(written) == ranks and min(written.values()) > 0

        until(there, *self._launchers)
        return written

    def told(self, runs: Sequence[str] = ("run",)) -> Told:
        words = ["report", *runs, "-o", "-", "-o", "report.json"]
        done = self._processes.run(sys.executable, "-m", "ddlprof", *words, cwd=self.folder, text=True)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        return Told(done.stdout, json.loads((self.folder / "report.json").read_text()))

    def wait(self) -> list[int]:
        """Exit codes."""
        return [launcher.wait(timeout=PATIENCE_S) for launcher in self._launchers]

    def interrupt(self) -> None:
        """Asks the launchers to end, and waits until they have."""
        for launcher in self._launchers:
            launcher.terminate()
        self.wait()

    def stop(self) -> None:
        """What the end of all processes leaves: those on hosts of a lab."""
        for launcher in self._launchers:
            launcher.kill()
            launcher.wait(PATIENCE_S)
        for process in {line.process for line in self.begun()}:
            command = Path(f"/proc/{process}/cmdline")
            if command.exists() and b"sleepers.py" in command.read_bytes():
                os.kill(process, signal.SIGKILL)


@pytest.fixture
def make_job(processes: Processes, tmp_path: Path) -> Iterator[Callable[[str], Job]]:
    jobs: list[Job] = []

    def make(name: str) -> Job:
        jobs.append(Job(tmp_path / name, processes))
        return jobs[-1]

    yield make
    for job in jobs:
        job.stop()


def of_attempt(report: dict[str, Any], attempt: int) -> list[dict[str, Any]]:
    return [rank for rank in report["ranks"] if rank["attempt"] == attempt]


def assert_nothing_written_is_lost(ranks: Sequence[dict[str, Any]], written: dict[int, int]) -> None:
    """Steps that could be read before."""
    for rank in ranks:
        assert rank["last_step"] >= written[rank["rank"]] - 1


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_rank_is_killed(victim: int, make_job: Callable[[str], Job]) -> None:
    ends: list[list[int]] = []
    written: dict[int, int] = {}
    for name, launcher in (("plain", PLAIN), ("profiled", PROFILED)):
        job = make_job(name)
        job.start(*launcher, "--nproc-per-node=2", *ENDLESS)
        processes = job.await_step(LONG_AFTER, ranks=2)
        written = job.await_written(2) if name == "profiled" else {}
        os.kill(processes[victim], signal.SIGKILL)
        ends.append(job.wait())
    plain_codes, codes = ends
    assert codes == plain_codes

    told = job.told()
    ranks = told.report["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    assert (ranks[victim]["status"], ranks[victim]["complete"]) == ("torn", False)
    assert f"rank {victim} was killed (SIGKILL)" in told.card
    assert "faster machine" not in told.card
    assert_nothing_written_is_lost(ranks, written)
    for rank in ranks:
        assert re.search(rf"\branks? .*\b{rank['rank']}\b.*: .* after step {rank['last_step']}\b", told.stopped)


@pytest.mark.root
def test_a_host_is_cut_off(make_job: Callable[[str], Job]) -> None:
    if reason := missing():
        pytest.skip(reason)
    ends: list[list[int]] = []
    written: dict[int, int] = {}
    for name, words in (("plain", ["plain"]), ("profiled", ["--out", "run"])):
        job = make_job(name)
        with Lab(2) as lab:
            for host, command in enumerate(launchers(2, [1], [*words, *ENDLESS], lab.address(0))):
                job.start_on(lab, host, command)
            job.await_step(LONG_AFTER, ranks=2)
            written = job.await_written(2) if name == "profiled" else {}
            lab.cut_off(1)
            ends.append(job.wait())
    plain_codes, codes = ends
    assert codes == plain_codes

    told = job.told()
    ranks = told.report["ranks"]
    assert [(rank["rank"], rank["host"]) for rank in ranks] == [(0, "lab-0"), (1, "lab-1")]
    assert not any(rank["status"] == "ok" for rank in ranks)
    assert_nothing_written_is_lost(ranks, written)
    for rank in ranks:
        assert re.search(rf"\branks? .*\b{rank['rank']}\b.*: .* after step {rank['last_step']}\b", told.stopped)


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_the_launcher_starts_again(
    victim: int, make_job: Callable[[str], Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where attempts share the launcher's store, torch's own ranks may find the addresses of those that are dead.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    steps = 2 * LONG_AFTER
    job = make_job("job")
    job.start(
        *PROFILED, "--", "torchrun", "--standalone", "--nproc-per-node=2", "--max-restarts=1", *SCRIPT,
        f"--steps={steps}",
    )  # fmt: skip
    processes = job.await_step(LONG_AFTER, ranks=2)
    written = job.await_written(2)
    os.kill(processes[victim], signal.SIGKILL)
    assert job.wait() == [0]

    assert sorted(path.name for path in (job.folder / "run").glob("attempt-*")) == ["attempt-0", "attempt-1"]
    told = job.told()
    report = told.report
    assert (report["attempt"], report["attempts"]) == (1, 2)
    first, second = (of_attempt(report, attempt) for attempt in (0, 1))
    assert [rank["rank"] for rank in first] == [rank["rank"] for rank in second] == [0, 1]
    assert [(rank["status"], rank["steps"]) for rank in second] == [("ok", steps)] * 2
    assert first[victim]["status"] == "torn"
    assert_nothing_written_is_lost(first, written)
    # The launcher may end the other one before the loss of its peer does.
    assert re.search(rf"\b{victim}(, 1)? of attempt 0", told.stopped)
    assert "attempt 1" not in told.stopped


ELASTIC = [
    "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3", "--monitor-interval=0.1", "--rdzv-backend=c10d",
    "--rdzv-id=job", "--rdzv-conf=is_host=0,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=8",
]  # fmt: skip


@pytest.fixture
def elastic(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Words of a launcher whose rendezvous outlives every machine of the job."""
    # Where attempts share the launcher's store, torch 2.13 lets a machine that joins wait for ever, without us too.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    port = free_port()
    serve = f"import time; from torch.distributed import TCPStore; s = TCPStore('127.0.0.1', {port}, is_master=True, " \
        "wait_for_workers=False); print(flush=True); time.sleep(1000)"  # fmt: skip
    server = processes.start(sys.executable, "-c", serve, stdout=subprocess.PIPE)
    assert server.stdout is not None
    server.stdout.readline()
    return [*PLAIN, *ELASTIC, f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1"]


def test_a_machine_joins(elastic: list[str], make_job: Callable[[str], Job]) -> None:
    """Torch's launcher counts no restart then."""
    job = make_job("job")
    words = [*elastic, "-m", "ddlprof", "run", "--quiet", "--out", "run", *ENDLESS]
    job.start(*words)
    job.await_step(LONG_AFTER, ranks=1)
    alone = job.await_written(1)
    joined_at = time.time()
    job.start(*words)
    job.await_step(LONG_AFTER, ranks=2, after=joined_at)
    both = job.await_written(2)
    job.interrupt()

    told = job.told()
    report = told.report
    assert report["attempts"] == 2
    first, second = of_attempt(report, 0), of_attempt(report, 1)
    assert [rank["rank"] for rank in first] == [0]
    assert [rank["rank"] for rank in second] == [0, 1]
    assert_nothing_written_is_lost(first, alone)
    assert_nothing_written_is_lost(second, both)
    assert re.search(r"\brank 0 of attempt 0: .* after step", told.stopped)


@pytest.mark.nightly
@pytest.mark.parametrize("runs", [("run",), ("here", "there")])
def test_the_machine_of_rank_0_is_lost(
    runs: tuple[str, ...], elastic: list[str], make_job: Callable[[str], Job]
) -> None:
    """The other one goes on as rank 0, in the same run directory: a shared one, or its own."""
    job = make_job("job")
    for out in (runs[0], runs[-1]):
        job.start(*elastic, "-m", "ddlprof", "run", "--quiet", "--out", out, *ENDLESS)
    processes = job.await_step(LONG_AFTER, ranks=2)
    folders = [job.folder / run for run in runs]
    written = job.await_written(2, runs)
    before = load_run(folders).ranks
    lost_at = time.time()
    for process in (parent_of(processes[0]), processes[0]):
        os.kill(process, signal.SIGKILL)
    job.await_step(LONG_AFTER, ranks=1, after=lost_at + COLLECTIVE_TIMEOUT_S)
    job.interrupt()

    *_, after = load_run(folders).ranks
    assert (after.attempt, after.rank, after.header.launcher) == (1, 0, before[1].header.launcher)
    assert {rank.header.job_id for rank in before} == {after.header.job_id}
    told = job.told(runs)
    first = of_attempt(told.report, 0)
    assert [rank["rank"] for rank in first if rank["status"] != "ok"] == [0, 1]
    assert_nothing_written_is_lost(first, written)
    for rank in (0, 1):
        assert re.search(rf"\branks? .*\b{rank}\b.* of attempt 0: .* after step ", told.stopped)


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
