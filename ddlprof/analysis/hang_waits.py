"""Who waits for whom: ranks in a collective wait for the members of its group that have not issued it. Pure.

What the ranks say is indexed once, and members are looked at once for each collective that somebody waits in, as jobs
have thousands of ranks in groups of thousands.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from ddlprof.analysis.hang_facts import ENDED, FAILED, SILENT, STOPPED, CollectivePosition, Standing
from ddlprof.model.hang import ABORTED, GroupState, RankState

GroupKey = tuple[str, tuple[int, ...]]
"""The name of a group and its members."""
ReportedGroups = Mapping[GroupKey, Mapping[int, GroupState]]
"""By group: what each of its ranks says of it."""
Waits = Mapping[int, tuple[int, ...]]
"""By rank that waits in a collective: the ranks for which it waits. Ranks that wait in the same one share the tuple."""
_TIMED_OUT = ("timed out", "timeout", "watchdog")


def reported_groups(states: Iterable[RankState]) -> ReportedGroups:
    """What each rank says of each group in which it has issued something."""
    reported: dict[GroupKey, dict[int, GroupState]] = {}
    for state in states:
        for group in state.groups:
            if group.recent:
                reported.setdefault((group.name, tuple(group.members)), {}).setdefault(state.rank, group)
    return reported


def gave_up(state: RankState) -> bool:
    """Whether this rank was ended by its patience: by a collective's timeout, or torch's watchdog, which aborts."""
    return state.status == ABORTED or any(word in state.error.lower() for word in _TIMED_OUT)


def who_waits(ranks: Mapping[int, Standing], reported: ReportedGroups) -> tuple[Waits, set[int]]:
    """For each rank in a collective, the members of the group that have not issued it, or did when it was too late.

    Returns also the ranks that were too late.
    """
    inside: dict[tuple[GroupKey, int], list[Standing]] = {}
    for rank in ranks.values():
        if rank.collective is not None:
            key = (rank.collective.group, rank.collective.members)
            inside.setdefault((key, rank.collective.seq), []).append(rank)
    waits: dict[int, tuple[int, ...]] = {}
    late: set[int] = set()
    for (key, seq), of in inside.items():
        groups = reported.get(key, {})
        too_late = _too_late(seq, of, ranks, groups)
        behind = _behind(key[1], seq, too_late, ranks, groups)
        missing = set(behind)
        late |= too_late
        for rank in of:
            own = rank.number in missing
            waits[rank.number] = tuple(each for each in behind if each != rank.number) if own else behind
    return dict(sorted(waits.items())), late


def _behind(
    members: Sequence[int],
    seq: int,
    too_late: Container[int],
    ranks: Mapping[int, Standing],
    reported: Mapping[int, GroupState],
) -> tuple[int, ...]:
    """The members that have not issued collective `seq` in time."""
    found = []
    for number in members:
        other = ranks.get(number)
        if other is None or (other.state is None and other.does not in (ENDED, FAILED, SILENT, STOPPED)):
            continue  # it has not answered yet
        group = reported.get(number)
        if group is None or group.recent[-1].seq < seq or number in too_late:
            found.append(number)
    return tuple(found)


def _too_late(
    seq: int, inside: Iterable[Standing], ranks: Mapping[int, Standing], reported: Mapping[int, GroupState]
) -> set[int]:
    """The ranks that issued a collective when the first of those `inside` had given up."""
    states = [rank.state for rank in inside if rank.does == FAILED and rank.state is not None]
    over_ns = min((state.unix_ns for state in states if gave_up(state)), default=None)
    if over_ns is None:
        return set()
    issued = {
        number: _issued_ns(ranks[number].state, group, seq) for number, group in reported.items() if number in ranks
    }
    return {number for number, at_ns in issued.items() if at_ns is not None and at_ns > over_ns}


def _issued_ns(state: RankState | None, group: GroupState, seq: int) -> float | None:
    """The unix time at which a rank issued a collective of a group; None if it does not tell."""
    issued = next((each for each in reversed(group.recent) if each.seq == seq), None)
    return None if state is None or issued is None else state.unix_ns - issued.age_s * 1e9


def reached(waits: Waits) -> dict[tuple[int, ...], frozenset[int]]:
    """For each of the tuples in `waits`: the ranks in it, those for which these wait, and so on."""
    found: dict[tuple[int, ...], frozenset[int]] = {}
    for begin in set(waits.values()):
        new, seen, ranks = [begin], {begin}, set[int]()
        while new:
            for rank in new.pop():
                ranks.add(rank)
                following = waits.get(rank, ())
                if following not in seen:
                    seen.add(following)
                    new.append(following)
        found[begin] = frozenset(ranks)
    return found


def lateness(place: CollectivePosition, late: Standing, others: Iterable[Standing], reported: ReportedGroups) -> str:
    """How much later than the first of the others a rank issued a collective, in words; empty if it has not."""
    groups = reported.get((place.group, place.members), {})
    own = _issued_ns(late.state, groups[late.number], place.seq) if late.number in groups else None
    known = [_issued_ns(each.state, groups[each.number], place.seq) for each in others if each.number in groups]
    first = min((each for each in known if each is not None), default=None)
    return f"{(own - first) / 1e9:,.0f} s after the others" if own is not None and first is not None else ""
