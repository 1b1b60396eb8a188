"""Whose messages are sent in a group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ddlprof.collect.seen_groups import SeenGroups


def sent_by(module: str, seen: SeenGroups) -> None:
    """Has a function of such a module send the first message of a channel in group 0."""
    space: dict[str, Any] = {"__name__": module, "first": seen.first_exchange}
    exec("def send():\n    first('0')", space)
    space["send"]()


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


def test_hooks_that_are_installed_again_see_the_same_group() -> None:
    seen = SeenGroups()
    seen.add("0", SimpleNamespace(group_desc="a"), 2, 4)
    sent_by("deepspeed.runtime.pipe.p2p", seen)
    seen.add("0", SimpleNamespace(group_desc="a"), 2, 4)
    assert seen.by_name["0"].exchanges == "pipeline"
    seen.add("0", SimpleNamespace(group_desc="another"), 2, 4)
    assert seen.by_name["0"].exchanges == ""
