"""A plan as a cluster of AWS ParallelCluster with Slurm, to which the job is submitted by the script for sbatch."""

from __future__ import annotations

from typing import Any

from ddlprof.base.errors import UserError
from ddlprof.emit.pods import job_name
from ddlprof.emit.start import Start
from ddlprof.emit.yaml_text import yaml_text

ENDING = "pcluster.yaml"
_SHARED = "/shared"
_HEAD_NODES = {"x86_64": "m6i.large", "arm64": "m6g.large"}
FILL_IN = {
    "YOUR_SUBNET": "a public subnet for the head node",
    "YOUR_PRIVATE_SUBNET": "a subnet for the machines, in a zone that has them",
    "YOUR_KEY": "the name of an EC2 key pair",
}


def how(start: Start) -> str:
    """How the file is used; `{path}` stands for it."""
    return f"pcluster create-cluster --cluster-name {job_name(start.job)} --cluster-configuration {{path}}"


def render(start: Start) -> str:
    """The YAML. Raises UserError for machines of another cloud."""
    machine = start.machine
    if machine.cloud != "aws":
        raise UserError(f"ParallelCluster rents machines of aws, not of {machine.cloud}: choose another --emit")
    config = {
        "Region": machine.region,
        "Image": {"Os": "ubuntu2204"},
        "HeadNode": {
            "InstanceType": _HEAD_NODES[machine.cpu_arch],
            "Networking": {"SubnetId": "YOUR_SUBNET"},
            "Ssh": {"KeyName": "YOUR_KEY"},
        },
        "SharedStorage": [{"Name": "shared", "MountDir": _SHARED, "StorageType": "Efs"}],
        "Scheduling": {"Scheduler": "slurm", "SlurmQueues": [_queue(start)]},
    }
    comments = start.of_machines(
        how(start).format(path="THIS_FILE"), FILL_IN,
        f"Then, on its head node, submit what --emit slurm writes for this plan, from a folder in {_SHARED}.",
    )  # fmt: skip
    return yaml_text([(comments, config)])


def _queue(start: Start) -> dict[str, Any]:
    machine = start.machine
    several = start.nodes > 1
    resource: dict[str, Any] = {
        "Name": "train",
        "Instances": [{"InstanceType": machine.instance_type}],
        "MinCount": 0,
        "MaxCount": start.nodes,
    }
    if several and machine.efa_interfaces:
        resource["Efa"] = {"Enabled": True}
    return {
        "Name": "train",
        "CapacityType": "SPOT" if machine.is_spot else "ONDEMAND",
        "Networking": {
            "SubnetIds": ["YOUR_PRIVATE_SUBNET"],
            **({"PlacementGroup": {"Enabled": True}} if several else {}),
        },
        "ComputeResources": [resource],
    }
