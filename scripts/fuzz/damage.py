"""Ways to damage a run directory, each repeatable by its seed, and what must hold of what is read of it then.

`tests/property/test_damage.py` tries some hundreds, `python -m scripts.fuzz.runs` as many as there is time for.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

from ddlprof.analysis.run import analyse
from ddlprof.base.errors import UserError
from ddlprof.report.run import csv
from ddlprof.report.run import text as card
from ddlprof.report.run.data import build_report
from ddlprof.report.run.formats import as_json
from ddlprof.store import load_run
from scripts.fuzz import blocks

NOW_UNIX_NS = 1_900_000_000_000_000_000
Damage = Callable[[Random, Path], str]
"""Changes the files of a run, and says how."""

VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 7, 2**31, 2**62, 2**63, -(2**63), 10**400, 1.5, -0.5, 1e308, float("nan"),
    float("inf"), "", "7", "\ud800", "a\nb\x1b]0;x\x07", "x" * 5000, [], {}, [[]], [1, "a"], {"a": [1]}, [0] * 3000,
    [[["0", "allreduce", 1, 2]]],
]  # fmt: skip
NAMES = ["schema", "rank", "columns", "job_id", "step_ns", "signature", "world_size", "model", "origin_unix_ns", "s",
         "blocks", "times", "first_seqs", "collectives", "ready_us", "u4", "i8", "u1"]  # fmt: skip
_BYTES = [bytes([b]) for b in b'0123456789",[]{}nul-.eE \n'] + [b"\xff\xfe", b"9" * 25, b"null", b'"f"', b"\x00"]


def flip(random: Random, run: Path) -> str:
    """One byte is another."""
    path, content = _some_file(random, run)
    at = random.randrange(len(content))
    other = content[at] ^ random.randrange(1, 256)
    path.write_bytes(content[:at] + bytes([other]) + content[at + 1 :])
    return f"{path.name}: byte {at} is {other} instead of {content[at]}"


def truncate(random: Random, run: Path) -> str:
    """The end is missing."""
    path, content = _some_file(random, run)
    size = random.randrange(len(content))
    path.write_bytes(content[:size])
    return f"{path.name}: cut after {size} bytes"


def splice(random: Random, run: Path) -> str:
    """Some bytes are removed, and others are in their place."""
    path, content = _some_file(random, run)
    at, removed = random.randrange(len(content)), random.choice([0, 1, 5, 40, 500])
    inserted = random.choice([*_BYTES, content[: random.randrange(300)], random.randbytes(8)])
    path.write_bytes(content[:at] + inserted + content[at + removed :])
    return f"{path.name}: {removed} bytes at {at} are {inserted[:40]!r}"


def retype(random: Random, run: Path) -> str:
    """A value anywhere is another, of another type, too large, or no number at all."""
    path, content = _some_file(random, run, ".json", ".jsonl")
    text = content.decode(errors="replace")
    lines = text.splitlines() if path.suffix == ".jsonl" else [text]
    number = random.choice([0, random.randrange(len(lines))])
    try:
        value = json.loads(lines[number])
    except (ValueError, RecursionError):
        return truncate(random, run)
    container, key = random.choice(_places(value) or [([value], 0)])
    container[key] = random.choice(VALUES)
    lines[number] = json.dumps(value, separators=(",", ":"))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"{path.name} line {number + 1}: {str(key)[:40]!r} is {str(container[key])[:40]!r}"


def rename_key(random: Random, run: Path) -> str:
    """A field has another name, twice the same, or none."""
    path, content = _some_file(random, run, ".json", ".jsonl")
    text = content.decode(errors="replace")
    old, new = random.choice(NAMES), random.choice([*NAMES, "", "x"])
    path.write_text(text.replace(f'"{old}"', f'"{new}"', random.choice([1, 99])), encoding="utf-8")
    return f"{path.name}: {old} is called {new!r}"


def reorder(random: Random, run: Path) -> str:
    """Lines are missing, twice there or somewhere else."""
    path, content = _some_file(random, run, ".jsonl")
    lines = content.splitlines(keepends=True)
    one, two = random.randrange(len(lines)), random.randrange(len(lines))
    lines[one : one + random.choice([0, 1, 9])] = lines[two : two + random.choice([0, 1, 9])]
    path.write_bytes(b"".join(lines))
    return f"{path.name}: lines from {two} instead of those from {one}"


def append_hostile(random: Random, run: Path) -> str:
    """A line that is deep, wide or huge; to be read as damage, in bounded memory."""
    path, content = _some_file(random, run, ".jsonl")
    size = random.choice([100, 10_000, 200_000])
    tag = random.choice("sagqlcnkdwbtefoxyz")
    line = random.choice(
        [
            "[" * size,
            f'["{tag}",' + "[" * size + "]" * size + "]",
            f'["{tag}",' + ",".join(["1"] * size) + "]",
            f'["{tag}",' + "9" * size + "]",
            f'["{tag}",0,' + json.dumps([["0", "allreduce", 1, 2]] * (size // 20)) + "]",
            f'["{tag}",0,' + json.dumps([[str(i), "send", 1, 2] for i in range(size // 20)]) + "]",
            f'["{tag}","' + "\\ud83d" * (size // 6) + '"]',
            '{"a":' * size,
            f'["{tag}",' + ",".join(["1e999"] * (size // 6)) + "]",
            '["s",' + ",".join(["0"] * 18) + "]\n" + f'["{tag}",0]\n' * (size // 10),
        ]
    )
    repeats = random.choice([1, 1, 3])
    at = random.choice([len(content), content.index(b"\n") + 1 if b"\n" in content else 0])
    path.write_bytes(content[:at] + (line + "\n").encode() * repeats + content[at:])
    return f"{path.name}: {repeats} lines {line[:40]!r} of {len(line)} characters"


def replace_file(random: Random, run: Path) -> str:
    """A file is none, is another one, or belongs to another rank."""
    path, _ = _some_file(random, run)
    other, content = _some_file(random, run)
    what = random.choice(["fifo", "directory", "link", "loop", "none", "empty", "other", "other rank", "json"])
    path.unlink()
    if what == "fifo":
        os.mkfifo(path)
    elif what == "directory":
        path.mkdir()
    elif what in ("link", "loop"):
        path.symlink_to("/dev/zero" if what == "link" else path.name)
    elif what in ("empty", "json"):
        path.write_bytes(b"" if what == "empty" else json.dumps(random.choice([[], {}, 1, [{}] * 9])).encode() + b"\n")
    elif what == "other":
        path.write_bytes(content)
    elif what == "other rank":
        (path.parent / f"rank-{random.choice(['7', '01', '999999999', '1234567890'])}.jsonl").write_bytes(content)
    return f"{path.name}: {what} ({other.name})"


def repeat(random: Random, run: Path) -> str:
    """All lines of a kind are there twice, or none is, or a number in each of them is another."""
    path, content = _some_file(random, run, ".jsonl")
    lines = content.splitlines(keepends=True)
    tag = random.choice(sorted({line[:4] for line in lines[1:]}) or [b'["s"'])
    what = random.choice(["twice", "gone", *range(1, 5)])
    changed = lines[:1]
    for line in lines[1:]:
        if not line.startswith(tag):
            changed.append(line)
        elif what == "twice":
            changed += [line, line]
        elif what != "gone":
            changed.append(_with_value(line, int(what), random.choice([0, 1, 2, 2**31, 1e308])))
    path.write_bytes(b"".join(changed))
    return f"{path.name}: lines {tag.decode(errors='replace')}: {what}"


def _with_value(line: bytes, place: int, value: Any) -> bytes:
    try:
        values = json.loads(line)
        values[place] = value
    except (ValueError, IndexError, TypeError, RecursionError):
        return line
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def on_two_machines(run: Path, folder: Path) -> Path:
    """A copy of a run of two ranks, the second of which was on another machine."""
    copy = folder / "two-machines"
    shutil.copytree(run, copy)
    path = copy / "attempt-0" / "rank-1.jsonl"
    header, _, rest = path.read_bytes().partition(b"\n")
    path.write_bytes(header.replace(b'"node_id":"', b'"node_id":"other-') + b"\n" + rest)
    reseal(copy)
    return copy


def reseal(run: Path) -> None:
    """Makes all checksums those of what is there: damage that they find says nothing of what is read without them."""
    for path in run.rglob("rank-*"):
        if path.is_file() and not path.is_symlink():
            if path.suffix == blocks.SUFFIX:
                path.write_bytes(blocks.resealed(path.read_bytes()))
            elif path.suffix == ".jsonl":
                path.write_bytes(_resealed(path.read_bytes()))


def _resealed(text: bytes) -> bytes:
    sealed, part = [], b""
    for line in text.splitlines(keepends=True):
        if line.startswith(b'["f",'):
            line, part = f'["f",{crc32(part)}]\n'.encode(), b""
        else:
            part += line
        sealed.append(line)
    return b"".join(sealed)


WAYS: list[Damage] = [
    flip, truncate, splice, retype, retype, rename_key, reorder, append_hostile, replace_file, repeat, *blocks.WAYS,
]  # fmt: skip


def _some_file(random: Random, run: Path, *endings: str) -> tuple[Path, bytes]:
    """A file that is not empty."""
    files = _not_empty(run)
    path = random.choice([p for p in files if not endings or p.suffix in endings] or files)
    return path, path.read_bytes()


def _not_empty(run: Path) -> list[Path]:
    return sorted(p for p in run.rglob("*") if p.is_file() and not p.is_symlink() and p.stat().st_size)


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found.append((value, key))
        found += _places(inner)
    return found


@dataclass
class Seen:
    """What is read of a run."""

    error: str | None = None
    card: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    """CSV and JSON."""
    said: frozenset[str] = frozenset()
    """What the report says of ranks that are not whole and of files that are not read."""

    @property
    def figures(self) -> dict[str, Any]:
        """All but the notes and what the manifest says of the job."""
        report = json.loads(self.files["report.json"])
        for name in ("notes", "manifest", "run"):
            report.pop(name, None)
        return {**self.files, "report.json": report}


def look(run: Path, folder: Path) -> Seen:
    """Reads and shows it in all forms. Whatever is raised but a `UserError` is a bug."""
    try:
        data = load_run(run)
    except UserError as error:
        if "\n" in str(error):
            raise ValueError(f"not one line: {error}") from None
        return Seen(error=str(error))
    attempts = analyse(data)
    report = build_report(data, attempts, NOW_UNIX_NS)
    text = as_json(report)
    json.loads(text, parse_constant=lambda name: 1 / 0)
    files = {path.name: path.read_bytes() for path in csv.export(data, attempts, folder)}
    torn = {f"{line.attempt}/{line.rank} is {line.status}" for line in report.ranks}
    missing = {f"{data.manifest is None}", f"{len(data.ranks)} ranks"}
    said = frozenset({note.message for r in data.ranks for note in r.notes} | {n.message for n in data.notes})
    return Seen(None, card.render(report), {**files, "report.json": text.encode()}, said | torn | missing)


def damaged(
    run: Path, folder: Path, seed: int, ways: list[Damage] | None = None, most: int = 1, sealed: bool = False
) -> tuple[Path, str]:
    """A copy of the run with up to `most` damages, and how it was damaged; `sealed`: with checksums that are right."""
    random = Random(seed)
    copy = folder / "run"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    said = [random.choice(ways or WAYS)(random, copy) for _ in range(random.randint(1, most)) if _not_empty(copy)]
    if sealed:
        reseal(copy)
    return copy, f"seed {seed}{', sealed' if sealed else ''}: " + "; ".join(said)
