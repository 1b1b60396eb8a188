"""Pods: names that are short enough, and commands that reach the container as they were typed."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from ddlprof.emit.pods import job_name, unexpanded
from tests.unit.emit.made import TWO, container, rendered

_LONGEST = "-workers-16-0-1023-abcde"
"""What JobSet adds to the name of a job of up to 1,024 machines in its pods' names."""
_VARIABLES = {"HOME": "/root", "RANK": "1", "JOB_COMPLETION_INDEX": "1"}


def expanded(text: str) -> str:
    """What Kubernetes makes of a command: `$$` is a dollar, `$(NAME)` the value of a variable that the pod has."""

    def value(found: re.Match[str]) -> str:
        return "$" if found["name"] is None else _VARIABLES.get(found["name"], found[0])

    return re.sub(r"\$(?:\$|\((?P<name>[^)]*)\))", value, text)


@pytest.mark.parametrize("text", ["x" * 200, "2" * 200, "a" * 38 + "-" + "b" * 9, "a", "7", "", "É", "My Net (v2)"])
def test_names_of_pods_are_labels_and_dstack_takes_them(text: str) -> None:
    name = job_name(text)
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name + _LONGEST)
    assert re.fullmatch(r"[a-z][a-z0-9-]{1,40}", name)


@given(st.text("$(){}' aRANK\n", max_size=12))
@example("$$(RANK)")
@example("$(RANK")
@example("$(date -u)$$$")
def test_a_command_stays_as_it_is(text: str) -> None:
    assert expanded(unexpanded(text)) == text


@pytest.mark.parametrize("engine", ["kubernetes", "pytorchjob"])
def test_dollars_of_arguments_reach_the_script(engine: str) -> None:
    words = ("train.py", "--token=a$$b", "$(RANK)", "$(JOB_COMPLETION_INDEX)", "it's $HOME")
    job = yaml.safe_load(rendered(engine, replace(TWO, words=words)))
    spec = job["spec"]
    if engine == "kubernetes":
        pod = spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    else:
        pod = spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    (script,) = container(pod)["args"]
    assert tuple(shlex.split(expanded(script).splitlines()[-1])) == words
