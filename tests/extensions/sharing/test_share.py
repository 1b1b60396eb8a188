"""A shared run: nothing of what was planted in the run is in it, and its analysis is that of the run."""

from __future__ import annotations

import json
import random
import shutil
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddlprof.analysis.run import Attempt, analyse
from ddlprof.base.errors import UserError
from ddlprof.cli.app import main
from ddlprof.extensions.sharing import names as words
from ddlprof.extensions.sharing.allowed import Fits, Origins
from ddlprof.extensions.sharing.names import Pseudonyms
from ddlprof.extensions.sharing.write import share
from ddlprof.model.annotations import Shared, SharedAs
from ddlprof.model.blocks import HEAD_BYTES, LAYOUTS, Block, BlockStream, encode_block
from ddlprof.model.codec import KINDS
from ddlprof.model.manifest import LayoutFacts, Manifest, ModelFacts, TrainingFacts
from ddlprof.model.operators import Operator, OperatorsFile, StepOperators
from ddlprof.model.records import Aggregate, CollectiveTimes, RankHeader, StepRow
from ddlprof.store import RunData, load_run
from tests.extensions.sharing.rich_run import rich_run
from tests.golden.runs import HERE, header, manifest, simple_run, step, write_rank
from tests.unit.cli.hostile import NAME, write_run

FOLDERS = [HERE / "two-ranks", *sorted((HERE / "recorded").iterdir())]
SLOW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def everything_in(path: Path) -> str:
    """All that is in an archive, unpacked, and the bytes of the file itself."""
    with zipfile.ZipFile(path) as archive:
        unpacked = b"".join(info.filename.encode() + archive.read(info) for info in archive.infolist())
    return (unpacked + path.read_bytes()).decode("latin-1")


def compared(run: RunData, attempts: list[Attempt]) -> list[Any]:
    """What the analysis of a run says in numbers, of every step and collective, and the verdicts' material."""
    found: list[Any] = []
    for attempt in attempts:
        found += [
            attempt.summary.dimensions,
            attempt.summary.spreads,
            attempt.window.steady.tolist(),
            attempt.outliers,
            attempt.late_rank,
        ]
        for rank in attempt.ranks:
            found += [
                rank.data.rank,
                rank.data.node,
                words.STATUS.kept(rank.data.status),
                rank.data.aggregates,
                rank.data.windows,
            ]
            found += [
                [(rung.bytes, rung.duration_ns) for rung in rank.data.calibration],
                rank.data.clock_readings,
                rank.data.overhead,
                rank.data.loader_costs,
            ]
            found += [rank.flags.tolist(), rank.clock, rank.summary.spreads]
            found += [rank.times.times[name].tolist() for name in sorted(rank.times.times)]
            found += [rank.times.dimensions[name].tolist() for name in sorted(rank.times.dimensions)]
            matched = rank.collectives
            found += [
                matched.transfer_us.tolist(),
                matched.duration_us.tolist(),
                matched.scopes,
                matched.table.seq.tolist(),
            ]
            found += [(count, place.what if place.what == "logging" else "") for _, place, count in rank.data.samples]
            found.append(np.nan_to_num(rank.data.context["cpu_percent"], nan=-1).tolist())
    return found


def analysis_of(path: Path) -> list[Any]:
    run = load_run(path)
    return compared(run, analyse(run))


@pytest.mark.parametrize("directory", FOLDERS, ids=lambda path: path.parent.name)
def test_a_shared_run_is_analysed_as_the_run_is(directory: Path, tmp_path: Path) -> None:
    share([str(directory)], tmp_path / "run.zip")
    assert analysis_of(tmp_path / "run.zip") == analysis_of(directory)


def test_no_text_of_the_run_is_in_it(tmp_path: Path) -> None:
    token = "Zq7xK9secret"
    directory = rich_run(tmp_path / "run", token)
    share([str(directory)], tmp_path / "shared.zip")
    text = everything_in(tmp_path / "shared.zip")
    for secret in (token, token.lower(), "example", "987654321", "/home", "train.py", str(tmp_path)):
        assert secret not in text
    assert analysis_of(tmp_path / "shared.zip") == analysis_of(directory)
    shared = load_run(tmp_path / "shared.zip")
    assert shared.manifest is not None
    assert shared.manifest.versions == {"python": "3.11.7"}
    assert shared.manifest.layout == LayoutFacts(tensor=2, data_replicate=3)
    assert shared.manifest.host["gpus"] == ["device", "NVIDIA A10G"]
    assert shared.step is not None
    assert (shared.step.operators[0].name, shared.step.operators[0].shape) == ("product", (1, 2, 3, 4))
    assert {rank.header.host for rank in shared.ranks} == {"host-0"}
    assert [rank.header.node_id for rank in shared.ranks] == ["node-0", "node-1"] * 2
    assert {shape.group for shape in shared.ranks[0].collectives.shapes} == {
        "group-0", "group-1:0>1#3", "0", "group-2any",
    }  # fmt: skip


class Planting:
    """Puts a token of its own in place of texts of a run, a share of them, and beside its fields."""

    def __init__(self, seed: int, share_of_texts: float) -> None:
        self._random = random.Random(seed)
        self._share = share_of_texts
        self.tokens: list[str] = []

    def token(self) -> str:
        self.tokens.append("Qz" + "".join(self._random.choices("abcdefghijkmnopqrstuvwxyz", k=14)))
        return self.tokens[-1]

    def planted(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.token() if self._random.random() < self._share else value
        if isinstance(value, list):
            return [self.planted(each) for each in value]
        if isinstance(value, dict):
            return {name: self.planted(each) for name, each in value.items()} | {self.token(): self.token()}
        return value

    def in_run(self, directory: Path) -> None:
        for name in ("manifest.json", "operators.json"):
            if (directory / name).exists():
                value = self.planted(json.loads((directory / name).read_text()))
                (directory / name).write_text(json.dumps(value))
        for path in directory.glob("attempt-*/*.jsonl"):
            first, *rest = [json.loads(line) for line in path.read_text().splitlines()]
            columns = {**first.pop("columns"), self.token(): [self.token()]}
            columns["n"] = [*columns["n"], self.token()]
            blocks = first.pop("blocks", {}) | {self.token(): [[self.token(), "u4"]]}
            lines: list[Any] = [{**self.planted(first), "columns": columns, "blocks": blocks}]
            lines += [[line[0], *self.planted(line[1:])] for line in rest if line[0] != "f"]
            lines += [["n", self.token(), self.token(), self.token()], [self.token(), self.token()], {self.token(): 1}]
            path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


@given(seed=st.integers(0, 2**32), share_of_texts=st.sampled_from([0.02, 0.2, 1.0]), number=st.integers(0, 4))
@SLOW
def test_nothing_that_is_planted_anywhere_is_in_it(
    seed: int, share_of_texts: float, number: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = tmp_path_factory.mktemp("planted")
    if number < 3:
        rich_run(here / "run", "plain")
    else:
        shutil.copytree(HERE / "recorded" / ("fewer-columns" if number == 3 else "operators"), here / "run")
    planting = Planting(seed, share_of_texts)
    planting.in_run(here / "run")
    try:
        expected = analysis_of(here / "run")
    except UserError:
        with pytest.raises(UserError):
            share([str(here / "run")], here / "shared.zip")
        assert not (here / "shared.zip").exists()
        return
    share([str(here / "run")], here / "shared.zip")
    text = everything_in(here / "shared.zip").lower()
    assert planting.tokens
    assert not [token for token in planting.tokens if token.lower() in text]
    assert analysis_of(here / "shared.zip") == expected


@given(seed=st.integers(0, 2**32), changes=st.integers(1, 6))
@SLOW
def test_a_damaged_run_is_shared_as_it_is_read(
    seed: int, changes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = tmp_path_factory.mktemp("damaged")
    chosen = random.Random(seed)
    shutil.copytree(chosen.choice(FOLDERS), here / "run")
    for path in chosen.choices(sorted((here / "run").glob("attempt-*/*")), k=changes):
        content = bytearray(path.read_bytes())
        at = chosen.randrange(len(content)) if content else 0
        content[at : at + chosen.randrange(3)] = chosen.randbytes(chosen.randrange(3))
        path.write_bytes(content if chosen.random() < 0.8 else content[:at])
    try:
        expected = analysis_of(here / "run")
    except UserError:
        return
    share([str(here / "run")], here / "shared.zip")
    assert analysis_of(here / "shared.zip") == expected


BADGE, BADGE_ONLY = (31337).to_bytes(4, "little"), [["badge", "u4"]]


def wider_blocks(found: list[Block]) -> Iterator[bytes]:
    """The blocks with a badge before each row and each time, and one of a new kind before each."""
    for block in found:
        row = sum(int(letter[1:]) for _, letter in LAYOUTS[block.kind.decode()])
        rows, seqs = block.whole[HEAD_BYTES : block.seqs_at], bytes(block.whole[block.seqs_at : block.times_at])
        wider = (_with_badges(rows, row), seqs, _with_badges(block.whole[block.times_at :], 16))
        yield encode_block(b"z", 2 * block.number, (3, 0, 0), 3 * BADGE)
        yield encode_block(block.kind, 2 * block.number + 1, block.counts, b"".join(wider))


def _with_badges(packed: memoryview, size: int) -> bytes:
    return b"".join(BADGE + packed[at : at + size] for at in range(0, len(packed), size))


def test_a_new_field_is_left_out_until_it_is_allowed(tmp_path: Path) -> None:
    """What a later version writes: a number of a step, of sums and of a collective, a kind of line and of block, a
    field of header and manifest.
    """
    directory = rich_run(tmp_path / "run", "plain")
    expected = analysis_of(directory)
    for path in directory.glob("attempt-*/*.jsonl"):
        first, *rest = path.read_text().splitlines()
        head = json.loads(first)
        head["badge"], head["columns"]["new"] = 31337, ["badge"]
        found, _ = BlockStream(LAYOUTS).take(path.with_suffix(".steps").read_bytes())
        path.with_suffix(".steps").write_bytes(b"".join(wider_blocks(found)))
        head["blocks"] = {**{kind: [["badge", "u4"], *layout] for kind, layout in LAYOUTS.items()}, "z": BADGE_ONLY}
        lines = [json.dumps(head, separators=(",", ":")), *rest, '["new",31337]']
        path.write_text("".join(f"{line}\n" for line in lines))
    described = json.loads((directory / "manifest.json").read_text())
    for value in (described, described["model"], described["training"], described["host"]):
        value["badge"] = 31337
    (directory / "manifest.json").write_text(json.dumps(described))
    assert analysis_of(directory) == expected
    share([str(directory)], tmp_path / "shared.zip")
    text = everything_in(tmp_path / "shared.zip")
    for badge in ("badge", "31337", BADGE.decode("latin-1")):
        assert badge not in text
    assert analysis_of(tmp_path / "shared.zip") == expected
    notes = [note for rank in load_run(tmp_path / "shared.zip").ranks for note in rank.notes]
    assert not [note for note in notes if note.source.endswith(".steps")]  # nothing seems to be missing


@dataclass(frozen=True)
class NewRecord:
    """Of a later version: only what says that it may be shared is."""

    group: Annotated[str, SharedAs("group")]
    count: Shared[int]
    badge: int = 0


def test_a_field_is_left_out_unless_it_says_that_it_may_be_shared() -> None:
    fits = Fits(Pseudonyms(), Origins(0, 0, 0))
    assert fits.shared(NewRecord("secret", 7, 31337)) == NewRecord("group-0", 7)
    with pytest.raises(ValueError, match="not a number"):
        fits.shared(NewRecord("secret", "31337"))  # type: ignore[arg-type]


def test_every_field_says_how_in_a_known_way() -> None:
    fits = Fits(Pseudonyms(), Origins(0, 0, 0))
    records = (RankHeader, Manifest, ModelFacts, TrainingFacts, OperatorsFile, StepOperators, Operator)
    for kind in (*KINDS.values(), StepRow, Aggregate, CollectiveTimes, *records):
        fits.of(kind)  # raises KeyError


def test_times_are_moved_together(tmp_path: Path) -> None:
    for rank in range(2):
        head = replace(header(rank, 2), origin_ns=10**15 + rank * 7, origin_unix_ns=header().origin_unix_ns + rank * 5)
        write_rank(tmp_path / "run", head, [step(n) for n in range(9)])
    described = replace(manifest(2), created_unix_ns=header().origin_unix_ns - 3)
    described.write(tmp_path / "run")
    share([str(tmp_path / "run")], tmp_path / "shared.zip")
    found = load_run(tmp_path / "shared.zip")
    assert found.manifest is not None
    began = 946_684_800 * 10**9
    assert (found.manifest.created_unix_ns, found.manifest.origin_unix_ns) == (began, began + 3)
    assert [rank.header.origin_unix_ns for rank in found.ranks] == [began + 3, began + 8]
    assert [rank.header.origin_ns for rank in found.ranks] == [0, 7]


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip"):
        share([str(HERE / "two-ranks")], tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "b.zip"]
    share([str(tmp_path / "a.zip")], tmp_path / "b.zip")  # once more changes nothing
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_parts_of_a_run_become_one_file(tmp_path: Path) -> None:
    for rank in range(2):
        write_rank(tmp_path / f"part-{rank}", replace(header(rank, 2), job_id="x"), [step(n) for n in range(5)])
    share([str(tmp_path / "part-0"), str(tmp_path / "part-1")], tmp_path / "run.zip")
    assert [rank.rank for rank in load_run(tmp_path / "run.zip").ranks] == [0, 1]


def test_shared_runs_are_told_apart(tmp_path: Path) -> None:
    for number in (40, 41):
        share([str(simple_run(tmp_path / str(number), steps=number))], tmp_path / f"{number}.zip")
    ids = [found.manifest.job_id for n in (40, 41) if (found := load_run(tmp_path / f"{n}.zip")).manifest]
    assert len(set(ids)) == 2
    assert all(job_id.startswith("shared-") for job_id in ids)


def test_of_an_imported_run_it_is_told_that_it_is_one(tmp_path: Path) -> None:
    replace(manifest(), job_id="import:secret").write(simple_run(tmp_path / "run"))
    share([str(tmp_path / "run")], tmp_path / "run.zip")
    found = load_run(tmp_path / "run.zip").manifest
    assert found is not None
    assert found.is_imported
    assert found.job_id.startswith("import:shared-")


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"run.tar: the name of a shared run ends with .zip$"):
        share([str(HERE / "two-ranks")], tmp_path / "run.tar")
    with pytest.raises(UserError, match=r"cannot be written: No such file or directory$"):
        share([str(HERE / "two-ranks")], tmp_path / "nowhere" / "run.zip")
    with pytest.raises(UserError, match="no such run directory"):
        share([str(tmp_path / "gone")], tmp_path / "run.zip")
    assert not list(tmp_path.iterdir())


def ddlprof(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["ddlprof", *arguments])
    capsys.readouterr()
    return main(), *capsys.readouterr()


def test_every_command_reads_a_shared_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, shared = str(HERE / "recorded" / "operators"), str(tmp_path / "shared.zip")
    code, out, err = ddlprof(monkeypatch, capsys, "share", run, "-o", shared)
    assert (code, err) == (0, f"ddlprof: wrote {shared}\n")
    assert f"Wrote    {shared}: 2 ranks, 80 steps in all, " in out
    assert f"ddlprof share --inspect {shared}" in out
    code, card, _ = ddlprof(monkeypatch, capsys, "report", shared)
    _, own, _ = ddlprof(monkeypatch, capsys, "report", run)
    assert code == 0
    assert [line for line in card.splitlines() if line.startswith(("Step", "Verdict", "  why"))] == [
        line for line in own.splitlines() if line.startswith(("Step", "Verdict", "  why"))
    ]
    for words_of in (
        ["report", shared, "--format", "json"],
        ["export", shared, "--out", str(tmp_path / "csv")],
        ["recommend", shared, "--budget", "30d", "--samples", "100000"],
    ):
        code, _, err = ddlprof(monkeypatch, capsys, *words_of)
        assert code == 0, words_of
        assert all(line.startswith("ddlprof: wrote ") for line in err.splitlines()), words_of


def test_the_look_before_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = tmp_path / "shared.zip"
    share([str(write_run(tmp_path / "run", NAME))], shared)
    code, out, err = ddlprof(monkeypatch, capsys, "share", "--inspect", str(shared))
    assert (code, err) == (0, "")
    texts = out[out.index("Texts ") : out.index("Look ")].removeprefix("Texts").split(" · ")
    shown = {text.strip() for text in texts}
    assert shown >= {"'host-0'", "'job'", "'line 1'"}
    assert not shown & {"'blocks'", "'first_seqs'", "'S'", "'u4'", "'i8'"}
    with zipfile.ZipFile(shared, "a") as archive:
        archive.writestr("../../added.txt", "x")
    assert "Others   ../../added.txt (ddlprof wrote none of them)" in ddlprof(
        monkeypatch, capsys, "share", "--inspect", str(shared)
    )[1]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN"], "say which file to write, as in: -o run.zip"),
        (["RUN", "--inspect"], "two-ranks: is no file that ddlprof share wrote"),
        (["RUN", "RUN", "--inspect"], "--inspect takes one shared run, and no -o"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = [str(HERE / "two-ranks") if word == "RUN" else word for word in arguments]
    code, out, err = ddlprof(monkeypatch, capsys, "share", *typed)
    assert (code, out) == (2, "")
    assert err.endswith(f"{message}\n")
    assert err.count("\n") == 1
