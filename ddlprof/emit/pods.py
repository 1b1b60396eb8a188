"""The pods of Kubernetes that train: a container for each machine, and where it may run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ddlprof.emit.start import IMAGE, RentedMachine, Start

SHARED = "/shared"
"""Where the volume is that outlives the pods."""
QUEUE = {"YOUR_QUEUE": "the LocalQueue of Kueue in this namespace; without Kueue remove the label"}
FILL_IN = {
    **IMAGE,
    "YOUR_CLAIM": f"a PersistentVolumeClaim that all pods may write to: runs and checkpoints, in {SHARED}",
}
LEVEL = {"YOUR_TOPOLOGY_LEVEL": "the node label of a rack or block in the cluster's Topology"}
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PREFERRED, REQUIRED = (f"kueue.x-k8s.io/podset-{how}-topology" for how in ("preferred", "required"))
_NAME_CHARACTERS = 39
"""The most characters of a job's name: the names of its pods, `NAME-workers-16-0-1023-xxxxx`, must have room in the 63
of a label, and dstack takes at most 41."""
_VARIABLE = re.compile(r"\$(?=\$|\([A-Za-z_][A-Za-z0-9_]*\))")
"""What Kubernetes replaces in a command before anything runs: `$$` by `$`, and `$(NAME)` by a variable's value."""


def job_name(text: str) -> str:
    """A name that Kubernetes and dstack take: lower-case letters, digits and hyphens, at least two characters, of which
    the first is a letter."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if len(name) < 2 or not name[0].isalpha():
        name = f"job-{name}"
    return name[:_NAME_CHARACTERS].strip("-")


def unexpanded(text: str) -> str:
    """The text of a container's command that reaches it as `text`."""
    return _VARIABLE.sub("$$", text)


def chosen_nodes(machine: RentedMachine) -> dict[str, Any]:
    """The part of a pod that chooses nodes of the type, as far as the cloud's own labels tell them apart."""
    cloud, labels = machine.rented, {}
    if cloud.pods_by_type:
        labels["node.kubernetes.io/instance-type"] = machine.attached[0]
    tolerated = [{"key": gpu_resource(machine), "operator": "Exists", "effect": "NoSchedule"}]
    if machine.is_spot and cloud.spot_label:
        key, _, value = cloud.spot_label.partition("=")
        labels[key] = value
        if cloud.spot_taint:
            tolerated.append({"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"})
    return {**({"nodeSelector": labels} if labels else {}), "tolerations": tolerated}


def gpu_resource(machine: RentedMachine) -> str:
    """What the device plugin calls a GPU."""
    return "amd.com/gpu" if machine.is_amd else "nvidia.com/gpu"


def devices(start: Start) -> dict[str, int]:
    """The limits of a container that has a machine for itself."""
    machine = start.machine
    efa = {"vpc.amazonaws.com/efa": machine.efa_interfaces} if start.nodes > 1 and machine.efa_interfaces else {}
    return {gpu_resource(machine): start.gpus_per_node, **efa}


def pod(
    container: str,
    script: Sequence[str],
    limits: Mapping[str, int],
    nodes: Mapping[str, Any] | None = None,
    restart: str | None = "Never",
) -> dict[str, Any]:
    """A pod that runs lines of bash; loaders get all the shared memory that they need. `restart`: None leaves it to
    whoever makes the pods."""
    return {
        **({"restartPolicy": restart} if restart else {}),
        **(nodes or {}),
        "containers": [
            {
                "name": container,
                "image": "YOUR_IMAGE",
                "command": ["bash", "-c"],
                "args": [unexpanded("\n".join(script) + "\n")],
                "resources": {"limits": dict(limits)},
                "volumeMounts": [{"name": "memory", "mountPath": "/dev/shm"}, {"name": "shared", "mountPath": SHARED}],
            }
        ],
        "volumes": [
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
            {"name": "shared", "persistentVolumeClaim": {"claimName": "YOUR_CLAIM"}},
        ],
    }
