"""The names of this room that users' scripts depend on."""

from __future__ import annotations

from ddlprof.extensions.cluster.report import csv as simulations
from tests.unit.test_interface import options_of_room

OPTIONS = {
    "cluster": "--help",
    "cluster simulate": (
        "--arrivals --cluster --format --help --jobs-limit --learned --load --models --out --penalties"
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
}


def test_commands_and_options() -> None:
    assert options_of_room("cluster") == OPTIONS


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
