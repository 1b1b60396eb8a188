"""A plan as the request for a training job of Amazon SageMaker, as `aws sagemaker create-training-job` reads it."""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any

from ddlprof.base.errors import UserError
from ddlprof.emit.start import ENDS, PORT, SCRIPT, Start
from ddlprof.emit.yaml_text import yaml_text

ENDING = "sagemaker.yaml"
_LONGEST_NAME = 48
_LONGEST_S = 28 * 86400
"""The most seconds that a training job may take, by its API."""
_DISK_GB = 100
"""Less than any machine has that comes with disks of its own, on which no more may be asked for (g4dn.xlarge: 125)."""
_WAITS_S = 4 * 3600
"""How much longer than it may run a job may wait for spot machines."""
_MOST_WORDS, _LONGEST_WORD = 100, 256
"""The most arguments of a container, and the most characters of each, by the API."""
_PLACE = (
    'import json; c = json.load(open("/opt/ml/input/config/resourceconfig.json")); h = sorted(c["hosts"]);'
    ' print(h.index(c["current_host"]), h[0])'
)
"""Prints the number of a machine, and the name of the first: hosts may have any names."""
_KEPT = "/opt/ml/checkpoints"
"""What lies here is copied to the bucket while the job trains, and is there again when it starts once more."""
FILL_IN = {
    "YOUR_IMAGE": "an image in ECR with torch, ddlprof, the script and what it imports",
    "YOUR_ROLE_ARN": "the role that the job has",
    "YOUR_BUCKET": "a bucket of S3, for results, checkpoints and the run",
}


def how(start: Start) -> str:
    """How the file is used; `{path}` stands for it."""
    return f"aws sagemaker create-training-job --region {start.machine.region} --cli-input-yaml file://{{path}}"


def render(start: Start) -> str:
    """The YAML. Raises UserError for machines that SageMaker does not have, and arguments that it does not take."""
    return yaml_text([(start.comments(how(start).format(path="THIS_FILE"), FILL_IN, ENDS), request(start))])


def request(start: Start) -> dict[str, Any]:
    """The parameters of `create_training_job`."""
    machine = start.machine
    type_ = f"ml.{machine.instance_type}"
    if machine.cloud != "aws" or type_ not in known_types():
        raise UserError(f"SageMaker has no {type_}: name another --plan, --instance or --emit")
    words = start.words or (SCRIPT,)
    if len(words) > _MOST_WORDS or any(len(word) > _LONGEST_WORD or "\n" in word for word in words):
        raise UserError(
            f"SageMaker takes at most {_MOST_WORDS} arguments of a line of {_LONGEST_WORD} characters: give the script"
            " a shorter command, or choose another --emit"
        )
    name = re.sub(r"[^A-Za-z0-9]+", "-", start.job)[:_LONGEST_NAME].strip("-") or "train"
    longest_s = math.ceil(start.longest_s)
    if longest_s > _LONGEST_S:
        raise UserError("SageMaker ends every job after 28 days: name another --plan or --emit")
    return {
        "TrainingJobName": name,
        "RoleArn": "YOUR_ROLE_ARN",
        "AlgorithmSpecification": {
            "TrainingImage": "YOUR_IMAGE",
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["bash", "-c", _command(start), "torchrun", *[_PLACE] * (start.nodes > 1)],
            "ContainerArguments": list(words),
        },
        "ResourceConfig": {"InstanceType": type_, "InstanceCount": start.nodes, "VolumeSizeInGB": _DISK_GB},
        "OutputDataConfig": {"S3OutputPath": f"s3://YOUR_BUCKET/{name}/results"},
        "CheckpointConfig": {"S3Uri": f"s3://YOUR_BUCKET/{name}/checkpoints", "LocalPath": _KEPT},
        "EnableManagedSpotTraining": machine.is_spot,
        "StoppingCondition": {
            "MaxRuntimeInSeconds": longest_s,
            **({"MaxWaitTimeInSeconds": longest_s + _WAITS_S} if machine.is_spot else {}),
        },
    }


def _command(start: Start) -> str:
    """What starts the ranks on each machine, whose number and the name of the first `_PLACE` prints."""
    out = f"--out {_KEPT}/runs/$(date +%s)"
    each = f"--nproc-per-node {start.gpus_per_node} -m ddlprof run"
    if start.nodes == 1:
        return f'exec torchrun --standalone {each} {out} "$@"'
    first_names_it = f'read N A < <(python3 -c "$1") && shift || exit; [ $N = 0 ] && O="{out}"'
    place = f"--nnodes {start.nodes} --node-rank $N --master-addr $A --master-port {PORT}"
    return f'{first_names_it}; exec torchrun {place} {each} $O "$@"'


@cache
def known_types() -> frozenset[str]:
    """The machines that SageMaker trains on, by the model of its API that botocore has."""
    import botocore.session

    shape = botocore.session.get_session().get_service_model("sagemaker").shape_for("TrainingInstanceType")
    return frozenset(shape.enum)
