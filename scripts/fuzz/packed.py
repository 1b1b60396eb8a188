"""Hostile traces and archives, small on the disk and large in memory, and runs whose checksums fit the damage."""

from __future__ import annotations

import gzip
import json
import random
import tempfile
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

from scripts.fuzz.damage import damaged

RUNS = Path(__file__).resolve().parents[2] / "tests" / "golden" / "recorded"
TRACE, ARCHIVE = "trace.json.gz", "shared.zip"
IMPORTED = "imported"
ASK_ARCHIVE: tuple[list[str], ...] = (
    ["report", ARCHIVE],
    ["share", "--inspect", ARCHIVE],
    ["share", ARCHIVE, "-o", "again.zip"],
    ["export", ARCHIVE, "--out", "exported"],
)
_LARGEST = 60 << 20
_UNITS = (
    b"[],", b"{},", b'{"":0},', b"[[[[]]]],", b'"a",', b"0,", b"\n", b'{"ph":[', b'{"ph":"X"},', b'["n",1]\n',
    b'["q",1]\n', b'["f",1]\n', b"9" * 5000 + b",",
    b'{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1,"pid":1,"tid":1},',
)  # fmt: skip


def hostile_trace(chance: random.Random, hostile: tuple[Any, ...]) -> bytes:
    """A compressed trace with a few values that nobody expects, or with one that is very long."""
    content: dict[str, Any] = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 2}}
    content["traceEvents"] = [event for step in range(chance.choice((1, 5, 40))) for event in _step(step)]
    for _ in range(chance.choice((0, 1, 3, 20))):
        event = chance.choice(content["traceEvents"])
        event[chance.choice(list(event))] = chance.choice(hostile)
    if chance.random() < 0.3:
        content[chance.choice(list(content))] = chance.choice(hostile)
    text = json.dumps(content).encode()
    if chance.random() < 0.3:
        at = chance.choice((1, text.find(b"[") + 1, len(text) - 1))
        text = text[:at] + chance.choice((b"", b'"x":[')) + _long(chance) + text[at:]
    return gzip.compress(text, 1)


def hostile_archive(chance: random.Random) -> bytes:
    """A run in an archive, damaged with checksums that fit, or with a member that is very long."""
    with tempfile.TemporaryDirectory() as folder:
        run = chance.choice(sorted(RUNS.iterdir()))
        copy, _ = damaged(run, Path(folder), chance.randrange(2**32), most=3, sealed=True)
        members = {
            path.relative_to(copy).as_posix(): path.read_bytes()
            for path in copy.rglob("*")
            if path.is_file() and not path.is_symlink()
        }
    if members and chance.random() < 0.3:
        name = chance.choice(list(members))
        begin = chance.choice((b"[", members[name], members[name].partition(b"\n")[0] + b"\n"))
        members[name] = begin + _long(chance)
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def _long(chance: random.Random) -> bytes:
    unit = chance.choice(_UNITS)
    return unit * (chance.choice((1 << 10, 1 << 20, 8 << 20, 16 << 20, _LARGEST)) // len(unit))


def _step(number: int) -> list[dict[str, Any]]:
    begin = 1000.0 * number

    def host(cat: str, name: str, ts: float, dur: float, **args: int) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": begin + ts, "dur": dur, "args": args}

    return [
        host("user_annotation", f"ProfilerStep#{number}", 0, 990),
        host("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10, 100),
        host("cpu_op", "aten::mm", 150, 200, **{"Sequence number": number}),
        host("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 400, 300, **{"Sequence number": number}),
        host("cuda_runtime", "cudaLaunchKernel", 160, 5, correlation=number),
        host("kernel", "sgemm", 170, 150, correlation=number, device=0, stream=7),
        host("kernel", "ncclDevKernel_AllReduce", 500, 90, correlation=-number, device=0, stream=8),
        host("user_annotation", "Optimizer.step#SGD.step", 800, 90),
    ]
