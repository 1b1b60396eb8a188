"""Jobs, pods and events of Kubernetes, as its interface describes them; no cluster has made these."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ddlprof.base.errors import UserError
from ddlprof.extensions.cluster.history.past import PastJob
from ddlprof.extensions.cluster.history.read import read_history

Item = dict[str, Any]


def at(minute: int) -> str:
    return f"2026-11-02T10:{minute:02}:00Z"


def metadata(name: str, minute: int, owner: tuple[str, str] | None = None) -> Item:
    owners = [{"kind": owner[0], "name": owner[1], "uid": f"uid-{owner[1]}", "controller": True}] if owner else []
    return {
        "name": name, "namespace": "vision", "uid": f"uid-{name}", "creationTimestamp": at(minute),
        "ownerReferences": owners,
    }  # fmt: skip


def spec(gpus: int, node: str | None = None) -> Item:
    limits = {"cpu": "8", "memory": "64Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    selector = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    return {"containers": [{"resources": {"limits": limits}}], "nodeName": node, "nodeSelector": selector}


def job(
    name: str, minute: int, gpus: int, pods: int = 1, done: int | None = None, failed: int | None = None, **more: Any
) -> Item:
    conditions = [{"type": "Failed", "status": "True", "lastTransitionTime": at(failed)}] if failed else []
    status = {"startTime": at(minute), "conditions": conditions, **({"completionTime": at(done)} if done else {})}
    return {
        "kind": "Job", "metadata": metadata(name, minute, **more), "status": status,
        "spec": {"parallelism": pods, "completions": pods, "template": {"spec": spec(gpus)}},
    }  # fmt: skip


def pod(
    name: str, minute: int, gpus: int, scheduled: int | None, node: str = "n1", ended: int | None = None, **more: Any
) -> Item:
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at(scheduled)}] if scheduled else []
    state = {"terminated": {"finishedAt": at(ended)}} if ended else {"running": {}}
    return {
        "kind": "Pod", "metadata": metadata(name, minute, **more), "spec": spec(gpus, node if scheduled else None),
        "status": {"phase": "Succeeded", "conditions": conditions, "containerStatuses": [{"state": state}]},
    }  # fmt: skip


def event(about: tuple[str, str], reason: str, message: str, minute: int, new: bool = False) -> Item:
    thing = {"kind": about[0], "name": about[1], "namespace": "vision"}
    if new:
        return {"kind": "Event", "regarding": thing, "reason": reason, "note": message, "eventTime": at(minute)}
    return {
        "kind": "Event", "involvedObject": thing, "reason": reason, "message": message, "firstTimestamp": at(minute),
    }  # fmt: skip


def read(path: Path, *items: Item) -> tuple[dict[str, PastJob], list[str]]:
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    found = read_history("kubernetes", [path])
    return {job.name: job for job in found.jobs}, found.notes()


def minutes(job: PastJob) -> tuple[float, float]:
    assert job.start_s is not None
    assert job.duration_s is not None
    return (job.start_s - job.submit_s) / 60, job.duration_s / 60


def test_a_job_holds_its_gpus_from_the_first_pod_to_its_completion(tmp_path: Path) -> None:
    owner = ("Job", "bert")
    found, notes = read(
        tmp_path / "k.json",
        job("bert", 0, 8, pods=2, done=30),
        pod("bert-0-x", 1, 8, 5, "n1", 29, owner=owner),
        pod("bert-1-x", 1, 8, 7, "n2", 29, owner=owner),
    )
    bert = found["bert"]
    assert (bert.gpus, bert.nodes, bert.queue, bert.gpu_model) == (16, 2, "vision", "NVIDIA-A100-SXM4-80GB")
    assert bert.job_id == "vision/bert"
    assert minutes(bert) == (5, 25)
    assert notes == []


def test_events_tell_of_pods_that_are_gone(tmp_path: Path) -> None:
    items = [
        event(("Job", "old"), "SuccessfulCreate", "Created pod: old-a", 1),
        event(("Pod", "old-a"), "Scheduled", "Successfully assigned vision/old-a to n4", 6),
        event(("Job", "new"), "SuccessfulCreate", "Created pod: new-a", 1, new=True),
        event(("Pod", "new-a"), "Scheduled", "Successfully assigned vision/new-a to n5", 9, new=True),
    ]
    jobs = [job("old", 0, 4, failed=16), job("new", 0, 2, done=10), job("told", 3, 1, done=20)]
    found, _ = read(tmp_path / "k.json", *jobs, *items)
    assert {name: minutes(each) for name, each in found.items()} == {"old": (6, 10), "new": (9, 1), "told": (0, 17)}
    assert {name: (each.nodes, each.state) for name, each in found.items()} == {
        "old": (1, "Failed"), "new": (1, ""), "told": (None, ""),
    }  # fmt: skip


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    _, notes = read(
        tmp_path / "k.json",
        job("kept", 0, 1, done=5),
        job("cpu", 0, 0, done=5),
        job("going", 0, 1),
        pod("waits", 0, 1, None),
        pod("web-1", 0, 1, 1, owner=("ReplicaSet", "web")),
    )
    assert notes == [
        "left out jobs without GPUs: 1",
        "left out jobs that still run: their length is not known: 1",
        "left out jobs that never started, or still wait: 1",
        "left out pods of services (Deployments, StatefulSets, DaemonSets): 1",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1]", "Jobs, Pods and Events are expected"),
        ("{", "line 1"),
        (json.dumps([{"kind": "Job", "metadata": {}}]), "item 1: metadata.creationTimestamp is missing"),
        (
            json.dumps([job("a", 0, 1), {**job("b", 0, 1), "spec": {"parallelism": "two"}}]),
            "item 2: spec.parallelism: ",
        ),
        (json.dumps({"kind": "List", "items": []}), "no job ran on GPUs and ended"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "k.json"
    path.write_text(text)
    with pytest.raises(UserError, match=re.escape(says)) as error:
        read_history("kubernetes", [path])
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def with_limits(limits: Any) -> Item:
    wrong = pod("p", 0, 1, 1, ended=5)
    wrong["spec"]["containers"][0]["resources"]["limits"] = limits
    return wrong


@pytest.mark.parametrize(
    ("item", "says"),
    [
        (with_limits("8"), "spec.containers[0].resources.limits: an object is expected, not '8'"),
        (with_limits({"nvidia.com/gpu": "9" * 400}), "is no number of GPUs"),
        (with_limits({"nvidia.com/gpu": "9" * 5000}), "is no number of GPUs"),
        (with_limits({"nvidia.com/gpu": 0.5}), "nvidia.com/gpu: '0.5' is no number of GPUs"),
        ({**pod("p", 0, 1, 1), "metadata": 5}, "metadata: an object is expected, not 5"),
        ({**pod("p", 0, 1, 1), "status": {"conditions": {"a": 1}}}, "status.conditions: a list is expected"),
        ({**job("j", 0, 1), "spec": {"template": {"spec": {"nodeSelector": ["x"]}}}}, "nodeSelector: an object"),
        ({**event(("Pod", "p"), "Scheduled", "x", 1), "message": ["x"]}, "message: a text is expected, not a list"),
        ({**event(("Pod", "p"), "Scheduled", "x", 1), "firstTimestamp": 5}, "firstTimestamp: a text is expected"),
    ],
)
def test_a_value_of_another_type_is_named(item: Item, says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(says)) as error:
        read(tmp_path / "k.json", item)
    assert str(error.value).startswith(f"{tmp_path / 'k.json'}, item 1: ")


def test_what_is_not_needed_may_be_anything(tmp_path: Path) -> None:
    other = {"kind": "Service", "metadata": 5, "spec": {"containers": "none"}}
    found, _ = read(tmp_path / "k.json", other, {**pod("p", 0, 1, 1, ended=5), "apiVersion": 7, "more": [[]]})
    assert list(found) == ["p"]
