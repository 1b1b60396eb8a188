"""Whatever happens to the files of a run, it is read or refused with one line, and nothing changes without a word."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from ddlprof.store import load_run
from scripts.fuzz.damage import WAYS, Seen, damaged, flip, look, on_two_machines, repeat
from tests.golden.runs import HERE

RUNS = [
    HERE / "two-ranks",
    *(HERE / "recorded" / name for name in ("operators", "fewer-columns")),
]
WITH_CHECKSUMS = RUNS[-1]
EACH = 6
"""Seeds of each way and run; `python -m scripts.fuzz.runs` tries more."""
FLIPS = 50


@pytest.mark.parametrize("way", list(dict.fromkeys(WAYS)), ids=lambda way: way.__name__)
@pytest.mark.parametrize("run", RUNS, ids=["two-ranks", "operators", "checked"])
def test_it_is_read_or_refused(tmp_path: Path, run: Path, way: Callable[..., str]) -> None:
    changed = 0
    whole = look(run, tmp_path / "csv")
    for seed in range(EACH):
        copy, how = damaged(run, tmp_path, seed, [way], sealed=seed % 2 == 1)
        try:
            changed += look(copy, tmp_path / "csv") != whole
        except Exception as error:
            error.args = (f"{how}: {error}",)
            raise
    assert changed  # or this damages nothing


def test_records_with_valid_checksums_may_say_anything(tmp_path: Path) -> None:
    """Of a run on two machines, whose collectives are compared with those that were timed inside one."""
    run = on_two_machines(WITH_CHECKSUMS, tmp_path)
    for seed in range(5 * EACH):
        copy, how = damaged(run, tmp_path, seed, [repeat], sealed=True)
        try:
            look(copy, tmp_path / "csv")
        except Exception as error:
            error.args = (f"{how}: {error}",)
            raise


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return look(WITH_CHECKSUMS, tmp_path_factory.mktemp("whole"))


def test_a_flipped_byte_is_said_where_there_are_checksums(tmp_path: Path, whole: Seen) -> None:
    said = 0
    for seed in range(FLIPS):
        copy, how = damaged(WITH_CHECKSUMS, tmp_path, seed, [flip])
        seen = look(copy, tmp_path / "csv")
        if "manifest.json" in how:
            continue  # it has none; its JSON and types are checked
        assert seen.error or seen.said != whole.said or seen.figures == whole.figures, how
        said += seen.said != whole.said
    assert said > FLIPS / 2


def test_a_damaged_part_is_left_out_and_the_others_count(tmp_path: Path) -> None:
    run = shutil.copytree(WITH_CHECKSUMS, tmp_path / "run")
    path = run / "attempt-0" / "rank-0.jsonl"
    expected = load_run(run).ranks[0]
    lines = path.read_text().splitlines(keepends=True)
    number = next(number for number, line in enumerate(lines) if line.startswith('["q",20,'))
    ends = [i for i, line in enumerate(lines) if line.startswith('["f"')]
    begin, end = max(i for i in ends if i < number) + 1, min(i for i in ends if i > number)
    lost = [json.loads(line)[1] for line in lines[begin:end] if line.startswith('["q"')]
    lines[number] = lines[number].replace('["q",20,', '["q",21,')  # which no other check would find
    path.write_text("".join(lines))
    rank = load_run(run).ranks[0]
    assert [note.message for note in rank.notes] == [f"1 damaged part left out, {end - begin} lines in all"]
    assert rank.samples == [sample for sample in expected.samples if sample[0] not in lost] != expected.samples
    assert rank.steps.rows() == expected.steps.rows()
    assert rank.complete


def test_a_damaged_block_takes_its_own_steps_with_it(tmp_path: Path) -> None:
    run = shutil.copytree(WITH_CHECKSUMS, tmp_path / "run")
    path = run / "attempt-0" / "rank-1.steps"
    content = bytearray(path.read_bytes())
    expected = load_run(run).ranks[1]
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    rank = load_run(run).ranks[1]
    (note,) = rank.notes
    assert (note.source, note.message) == ("attempt-0/rank-1.steps", "1 damaged part left out")
    left = np.isin(expected.steps["step"], rank.steps["step"])
    assert 0 < len(rank.steps) == np.count_nonzero(left) < len(expected.steps)
    of_left = left[expected.collectives.row]
    assert rank.collectives.end_us.tolist() == expected.collectives.end_us[of_left].tolist()


def test_a_part_with_another_checksum_of_its_own_is_believed(tmp_path: Path) -> None:
    """That is what the checksum is of: the lines since the one before."""
    run = shutil.copytree(WITH_CHECKSUMS, tmp_path / "run")
    path = run / "attempt-0" / "rank-0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    ends = [i for i, line in enumerate(lines) if line.startswith(b'["f"')]
    note = b'["n","h2d","added"]\n'
    flush = json.loads(lines[ends[1]])
    flush[1] = crc32(b"".join([*lines[ends[0] + 1 : ends[1]], note]))
    lines[ends[1]] = note + json.dumps(flush).replace(", ", ",").encode() + b"\n"
    path.write_bytes(b"".join(lines))
    assert [n.message for n in load_run(run).ranks[0].notes] == ["added"]


def test_memory_and_time_do_not_grow_with_a_line(tmp_path: Path) -> None:
    """A line of a million numbers is damage beside others, and no table as wide for each of the steps."""
    import tracemalloc

    run = shutil.copytree(RUNS[1], tmp_path / "run")
    path = run / "attempt-0" / "rank-0.jsonl"
    counters = [line for line in path.read_text().splitlines() if line.startswith('["c"')]
    wide = counters[0][:-1] + ",1" * 300_000 + "]"
    deep = "[" * 100_000
    repeated = counters * (6000 // len(counters) + 1)
    path.write_text("\n".join([path.read_text().rstrip("\n"), *repeated, wide, deep]) + "\n")
    tracemalloc.start()
    try:
        rank = load_run(run).ranks[0]
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 200 << 20
    assert len(rank.context) > 6000
    assert any("damaged" in note.message for note in rank.notes)
