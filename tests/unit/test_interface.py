"""The names that users' scripts depend on. A change here is a change for them: it belongs in the changelog."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import typer

import ddlprof
from ddlprof import fusion, instance_catalog, recommender
from ddlprof.base.errors import UserError
from ddlprof.cli.parser import app
from ddlprof.extensions.cluster.report import csv as simulations
from ddlprof.extensions.fusion.report import COLUMNS as TRIAL_COLUMNS
from ddlprof.extensions.sparsity.report import COLUMNS as SPARSITY_COLUMNS
from ddlprof.model.records import Flag
from ddlprof.report.machines.listing import COLUMNS as INSTANCE_COLUMNS
from ddlprof.report.run import tables
from ddlprof.report.run.tables import JOB_COLUMNS, RANK_COLUMNS

OPTIONS = {
    "run": (
        "--data-call --hang-after --help --live --master-addr --master-port --module --nnodes --no-calibrate"
        " --node-rank --nproc-per-node --out --profiler-windows --quiet --step-optimizer --stop-after"
        " --time-collectives -m -o"
    ),
    "watch": "--beside --hang --help --interval --metrics-address --metrics-port --once --otlp --total-steps --wait",
    "report": "--carbon --format --goodput --help --instance --out --save-summary --step-range -o",
    "compare": "--fail-on --format --help --noise --out -o",
    "export": "--format --help --out -o",
    "import": "--help --out -o",
    "share": "--help --inspect --out -o",
    "fleet": "--analyse --by --format --help --instance --job --out --since --sort --top -o",
    "characterize": "--format --help --max-steps --module --network-run --nproc-per-node --out --repeat --skip -m -o",
    "recommend": (
        "--all-sizes --batch --budget --carbon --channels-last --checkpointing --cloud --compile --discount --emit"
        " --epochs --format --global-batch --gpus --grad-accum --help --instance --instances --interruptions-per-hour"
        " --keep-global-batch --layouts --learned --lora --max-cost --max-nodes --nodes --optimizer --other-job"
        " --out --plan --precision --prices --pricing --qlora --region --samples --steps --strategy --top -o"
    ),
    "predict": (
        "--batch --channels-last --checkpointing --compile --format --global-batch --gpu --grad-accum --help --instance"
        " --interconnect --layout --learned --lora --network-gbps --nodes --optimizer --other-job --out --placement"
        " --precision --qlora --strategy --vary -o"
    ),
    "learn": "--format --help --out -o",
    "features": (
        "--batch --causal --checkpointing --compile --dense-layers --expert-ffn --experts --experts-per-token --ffn"
        " --flash --format --gated --head-dim --heads --help --hidden --inference --input --kv-heads --kv-lora --layers"
        " --optimizer --out --precision --q-lora --rope-dim --seq-len --shared-experts --software"
        " --tied --value-dim --vocab -o"
    ),
    "probe": "--add --dry-run --format --help --instance --out --quiet --seconds -o",
    "instances": (
        "--cloud --efa --format --gpu --help --max-price --min-gpu-memory --min-gpus --offered --out --region -o"
    ),
    "instances show": "--cloud --format --help --out -o",
    "instances refresh": "--cloud --format --help --instance --out --profile --region --timeout -o",
    "instances measured": "--fact --format --help --instance --out -o",
    "plan": "--check --format --global-batch --help --learned --machines --out -o",
    "cluster": "--help",
    "cluster simulate": (
        "--arrivals --cluster --format --help --jobs-limit --learned --load --models --on --out --penalties"
        " --policy --pred-error --predictable --restart --seed --too-large --trace --workers -o"
    ),
    "cluster advise": (
        "--batch --between-racks-gbps --emit --format --gpu --gpus --gpus-per-node --help --history --instance"
        " --interconnect --learned --network-gbps --out --rack-tier --remaining -o"
    ),
    "cluster import": "--columns --format --gpus --help --out --queue -o",
    "elastic": (
        "--format --gpu --gpus --gpus-per-node --help --instance --jobs --learned --out --seed --simulate --stat-eff -o"
    ),
    "fuse": (
        "--clip-norm --cuda-graph --data --device --dry-run --epochs --eval --first-rung --force --format --grad-accum"
        " --halving --help --loss --max-models --max-steps --metric --optimizer --out --precision --processes --save"
        " --schedule --seed --sweep --trials -o"
    ),
    "sparsity": "--every --format --help --max-steps --module --out --try-structured -m -o",
    "doctor": "--format --help --out -o",
}


def test_step_columns() -> None:
    assert ",".join(tables.STEP_COLUMNS) == (
        "attempt,rank,node,step,start_s,step_s,compute_s,compute_forward_s,compute_backward_s,compute_optimizer_s,"
        "data_s,data_fetch_s,data_prep_s,h2d_s,comm_s,interconnect_s,network_s,straggler_s,bubble_s,other_s,rollout_s,"
        "microbatches,samples,peak_memory_bytes,flags"
    )


def test_collective_columns() -> None:
    assert ",".join(tables.COLLECTIVE_COLUMNS) == (
        "attempt,rank,step,group,seq,op,bytes,ranks,scope,start_s,ready_s,duration_s,transfer_s,wait_s,exposed_s,"
        "busbw_gb_s,dimension"
    )


def test_rank_columns() -> None:
    assert ",".join(RANK_COLUMNS) == (
        "attempt,rank,host,node,device,status,complete,steps,steady_steps,step_s,compute_s,compute_forward_s,"
        "compute_backward_s,compute_optimizer_s,data_s,data_fetch_s,data_prep_s,h2d_s,comm_s,interconnect_s,network_s,"
        "straggler_s,bubble_s,other_s,rollout_s"
    )


def test_job_columns() -> None:
    assert ",".join(JOB_COLUMNS) == "attempt,part,seconds,share"


def test_summary_columns() -> None:
    assert ",".join(tables.SUMMARY_COLUMNS) == "class,mean_s,share,median_s,p95_s"


def test_instance_columns() -> None:
    assert ",".join(INSTANCE_COLUMNS) == (
        "cloud,region,instance_type,family,gpu_model,gpus,gpu_fraction,gpu_memory_gib,vcpus,memory_gib,cpu_arch,"
        "interconnect,interconnect_gb_s,nvswitch,network_gbps,network_burst_gbps,flow_gbps,flow_placement_group_gbps,"
        "efa,efa_interfaces,local_storage_gib,ebs_gbps,ebs_burst_gbps,offered,on_demand_usd_per_hour,on_demand_as_of,"
        "on_demand_basis,spot_usd_per_hour,spot_as_of,spot_basis,price_as_of,spec_as_of,source"
    )


def test_columns_of_simulations() -> None:
    case = "policy,seed,load,predictable,"
    assert ",".join(simulations.SUMMARY_COLUMNS) == case + (
        "offered_load,jobs,makespan_s,completion_mean_s,completion_median_s,completion_p95_s,wait_mean_s,wait_median_s,"
        "wait_p95_s,gpu_hours,comm_gpu_hours,used,stops,jain,worst_fairness,unfair,wait_longest_s"
    )
    assert ",".join(simulations.JOB_COLUMNS) == case + (
        "job_id,model,gpus,submit_s,first_start_s,end_s,completion_s,waited_s,ideal_s,slowdown,finish_time_fairness,"
        "gpu_hours,comm_gpu_hours,stops,comm_dimensions"
    )
    assert ",".join(simulations.USE_COLUMNS) == case + "begin_s,end_s,used_gpus,waiting_jobs"


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


def test_commands_and_options() -> None:
    assert dict(options_of(typer.main.get_command(app))) == OPTIONS


def test_python_api() -> None:
    assert sorted(ddlprof.__all__) == ["DdlprofError", "__version__", "data_call", "load", "profile", "recent_means"]
    run_type = inspect.signature(ddlprof.load, eval_str=True).return_annotation
    public = {name for name in dir(run_type) if not name.startswith("_")}
    assert public == {"collectives", "job", "loss_curve", "manifest", "ranks", "steps", "summary", "workload"}


def test_python_api_of_fusion() -> None:
    assert fusion.__all__ == ["Fused", "Scaler", "ask_tell"]
    public = {name for name in dir(fusion.Fused) if not name.startswith("_")}
    assert " ".join(sorted(public)) == (
        "backward broken eval forward gradients load_optimizer_states models not_graphed optimizer_state recordings set"
        " state_dict step train"
    )
    assert str(inspect.signature(fusion.Fused, eval_str=False)).startswith(
        "(models: 'Sequence[nn.Module]', optimizer: 'str' = 'sgd', *, traced: 'bool' = False,"
        " cuda_graph: 'bool' = False, **values"
    )


def test_columns_of_fused_trials() -> None:
    assert ",".join(TRIAL_COLUMNS) == "trial,fused,steps,loss,eval_loss,metric,diverged,stopped"


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


def test_python_api_of_plans() -> None:
    import ddlprof.hetero

    assert ddlprof.hetero.__all__ == ["apply"]
    assert list(inspect.signature(ddlprof.hetero.apply).parameters) == ["plan", "model", "loader"]


def test_lstm_with_structured_dropout_takes_what_the_one_of_torch_takes() -> None:
    from ddlprof.nn import StructuredDropoutLSTM

    signature = inspect.signature(StructuredDropoutLSTM, eval_str=False)
    assert " ".join(map(str, signature.parameters.values())) == (
        "input_size: 'int' hidden_size: 'int' num_layers: 'int' = 1 bias: 'bool' = True batch_first: 'bool' = False"
        " dropout: 'float' = 0.0 bidirectional: 'bool' = False proj_size: 'int' = 0 device: 'Any' = None"
        " dtype: 'Any' = None recurrent_dropout: 'float' = 0.0 input_dropout: 'float' = 0.0 structured: 'bool' = True"
    )
    last = list(signature.parameters.values())[-3:]
    assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in last)


def test_columns_of_sparsity() -> None:
    assert SPARSITY_COLUMNS == (
        "layer", "kind", "shape", "calls", "macs_share", "input_zeros", "gradient_zeros",
        "forward_macs", "forward_needed", "forward_skippable", "data_macs", "data_needed", "data_skippable",
        "weight_macs", "weight_needed", "weight_skippable", "backward_speedup", "iteration_speedup",
        "structured_speedup", "zero_rows", "zero_columns", "fitting_fours", "padding",
    )  # fmt: skip


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
