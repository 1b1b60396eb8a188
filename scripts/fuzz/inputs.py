"""Damaged and hostile files and options, through the commands that read them: workload files, catalogues, options,
traces, shared runs, Flight Recorder dumps and histories of clusters.

    python -m scripts.fuzz.inputs --tries 2000 [--seed 1] [--every] [--only workload,catalog,...]

Every try must end in a result or in one line of ours, within seconds and 1 GiB. `tests/property/test_hostile_inputs.py`
has a few of each with fixed seeds. What fails is left in the folder that is printed, with the command that showed it.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ddlprof.cli.app import main as command
from ddlprof.recommender.target import default_catalog
from scripts.fuzz import packed, readers
from scripts.fuzz.changes import HOSTILE, damaged, paths, replaced

SECONDS = 30
"""Seconds of one try. None takes as many tenths, but machines are busy."""
BYTES = 2**30
MEASURED = {
    "instance_type": "g4dn.12xlarge", "placement": [1], "batch_per_gpu": 12, "step_s": 0.5, "compute_s": 0.4,
    "data_s": 0.02, "exposed_comm_s": 0.0, "precision": "fp32", "strategy": "ddp", "grad_accum": 1, "gpu_model": "T4",
    "interconnect": "pcie3", "network_gbps": 50, "h2d_s": 0.01, "other_s": 0.01,
}  # fmt: skip
OPERATOR = {
    "kind": "product", "phase": "forward", "name": "mm", "dtype": "fp32", "shape": [1, 12, 1000, 1000], "flops": 2.4e10,
    "bytes": 4.1e6, "launches": 1, "count": 40, "grows": 1, "fixed_bytes": 4e6,
}  # fmt: skip
WORKLOAD = {
    "name": "bert", "layers": 76, "parameter_tensors": 199, "gradient_bytes": 4.38e8, "global_batch": 12,
    "flops_per_sample": 3e11, "loader_cpu_s_per_sample": 0.002, "loader_bytes_per_sample": 1e5,
    "peak_memory_bytes": 6 << 30,
    "measurements": [
        MEASURED,
        MEASURED | {"placement": [4], "step_s": 0.7, "exposed_comm_s": 0.1, "instance_type": None},
        MEASURED | {"placement": [4, 4], "step_s": 1.4, "exposed_comm_s": 0.8},
    ],
    "kernels_per_step": 900, "buckets": 8, "assumed": ["nothing"],
    "step": {
        "batch": 12, "precision": "fp32", "optimizer": "adamw", "layers": [
            {"name": "fc", "gradient_bytes": 4.38e8, "forward_flops": 1e12},
        ],
        "operators": [
            OPERATOR,
            OPERATOR | {"phase": "backward"},
            OPERATOR | {"kind": "softmax", "shape": [12, 1000], "flops": 0.0, "fixed_bytes": 0.0, "grows": 0},
            OPERATOR | {"kind": "optimizer", "phase": "optimizer", "shape": [10**8, 199], "grows": None},
        ],
        "memory": {"parameter_bytes": 4.38e8, "saved_bytes": 1e9, "points": [[1e8, 1e9], [2e8, 1e8]]},
    },
}  # fmt: skip
TABLES = {
    "instances.csv": [
        {"cloud": "aws", "instance_type": "own.4xlarge", "family": "own", "gpu_model": "T4", "gpus": "4",
         "gpu_fraction": "1", "gpu_memory_gib": "16", "vcpus": "48", "memory_gib": "192", "cpu_arch": "x86_64",
         "interconnect": "pcie3", "interconnect_gb_s": "7.8", "nvswitch": "false", "pcie_gen": "3", "pcie_lanes": "8",
         "network_gbps": "50", "network_burst_gbps": "50", "efa": "true", "ena_express": "true", "rdma_gbps": "",
         "ebs_gbps": "9.5", "offered": "true", "offered_regions": "us-east-1;us-east-2", "spec_as_of": "2026-08-02",
         "source": "own", "notes": ""},
    ],
    "prices.csv": [
        {"cloud": "aws", "region": "us-east-1", "instance_type": name, "pricing": pricing, "usd_per_hour": "1.5",
         "as_of": "2026-08-02", "basis": "api", "source": "own"}
        for name in ("own.4xlarge", "g4dn.12xlarge") for pricing in ("on_demand", "spot")
    ],
    "links.csv": [
        {"machine": "own.4xlarge", "what": what, "value": "7.5", "unit": "Gbit/s", "measured_at": "2026-08-02",
         "source": "own", "notes": ""}
        for what in ("network_gbps", "flow_placement_group_gbps")
    ],
}  # fmt: skip
JOB = "job.json"
CATALOG = "catalog"
WORK = ["--budget", "30d", "--samples", "1e6"]
MACHINES = ["--instances", "g4dn.12xlarge,p4d.24xlarge", "--max-nodes", "2"]
ASK_JOB: tuple[list[str], ...] = (
    ["recommend", JOB, *WORK, *MACHINES, "-o", "out.json", "-o", "out.csv"],
    ["recommend", JOB, *WORK, *MACHINES, "--keep-global-batch", "--pricing", "spot,on_demand", "-o", "out.json"],
    ["predict", JOB, "--instance", "g5.48xlarge", "--placement", "8,8", "--batch", "4", "-o", "out.json"],
)
ASK_CATALOG: tuple[list[str], ...] = (
    ["instances", "--format", "json"],
    ["instances", "show", "own.4xlarge"],
    ["recommend", JOB, *WORK, "--max-nodes", "2", "-o", "out.json", "--instance", "own.4xlarge,g4dn.12xlarge"],
    ["instances", "measured", "--instance", "own.4xlarge", "--fact", "flow_gbps=5"],
)
VALUES = (
    "", "0", "-1", "1", "2", "1e300", "1e999", "nan", "inf", "-inf", "9" * 400, "9" * 5000, "4,4", "4," * 20_000 + "4",
    ",", "1,1000000000000", "0,4", "\u0663", "\u00b2", "x", "\udcff", "\x1b[2J", "=1", "100000", "2147483648", "1.5",
    "12h", "1d" * 5000, "9" * 400 + "h", "1e999h", "0h", ".h", "*", "../..", "/dev/null", "/", "a" * 300, "a" * 5000,
    "on_demand", "spot,spot", "us-east-1", "aws", "slurm", "T4", "g4dn.12xlarge", JOB, "p4d.24xlarge,p4d.24xlarge",
)  # fmt: skip
OPTIONS = {
    "recommend": ("--budget", "--steps", "--epochs", "--samples", "--batch", "--region", "--pricing", "--cloud",
                  "--instances", "--max-nodes", "--max-cost", "--top", "--emit", "--plan", "RUN"),
    "predict": ("--instance", "--placement", "--batch", "RUN"),
    "instances": ("--gpu", "--cloud", "--region", "--min-gpu-memory", "--min-gpus", "--max-price", "--format"),
    "report": ("--format", "RUN"),
    "export": ("--format", "RUN"),
}  # fmt: skip
BASES: dict[str, dict[str, str]] = {
    "recommend": {"RUN": JOB, "--budget": "30d", "--instance": "g4dn.12xlarge", "--max-nodes": "2"},
    "predict": {"RUN": JOB, "--instance": "g4dn.12xlarge", "--placement": "4"},
    "instances": {},
    "report": {"RUN": JOB},
    "export": {"RUN": JOB, "--out": "out"},
}


KINDS = ("workload", "catalog", "options", "trace", "archive", "dump", "history")


class Try(NamedTuple):
    """Files that are written, by name, and the command that then reads them."""

    files: dict[str, bytes]
    arguments: list[str]


class TooLong(BaseException):
    """Not an Exception: nothing is to catch it on its way."""


def tries(kind: str, chance: random.Random) -> Iterator[Try]:
    """Yields tries without end."""
    makers: dict[str, Callable[[random.Random], Try]] = {
        "workload": _workload_try,
        "catalog": _catalog_try,
        "options": _options_try,
        "trace": _trace_try,
        "archive": _archive_try,
        "dump": lambda chance: Try(*readers.hostile_dump(chance)),
        "history": lambda chance: Try(*readers.hostile_history(chance)),
    }
    while True:
        yield makers[kind](chance)


def every_field_with_every_value() -> Iterator[Try]:
    """Tries of the workload file; none of it by chance."""
    places = [path for path in paths(WORKLOAD) if path[:2] not in (("measurements", 1), ("measurements", 2))]
    for number, path in enumerate(places):
        for value in HOSTILE:
            changed = replaced(WORKLOAD, path, value)
            yield Try({JOB: as_json(changed)}, ASK_JOB[number % len(ASK_JOB)])


def outcome(each: Try, folder: Path) -> str | None:
    """What is wrong with how a try ended; None if nothing is. Runs in `folder`, in this process."""
    for name, content in each.files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    for name in ("out.json", "out.csv", "bert.sky.yaml", readers.JOBS):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / packed.IMPORTED, ignore_errors=True)
    default_catalog.cache_clear()
    out, err = _Text(), _Text()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _in_time(), _as_typed(each.arguments):
            code = command()
    except TooLong:
        return f"took more than {SECONDS} s"
    except BaseException:
        return traceback.format_exc()
    said = "".join(line for line in err.getvalue().splitlines(True) if not line.startswith("ddlprof: wrote "))
    if any(word in out.getvalue() for word in (" nan", " inf ")) and packed.ARCHIVE not in each.arguments:
        return f"no number: {out.getvalue()[:500]!r}"
    if code not in (0, 1, 2):
        return f"exit code {code}"
    lines = said.splitlines(True)  # a result may have notes, an error is one line
    if not all(line.startswith("ddlprof: ") and line.endswith("\n") for line in lines) or (code and len(lines) > 1):
        return f"not one line of ours: {said[:500]!r}"
    if code == 2 and not said:
        return "no word of why"
    if any(len(line) > 1100 for line in lines):
        return f"a line of more than 1100 characters: {said[:200]!r}"
    return None


class _Text(io.TextIOWrapper):
    """A stream as a terminal's: what UTF-8 cannot hold is escaped on stderr and an error on stdout."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)

    def getvalue(self) -> str:
        held: Any = self.buffer
        return str(held.getvalue().decode())


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _as_typed(arguments: list[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = ["ddlprof", *arguments]
    try:
        yield
    finally:
        sys.argv = before


def _workload_try(chance: random.Random) -> Try:
    value: Any = WORKLOAD
    for _ in range(chance.choice((0, 1, 1, 1, 2, 5))):
        value = replaced(value, chance.choice(list(paths(value))), chance.choice(HOSTILE))
    content = as_json(value)
    if value is WORKLOAD or chance.random() < 0.2:
        content = damaged(content, chance)
    return Try({JOB: content}, chance.choice(ASK_JOB))


def _catalog_try(chance: random.Random) -> Try:
    tables = {name: _csv(rows) for name, rows in TABLES.items()}
    name = chance.choice(list(TABLES))
    if chance.random() < 0.5:
        rows = [dict(row) for row in TABLES[name]]
        for _ in range(chance.choice((1, 1, 2))):
            row = chance.choice(rows)
            value = chance.choice((*VALUES, *map(str, HOSTILE[:30])))
            row[chance.choice(list(row))] = value
        tables[name] = _csv(rows)
    else:
        tables[name] = damaged(tables[name], chance)
    files = {f"{CATALOG}/{name}": content for name, content in tables.items()}
    return Try({JOB: as_json(WORKLOAD), **files}, chance.choice(ASK_CATALOG))


def _options_try(chance: random.Random) -> Try:
    name = chance.choice(list(OPTIONS))
    options = dict(BASES[name])
    if name == "recommend":
        options[chance.choice(("--samples", "--steps", "--samples"))] = "100000"
    for _ in range(chance.choice((1, 1, 2, 3))):
        options[chance.choice(OPTIONS[name])] = chance.choice(VALUES)
    run = [options.pop("RUN")] if "RUN" in options else []
    words = [f"{option}={value}" for option, value in options.items()]
    if name == "recommend" and chance.random() < 0.3:
        words.append("--keep-global-batch")
    return Try({JOB: as_json(WORKLOAD)}, [name, *words, "--", *run] if run else [name, *words])


def _trace_try(chance: random.Random) -> Try:
    trace = packed.hostile_trace(chance, HOSTILE)
    return Try({packed.TRACE: trace}, ["import", packed.TRACE, "--out", packed.IMPORTED])


def _archive_try(chance: random.Random) -> Try:
    return Try({packed.ARCHIVE: packed.hostile_archive(chance)}, chance.choice(packed.ASK_ARCHIVE))


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _csv(rows: list[dict[str, str]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")


def main() -> int:
    """Exit code 1: something was wrong."""
    import resource

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=2000, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", action="store_true", help="also each field of a workload with each value")
    parser.add_argument("--only", default=",".join(KINDS))
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    os.chdir(folder)
    os.environ["DDLPROF_CATALOG"] = str(folder / CATALOG)
    failures = 0
    for kind in chosen.only.split(","):
        chance = random.Random(f"{chosen.seed} {kind}")
        series = [*every_field_with_every_value()] if kind == "workload" and chosen.every else []
        series += [each for _, each in zip(range(chosen.tries), tries(kind, chance), strict=False)]
        for number, each in enumerate(series):
            wrong = outcome(each, folder)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            if wrong is None and peak <= BYTES:
                continue
            failures += 1
            kept = folder / f"{kind}-{number}"
            for name, content in each.files.items():
                (kept / name).parent.mkdir(parents=True, exist_ok=True)
                (kept / name).write_bytes(content)
            print(
                f"{kept}: ddlprof {' '.join(map(repr, each.arguments))[:300]}\n{wrong or f'{peak:,} bytes'}\n",
                flush=True,
            )
            if wrong is None:
                return 1  # the peak does not go down again
        print(f"{kind}: {len(series)} tries", flush=True)
    print(f"{failures} failures in {folder}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
