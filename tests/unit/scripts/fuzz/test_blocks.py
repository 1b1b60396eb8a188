"""What damages blocks of steps does so, and whatever it does, the run is read or refused with one line."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from ddlprof.model.blocks import LAYOUTS, LONG_STEP, STEP, SUMS, BlockStream
from ddlprof.store import load_run
from scripts.fuzz.blocks import WAYS, blocks_of, make_up_numbers, resealed
from scripts.fuzz.damage import Damage, Seen, damaged, look
from scripts.fuzz.written import RANKS, STEPS, write_run

EACH = 8


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("written") / "run")


@pytest.fixture(scope="module")
def whole(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return look(run, tmp_path_factory.mktemp("whole"))


def kinds(content: bytes) -> list[bytes]:
    return [block.kind for block in BlockStream(LAYOUTS).take(content)[0]]


def test_the_run_has_blocks_of_all_kinds_and_is_whole(run: Path) -> None:
    ranks = load_run(run).ranks
    assert [(rank.step_count, rank.notes, len(rank.strides)) for rank in ranks] == [(STEPS, [], 2)] * RANKS
    assert all(len(rank.collectives) == 2 * len(rank.steps) for rank in ranks)
    content = (run / "attempt-0/rank-0.steps").read_bytes()
    assert set(kinds(content)) == {STEP, LONG_STEP, SUMS}
    assert blocks_of(content) == [bytes(block.whole) for block in BlockStream(LAYOUTS).take(content)[0]]


def test_a_seal_is_of_what_is_there(run: Path) -> None:
    content = (run / "attempt-0/rank-0.steps").read_bytes()
    assert resealed(content) == content
    changed = bytearray(content)
    for at in range(50, len(content), 700):
        changed[at] ^= 1
    assert len(kinds(bytes(changed))) < len(kinds(content))
    assert kinds(resealed(bytes(changed))) == kinds(content)
    assert resealed(content[:-5]) == content[:-5]  # of a block that is cut, there is none that fits


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_it_is_read_or_refused(way: Damage, sealed: bool, run: Path, whole: Seen, tmp_path: Path) -> None:
    changed = 0
    for seed in range(EACH):
        copy, how = damaged(run, tmp_path, seed, [way], most=3, sealed=sealed)
        try:
            changed += look(copy, tmp_path / "csv") != whole
        except Exception as error:
            error.args = (f"{how}: {error}",)
            raise
    assert changed > EACH / 4


def test_impossible_numbers_behind_right_checksums_are_left_out(run: Path, tmp_path: Path) -> None:
    said = 0
    for seed in range(EACH):
        copy, _ = damaged(run, tmp_path, seed, [make_up_numbers], sealed=True)
        said += any("impossible values" in note.message for rank in load_run(copy).ranks for note in rank.notes)
    assert said > EACH / 4


def test_a_flipped_byte_is_said(run: Path, whole: Seen, tmp_path: Path) -> None:
    """Of all blocks but the last one of a rank, which nothing follows."""
    random = Random(0)
    for _ in range(2 * EACH):
        copy, _ = damaged(run, tmp_path, 0, [lambda random, run: ""])
        path = copy / f"attempt-0/rank-{random.randrange(RANKS)}.steps"
        content = bytearray(path.read_bytes())
        at = random.randrange(len(content) - len(blocks_of(bytes(content))[-1]))
        content[at] ^= random.randrange(1, 256)
        path.write_bytes(content)
        seen = look(copy, tmp_path / "csv")
        assert any("damaged part" in each for each in seen.said - whole.said), at
