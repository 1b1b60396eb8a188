"""What differs between runs besides their times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.analysis.changes import Change, NamedFacts, changes, facts_of
from ddlprof.analysis.run import analyse
from ddlprof.model.manifest import Manifest
from ddlprof.store import load_run
from tests.golden.runs import header, manifest, simple_run, step, write_rank


@pytest.fixture
def described(tmp_path: Path) -> Manifest:
    old = manifest()
    host = {"gpus": ["A10G", "A10G"], "memory_bytes": 64 << 30, "odd": {"nested": [1]}}
    return replace(old, versions={"torch": "2.6"}, host=host)


def facts(folder: Path, described: Manifest) -> NamedFacts:
    simple_run(folder)
    described.write(folder)
    run = load_run(folder)
    return facts_of(run, analyse(run)[0])


def test_facts_that_differ(tmp_path: Path, described: Manifest) -> None:
    a = facts(tmp_path / "a", described)
    other = replace(
        described,
        versions={"torch": "2.7"},
        host={"gpus": ["A10G"], "memory_bytes": (64 << 30) + 4096, "odd": {"nested": [1]}},
        training=replace(described.training, pin_memory=True, peak_process_memory_bytes=7),
    )
    assert changes([a], [facts(tmp_path / "b", other)]) == [
        Change("environment", "torch", "2.6", "2.7"),
        Change("environment", "gpus", "2 x A10G", "A10G"),
        Change("training", "pin memory", None, "yes"),
    ]


def test_a_run_without_a_manifest_has_facts_of_its_ranks(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_rank(tmp_path, header(rank, 2, node=f"n{rank}"), [step(n) for n in range(9)])
    run = load_run(tmp_path)
    found = facts_of(run, analyse(run)[0])
    assert found["job", "hosts"] == "host-n0, host-n1"
    assert found["job", "ranks on each node"] == "1, 1"
