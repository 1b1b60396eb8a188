"""The names that users' scripts depend on. A change here is a change for them: it belongs in the changelog.

Those of a room are in its own `test_interface.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import typer

import ddlprof
from ddlprof import instance_catalog, recommender
from ddlprof.base.errors import UserError
from ddlprof.cli.commands import CORE
from ddlprof.cli.parser import app
from ddlprof.model.records import Flag
from ddlprof.report.machines.listing import COLUMNS as INSTANCE_COLUMNS
from ddlprof.report.run.columns import RUN_COLUMNS

OPTIONS = {
    "run": (
        "--data-call --hang-after --help --live --master-addr --master-port --module --nnodes --no-calibrate"
        " --node-rank --nproc-per-node --out --profiler-windows --quiet --step-optimizer --stop-after"
        " --time-collectives -m -o"
    ),
    "watch": "--beside --hang --help --interval --metrics-address --metrics-port --once --otlp --total-steps --wait",
    "report": "--carbon --format --goodput --help --instance --open --out --phase --save-summary --step-range -o",
    "compare": "--fail-on --format --help --noise --out -o",
    "export": "--columns --format --help --out --phase -o",
    "import": "--help --out -o",
    "fleet": "--analyse --by --format --help --instance --job --out --since --sort --top -o",
    "recommend": (
        "--all-sizes --batch --budget --carbon --channels-last --checkpointing --cloud --compile --discount --emit"
        " --epochs --format --global-batch --gpus --grad-accum --help --host-launch-us --instance --instances"
        " --interruptions-per-hour --keep-global-batch --layouts --learned --lora --lora-dropout --lora-precision"
        " --lora-targets --max-cost --max-nodes --nodes --optimizer --other-job --out --plan --precision --prices"
        " --pricing --qlora --qlora-format --region --samples --steps --strategy --top --why -o"
    ),
    "predict": (
        "--batch --channels-last --checkpointing --compile --format --global-batch --gpu --grad-accum --help"
        " --host-launch-us --instance --interconnect --layout --learned --lora --lora-dropout --lora-precision"
        " --lora-targets --network-gbps --nodes --optimizer --other-job --out --placement --precision --qlora"
        " --qlora-format --strategy --vary -o"
    ),
    "features": (
        "--batch --causal --checkpointing --compile --dense-layers --expert-ffn --experts --experts-per-token --ffn"
        " --flash --format --gated --head-dim --heads --help --hidden --inference --input --kv-heads --kv-lora --layers"
        " --optimizer --out --precision --q-lora --rope-dim --seq-len --shared-experts --software"
        " --tied --value-dim --vocab -o"
    ),
    "instances": (
        "--cloud --efa --format --gpu --help --max-price --min-gpu-memory --min-gpus --offered --out --region -o"
    ),
    "instances show": "--cloud --format --help --out -o",
    "instances refresh": "--cloud --format --help --instance --out --profile --region --timeout -o",
    "instances measured": "--fact --format --help --instance --out -o",
    "doctor": "--format --help --out -o",
}


def test_step_columns() -> None:
    assert ",".join(RUN_COLUMNS["steps"]) == (
        "attempt,rank,node,step,start_s,step_s,compute_s,compute_forward_s,compute_backward_s,compute_optimizer_s,"
        "data_s,data_fetch_s,data_prep_s,h2d_s,comm_s,interconnect_s,network_s,straggler_s,bubble_s,other_s,rollout_s,"
        "microbatches,samples,peak_memory_bytes,flags"
    )


def test_collective_columns() -> None:
    assert ",".join(RUN_COLUMNS["collectives"]) == (
        "attempt,rank,step,group,seq,op,bytes,ranks,scope,start_s,ready_s,duration_s,transfer_s,wait_s,exposed_s,"
        "busbw_gb_s,dimension"
    )


def test_rank_columns() -> None:
    assert ",".join(RUN_COLUMNS["ranks"]) == (
        "attempt,rank,host,node,device,status,complete,steps,steady_steps,step_s,compute_s,compute_forward_s,"
        "compute_backward_s,compute_optimizer_s,data_s,data_fetch_s,data_prep_s,h2d_s,comm_s,interconnect_s,network_s,"
        "straggler_s,bubble_s,other_s,rollout_s"
    )


def test_job_columns() -> None:
    assert ",".join(RUN_COLUMNS["job"]) == "attempt,part,seconds,share"


def test_summary_columns() -> None:
    assert ",".join(RUN_COLUMNS["summary"]) == "class,mean_s,share,median_s,p95_s"


def test_instance_columns() -> None:
    assert ",".join(INSTANCE_COLUMNS) == (
        "cloud,region,instance_type,family,gpu_model,gpus,gpu_fraction,gpu_memory_gib,vcpus,memory_gib,cpu_arch,"
        "interconnect,interconnect_gb_s,nvswitch,network_gbps,network_burst_gbps,flow_gbps,flow_placement_group_gbps,"
        "efa,efa_interfaces,local_storage_gib,ebs_gbps,ebs_burst_gbps,offered,on_demand_usd_per_hour,on_demand_as_of,"
        "on_demand_basis,spot_usd_per_hour,spot_as_of,spot_basis,price_as_of,spec_as_of,source"
    )


def test_flags() -> None:
    every = Flag(sum(Flag))
    assert every.text() == "warmup;epoch_start;traced;evaluation;checkpoint;skipped;compile"


def options_of(group: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every command below `group`, as typed, with its options."""
    for name, command in group.commands.items():
        options = {option for p in command.params for option in p.opts if option.startswith("-")} | {"--help"}
        yield path + name, " ".join(sorted(options))
        if hasattr(command, "commands"):
            yield from options_of(command, f"{path}{name} ")


def options_of_room(name: str) -> dict[str, str]:
    """Those of the commands that a room adds."""
    commands = import_module(f"ddlprof.extensions.{name}.extension").EXTENSION.commands
    found = options_of(typer.main.get_command(app))
    return {path: options for path, options in found if path.partition(" ")[0] in commands}


def test_commands_and_options() -> None:
    own = {name for extension in CORE for name in extension.commands}
    found = dict(options_of(typer.main.get_command(app)))
    assert {path: options for path, options in found.items() if path.partition(" ")[0] in own} == OPTIONS


def test_python_api() -> None:
    assert sorted(ddlprof.__all__) == ["DdlprofError", "__version__", "data_call", "load", "profile", "recent_means"]
    run_type = inspect.signature(ddlprof.load, eval_str=True).return_annotation
    public = {name for name in dir(run_type) if not name.startswith("_")}
    assert public == {"collectives", "job", "loss_curve", "manifest", "ranks", "steps", "summary", "workload"}


def test_python_api_of_the_recommender_and_the_catalogue() -> None:
    assert " ".join(recommender.__all__) == (
        "Coefficients DdlprofError Estimate Layout Learned Measurement Plan PredictionError Predictor Predicts Range"
        " Settings StepTimes Suggestion Target Workload predict recommend transformer"
    )
    assert " ".join(instance_catalog.__all__) == (
        "Catalog CatalogError DdlprofError Disagreement FlowLimit Gpu InstanceType LinkFact LinkPair OwnPrices Price"
        " Reached Source default_overlay load read_own_prices"
    )
    assert all(hasattr(package, name) for package in (recommender, instance_catalog) for name in package.__all__)


def test_one_base_catches_every_error_that_a_user_can_do_something_about() -> None:
    assert ddlprof.DdlprofError is instance_catalog.DdlprofError is recommender.DdlprofError
    for error in (UserError, instance_catalog.CatalogError, recommender.PredictionError):
        assert issubclass(error, ddlprof.DdlprofError)
    with pytest.raises(ddlprof.DdlprofError, match="no such run directory"):
        ddlprof.load("nowhere")
    with pytest.raises(ddlprof.DdlprofError, match="closest"):
        instance_catalog.load(None).instance("p4d.24xlrge")
    with pytest.raises(ddlprof.DdlprofError, match="no step measured"):
        recommender.Predictor(recommender.Workload("net"))


def test_a_step_needs_its_placement_batch_and_time_and_no_machine() -> None:
    """By keyword, so that a list of numbers cannot be mistaken."""
    kinds = {p.name: p.kind for p in inspect.signature(recommender.Measurement).parameters.values()}
    by_position = [name for name, kind in kinds.items() if kind is not inspect.Parameter.KEYWORD_ONLY]
    needed = [p.name for p in inspect.signature(recommender.Measurement).parameters.values() if p.default is p.empty]
    assert by_position == ["instance_type"]
    assert needed == ["placement", "batch_per_gpu", "step_s"]
