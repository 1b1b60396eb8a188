"""Why a job stands still: compares what its ranks say of themselves. Pure; `find_hang` is all of it.

A rank in a collective waits for the members of the group that have not issued it. Whoever waits for nobody is the
cause, and what it does is the reason. Where nobody is behind, ranks disagree, or the network is at fault.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ddlprof.analysis.disagreements import cycle, disagreement, reached
from ddlprof.analysis.hang_facts import (
    BUSY,
    DISK,
    ENDED,
    FAILED,
    INPUT,
    LOCK,
    MISSING,
    NETWORK,
    SILENT,
    STANDS,
    STOPPED,
    WORKER,
    Hang,
    Place,
    RankLine,
    Standing,
    hang_of_kind,
)
from ddlprof.model.hang import (
    ABORTED,
    BUSY_BYTES_PER_S,
    BUSY_CORES,
    CHECKPOINT,
    COLLECTIVE,
    COMPILING,
    DATA,
    TRAINS,
    GroupState,
    Issued,
    RankState,
)

if TYPE_CHECKING:
    from ddlprof.store import RunData

_MOST_RANKS = 1 << 17
"""More ranks than any job has; a damaged file may say otherwise."""
_PACE_NS = 30e9
"""A rank that stands still writes at least so often."""
_PATIENT = 10
"""A checkpoint may take so many times the limit before it counts: storage can be slow without a sign of life."""
_LOCKS = frozenset(("acquire", "join", "wait", "get", "put", "result", "__enter__", "wait_for"))
_LOST_PEER = ("clos", "reset", "timed out", "timeout", "peer", "broken pipe", "length", "wait timeout", "aborted")
"""Words of errors by which a collective ends where another rank has gone or disagrees."""


def hang_of(run: RunData) -> Hang | None:
    """Why the latest attempt of a run stood still; None where it did not."""
    if not run.standing:
        return None
    latest = [rank for rank in run.ranks if rank.attempt == run.standing[0].attempt]
    ended = {rank.rank: rank.end.status for rank in latest if rank.end is not None}
    return find_hang(run.standing, ended, max((rank.header.world_size for rank in latest), default=1))


def find_hang(states: Iterable[RankState], ended: Mapping[int, str], world_size: int) -> Hang | None:
    """The reason, or None where no rank stands still. `ended`: the status of ranks that wrote a last line."""
    known = {state.rank: state for state in states if not state.resumed}
    if not any(state.stands or state.status != TRAINS for state in known.values()):
        return None
    numbers = sorted({*range(min(world_size, _MOST_RANKS)), *known})
    said = _together(known.values())
    ranks = {number: _rank(number, known.get(number), ended, said) for number in numbers}
    stands = any(state.stands for state in known.values())
    waits = {rank.number: _behind(rank, ranks, stands) for rank in ranks.values() if rank.collective is not None}
    found = disagreement(ranks, waits) or cycle(ranks, waits) or _roots(ranks, waits) or _network(ranks, waits)
    found = found or _alone(ranks) or _aborted(ranks)
    if found is None:
        return None
    return _with_lines(found, ranks, stands)


# -- the ranks --------------------------------------------------------------------------------------------------------


class _Said(NamedTuple):
    """What the states say together."""

    newest_ns: int
    asked_ns: int
    """For how long the ranks have been asked."""
    answers_ns: float
    """Within so long a rank that can write has answered."""
    kernel: dict[int, tuple[str, int]]
    """What the kernel said of the processes of other ranks, and when."""


def _together(states: Collection[RankState]) -> _Said:
    newest = max(each.unix_ns for each in states)
    first = min((each.first_unix_ns for each in states if each.first_unix_ns), default=newest)
    kernel = {
        int(rank): (word, each.unix_ns)
        for each in sorted(states, key=lambda state: state.unix_ns)
        for rank, word in each.peers.items()
        if rank.isdecimal() and len(rank) < 10
    }
    return _Said(newest, newest - first, max(each.answers_s for each in states) * 1e9, kernel)


def _rank(number: int, state: RankState | None, ended: Mapping[int, str], said: _Said) -> Standing:
    if state is not None and state.status not in (TRAINS, "ok"):
        lost = state.error_in_collective and any(word in state.error.lower() for word in _LOST_PEER)
        return Standing(number, FAILED, state, _latest(state) if lost else None, state.error)
    if number in ended:
        return Standing(number, FAILED if ended[number] == "exception" else ENDED, state, None, ended[number])
    age_ns = said.newest_ns - state.unix_ns if state is not None else said.newest_ns
    kernel, asked_at_ns = said.kernel.get(number, ("", 0))
    if state is not None and asked_at_ns <= state.unix_ns:
        kernel = ""  # it has written since
    quiet = state is None or age_ns > 2 * said.answers_ns + _PACE_NS * state.stands
    if kernel in ("stopped", "gone", "zombie") or (quiet and said.asked_ns > said.answers_ns):
        return Standing(number, STOPPED if kernel == "stopped" else SILENT, state, None, kernel)
    if state is None:
        return Standing(number, "", None, None)
    collective = _current(state)
    return Standing(number, COLLECTIVE if collective else state.doing, state, collective)


def _all(state: RankState) -> list[tuple[GroupState, Issued]]:
    return [(group, issued) for group in state.groups for issued in group.recent]


def _current(state: RankState) -> Place | None:
    """The collective that a rank waits in: the oldest that is not over; None if it waits for none."""
    open_ones = [pair for pair in _all(state) if not pair[1].over]
    if state.doing != COLLECTIVE and not (state.device == "waits" and open_ones):
        return None
    return _place(*max(open_ones, key=lambda pair: pair[1].age_s)) if open_ones else _latest(state)


def _latest(state: RankState) -> Place | None:
    """The last collective that a rank issued."""
    pairs = _all(state)
    return _place(*min(pairs, key=lambda pair: (pair[1].age_s, -pair[1].seq))) if pairs else None


def _place(group: GroupState, issued: Issued) -> Place:
    return Place(group.name, group.dimension, tuple(group.members), issued.seq, issued.op, issued.bytes)


def _group(state: RankState | None, place: Place) -> GroupState | None:
    groups = state.groups if state is not None else ()
    return next((g for g in groups if g.name == place.group and tuple(g.members) == place.members), None)


def _behind(rank: Standing, ranks: Mapping[int, Standing], stands: bool) -> list[int]:
    """The members of the group that have not issued the collective in which this rank waits."""
    place = rank.collective
    assert place is not None
    found = []
    for number in place.members:
        other = ranks.get(number)
        if other is None or number == rank.number:
            continue
        group = _group(other.state, place)
        if other.state is None and other.does not in (ENDED, FAILED, SILENT, STOPPED):
            continue  # it has not answered yet
        if group is None or group.recent[-1].seq < place.seq:
            found.append(number)
    return found


# -- the reasons ------------------------------------------------------------------------------------------------------


def _roots(ranks: Mapping[int, Standing], waits: Mapping[int, list[int]]) -> Hang | None:
    """Ranks for which others wait and that wait for nobody themselves."""
    roots = sorted({each for rank in waits for each in reached(rank, waits) if not waits.get(each)})
    if not roots:
        return None
    reasons = {root: _reason(ranks[root]) for root in roots}
    first = min(roots, key=lambda root: (_CERTAIN.index(reasons[root][0]), root))
    kind, detail = reasons[first]
    alike = [root for root in roots if reasons[root][0] == kind]
    waiting = [rank for rank in waits if waits[rank] and rank not in alike]
    direct = [rank for rank in waiting if set(waits[rank]) & set(alike)]
    nearest = min(direct, key=lambda rank: len(waits[rank]), default=None)  # others wait for those that wait, too
    place = None if nearest is None else ranks[nearest].collective
    return hang_of_kind(kind, alike, waiting, place, ranks, detail)


_CERTAIN = (FAILED, DISK, ENDED, STOPPED, SILENT, WORKER, INPUT, LOCK, MISSING, STANDS, BUSY, NETWORK)
"""Of several ranks behind, the one with the reason that comes first is named."""


def _reason(rank: Standing) -> tuple[str, str]:
    """Why a rank does not come, and what tells."""
    state = rank.state
    if rank.does == FAILED:
        if state is not None and state.status == ABORTED and state.error_in_collective:
            return FAILED, f"{rank.note}, inside a collective: most likely it gave another size than the others"
        return (DISK if "No space left" in rank.note else FAILED), rank.note
    if rank.does in (ENDED, STOPPED, SILENT) or state is None:
        return rank.does or SILENT, rank.note
    if state.full_disks:
        return DISK, ", ".join(state.full_disks)
    if _works(state):
        return BUSY, ""
    dead = [f"{child.name} {child.pid} {child.ended}" for child in state.children if child.ended]
    if dead and (state.doing == DATA or state.thread.calls in _LOCKS):
        return WORKER, "; ".join(dead)
    if state.doing == DATA:
        return INPUT, ""
    held = next((thread for thread in state.threads if thread.place), None)
    if held is not None and (state.thread.calls in _LOCKS or "futex" in state.thread.waits_in):
        return LOCK, f"thread {held.name} is at {held.place}"
    return MISSING, ""


def _works(state: RankState) -> bool:
    """Whether a rank is at work, though no step of it ends."""
    if not state.stands or state.thread.state == "R":
        return True
    if state.doing in (CHECKPOINT, COMPILING) and state.quiet_s < _PATIENT * state.limit_s:
        return True
    return (state.cores or 0.0) >= BUSY_CORES or (state.io_bytes_per_s or 0.0) >= BUSY_BYTES_PER_S


def _network(ranks: Mapping[int, Standing], waits: Mapping[int, list[int]]) -> Hang | None:
    """All are in the same collective, and it does not end."""
    inside: dict[tuple[str, tuple[int, ...], int], list[int]] = {}
    for rank in ranks.values():
        if (place := rank.collective) is not None:
            inside.setdefault((place.group, place.members, place.seq), []).append(rank.number)
    for (_, members, _), of in inside.items():
        if len(of) >= 2 and len(of) == len(members):
            hosts = {state.host for number in of if (state := ranks[number].state)}
            return hang_of_kind(NETWORK, of, of, ranks[of[0]].collective, ranks, ", ".join(sorted(hosts)))
    return None


def _alone(ranks: Mapping[int, Standing]) -> Hang | None:
    """Ranks that stand still with nobody waiting for them."""
    still = [
        rank for rank in ranks.values()
        if rank.collective is None and rank.does not in (ENDED, FAILED) and rank.state and rank.state.stands
    ]  # fmt: skip
    for rank in still:
        kind, detail = _reason(rank)
        if kind == MISSING:
            kind = BUSY if rank.state and rank.state.thread.calls == "sleep" else STANDS
        if kind != BUSY:
            alike = [other.number for other in still if _reason(other)[0] == _reason(rank)[0]]
            return hang_of_kind(kind, alike, [], None, ranks, detail)
    return hang_of_kind(BUSY, [rank.number for rank in still], [], None, ranks, "") if still else None


def _aborted(ranks: Mapping[int, Standing]) -> Hang | None:
    """Ranks whose process was aborted inside a collective, where the others failed elsewhere for want of them."""
    inside = [rank for rank in ranks.values() if rank.state is not None and rank.state.status == ABORTED]
    inside = [rank for rank in inside if rank.state is not None and rank.state.error_in_collective]
    if not inside:
        return None
    return hang_of_kind(FAILED, [rank.number for rank in inside], [], None, ranks, _reason(inside[0])[1])


# -- the result -------------------------------------------------------------------------------------------------------


def _with_lines(found: Hang, ranks: Mapping[int, Standing], stands: bool) -> Hang:
    lines = [_line(rank) for rank in ranks.values()]
    is_hang = found.is_hang and (stands or found.kind != FAILED)
    return replace(found, lines=lines, is_hang=is_hang)


def _line(rank: Standing) -> RankLine:
    state = rank.state
    if state is None:
        return RankLine(rank.number, rank.does or SILENT, "", "", None, 0.0, rank.note)
    thread = state.thread
    note = rank.note or (f"device {state.device}" if state.device else "")
    return RankLine(
        rank.number, rank.does, thread.place, thread.calls, rank.collective, state.quiet_s, note, tuple(thread.stack)
    )
