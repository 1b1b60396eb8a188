"""Hints for schedulers, against what the manuals of these say is allowed."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from ddlprof.extensions.cluster.advice import Advice, Estimated, SpreadCost, Wait
from ddlprof.extensions.cluster.machines import Level
from ddlprof.extensions.cluster.report.advice import kubernetes, slurm, volcano
from ddlprof.extensions.cluster.report.advice import text as table
from ddlprof.extensions.cluster.report.advice.data import JobAdvice

_MINUTES = r"\d+"
_TIME = re.compile(
    rf"(?:{_MINUTES}|\d+:\d{{1,2}}|\d+:\d{{1,2}}:\d{{1,2}}|\d+-\d{{1,2}}|\d+-\d{{1,2}}:\d{{1,2}}|"
    r"\d+-\d{1,2}:\d{1,2}:\d{1,2})"
)
"""sbatch(1), --switches: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes and
days-hours:minutes:seconds."""
_DIRECTIVES = {
    "--nodes": re.compile(r"[1-9]\d*(-[1-9]\d*)?"),
    "--gpus-per-node": re.compile(r"(\w+:)?[1-9]\d*"),
    "--gpus": re.compile(r"(\w+:)?[1-9]\d*"),
    "--switches": re.compile(rf"[1-9]\d*(@{_TIME.pattern})?"),
}
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def directives(text: str) -> dict[str, str]:
    """The directives of a script with one job; anything that sbatch would not take fails."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#SBATCH"):
            option, _, value = line.removeprefix("#SBATCH ").partition("=")
            assert _DIRECTIVES[option].fullmatch(value), line
            assert option not in found
            found[option] = value
        else:
            assert not line or line.startswith("#"), line  # sbatch stops at the first command
    return found


def seconds_of(text: str) -> float:
    """What Slurm makes of a time."""
    days, _, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if days:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, [*parts, 0][:2]
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds


def volcano_job(text: str) -> dict[str, Any]:
    """The one job of a document, with everything that Volcano's controller asks of it."""
    (job,) = yaml.safe_load_all(text)
    assert (job["apiVersion"], job["kind"]) == ("batch.volcano.sh/v1alpha1", "Job")
    assert _LABEL.fullmatch(job["metadata"]["name"])
    assert len(job["metadata"]["name"]) < 64
    spec: dict[str, Any] = job["spec"]
    assert set(spec) <= {"schedulerName", "minAvailable", "networkTopology", "plugins", "tasks"}
    assert spec["schedulerName"] == "volcano"
    assert spec["minAvailable"] == sum(task["replicas"] for task in spec["tasks"])  # a gang
    assert len({task["name"] for task in spec["tasks"]}) == len(spec["tasks"])
    for task in spec["tasks"]:
        assert _LABEL.fullmatch(task["name"])
        pod = task["template"]["spec"]
        assert pod["restartPolicy"] in ("Always", "OnFailure", "Never")
        for container in pod["containers"]:
            assert container["image"]
            assert isinstance(container["resources"]["limits"]["nvidia.com/gpu"], int)
            assert all(isinstance(word, str) for word in container.get("command", []))
    topology = spec.get("networkTopology")
    if topology is not None:
        assert topology["mode"] in ("hard", "soft")
        assert set(topology) == ({"mode", "highestTierAllowed"} if topology["mode"] == "hard" else {"mode"})
        assert topology.get("highestTierAllowed", 1) >= 1
    return spec


def large(share: float | None = 0.5, low: float = 0.5, name: str = "bert", **told: Any) -> JobAdvice:
    """A job of 16 GPUs on two machines. `low`: the low end of what a wait is worth, over its middle."""
    slowdown = None if share is None else Estimated(1 + share, 1 + low * share, 1 + 2 * share)
    why_not = None if slowdown else "the network between racks is not known"
    worth = None if share is None else Estimated(share, low * share, 2 * share)
    loss = SpreadCost(Level.NETWORK, (8, 8), slowdown, why_not, worth)
    return JobAdvice(Advice(name, 16, (8, 8), 0.5, (loss,), ("told",)), **{"rest_s": 36000.0, **told})


def small() -> JobAdvice:
    """One that fits a machine."""
    losses = (
        SpreadCost(Level.RACK, (4, 4), Estimated(1.5, None, None), None, Estimated(0.5, None, None)),
        SpreadCost(Level.NETWORK, (4, 4), Estimated(3.0, 2.0, 4.0), None, Estimated(1.0, 0.5, 1.5)),
    )
    return JobAdvice(Advice("resnet", 8, (8,), 0.2, losses), rest_s=36000.0)


@pytest.mark.parametrize("job", [large(None), large(0.0), large(1e-4), large(0.5, low=0.0)])
def test_slurm_is_told_nothing_where_no_wait_is_known_to_pay(job: JobAdvice) -> None:
    text = slurm.render([job])
    assert set(directives(text)) == {"--nodes", "--gpus-per-node"}
    assert "no wait is known to pay" in text


def test_slurm_has_no_timer_for_one_machine() -> None:
    text = slurm.render([small()])
    assert directives(text) == {"--nodes": "1", "--gpus-per-node": "8"}
    assert "it pays up to 5 h 0 min; after that --nodes=2" in text
    assert "on several machines: --switches=1@10:00:00, 10 h 0 min [5 h 0 min - 15 h 0 min]" in text


def test_machines_that_are_not_filled_alike() -> None:
    job = JobAdvice(Advice("j", 17, (6, 6, 5), None), rest_s=1.0)
    assert directives(slurm.render([job])) == {"--nodes": "3", "--gpus": "17"}
    spec = volcano_job(volcano.render([job]))
    assert [(task["name"], task["replicas"]) for task in spec["tasks"]] == [("workers-6", 2), ("workers-5", 1)]
    assert spec["plugins"].keys() == {"env", "svc"}
    first, last = (task["template"]["spec"]["containers"][0]["args"][0] for task in spec["tasks"])
    for script, rank, gpus in ((first, '"$VC_TASK_INDEX"', 6), (last, "$((2 + VC_TASK_INDEX))", 5)):
        for part in ("--nnodes 3", f"--node-rank {rank}", "--master-addr j-workers-6-0.j", f"--nproc-per-node {gpus}"):
            assert f"  {part} \\\n" in script.replace("job-j", "j")


@given(st.floats(60, 1e8))
def test_times_are_slurms(seconds: float) -> None:
    text = slurm.switch_time(seconds)
    assert _TIME.fullmatch(text)
    assert seconds_of(text) == pytest.approx(seconds, rel=0.5 if seconds < 600 else 0.1)
    assert seconds_of(text) % 60 == 0  # no wait is known to the second


@pytest.mark.parametrize(
    ("job", "topology"),
    [
        (large(0.5), {"mode": "soft"}),
        (large(2.0), {"mode": "hard", "highestTierAllowed": 1}),
        (large(1.0), {"mode": "soft"}),
        (large(None), None),
        (large(0.0), None),
        (small(), None),
        (large(1.0, history=[Wait(16, "rack", 3600.0)]), {"mode": "hard", "highestTierAllowed": 1}),
        (large(0.5, history=[Wait(16, "rack", 3600.0)]), {"mode": "soft"}),
        (large(0.1, history=[Wait(16, "rack", 3600.0)]), {"mode": "soft"}),
    ],
)
def test_volcano_is_strict_only_where_being_spread_never_pays(
    job: JobAdvice, topology: dict[str, object] | None
) -> None:
    """With that history a wait usually ends after 12 leases of 20 minutes: 4 hours, less than half of ten."""
    assert volcano_job(volcano.render([job])).get("networkTopology") == topology


def test_several_jobs_are_several_documents() -> None:
    assert len(list(yaml.safe_load_all(volcano.render([large(), small()])))) == 2


@given(st.text(max_size=100))
@example("TRUE")
@example("1e3")
def test_any_name_is_one_that_kubernetes_takes(name: str) -> None:
    job = large(name=name, command=("train.py", name))
    spec = volcano_job(volcano.render([job]))
    assert "ddlprof run" in spec["tasks"][0]["template"]["spec"]["containers"][0]["args"][0]
    directives(slurm.render([job]))


def test_arguments_that_kubernetes_would_expand_are_escaped() -> None:
    spec = volcano_job(volcano.render([large(command=("train.py", "a$$b", "$(HOME)", "$HOME"))]))
    (script,) = spec["tasks"][0]["template"]["spec"]["containers"][0]["args"]
    assert script.endswith("""train.py 'a$$$b' '$$(HOME)' '$HOME'\n""")  # Kubernetes takes `$$` for one dollar


def test_the_table() -> None:
    text = table.render([small(), large(None), JobAdvice(Advice("one", 1, (1,), 0.1))])
    assert "machines of a rack  4,4   1.50x measured     one machine        5 h 0 min" in text
    assert "several racks       4,4   3.00x [2.00-4.00]  one rack           10 h 0 min [5 h 0 min - 15 h 0 min]" in text
    assert "Unknown  several racks: the network between racks is not known" in text
    assert "one GPU: there is nothing to spread" in text
    assert "50 % [25 % - 100 %] of the rest of the run" in table.render([large(rest_s=None)])


def pods_of(text: str) -> list[dict[str, Any]]:
    """The templates of the pods of the one JobSet."""
    (job,) = yaml.safe_load_all(text)
    assert (job["apiVersion"], job["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert _LABEL.fullmatch(job["metadata"]["name"])
    parts = job["spec"]["replicatedJobs"]
    assert len({part["name"] for part in parts}) == len(parts)
    return [part["template"]["spec"]["template"] for part in parts]


@pytest.mark.parametrize(
    ("job", "asked"),
    [
        (large(2.0), "required"), (large(0.5), "preferred"), (large(None), None), (large(0.0), None), (small(), None),
        (large(1.0, history=[Wait(16, "rack", 3600.0)]), "required"),
    ],
)  # fmt: skip
def test_kubernetes_is_strict_only_where_being_spread_never_pays(job: JobAdvice, asked: str | None) -> None:
    rack = "YOUR_RACK_LABEL"
    with_kueue = kubernetes.render([job], kueue=True)
    (template,) = pods_of(with_kueue)
    annotations = {f"kueue.x-k8s.io/podset-{asked}-topology": rack} if asked else {}
    assert template.get("metadata", {}).get("annotations", {}) == annotations
    assert "affinity" not in template["spec"]
    assert yaml.safe_load(with_kueue)["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "YOUR_QUEUE"}

    without = kubernetes.render([job], kueue=False)
    (template,) = pods_of(without)
    assert "metadata" not in template
    affinity = template["spec"].get("affinity", {}).get("podAffinity", {})
    terms = affinity.get(f"{asked}DuringSchedulingIgnoredDuringExecution", [])
    assert len(affinity) == len(terms) == (1 if asked else 0)
    for term in terms:
        inner = term if asked == "required" else term["podAffinityTerm"]
        assert inner["topologyKey"] == rack
        assert inner["labelSelector"]["matchLabels"] == {
            "jobset.sigs.k8s.io/jobset-name": yaml.safe_load(without)["metadata"]["name"]
        }
    for text in (with_kueue, without):
        assert (f"#   {rack}: " in text) == (asked is not None)


def test_pods_of_machines_that_are_not_filled_alike_count_on() -> None:
    job = JobAdvice(Advice("j", 17, (6, 6, 5), None), ("train.py",), rest_s=1.0)
    six, five = pods_of(kubernetes.render([job], kueue=True))
    scripts = [each["spec"]["containers"][0]["args"][0] for each in (six, five)]
    assert '--node-rank "$JOB_COMPLETION_INDEX" ' in scripts[0]
    assert "--node-rank $((2 + JOB_COMPLETION_INDEX)) " in scripts[1]
    for script, gpus in zip(scripts, (6, 5), strict=True):
        assert "--nnodes 3 " in script
        assert f"--nproc-per-node {gpus} " in script
        assert "--master-addr job-j-workers-6-0-0.job-j " in script
