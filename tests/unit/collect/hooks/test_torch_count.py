"""torch's own count of collectives against that of the hooks."""

from __future__ import annotations

from dataclasses import dataclass

from ddlprof.collect.hooks.interception import MOST_GROUPS, TorchCount


@dataclass(eq=False)
class Group:
    group_name: str
    count: int | None = 0

    def _get_sequence_number_for_group(self) -> int:
        if self.count is None:
            raise RuntimeError("this backend does not count")
        return self.count


def by_object(groups: list[Group]) -> dict[Group, str]:
    return {group: group.group_name for group in groups}


def test_only_what_nobody_saw_counts() -> None:
    seen = {"0": 7}
    group = Group("0", 12)
    count = TorchCount(seen.__getitem__, lambda: {group: "0"})
    assert count.unseen() == 0  # what was before
    group.count, seen["0"] = 15, 8  # a barrier that counts thrice
    assert count.unseen() == 0
    group.count = 17
    assert count.unseen() == 2
    assert count.unseen() == 0
    seen["0"] = 20  # messages, which NCCL does not count
    assert count.unseen() == 0


def test_each_group_for_itself() -> None:
    groups = [Group("0", None), Group("1")]
    count = TorchCount(lambda name: 0, lambda: by_object(groups))
    assert count.unseen() == 0
    groups.append(Group("2", 5))
    groups[1].count = 2
    assert count.unseen() == 2
    groups[:] = [Group("2", 1)]  # another one of that name
    assert count.unseen() == 0
    groups[0].count = 4
    assert count.unseen() == 3


def test_of_many_groups_some_are_looked_at() -> None:
    groups = [Group(str(number)) for number in range(MOST_GROUPS + 5)]
    count = TorchCount(lambda name: 0, lambda: by_object(groups))
    count.unseen()
    for group in groups:
        group.count = 1
    assert count.unseen() == MOST_GROUPS
