"""The files that start a plan: what they say, and that engines take them.

`scripts/lab/emitted_files.py` tries them on the engines' own packages, which are no part of the development
environment.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import botocore.session
import pytest
import yaml
from botocore.validate import ParamValidator

from ddlprof.base.errors import UserError
from ddlprof.base.text import plain
from ddlprof.cli import recommend
from ddlprof.emit import pods, sagemaker, slurm
from ddlprof.emit.engines import ENGINES
from ddlprof.emit.frameworks.table import FRAMEWORKS
from ddlprof.emit.start import RentedMachine, Start
from scripts.lab.emitted_files import P4D, STARTS, filled_in
from tests.unit.cli.hostile import NAME
from tests.unit.emit.made import (
    ONE,
    ONE_ON_SPOT,
    SPOT,
    TWO,
    TWO_ON_SPOT,
    container,
    rendered,
    to_fill_in,
)

LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def document(engine: str, start: Start) -> Any:
    return yaml.safe_load(filled_in(rendered(engine, start)))


def ran(script: str, tmp_path: Path, stubs: str, **variables: str) -> str:
    """What a script of bash prints where its commands are these."""
    environment = {"PATH": os.environ["PATH"], **variables}
    done = subprocess.run(
        ["bash", "-c", f"{stubs}\n{script}"], env=environment, capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", STARTS)
def test_all_that_is_to_be_filled_in_is_explained(engine: str, case: str) -> None:
    for start in (STARTS[case], replace(STARTS[case], words=())):
        explained, used = to_fill_in(rendered(engine, start))
        assert explained == used
    how = ENGINES[engine].how(STARTS[case]).format(path="THIS_FILE")
    assert f"start it with: {how}\n" in rendered(engine, STARTS[case])


@pytest.mark.parametrize("engine", [each for each in ENGINES if each != "parallelcluster"])
@pytest.mark.parametrize("case", STARTS)
def test_the_measured_command_is_in_it_and_is_measured_again(engine: str, case: str) -> None:
    text = rendered(engine, STARTS[case])
    assert re.search(r"-m ddlprof run (--out |\$\{RUN:\+--out |\$O )", text)
    assert "train.py --lr 0.1" in text or document(engine, STARTS[case])["AlgorithmSpecification"][
        "ContainerArguments"
    ] == ["train.py", "--lr", "0.1"]
    assert ("let the job write a checkpoint every 10 min" in text) == STARTS[case].machine.is_spot


def test_torchrun_asks_for_its_place(tmp_path: Path) -> None:
    stubs = 'torchrun() { echo "$@"; }\ndate() { echo now; }'
    said = [ran(rendered("torchrun", TWO), tmp_path, stubs, NODE_RANK=each, MASTER_ADDR="a") for each in ("0", "1")]
    assert said == [
        "--nnodes 2 --node-rank 0 --master-addr a --master-port 29500 --nproc-per-node 8 -m ddlprof run --out"
        " ddlprof-runs/bert-now train.py --lr 0.1\n",
        "--nnodes 2 --node-rank 1 --master-addr a --master-port 29500 --nproc-per-node 8 -m ddlprof run train.py --lr"
        " 0.1\n",
    ]
    done = subprocess.run(["bash", "-c", rendered("torchrun", TWO)], capture_output=True, cwd=tmp_path)
    assert (done.returncode, b"NODE_RANK: parameter" in done.stderr) == (1, True)
    assert "--standalone --nproc-per-node 8" in ran(rendered("torchrun", ONE), tmp_path, stubs)


def directives(text: str) -> dict[str, str]:
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash"
    found = [line.removeprefix("#SBATCH --").partition("=") for line in lines if line.startswith("#SBATCH")]
    first_command = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first_command:])  # sbatch stops at the first command
    return {name: value for name, _, value in found}


def test_slurm_is_asked_for_whole_machines_until_the_upper_end() -> None:
    found = directives(rendered("slurm", TWO))
    assert found == {
        "job-name": "bert", "nodes": "2", "ntasks-per-node": "1", "gres": "gpu:8", "exclusive": "", "mem": "0",
        "time": "02:47:00",
    }  # fmt: skip
    assert 60 * (2 * 60 + 46) < TWO.longest_s <= 60 * (2 * 60 + 47)
    assert directives(rendered("slurm", TWO_ON_SPOT)) == {
        **found, "requeue": "", "open-mode": "append", "signal": "TERM@120",
    }  # fmt: skip
    assert slurm.clock(86400 + 59.5) == "1-00:01:00"


def pods_of(engine: str, start: Start) -> list[dict[str, Any]]:
    """The templates of all pods of a job, with what is checked of both kinds."""
    job = document(engine, start)
    assert LABEL.fullmatch(job["metadata"]["name"])
    assert job["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team"}
    if engine == "kubernetes":
        return [part["template"]["spec"]["template"] for part in job["spec"]["replicatedJobs"]]
    return [part["template"] for part in job["spec"]["pytorchReplicaSpecs"].values()]


@pytest.mark.parametrize("engine", ["kubernetes", "pytorchjob"])
@pytest.mark.parametrize("case", STARTS)
def test_pods_have_a_machine_each(engine: str, case: str) -> None:
    start = STARTS[case]
    for template in pods_of(engine, start):
        several = start.nodes > 1
        near = {"annotations": {"kueue.x-k8s.io/podset-preferred-topology": "cloud.provider.com/topology-rack"}}
        assert template.get("metadata", {}) == (near if several else {})
        pod = template["spec"]
        spot = {"eks.amazonaws.com/capacityType": "SPOT"} if start.machine.is_spot else {}
        assert pod["nodeSelector"] == {"node.kubernetes.io/instance-type": "p4d.24xlarge", **spot}
        found = container(pod)
        assert found["resources"]["limits"] == {
            "nvidia.com/gpu": 8,
            **({"vpc.amazonaws.com/efa": 4} if several else {}),
        }
        assert {each["name"] for each in found["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
        assert (found["command"], len(found["args"])) == (["bash", "-c"], 1)


@pytest.mark.parametrize(
    ("machine", "chosen"),
    [
        (RentedMachine("gcp", "us-central1", "n1-standard-32+4xt4", "T4", True), {
            "nodeSelector": {
                "node.kubernetes.io/instance-type": "n1-standard-32", "cloud.google.com/gke-spot": "true",
            },
            "tolerations": [
                {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
                {
                    "key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule",
                },
            ],
        }),
        (RentedMachine("runpod", "any", "8x_MI300X", "MI300X", is_amd=True), {
            "tolerations": [{"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        }),
    ],
)  # fmt: skip
def test_nodes_are_chosen_by_the_labels_that_a_cloud_writes(machine: RentedMachine, chosen: dict[str, Any]) -> None:
    assert pods.chosen_nodes(machine) == chosen


def test_dstack() -> None:
    task = document("dstack", TWO)
    assert (task["type"], task["nodes"], task["resources"], task["max_duration"]) == (
        "task", 2, {"gpu": {"count": 8}}, "167m",
    )  # fmt: skip
    assert (task["backends"], task["regions"], task["instance_types"]) == (["aws"], ["us-east-1"], ["p4d.24xlarge"])
    assert (task["spot_policy"], "retry" in task, "volumes" in task) == ("on-demand", False, False)
    spot = document("dstack", TWO_ON_SPOT)
    assert "ends with it: let the script send away" in rendered("dstack", TWO)
    assert "ends with it" not in rendered("dstack", TWO_ON_SPOT)
    assert (spot["spot_policy"], spot["retry"]["on_events"]) == ("spot", ["no-capacity", "interruption"])
    assert spot["volumes"] == ["data-${{ dstack.node_rank }}:/checkpoints"]
    assert document("dstack", ONE_ON_SPOT)["volumes"] == ["data:/checkpoints"]
    assert 'RUN="/checkpoints/' in spot["commands"][-1]


def test_skypilot_tries_no_machines_that_it_does_not_connect() -> None:
    others = (replace(P4D, cloud="runpod"), replace(P4D, cloud="gcp"))
    (first, second) = document("skypilot", replace(TWO, others=others))["resources"]["ordered"]
    assert (first["infra"], second["infra"]) == ("aws/us-east-1", "gcp/us-east-1")
    assert len(document("skypilot", replace(ONE, others=others))["resources"]["ordered"]) == 3


def test_attached_gpus_are_named() -> None:
    start = replace(ONE, machine=RentedMachine("gcp", "us-central1", "n1-standard-32+4xt4", "T4"), gpus_per_node=4)
    assert document("skypilot", start)["resources"] == {
        "infra": "gcp/us-central1", "instance_type": "n1-standard-32", "accelerators": "T4:4", "use_spot": False,
    }  # fmt: skip
    task = document("dstack", start)
    assert (task["resources"], task["instance_types"]) == ({"gpu": {"name": "T4", "count": 4}}, ["n1-standard-32"])


def test_parallelcluster() -> None:
    config = document("parallelcluster", TWO_ON_SPOT)
    (queue,) = config["Scheduling"]["SlurmQueues"]
    assert (config["Region"], queue["CapacityType"]) == ("us-east-1", "SPOT")
    assert queue["Networking"]["PlacementGroup"] == {"Enabled": True}
    assert queue["ComputeResources"] == [
        {
            "Name": "train", "Instances": [{"InstanceType": "p4d.24xlarge"}], "MinCount": 0, "MaxCount": 2,
            "Efa": {"Enabled": True},
        }
    ]  # fmt: skip
    (alone,) = document("parallelcluster", ONE)["Scheduling"]["SlurmQueues"]
    assert "PlacementGroup" not in alone["Networking"]
    assert "Efa" not in alone["ComputeResources"][0]
    arm = replace(ONE, machine=replace(P4D, cpu_arch="arm64"))
    assert document("parallelcluster", arm)["HeadNode"]["InstanceType"] == "m6g.large"
    assert "submit what --emit slurm writes" in rendered("parallelcluster", TWO)


@pytest.mark.parametrize("case", STARTS)
def test_sagemaker_takes_the_request(case: str) -> None:
    """By the model of its API: required and unknown parameters, types and lower limits; then what else it documents."""
    request = document("sagemaker", STARTS[case])
    operation = botocore.session.get_session().get_service_model("sagemaker").operation_model("CreateTrainingJob")
    report = ParamValidator().validate(request, operation.input_shape)
    assert not report.has_errors(), report.generate_report()
    words = [*request["AlgorithmSpecification"]["ContainerEntrypoint"]]
    words += request["AlgorithmSpecification"]["ContainerArguments"]
    assert max(map(len, words)) <= 256
    assert re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", request["TrainingJobName"])
    assert request["ResourceConfig"]["InstanceType"] in sagemaker.known_types()
    assert request["EnableManagedSpotTraining"] == STARTS[case].machine.is_spot
    assert request["ResourceConfig"]["VolumeSizeInGB"] <= 125  # no more than a g4dn.xlarge has of its own
    limits = request["StoppingCondition"]
    assert limits["MaxRuntimeInSeconds"] == 10_000
    assert ("MaxWaitTimeInSeconds" in limits) == STARTS[case].machine.is_spot
    assert limits.get("MaxWaitTimeInSeconds", 1e9) >= limits["MaxRuntimeInSeconds"]


def by_dstack(text: str) -> str:
    """What dstack makes of a command: `$$` is one dollar; from any other dollar on, the next `${{` is a reference."""
    made, rest = "", text
    while (at := rest.find("$")) >= 0:
        if rest[at + 1] != "$":
            assert "${{" not in rest
            break
        made, rest = made + rest[: at + 1], rest[at + 2 :]
    return made + rest


@pytest.mark.parametrize("words", [("train.py", "${{ x }}", "$HOME"), ("train.py", "a$$b"), ("train.py", "$HOME")])
def test_dstack_replaces_nothing_in_arguments(words: tuple[str, ...]) -> None:
    plainly = document("dstack", TWO)["commands"][-1].splitlines()
    command = by_dstack(document("dstack", replace(TWO, words=words))["commands"][-1]).splitlines()
    assert command[:-1] == plainly[:-1]
    assert shlex.split(command[-1]) == list(words)


def test_sagemaker_gives_each_machine_its_number(tmp_path: Path) -> None:
    entry = document("sagemaker", TWO)["AlgorithmSpecification"]["ContainerEntrypoint"]
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "torchrun").write_text('#!/bin/bash\nprintf "%s|" "$@"\n')
    (folder / "torchrun").chmod(0o755)
    for number, out in ((1, r"--out\|/opt/ml/checkpoints/runs/\d+\|"), (2, "")):
        config = {"current_host": f"ip-10-0-0-{number}", "hosts": ["ip-10-0-0-2", "ip-10-0-0-1"]}
        (tmp_path / "resourceconfig.json").write_text(json.dumps(config))
        here = [word.replace("/opt/ml/input/config", str(tmp_path)) for word in entry]
        environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
        done = subprocess.run([*here, "train.py", "a b"], capture_output=True, text=True, env=environment)
        place = rf"--nnodes\|2\|--node-rank\|{number - 1}\|--master-addr\|ip-10-0-0-1\|--master-port\|29500\|"
        command = rf"{place}--nproc-per-node\|8\|-m\|ddlprof\|run\|{out}train.py\|a b\|"
        assert re.fullmatch(command, done.stdout), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("engine", "start", "says"),
    [
        ("skypilot", replace(ONE, machine=replace(P4D, cloud="vast")), "rents no machines of vast by type"),
        ("skypilot", replace(ONE, machine=replace(P4D, cloud="coreweave")), "rents no machines of coreweave by type"),
        ("skypilot", replace(ONE, machine=replace(P4D, cloud="hyperstack")), "no machines of hyperstack by type"),
        ("skypilot", replace(TWO, machine=replace(P4D, cloud="verda")), "SkyPilot connects no machines of verda"),
        ("skypilot", replace(ONE, machine=replace(SPOT, cloud="verda")), "SkyPilot mounts no bucket on verda"),
        ("dstack", replace(TWO, machine=replace(P4D, cloud="verda")), "dstack connects no machines of verda"),
        ("dstack", replace(ONE, machine=replace(P4D, cloud="coreweave")), "dstack rents no machines of coreweave"),
        ("dstack", replace(ONE, machine=replace(P4D, cpu_arch="arm64")), "dstack rents no p4d.24xlarge, only"),
        ("dstack", replace(ONE, machine=replace(P4D, is_amd=True)), "dstack rents no p4d.24xlarge, only"),
        ("parallelcluster", replace(ONE, machine=replace(P4D, cloud="gcp")), "machines of aws, not of gcp"),
        ("sagemaker", replace(ONE, machine=replace(P4D, cloud="gcp")), "SageMaker has no ml.p4d.24xlarge"),
        ("sagemaker", replace(ONE, machine=replace(P4D, instance_type="p9.huge")), "SageMaker has no ml.p9.huge"),
        ("sagemaker", replace(ONE, words=("x",) * 101), "at most 100 arguments"),
        ("sagemaker", replace(ONE, words=("x" * 257,)), "at most 100 arguments of a line of 256 characters"),
        ("sagemaker", replace(ONE, longest_s=3e6), "ends every job after 28 days"),
        ("sagemaker", replace(ONE, words=("train.py", "a\nb")), "arguments of a line of 256 characters"),
    ],
)
def test_what_an_engine_cannot_be_asked_for_is_refused(engine: str, start: Start, says: str) -> None:
    with pytest.raises(UserError, match=says):
        rendered(engine, start)


def test_a_time_limit_is_explained_where_there_is_one() -> None:
    limited = [engine for engine in ENGINES if "The time limit is the upper end" in rendered(engine, TWO)]
    assert limited == ["slurm", "kubernetes", "pytorchjob", "dstack", "sagemaker"]


@pytest.mark.parametrize("engine", ENGINES)
def test_names_forge_no_line_of_a_file_for_two_spot_machines(engine: str) -> None:
    """SageMaker takes no argument of several lines; the others get it as it is, quoted for bash."""
    hostile = NAME.replace("\n", " ") if engine == "sagemaker" else NAME
    texts = [rendered(engine, replace(TWO_ON_SPOT, job=name, words=("train.py", name))) for name in (hostile, "x" * 9)]
    assert not {each for line in texts[0].splitlines() for each in line if plain(each) != each}
    assert texts[0].count("\n") == texts[1].count("\n")
    if ENGINES[engine].ending.endswith("sh"):
        assert subprocess.run(["bash", "-n"], input=texts[0], text=True).returncode == 0
    else:
        assert list(yaml.safe_load(texts[0])) == list(yaml.safe_load(texts[1]))


def test_spot_is_said_to_every_engine() -> None:
    changed = [engine for engine in ENGINES if rendered(engine, ONE) != rendered(engine, replace(ONE, machine=SPOT))]
    assert changed == list(ENGINES)


def test_help_names_all_engines() -> None:
    """It is typed there: a command's help waits for no engine."""
    help_of_emit: str = get_type_hints(recommend.recommend, include_extras=True)["emit"].__metadata__[0].help
    named = set(re.findall(r"[a-z]+", help_of_emit.partition(" -o: ")[2]))
    assert named - {"or", "with", "layouts"} == {*ENGINES, *FRAMEWORKS}
