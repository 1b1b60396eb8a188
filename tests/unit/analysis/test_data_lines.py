"""Which line makes batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlprof.analysis.data_lines import DataLines, data_lines
from ddlprof.analysis.run import analyse
from ddlprof.analysis.sources import other_sources
from ddlprof.model import codec
from ddlprof.model.records import Flag
from ddlprof.model.source_locations import DATA_CALLER, SourceLocation
from ddlprof.store import load_run
from tests.golden.runs import header, step, write_rank

OPEN = SourceLocation("data.py:7 read", "data opens")
DECODE = SourceLocation("data.py:9 read", "data decodes")
ITEM = SourceLocation("train.py:3 D.__getitem__", "data")
CALLER = SourceLocation("train.py:3 D.__getitem__", DATA_CALLER)
JOINING = SourceLocation("torch.utils.data, sample by sample", "data per sample")
LOCK = SourceLocation("train.py:2 D.__getitem__", "data locks")
CHAIN = SourceLocation("torch.utils.data, data sets in data sets", "data nested")
LOG = SourceLocation("train.py:9 log", "logging")


def of(folder: Path, counts: dict[SourceLocation, int]) -> DataLines:
    places = list(counts)
    lines = [codec.encode_location(number, place) for number, place in enumerate(places)]
    lines.append(codec.encode_samples(10, {places.index(place): count for place, count in counts.items()}))
    write_rank(folder, header(), [step(n) for n in range(40)], lines=lines)
    (attempt,) = analyse(load_run(folder))
    assert [share.place for share in other_sources(attempt.ranks).shares] == [LOG]
    return data_lines(attempt.ranks)


def test_first_batches_are_told_apart(tmp_path: Path) -> None:
    rows = [step(n, flags=Flag.EPOCH_START if n in (0, 20) else 0) for n in range(40)]
    lines = [codec.encode_location(0, OPEN), codec.encode_location(1, ITEM)]
    lines += [codec.encode_samples(10, {1: 30}), codec.encode_samples(20, {0: 30})]
    write_rank(tmp_path, header(), rows, lines=lines)
    (attempt,) = analyse(load_run(tmp_path))
    found = data_lines(attempt.ranks)
    assert [share.place for share in found.first.shares] == [OPEN]
    assert found.main is not None
    assert found.main.place == ITEM


@pytest.mark.parametrize(
    ("counts", "place", "share"),
    [
        ({OPEN: 30, ITEM: 10, CALLER: 40}, OPEN, 0.75),
        ({OPEN: 10, DECODE: 10, ITEM: 10, CALLER: 30}, CALLER, 1.0),  # three lines, called by one
        ({OPEN: 12, DECODE: 10, ITEM: 8}, OPEN, 22 / 30),  # two lines of one function
        ({OPEN: 10, ITEM: 10, SourceLocation("c.py:1 f", "data"): 10}, None, 0),
        ({OPEN: 9, CALLER: 9}, None, 0),
        ({JOINING: 26, CHAIN: 24}, CHAIN, 0.48),
        ({JOINING: 10, CHAIN: 8}, CHAIN, 8 / 18),  # too few looks for a third, but single samples are of the chain
        ({JOINING: 45, CHAIN: 5}, JOINING, 0.9),
        ({DECODE: 110, CHAIN: 90}, DECODE, 0.55),
        ({ITEM: 26, LOCK: 24}, LOCK, 0.48),
        ({ITEM: 15, LOCK: 12}, LOCK, 12 / 27),  # no part of the wait
    ],
)
def test_the_line_that_is_the_line(
    tmp_path: Path, counts: dict[SourceLocation, int], place: SourceLocation | None, share: float
) -> None:
    main = of(tmp_path, {**counts, LOG: 50}).main
    assert (main and main.place) == place
    assert main is None or main.share == pytest.approx(share)


@pytest.mark.parametrize(
    ("what", "text"),
    [("data", "train.py:3-5 D.__getitem__"), ("data opens", "train.py:3 D.__getitem__")],
)
def test_the_function_is_told_where_it_has_more_than_a_line_of_unknown_work(
    tmp_path: Path, what: str, text: str
) -> None:
    """A comprehension is a part of the function that it is in."""
    inside = SourceLocation("train.py:5 D.__getitem__.<listcomp>", "data")
    main = of(tmp_path, {ITEM._replace(what=what): 24, inside: 10, CALLER: 34, LOG: 50}).main
    assert main is not None
    assert main.place.text == text


def test_what_a_third_of_a_function_does_is_told_of_it(tmp_path: Path) -> None:
    table = SourceLocation("train.py:5 D.__getitem__.<listcomp>", "data tables")
    main = of(tmp_path, {ITEM: 24, table: 16, CALLER: 40, LOG: 50}).main
    assert main is not None
    assert main.place == ("train.py:3-5 D.__getitem__", "data tables", "")


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("data locks", 8, False),  # what is done under a lock is no wait for it
        ("data parses", 8, True),
        ("data parses", 7, False),  # less than a quarter of the tensor's
        ("data parses", 1, False),
        ("data", 8, False),
    ],
)
def test_the_tensor_of_a_sample_is_told_with_the_line_that_makes_what_is_in_it(
    tmp_path: Path, before: str, after: int, told: bool
) -> None:
    """Looks fall on the tensor, which lets the interpreter's lock go."""
    parses, tensor = ITEM._replace(what=before), SourceLocation("train.py:5 D.__getitem__", "data tensor")
    main = of(tmp_path, {tensor: 30, parses: after, CALLER: 32, LOG: 50}).main
    assert main is not None
    assert (main.place.what == before != "data") is told
    assert not told or main.place.text == "train.py:3-5 D.__getitem__"
