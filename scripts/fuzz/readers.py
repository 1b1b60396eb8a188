"""Hostile dumps of the Flight Recorder and histories of clusters: files, and the command that reads them."""

from __future__ import annotations

import json
import pickle
import random
from typing import Any

from scripts.fuzz import packed
from scripts.fuzz.changes import HOSTILE, damaged, paths, replaced

JOBS = "jobs.csv"
HISTORY = "history"
Made = tuple[dict[str, bytes], list[str]]

_ENTRY = {
    "record_id": 0, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 5, "p2p_seq_id": 0,
    "op_id": 5, "profiling_name": "nccl:all_reduce", "time_created_ns": 1_795_860_990_579_478_364, "is_p2p": False,
    "input_sizes": [[10, 3]], "input_dtypes": ["Float"], "output_sizes": [[10, 3]], "output_dtypes": ["Float"],
    "state": "scheduled", "time_discovered_started_ns": None, "retired": True, "timeout_ms": 1_800_000,
    "frames": [
        {"name": "all_reduce", "filename": "/opt/site-packages/torch/distributed/c10d.py", "line": 3245},
        {"name": "train", "filename": "/home/me/train.py", "line": 6},
    ],
}  # fmt: skip
_DUMP = {
    "version": "2.10", "comm_lib_version": "", "entries": [_ENTRY | {"state": "completed"}, _ENTRY],
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}, "1": {"ranks": [0, 1]}},
    "pg_status": {"0": {"last_enqueued_collective": 10}}, "rank": 1,
}  # fmt: skip
_CODES = b"\x80\x95(N\x88\x89KMJ\x8a\x8bG\x8cX\x8d]})t\x85\x86\x87aesuqr\x94hj.cRbo0\x8e\x93Q\x81ilIS"

_OWNER = {"kind": "Job", "name": "j", "uid": "u-j", "controller": True}
_AT = "2026-11-02T10:0{}:00Z"
_SPEC = {
    "containers": [{"resources": {"limits": {"cpu": "8", "nvidia.com/gpu": "4"}, "requests": {"nvidia.com/gpu": 4}}}],
    "nodeName": "n1", "nodeSelector": {"nvidia.com/gpu.product": "A100"},
}  # fmt: skip
_METADATA = {"name": "j", "namespace": "n", "uid": "u-j", "creationTimestamp": _AT.format(0), "ownerReferences": []}
_KUBERNETES = {
    "kind": "List",
    "items": [
        {"kind": "Job", "metadata": _METADATA,
         "status": {"startTime": _AT.format(1), "completionTime": _AT.format(9), "conditions": [
             {"type": "Complete", "status": "True", "lastTransitionTime": _AT.format(9)}]},
         "spec": {"parallelism": 2, "completions": 2, "template": {"spec": _SPEC}}},
        {"kind": "Pod", "metadata": _METADATA | {"name": "p", "uid": "u-p", "ownerReferences": [_OWNER]},
         "spec": _SPEC, "status": {"phase": "Succeeded", "startTime": _AT.format(3), "conditions": [
             {"type": "PodScheduled", "status": "True", "lastTransitionTime": _AT.format(2)}],
             "containerStatuses": [{"state": {"terminated": {"finishedAt": _AT.format(8)}}}]}},
        {"kind": "Event", "involvedObject": {"kind": "Job", "name": "j", "namespace": "n"},
         "reason": "SuccessfulCreate", "message": "Created pod: q", "firstTimestamp": _AT.format(1)},
        {"kind": "Event", "regarding": {"kind": "Pod", "name": "q", "namespace": "n"}, "reason": "Scheduled",
         "note": "Successfully assigned n/q to n2", "eventTime": _AT.format(1)},
    ],
}  # fmt: skip
_TABLES = {
    "sacct": [
        "JobID|JobName|User|Partition|Submit|Start|End|Elapsed|State|AllocTRES|NNodes",
        "1|bert|me|a|2026-11-26T09:44:53|2026-11-26T09:44:53|2026-11-26T09:45:03|00:00:10|COMPLETED|gres/gpu:a100=16,gres/gpu=16,node=2|2",
        "1.batch|x||a|2026-11-26T09:44:53|2026-11-26T09:44:53|2026-11-26T09:45:03|00:00:10|COMPLETED|gres/gpu=8|1",
        "2_4|net|me|b|2026-11-26T09:44:53|2026-11-26T09:44:53|Unknown|1-00:00:10|FAILED|gres/gpu=8,node=1|1",
        "2+1|net|me|b|2026-11-26T09:44:53|2026-11-26T09:44:53|2026-11-26T09:45:03|00:00:10|NODE_FAIL|gres/gpu=8|1",
    ],
    "csv": ["job_id,submit,start,end,duration,gpus,nodes,user,queue,model", "1,0,5,50,45,8,1,me,q,bert",
            "2,2026-11-26T09:44:53,2026-11-26T09:44:53,,2h,0.5,,me,q,", '3,7,8,9,1,4,1,"a ""b""",q,'],
}  # fmt: skip
_CELLS = (
    "", "-1", "0", "nan", "inf", "-inf", "1e308", "9" * 400, "9" * 5000, "\u0663", "\u00b2", "x" * 200_000, '"', "\0",
    "\u2028", "Unknown", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-13-45", "24:61:99", "9" * 400
    + "-1", "1-" + "9" * 400, "gres/gpu=" + "9" * 400 + "P", "1+" + "9" * 5000, "1_[", "1_" + "9" * 5000, "|", ",",
    "1d" * 5000, "9" * 400 + "h", "=1", "\x1b[2J", "2026-11-26T09:44:53+99:99", "gpu:" + "9" * 5000,
)  # fmt: skip


def hostile_dump(chance: random.Random) -> Made:
    """A dump with values that nobody expects, that is damaged, or that is a program of its own."""
    value: Any = _DUMP
    for _ in range(chance.choice((0, 1, 1, 2, 5))):
        value = replaced(value, chance.choice(list(paths(value))), chance.choice(HOSTILE))
    if chance.random() < 0.3:
        value = replaced(value, chance.choice(list(paths(value))), _shared(chance))
    if chance.random() < 0.4 and _is_small(value):
        name, content = "nccl_trace_rank_0.json", json.dumps(value).encode()
    else:
        name, content = "nccl_trace_rank_0", pickle.dumps(value, chance.choice((0, 2, 2, 3, 4, 5)))
    if chance.random() < 0.5:
        content = damaged(content, chance)
    if chance.random() < 0.2:
        content = b"\x80\x04" + _program(chance, chance.choice((5, 50, 500)))
    return {name: content}, ["import", name, "--out", packed.IMPORTED]


def _shared(chance: random.Random) -> Any:
    """A small value that is large in memory, deep, or within itself."""
    value: Any = chance.choice((["x"], {"a": 1}, [0] * 1000, ("x",)))
    for _ in range(chance.choice((3, 20, 40))):
        value = chance.choice(([value, value], [value] * 1000, {"a": value, "b": value}, (value, value)))
    if chance.random() < 0.2:
        value = [value]
        value.append(value)
    return value


def _is_small(value: Any, most: int = 100_000) -> bool:
    """Whether JSON, which has no shared values, can hold it."""
    level = [value]
    for _ in range(100):
        level = [
            inner
            for each in level
            if isinstance(each, (list, tuple, dict))
            for inner in (each.values() if isinstance(each, dict) else each)
        ][: most + 1]
        if not level or len(level) > most:
            return not level
    return False


def _program(chance: random.Random, length: int) -> bytes:
    """Instructions of pickle in any order, with arguments that are mostly small."""
    pieces = []
    for _ in range(length):
        argument = chance.choice((b"", b"\x01", b"\x00\x00\x00\x00", chance.randbytes(chance.choice((1, 4, 8)))))
        pieces.append(bytes([chance.choice(_CODES)]) + chance.choice((b"", b"", argument)))
    return b"".join(pieces) + b"."


def hostile_history(chance: random.Random) -> Made:
    """The history of a cluster with values or cells that nobody expects, or that is damaged."""
    kind = chance.choice(("kubernetes", *_TABLES))
    if kind not in _TABLES:
        value: Any = _KUBERNETES
        for _ in range(chance.choice((0, 1, 1, 2, 5))):
            new = chance.choice((*HOSTILE, *_CELLS))
            value = replaced(value, chance.choice(list(paths(value))), new)
        content = json.dumps(value).encode()
    else:
        bar = "|" if kind == "sacct" else ","
        rows = [line.split(bar) for line in _TABLES[kind]]
        for _ in range(chance.choice((0, 1, 1, 2, 5))):
            row = chance.choice(rows)
            row[chance.randrange(len(row))] = chance.choice(_CELLS)
        content = "\n".join(bar.join(row) for row in rows).encode() + b"\n"
    if chance.random() < 0.3:
        content = damaged(content, chance)
    return {HISTORY: content}, ["cluster", "import", kind, HISTORY, "-o", JOBS, "-o", "out.json"]
