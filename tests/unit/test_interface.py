"""The names that users' scripts depend on. A change here is a change for them: it belongs in the changelog."""

from __future__ import annotations

import inspect

import typer

import ddlprof
from ddlprof.cli.app import app
from ddlprof.model import records
from ddlprof.report.tables import RANK_COLUMNS

OPTIONS = {
    "run": (
        "--help --master-addr --master-port --module --nnodes --no-calibrate --node-rank --nproc-per-node --out --quiet"
        " --step-optimizer --stop-after -m"
    ),
    "characterize": "--help --json --module --network-run --nproc-per-node --out --repeat --skip --steps -m",
    "report": "--format --help --output -o",
    "export": "--format --help --out",
    "doctor": "--format --help",
}


def test_step_columns() -> None:
    assert ",".join(records.STEP_COLUMNS) == (
        "attempt,rank,node,step,start_s,step_s,compute_s,data_s,data_fetch_s,data_prep_s,h2d_s,comm_s,interconnect_s,"
        "network_s,straggler_s,other_s,microbatches,samples,flags"
    )


def test_collective_columns() -> None:
    assert ",".join(records.COLLECTIVE_COLUMNS) == (
        "attempt,rank,step,group,seq,op,bytes,ranks,scope,start_s,ready_s,duration_s,transfer_s,wait_s,exposed_s,"
        "busbw_gb_s"
    )


def test_rank_columns() -> None:
    assert ",".join(RANK_COLUMNS) == (
        "attempt,rank,host,node,device,status,complete,steps,steady_steps,step_s,compute_s,data_s,data_fetch_s,"
        "data_prep_s,h2d_s,comm_s,interconnect_s,network_s,straggler_s,other_s"
    )


def test_summary_columns() -> None:
    assert ",".join(records.SUMMARY_COLUMNS) == "class,mean_s,share,median_s,p95_s"


def test_flags() -> None:
    every = records.Flag(sum(records.Flag))
    assert every.text() == "warmup;epoch_start;traced;evaluation;checkpoint;skipped;compile"


def test_commands_and_options() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    found = {
        name: " ".join(
            sorted({option for p in command.params for option in p.opts if option.startswith("-")} | {"--help"})
        )
        for name, command in commands.items()
    }
    assert found == OPTIONS


def test_python_api() -> None:
    assert sorted(ddlprof.__all__) == ["__version__", "load"]
    run_type = inspect.signature(ddlprof.load, eval_str=True).return_annotation
    public = {name for name in dir(run_type) if not name.startswith("_")}
    assert public == {"collectives", "manifest", "ranks", "steps", "summary", "workload"}
