"""Reads jobs of Kubernetes: what `kubectl get jobs,pods,events -A -o json` prints.

A job holds its GPUs from the time that its first pod is scheduled until it completes, or its last container ends. Jobs
of one JobSet are one job, and so are pods of another controller, such as a PyTorchJob's. Events tell the times of pods
that are no longer there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from ddlprof.base.errors import UserError, naming
from ddlprof.base.reading import Interval, decode
from ddlprof.extensions.cluster.history.files import Wrong, json_in
from ddlprof.extensions.cluster.history.past import PastJob
from ddlprof.extensions.cluster.history.times import moment

SERVICES = "pods of services (Deployments, StatefulSets, DaemonSets)"
_SERVICES = frozenset({"ReplicaSet", "StatefulSet", "DaemonSet", "Node"})
_GPU = re.compile(
    r"(?:nvidia|amd)\.com/(?:gpu(?:\.shared)?|mig-[\w.]+)|gpu\.intel\.com/(?:i915|xe)|habana\.ai/gaudi", re.IGNORECASE
)
"""Resources that are GPUs, or parts of one that count as one."""
_CREATED = re.compile(r"Created pod: (\S+)")
_ASSIGNED = re.compile(r"Successfully assigned \S+ to (\S+)")


_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_Pods = Annotated[int, Interval(0, 10**9)]
_Amounts = dict[str, str | float]
"""What is asked for by the name of the resource: 8, "8" or "64Gi"."""


@dataclass(frozen=True)
class _Owner:
    """Here and below: fields as Kubernetes names them, and only those that are needed."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


@dataclass(frozen=True)
class _Metadata:
    name: str = ""
    namespace: str = ""
    uid: str = ""
    creationTimestamp: str = ""
    ownerReferences: tuple[_Owner, ...] = ()


@dataclass(frozen=True)
class _Resources:
    limits: _Amounts = field(default_factory=dict)
    requests: _Amounts = field(default_factory=dict)


@dataclass(frozen=True)
class _Container:
    resources: _Resources = _Resources()


@dataclass(frozen=True)
class _PodSpec:
    containers: tuple[_Container, ...] = ()
    nodeName: str = ""
    nodeSelector: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Template:
    spec: _PodSpec = _PodSpec()


@dataclass(frozen=True)
class _JobSpec:
    parallelism: _Pods | None = None
    completions: _Pods | None = None
    template: _Template = _Template()


@dataclass(frozen=True)
class _Condition:
    type: str = ""
    status: str = ""
    lastTransitionTime: str = ""


@dataclass(frozen=True)
class _Terminated:
    finishedAt: str = ""


@dataclass(frozen=True)
class _ContainerState:
    terminated: _Terminated = _Terminated()


@dataclass(frozen=True)
class _ContainerStatus:
    state: _ContainerState = _ContainerState()


@dataclass(frozen=True)
class _Status:
    phase: str = ""
    startTime: str = ""
    completionTime: str = ""
    conditions: tuple[_Condition, ...] = ()
    containerStatuses: tuple[_ContainerStatus, ...] = ()


@dataclass(frozen=True)
class _Object:
    metadata: _Metadata = _Metadata()
    status: _Status = _Status()

    @property
    def place(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.metadata.namespace or "default", self.metadata.name

    @property
    def key(self) -> str:
        return self.metadata.uid or self.metadata.name

    @property
    def owner(self) -> _Owner | None:
        """The controller."""
        owners = self.metadata.ownerReferences
        return next((each for each in owners if each.controller), (*owners, None)[0])

    @property
    def submit_s(self) -> float:
        submit_s = moment(self.metadata.creationTimestamp, "creationTimestamp")
        if submit_s is None:
            raise Wrong("metadata.creationTimestamp is missing")
        return submit_s


@dataclass(frozen=True)
class _Job(_Object):
    spec: _JobSpec = _JobSpec()


@dataclass(frozen=True)
class _PodItem(_Object):
    spec: _PodSpec = _PodSpec()


@dataclass(frozen=True)
class _Event:
    involvedObject: _Metadata | None = None
    regarding: _Metadata = _Metadata()
    reason: str = ""
    message: str = ""
    note: str = ""
    firstTimestamp: str = ""
    deprecatedFirstTimestamp: str = ""
    eventTime: str = ""
    lastTimestamp: str = ""


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
    found: dict[str, list[tuple[Path, int, dict[str, Any]]]] = {"Event": [], "Job": [], "Pod": []}
    for path in paths:
        for number, item in enumerate(_items(path), 1):
            if item["kind"] in found:
                found[item["kind"]].append((path, number, item))
    events = _Events()
    work: dict[str, _Work] = {}
    seen: set[tuple[str, str]] = set()
    services = 0
    for path, number, item in found["Event"]:
        with naming(f"{path}, item {number}"):
            _add_event(decode(_Event, item), events)
    for path, number, item in found["Job"]:
        with naming(f"{path}, item {number}"):
            _add_job(decode(_Job, item), work)
    for path, number, item in found["Pod"]:
        with naming(f"{path}, item {number}"):
            pod = decode(_PodItem, item)
            seen.add(pod.place)
            services += not _add_pod(pod, work, events)
    jobs_of_names = {(each.namespace, each.name): each for each in work.values()}
    for place, names in events.created.items():
        _add_lost_pods(jobs_of_names.get(place), place[0], names, seen, events)
    once = {id(each): each for each in work.values()}  # a JobSet stands there under its own name and those of its Jobs
    return [_past(each) for each in once.values()], {SERVICES: services}


def _items(path: Path) -> Iterator[dict[str, Any]]:
    value = json_in(path)
    items = value.get("items", [value]) if isinstance(value, dict) else value
    if not isinstance(items, list) or not all(
        isinstance(item, dict) and isinstance(item.get("kind"), str) for item in items
    ):
        raise UserError(f"{path}, line 1: Jobs, Pods and Events are expected, as kubectl get -o json prints them")
    yield from items


def _gpus_of(spec: _PodSpec) -> float:
    total = 0
    for container in spec.containers:
        asked = container.resources.limits or container.resources.requests
        for name, number in asked.items():
            if _GPU.fullmatch(name):
                if not _NUMBER.fullmatch(str(number)):
                    raise Wrong(f"{name}: {str(number)[:60]!r} is no number of GPUs")
                total += int(number)
    return total


def _gpu_model(spec: _PodSpec) -> str:
    """The model as labels of nodes name it, such as those of NVIDIA's operator and of Google's cloud."""
    chosen = spec.nodeSelector
    return next((value for name, value in chosen.items() if name.endswith(("gpu.product", "gke-accelerator"))), "")


def _add_job(job: _Job, work: dict[str, _Work]) -> None:
    namespace, name = job.place
    owner = job.owner if job.owner is not None and job.owner.kind not in ("CronJob", "Workflow") else None
    key, title = (owner.uid, owner.name) if owner else (job.key, name)
    each = work.setdefault(key, _Work(title, namespace, job.submit_s))
    each.submit_s = min(each.submit_s, job.submit_s)
    spec = job.spec
    at_once = min(1 if spec.parallelism is None else spec.parallelism, spec.completions or 10**9)
    each.asked_gpus += _gpus_of(spec.template.spec) * at_once
    each.gpu_model = each.gpu_model or _gpu_model(spec.template.spec)
    conditions = {
        condition.type: moment(condition.lastTransitionTime, "lastTransitionTime")
        for condition in job.status.conditions
        if condition.status == "True"
    }
    each.ends.append(moment(job.status.completionTime, "completionTime") or conditions.get("Failed"))
    each.states.append(next((state for state in ("Failed", "Complete", "Suspended") if state in conditions), ""))
    if (start_s := moment(job.status.startTime, "startTime")) is not None:
        each.starts.append(start_s)
    work[job.key] = each


def _add_pod(pod: _PodItem, work: dict[str, _Work], events: _Events) -> bool:
    """False: a pod of a service, which is no job."""
    owner, status = pod.owner, pod.status
    if owner is not None and owner.kind in _SERVICES:
        return False
    namespace, name = pod.place
    key, title = (owner.uid, owner.name) if owner else (pod.key, name)
    each = work.setdefault(key, _Work(title, namespace, pod.submit_s))
    if not each.ends:
        each.submit_s = min(each.submit_s, pod.submit_s)
        each.states.append(status.phase)
    each.gpu_model = each.gpu_model or _gpu_model(pod.spec)
    told_s, told_node = events.scheduled.get((namespace, name), (None, ""))
    scheduled = [
        moment(condition.lastTransitionTime, "lastTransitionTime")
        for condition in status.conditions
        if condition.type == "PodScheduled" and condition.status == "True"
    ]
    ended = [moment(container.state.terminated.finishedAt, "finishedAt") for container in status.containerStatuses]
    known = [end_s for end_s in ended if end_s is not None]
    each.pods.append(
        _Pod(
            _gpus_of(pod.spec),
            (scheduled or [None])[0] or told_s or moment(status.startTime, "startTime"),
            max(known) if known and len(known) == len(ended) else None,
            pod.spec.nodeName or told_node,
        )
    )
    return True


def _add_event(event: _Event, events: _Events) -> None:
    about = event.involvedObject or event.regarding
    place = about.namespace or "default", about.name
    message = event.message or event.note
    names = ("firstTimestamp", "deprecatedFirstTimestamp", "eventTime", "lastTimestamp")
    happened_s = next((found for name in names if (found := moment(getattr(event, name), name)) is not None), None)
    if event.reason == "Scheduled" and happened_s is not None:
        node = _ASSIGNED.search(message)
        events.scheduled[place] = happened_s, node[1] if node else ""
    elif event.reason == "SuccessfulCreate" and (created := _CREATED.search(message)):
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
