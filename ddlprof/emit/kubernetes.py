"""A plan as a JobSet of Kubernetes that Kueue admits, with a request to keep its machines close together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ddlprof.emit import pods
from ddlprof.emit.start import ENDS, Start
from ddlprof.emit.yaml_text import yaml_text
from ddlprof.model.naming import RUNS_FOLDER

ENDING = "kubernetes.yaml"
WORKERS = "workers"
RANK = '"$JOB_COMPLETION_INDEX"'
"""The number of a pod among those of an indexed job, in words of bash."""


def how(start: Start) -> str:
    """How the file is used; `{path}` stands for it."""
    return "kubectl create -f {path}"


def render(start: Start) -> str:
    """The YAML: one pod for each machine."""
    name = pods.job_name(start.job)
    several = start.nodes > 1
    fill_in = {**pods.FILL_IN, **pods.QUEUE, **(pods.LEVEL if several else {})}
    command = start.torchrun(start.run_directory(f"{pods.SHARED}/{RUNS_FOLDER}"), RANK, address_of(name))
    pod = pods.pod("train", command, pods.devices(start), pods.chosen_nodes(start.machine))
    annotations = {pods.PREFERRED: "YOUR_TOPOLOGY_LEVEL"} if several else {}
    workers = replicated(WORKERS, start.nodes, pod, annotations)
    workers["template"]["spec"]["activeDeadlineSeconds"] = math.ceil(start.longest_s)
    spec: dict[str, Any] = {"replicatedJobs": [workers]}
    if start.machine.is_spot:
        too_long = {"name": "tooLong", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]}
        spec = {"failurePolicy": {"maxRestarts": start.starts, "rules": [too_long]}, **spec}
    comments = start.comments(how(start).format(path="THIS_FILE"), fill_in, ENDS)
    return yaml_text([(comments, job_set(name, {pods.QUEUE_LABEL: "YOUR_QUEUE"}, spec))])


def address_of(name: str, workers: str = WORKERS) -> str:
    """The address of the first pod of a JobSet."""
    return f"{name}-{workers}-0-0.{name}"


def job_set(name: str, labels: Mapping[str, str], spec: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, **({"labels": dict(labels)} if labels else {})}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": dict(spec)}


def replicated(name: str, number: int, pod: Mapping[str, Any], annotations: Mapping[str, str]) -> dict[str, Any]:
    """A part of a JobSet: so many such pods, which know their numbers and end together."""
    template = {**({"metadata": {"annotations": dict(annotations)}} if annotations else {}), "spec": dict(pod)}
    job = {"completionMode": "Indexed", "parallelism": number, "completions": number, "backoffLimit": 0}
    return {"name": name, "replicas": 1, "template": {"spec": {**job, "template": template}}}
