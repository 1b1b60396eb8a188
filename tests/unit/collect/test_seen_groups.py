"""Whose messages are sent in a group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ddlprof.collect.seen_groups import SeenGroups


def sent_by(module: str, seen: SeenGroups) -> None:
    """Has a function of such a module send the first message of a channel in group 0."""
    space: dict[str, Any] = {"__name__": module, "first": seen.first_exchange}
    exec("def send():\n    first('0')", space)
    space["send"]()


@pytest.mark.parametrize(
    ("module", "dimension"),
    [
        ("torch.distributed.pipelining.schedules", "pipeline"),
        ("megatron.core.pipeline_parallel.p2p_communication", "pipeline"),
        ("deepspeed.runtime.pipe.p2p", "pipeline"),
        ("ring_flash_attn", "context"),
        ("torch.distributed.pipelinings", ""),
        ("__main__", ""),
    ],
)
def test_packages_tell_what_their_messages_are_for(module: str, dimension: str) -> None:
    seen = SeenGroups()
    seen.add("0", SimpleNamespace(group_desc="default_pg"), 2, 2)
    sent_by(module, seen)
    assert (seen.by_name["0"].exchanges, seen.by_name["0"].has_exchanges) == (dimension, True)


def test_the_first_package_that_tells_it_counts() -> None:
    seen = SeenGroups()
    seen.add("0", SimpleNamespace(), 2, 4)
    for module in ("__main__", "deepspeed.runtime.pipe.p2p", "ring_flash_attn"):
        sent_by(module, seen)
    assert seen.by_name["0"].exchanges == "pipeline"
    assert (seen.by_name["0"].description, seen.by_name["0"].is_whole) == ("", False)


def test_a_message_in_a_group_that_was_not_seen_is_ignored() -> None:
    seen = SeenGroups()
    sent_by("__main__", seen)
    assert seen.by_name == {}


def test_little_is_looked_at_where_each_message_has_a_tag_of_its_own() -> None:
    seen = SeenGroups()
    seen.add("0", SimpleNamespace(), 2, 4)
    for _ in range(20):
        sent_by("__main__", seen)
    assert seen.changes == 2
    sent_by("deepspeed.runtime.pipe.p2p", seen)
    assert seen.by_name["0"].exchanges == ""


def test_hooks_that_are_installed_again_see_the_same_group() -> None:
    seen = SeenGroups()
    seen.add("0", SimpleNamespace(group_desc="a"), 2, 4)
    sent_by("deepspeed.runtime.pipe.p2p", seen)
    seen.add("0", SimpleNamespace(group_desc="a"), 2, 4)
    assert seen.by_name["0"].exchanges == "pipeline"
    seen.add("0", SimpleNamespace(group_desc="another"), 2, 4)
    assert seen.by_name["0"].exchanges == ""
