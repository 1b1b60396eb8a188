"""A run, a workload and an overlay of the catalogue in which everything that has a name has a given one."""

from __future__ import annotations

import csv
import json
import zipfile
from dataclasses import replace
from pathlib import Path

from ddlprof.importing import import_traces
from ddlprof.instance_catalog import InstanceType, LinkFact, Price, load
from ddlprof.instance_catalog.overlay import add_links, write_instances, write_prices
from ddlprof.model import codec
from ddlprof.model.records import End
from ddlprof.model.source_locations import SourceLocation
from ddlprof.recommender import Measurement, Workload
from tests.golden.runs import MS, header, manifest, simple_run, step, write_rank
from tests.unit.cli.commands import write_workload

NAME = "=a\nVerdict  COMPUTE-BOUND\r\x1b]0;x\x07\x1b[31m\x9b1m\t\u202eb\u200b\u2028\x7f\U000e0041"
"""Forges a line, sets the title and the colour of a terminal, turns the text round, and is a formula."""


def write_run(directory: Path, name: str) -> Path:
    """Two ranks, one of which died, with much of the step in `other`."""
    for rank in (0, 1):
        head = replace(header(rank, 2, node=name, device="cuda"), host=name, launcher=name)
        rows = [step(number, compute_ms=4, other_ms=5, split=(0.5, 0.5)) for number in range(40)]
        lines = [
            codec.encode_location(0, SourceLocation(name, "")),
            codec.encode_samples(20, {0: 30}),
            codec.encode_note("x", name),
        ]
        records = [End("exception" if rank else "ok", rank, 400 * MS)]
        write_rank(directory, head, rows, records=records, lines=lines)
    described = manifest(world_size=2)
    replace(
        described,
        name=name,
        argv=["train.py", name],
        host={"cpu_model": name},
        model=replace(described.model, name=name),
        training=replace(described.training, optimizer=name, backend=name),
    ).write(directory)
    return directory


def write_traffic(path: Path, name: str) -> Path:
    """A trace of jobs of that name, one of which wants two GPUs."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["trace", "job_id", "submit_s", "gpus", "model", "duration_s"])
        writer.writerows([[name, f"{name}{number}", 60 * number, number, name, 600] for number in (1, 2)])
    return path


def write_archive(path: Path, run: Path, name: str) -> Path:
    """The run in one file, with a member of that name that is not of a run."""
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(run.glob("**/*.json*")):
            archive.writestr(file.relative_to(run).as_posix(), file.read_bytes())
        archive.writestr(name, "")
    return path


def write_cluster(path: Path, name: str) -> Path:
    """Two machines of that name, for `ddlprof plan`."""
    machine = {"name": name, "gpu": "V100", "network": "10 Gbit/s"}
    path.write_text(json.dumps({"machines": [machine, {**machine, "gpu": "T4", "gpus": 2}]}))
    return path


def write_job(path: Path, name: str) -> Path:
    """A workload that can be predicted."""
    measured = Measurement("g4dn.12xlarge", placement=(1,), batch_per_gpu=12, step_s=0.5, exposed_comm_s=0.0)
    write_workload(Workload(name, 76, 199, 438e6, peak_memory_bytes=6 << 30, measurements=[measured]), path)
    return path


def write_profiler_trace(path: Path, name: str) -> Path:
    """A trace of torch.profiler whose host, GPU, process group and kernel have that name."""
    kernel = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "ts": 1000, "dur": 100}
    args = {"Collective name": "allreduce", "Process Group Name": name, "Group size": 1, "dtype": "Float",
            "In msg nelems": 4, "device": 0}  # fmt: skip
    events = [{**kernel, "name": name}, {**kernel, "name": f"nccl{name}", "ts": 1200, "args": args}]
    beside = {"host_name": name, "deviceProperties": [{"id": 0, "name": name}], "distributedInfo": {"backend": name}}
    path.write_text(json.dumps({**beside, "traceEvents": events}), encoding="utf-8")
    return path


def write_own_prices(path: Path, name: str) -> Path:
    """A price of the machine of that name."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["instance_type", "usd_per_hour"], [name, "0.5"]])
    return path


def write_probe(path: Path, name: str) -> Path:
    """A probe of a GPU, on a host, of a torch, with figures of that name."""
    figures = [
        {"group": group, "key": key, "what": name, "value": 1.5, "unit": unit, "notes": name}
        for group, key, unit in (
            ("products", "fp32_tflops", "TFLOP/s"),
            ("memory", "memory_gb_s", "GB/s"),
            ("copies", "host_to_device_gb_s", "GB/s"),
            ("launches", "launch_us", "us"),
        )
    ]
    told = {"device": name, "is_gpu": True, "figures": figures, "measured_at": "2026-11-22", "seconds": 30.0}
    path.write_text(json.dumps({**told, "host": name, "torch": name, "missing": [name]}), encoding="utf-8")
    return path


def write_overlay(directory: Path, name: str) -> Path:
    """A machine that is the cheapest of all, with a price in a region of that name, and what its links achieved."""
    like: InstanceType = next(m for m in load(None).instances if m.instance_type == "g4dn.12xlarge")
    machine = replace(
        like,
        instance_type=name,
        offered_regions=(name,),
        cpu_model=name,
        interconnect_basis=name,
        pcie_basis=name,
        source=name,
        notes=name,
        family=name,
    )
    write_instances(directory, [machine])
    price = Price(like.cloud, "us-east-1", name, "on_demand", 0.01, "2026-07-20", "", name)
    write_prices(directory, [price, replace(price, region=name)])
    add_links(directory, [LinkFact(name, "flow_gbps", 5.0, "Gbit/s", "2026-07-20", name, name)])
    return directory


def write_elastic_jobs(path: Path, name: str) -> Path:
    """Jobs for `ddlprof elastic`, by that name and by another."""
    steps = {"run": "1x32=0.1;2x64=0.11", "max_batch": 64, "samples": 1e4}
    path.write_text(json.dumps([{"name": name, **steps}, {"name": f"{name} again", **steps}]), encoding="utf-8")
    return path


def paths_of(name: str) -> dict[str, str]:
    """The files that commands are given, by the words that stand for them."""
    kinds = ("RUN", "JOB", "PRICES", "PROBE", "TRACE", "TRAFFIC", "JOBS", "CLUSTER")
    return {**{key: f"{key.lower()}-{name}" for key in kinds}, "SHARED": f"shared-{name}.zip"}


def write_files(here: Path, name: str) -> None:
    """All of them, in a folder."""
    paths = paths_of(name)
    write_overlay(here / "overlay", name)
    write_run(here / paths["RUN"], name)
    simple_run(here / "PLAIN")
    write_archive(here / paths["SHARED"], here / paths["RUN"], name)
    write_own_prices(here / paths["PRICES"], name)
    write_probe(here / paths["PROBE"], name)
    write_job(here / paths["JOB"], name)
    write_cluster(here / paths["CLUSTER"], name)
    write_traffic(here / paths["TRAFFIC"], name)
    write_elastic_jobs(here / paths["JOBS"], name)
    trace = write_profiler_trace(here / paths["TRACE"], name)
    import_traces([trace], here / "IMPORTED")
