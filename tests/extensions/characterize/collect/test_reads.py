"""The files that a loader reads: seen, told from code and libraries, and dropped from the page cache."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddlprof.extensions.characterize.model import Reads, load_reads

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's page cache and /proc")

WATCHED = """\
import mmap, os, sys
from ddlprof.extensions.characterize.collect.reads import ReadsWatch, drop_from_cache

folder = sys.argv[1]
held = open(f"{folder}/held", "rb")
mapped = open(f"{folder}/mapped", "rb")
memory = mmap.mmap(mapped.fileno(), 0, prot=mmap.PROT_READ)
mapped.close()

def fetch(name):
    import colorsys  # code is no data, nor is what an installed checkout says of itself
    open(f"{folder}/own.egg-info/PKG-INFO").close()
    with open(f"{folder}/{name}", "rb") as file, open(f"{folder}/log", "w") as log:
        return len(file.read())

watch = ReadsWatch(f"{folder}/run/rank-0.reads")
epoch = watch.begin_epoch()
drop_from_cache([f"{folder}/a", f"{folder}/gone"])
assert watch.fetch(epoch, fetch, "a") == 1 << 20
assert watch.fetch(epoch, fetch, "b") == 1 << 20
open(f"{folder}/unrelated").close()  # not while a batch is fetched
watch.drop_again()
watch.fetch(watch.begin_epoch(), fetch, "b")
memory.close()
"""


def write(path: Path) -> None:
    path.write_bytes(bytes(1 << 20))


FULL = """\
import os, resource, sys
from ddlprof.extensions.characterize.collect.reads import ReadsWatch

folder = sys.argv[1]
watch = ReadsWatch(f"{folder}/run/rank-0.reads")
epoch = watch.begin_epoch()
resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))

def fetch(name):
    with open(f"{folder}/{name}", "rb") as file:
        return len(file.read())

for _ in range(40):
    assert watch.fetch(epoch, fetch, "a") == 1 << 20
    watch.drop_again()
os.closerange(3, 4096)
mine = [os.open(f"{folder}/mine", os.O_RDWR | os.O_CREAT) for _ in range(20)]
assert watch.fetch(epoch, fetch, "a") == 1 << 20
for number in mine:
    assert os.fstat(number).st_size == 0
"""


def run_alone(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """`program` without what measures its coverage: that would write a file of its own, which the limit forbids."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    return subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, env=environment)


def test_a_full_disk_stops_the_watching_only(tmp_path: Path) -> None:
    write(tmp_path / "a")
    done = run_alone(FULL, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    log = (tmp_path / "run" / "rank-0.reads").read_text()
    assert list(json.loads(log)) == ["failed"]
    assert "File too large" in log
    assert load_reads(tmp_path / "run") is None


def test_a_script_that_closes_every_descriptor_is_watched_on(tmp_path: Path) -> None:
    write(tmp_path / "a")
    program = FULL.replace("(500, 500)", "(-1, -1)")
    done = run_alone(program, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    reads = load_reads(tmp_path / "run")
    assert reads is not None
    assert reads.asked_bytes >= 41 << 20


def test_a_file_that_was_not_written_yet_becomes_cold(tmp_path: Path) -> None:
    from ddlprof.extensions.characterize.collect.reads import drop_from_cache

    def from_disk() -> int:
        lines = Path("/proc/self/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))

    write(tmp_path / "data")
    drop_from_cache([str(tmp_path / "data")])
    before = from_disk()
    (tmp_path / "data").read_bytes()
    if from_disk() == before:
        pytest.skip("the temporary directory is on no disk")
    drop_from_cache([str(tmp_path / "data")])
    with (tmp_path / "data").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        assert memory[:] == bytes(1 << 20)
        before = from_disk()
        drop_from_cache([str(tmp_path / "data")])
        assert memory[:] == bytes(1 << 20)
        assert from_disk() == before  # mapped pages in use stay


def test_reading_the_record(tmp_path: Path) -> None:
    assert load_reads(tmp_path) is None
    lines = [{"file": "/x"}, {"asked": 10, "disk": 4}, {"mapped": "/x"}, {"asked": 5, "disk": 0}]
    (tmp_path / "rank-0.reads").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"asked": 7, "di')
    (tmp_path / "rank-1.reads").write_text('{"file": "/y"}\n')
    assert load_reads(tmp_path) == Reads(frozenset({"/x", "/y"}), frozenset({"/x"}), 15, 4)
    (tmp_path / "rank-2.reads").write_text('{"asked": 10, "di{"failed": "No space left on device"}\n')
    assert load_reads(tmp_path) is None


@pytest.mark.parametrize(
    "line", ['{"asked": -1}', '{"asked": "7"}', '{"disk": 1.5}', '{"disk": NaN}', '{"file": 3}', "[]", "[" * 100_000]
)
def test_a_damaged_record_is_not_believed(tmp_path: Path, line: str) -> None:
    (tmp_path / "rank-0.reads").write_text('{"file": "/y"}\n')
    assert load_reads(tmp_path) is not None
    (tmp_path / "rank-1.reads").write_text(line + "\n")
    assert load_reads(tmp_path) is None


def test_a_record_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "rank-0.reads").write_text('{"file": "/y"}\n')
    os.mkfifo(tmp_path / "rank-1.reads")
    assert load_reads(tmp_path) is None
