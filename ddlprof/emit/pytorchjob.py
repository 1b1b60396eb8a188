"""A plan as a PyTorchJob of Kubeflow's training operator, which may be admitted by Kueue, too."""

from __future__ import annotations

import math
from typing import Any

from ddlprof.emit import pods
from ddlprof.emit.start import ENDS, Start
from ddlprof.emit.yaml_text import yaml_text
from ddlprof.model.naming import RUNS_FOLDER

ENDING = "pytorchjob.yaml"
_CONTAINER = "pytorch"
"""The name by which the operator finds the container that it tells its place in the job."""


def how(start: Start) -> str:
    """How the file is used; `{path}` stands for it."""
    return "kubectl create -f {path}"


def render(start: Start) -> str:
    """The YAML: a master and workers, which differ in nothing but their numbers."""
    several = start.nodes > 1
    # The operator sets RANK and WORLD_SIZE to the pod's, and torchrun sets them again for each process.
    command = start.torchrun(start.run_directory(f"{pods.SHARED}/{RUNS_FOLDER}"), '"$RANK"', '"$MASTER_ADDR"')
    pod = pods.pod(_CONTAINER, command, pods.devices(start), pods.chosen_nodes(start.machine), restart=None)
    template: dict[str, Any] = {"spec": pod}
    if several:
        template = {"metadata": {"annotations": {pods.PREFERRED: "YOUR_TOPOLOGY_LEVEL"}}, **template}
    # Where one pod is taken away, the others fail: all of them have to start again.
    replica = {"restartPolicy": "OnFailure" if start.machine.is_spot else "Never", "template": template}
    run_policy: dict[str, Any] = {"activeDeadlineSeconds": math.ceil(start.longest_s), "cleanPodPolicy": "Running"}
    if start.machine.is_spot:
        run_policy["backoffLimit"] = start.starts * start.nodes  # the operator adds up the restarts of all pods
    replicas = {"Master": {"replicas": 1, **replica}}
    if several:
        replicas["Worker"] = {"replicas": start.nodes - 1, **replica}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": pods.job_name(start.job), "labels": {pods.QUEUE_LABEL: "YOUR_QUEUE"}},
        "spec": {"runPolicy": run_policy, "pytorchReplicaSpecs": replicas},
    }
    fill_in = {**pods.FILL_IN, **pods.QUEUE, **(pods.LEVEL if several else {})}
    return yaml_text([(start.comments(how(start).format(path="THIS_FILE"), fill_in, ENDS), job)])
