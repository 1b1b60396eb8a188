"""Reads jobs of Kubernetes: what `kubectl get jobs,pods,events -A -o json` prints.

A job holds its GPUs from the time that its first pod is scheduled until it completes, or its last container ends. Jobs
of one JobSet are one job, and so are pods of another controller, such as a PyTorchJob's. Events tell the times of pods
that are no longer there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddlprof.base.errors import UserError
from ddlprof.cluster.history.files import Wrong, at, json_in
from ddlprof.cluster.history.past import PastJob
from ddlprof.cluster.history.times import moment

SERVICES = "pods of services (Deployments, StatefulSets, DaemonSets)"
_SERVICES = frozenset({"ReplicaSet", "StatefulSet", "DaemonSet", "Node"})
_GPU = re.compile(
    r"(?:nvidia|amd)\.com/(?:gpu(?:\.shared)?|mig-[\w.]+)|gpu\.intel\.com/(?:i915|xe)|habana\.ai/gaudi", re.IGNORECASE
)
"""Resources that are GPUs, or parts of one that count as one."""
_CREATED = re.compile(r"Created pod: (\S+)")
_ASSIGNED = re.compile(r"Successfully assigned \S+ to (\S+)")


@dataclass
class _Pod:
    gpus: float
    scheduled_s: float | None
    ended_s: float | None
    node: str


@dataclass
class _Work:
    """What becomes one job: a Job of Kubernetes, all those of a JobSet, or the pods of something else."""

    name: str
    namespace: str
    submit_s: float
    asked_gpus: float = 0.0
    """The GPUs of all pods that run at the same time, as Jobs ask for them."""
    ends: list[float | None] = field(default_factory=list)
    """When each Job ended; None: it has not. Empty where there is no Job."""
    starts: list[float] = field(default_factory=list)
    """When each Job was started, unless it was suspended: before its pods had GPUs."""
    states: list[str] = field(default_factory=list)
    gpu_model: str = ""
    pods: list[_Pod] = field(default_factory=list)


@dataclass
class _Events:
    """What events tell, by the namespace and the name of a pod or a job."""

    scheduled: dict[tuple[str, str], tuple[float, str]] = field(default_factory=dict)
    """When a pod was scheduled, and to which node."""
    created: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """The pods that were created for a job."""


def read(paths: Sequence[Path]) -> tuple[list[PastJob], dict[str, int]]:
    """The jobs of all files together, and what was left out. Raises UserError with file and item."""
    found: dict[str, list[tuple[Path, int, dict[str, Any]]]] = {}
    for path in paths:
        for number, item in enumerate(_items(path), 1):
            found.setdefault(str(item.get("kind")), []).append((path, number, item))
    events = _Events()
    work: dict[str, _Work] = {}
    seen: set[tuple[str, str]] = set()
    services = 0
    for path, number, item in found.get("Event", []):
        with _item(path, number):
            _add_event(item, events)
    for path, number, item in found.get("Job", []):
        with _item(path, number):
            _add_job(item, work)
    for path, number, item in found.get("Pod", []):
        with _item(path, number):
            seen.add(_place(item))
            services += not _add_pod(item, work, events)
    jobs_of_names = {(each.namespace, each.name): each for each in work.values()}
    for place, names in events.created.items():
        _add_lost_pods(jobs_of_names.get(place), place[0], names, seen, events)
    once = {id(each): each for each in work.values()}  # a JobSet stands there under its own name and those of its Jobs
    return [_past(each) for each in once.values()], {SERVICES: services}


def _item(path: Path, number: int) -> AbstractContextManager[None]:
    return at(path, f"item {number}")


def _items(path: Path) -> Iterator[dict[str, Any]]:
    value = json_in(path)
    items = value.get("items", [value]) if isinstance(value, dict) else value
    if not isinstance(items, list) or not all(isinstance(item, dict) and "kind" in item for item in items):
        raise UserError(f"{path}, line 1: Jobs, Pods and Events are expected, as kubectl get -o json prints them")
    yield from items


def _at(value: Any, *names: str | int) -> Any:
    """The value of nested objects and lists; None where one of them is missing."""
    for name in names:
        if isinstance(name, int):
            value = value[name] if isinstance(value, list) and len(value) > name else None
        else:
            value = value.get(name) if isinstance(value, dict) else None
    return value


def _listed(value: Any, *names: str) -> list[Any]:
    found = _at(value, *names)
    return found if isinstance(found, list) else []


def _time(value: Any, *names: str) -> float | None:
    found = _at(value, *names)
    return moment(found, names[-1]) if isinstance(found, str) else None


def _place(item: Any) -> tuple[str, str]:
    return str(_at(item, "metadata", "namespace") or "default"), str(_at(item, "metadata", "name"))


def _owner(item: Any) -> tuple[str, str, str] | None:
    """Kind, name and identity of the controller."""
    owners = _listed(item, "metadata", "ownerReferences")
    owner = next((each for each in owners if _at(each, "controller")), _at(owners, 0))
    return None if owner is None else (str(_at(owner, "kind")), str(_at(owner, "name")), str(_at(owner, "uid")))


def _gpus_of(spec: Any) -> float:
    """The GPUs of one pod."""
    total = 0.0
    for container in _listed(spec, "containers"):
        asked = _at(container, "resources", "limits") or _at(container, "resources", "requests") or {}
        for name, number in asked.items():
            if _GPU.fullmatch(name):
                if not re.fullmatch(r"\d+", str(number)):
                    raise Wrong(f"{name}: {str(number)[:60]!r} is no number of GPUs")
                total += int(number)
    return total


def _gpu_model(spec: Any) -> str:
    """The model as labels of nodes name it, such as those of NVIDIA's operator and of Google's cloud."""
    chosen = _at(spec, "nodeSelector") or {}
    return next((str(value) for name, value in chosen.items() if name.endswith(("gpu.product", "gke-accelerator"))), "")


def _submitted(item: Any) -> float:
    submit_s = _time(item, "metadata", "creationTimestamp")
    if submit_s is None:
        raise Wrong("metadata.creationTimestamp is missing")
    return submit_s


def _add_job(item: Any, work: dict[str, _Work]) -> None:
    namespace, name = _place(item)
    owner = _owner(item)
    grouped = owner is not None and owner[0] not in ("CronJob", "Workflow")
    key, title = (owner[2], owner[1]) if grouped and owner else (str(_at(item, "metadata", "uid") or name), name)
    each = work.setdefault(key, _Work(title, namespace, _submitted(item)))
    each.submit_s = min(each.submit_s, _submitted(item))
    spec = _at(item, "spec", "template", "spec")
    at_once = min(
        _whole(item, "parallelism"), _whole(item, "completions") if _at(item, "spec", "completions") else 10**9
    )
    each.asked_gpus += _gpus_of(spec) * at_once
    each.gpu_model = each.gpu_model or _gpu_model(spec)
    conditions = {
        str(_at(condition, "type")): _time(condition, "lastTransitionTime")
        for condition in _listed(item, "status", "conditions")
        if _at(condition, "status") == "True"
    }
    each.ends.append(_time(item, "status", "completionTime") or conditions.get("Failed"))
    each.states.append(next((state for state in ("Failed", "Complete", "Suspended") if state in conditions), ""))
    if (start_s := _time(item, "status", "startTime")) is not None:
        each.starts.append(start_s)
    work[str(_at(item, "metadata", "uid") or name)] = each


def _whole(item: Any, name: str) -> int:
    value = _at(item, "spec", name)
    if value is None:
        return 1
    if not isinstance(value, int) or value < 0:
        raise Wrong(f"{name}: {str(value)[:60]} is no whole number")
    return value


def _add_pod(item: Any, work: dict[str, _Work], events: _Events) -> bool:
    """False: a pod of a service, which is no job."""
    namespace, name = _place(item)
    owner = _owner(item)
    if owner is not None and owner[0] in _SERVICES:
        return False
    key, title = (owner[2], owner[1]) if owner else (str(_at(item, "metadata", "uid") or name), name)
    each = work.setdefault(key, _Work(title, namespace, _submitted(item)))
    if not each.ends:
        each.submit_s = min(each.submit_s, _submitted(item))
        each.states.append(str(_at(item, "status", "phase") or ""))
    each.gpu_model = each.gpu_model or _gpu_model(_at(item, "spec"))
    told_s, told_node = events.scheduled.get((namespace, name), (None, ""))
    scheduled = [
        _time(condition, "lastTransitionTime")
        for condition in _listed(item, "status", "conditions")
        if _at(condition, "type") == "PodScheduled" and _at(condition, "status") == "True"
    ]
    ended = [
        _time(container, "state", "terminated", "finishedAt")
        for container in _listed(item, "status", "containerStatuses")
    ]
    known = [end_s for end_s in ended if end_s is not None]
    each.pods.append(
        _Pod(
            _gpus_of(_at(item, "spec")),
            (scheduled or [None])[0] or told_s or _time(item, "status", "startTime"),
            max(known) if known and len(known) == len(ended) else None,
            str(_at(item, "spec", "nodeName") or told_node),
        )
    )
    return True


def _add_event(item: Any, events: _Events) -> None:
    about = _at(item, "involvedObject") or _at(item, "regarding")
    place = str(_at(about, "namespace") or "default"), str(_at(about, "name"))
    message = str(_at(item, "message") or _at(item, "note") or "")
    names = ("firstTimestamp", "deprecatedFirstTimestamp", "eventTime", "lastTimestamp")
    happened_s = next((found for name in names if (found := _time(item, name)) is not None), None)
    if _at(item, "reason") == "Scheduled" and happened_s is not None:
        node = _ASSIGNED.search(message)
        events.scheduled[place] = happened_s, node[1] if node else ""
    elif _at(item, "reason") == "SuccessfulCreate" and (created := _CREATED.search(message)):
        events.created.setdefault(place, set()).add(created[1])


def _add_lost_pods(
    each: _Work | None, namespace: str, names: Iterable[str], seen: set[tuple[str, str]], events: _Events
) -> None:
    """Pods of a Job that were deleted, of which events still tell."""
    for name in names:
        if each is not None and (namespace, name) not in seen and (namespace, name) in events.scheduled:
            scheduled_s, node = events.scheduled[namespace, name]
            each.pods.append(_Pod(0.0, scheduled_s, None, node))


def _past(each: _Work) -> PastJob:
    scheduled = [pod.scheduled_s for pod in each.pods if pod.scheduled_s is not None]
    ended = [pod.ended_s for pod in each.pods]
    ends = each.ends or ended
    known = [end_s for end_s in ends if end_s is not None]
    gpus = each.asked_gpus or sum(pod.gpus for pod in each.pods)
    return PastJob(
        job_id=f"{each.namespace}/{each.name}",
        submit_s=each.submit_s,
        gpus=gpus,
        start_s=min(scheduled or each.starts, default=None),
        end_s=max(known) if known and len(known) == len(ends) else None,
        nodes=len({pod.node for pod in each.pods if pod.node}) or None,
        state="Failed" if "Failed" in each.states else (each.states or [""])[0],
        name=each.name,
        queue=each.namespace,
        gpu_model=each.gpu_model,
    )
