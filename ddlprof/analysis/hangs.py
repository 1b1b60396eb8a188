"""Why a job stands still: compares what its ranks say of themselves. Pure; `find_hang` is all of it.

A rank in a collective waits for the members of the group that have not issued it. Whoever waits for nobody is the
cause, and what it does is the reason. Where nobody is behind, ranks disagree, or the network is at fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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
from ddlprof.model.records import MESSAGES, is_all_to_all

MISSING, SKIPPED, EXTRA, SHAPE, KIND, ORDER = "missing", "skipped", "extra", "shape", "kind", "order"
NETWORK, WORKER, INPUT, LOCK, STANDS = "network", "worker", "input", "lock", "stands"
ENDED, FAILED, STOPPED, SILENT, DISK, BUSY = "ended", "failed", "stopped", "silent", "disk", "busy"

_PATIENT = 10
"""A checkpoint may take so many times the limit before it counts: storage can be slow without a sign of life."""
_LOCKS = frozenset(("acquire", "join", "wait", "get", "put", "result", "__enter__", "wait_for"))
_LOST_PEER = ("clos", "reset", "timed out", "timeout", "peer", "broken pipe", "length", "wait timeout", "aborted")
"""Words of errors by which a collective ends where another rank has gone or disagrees."""


@dataclass(frozen=True)
class Place:
    """A collective of one group. `seq`: its number in the group."""

    group: str
    dimension: str
    members: tuple[int, ...]
    seq: int
    op: str
    bytes: int


@dataclass(frozen=True)
class RankLine:
    """What one rank does."""

    rank: int
    does: str
    """`collective`, `data`, ..., or how it ended: `ended`, `failed`, `stopped`, `silent`."""
    place: str
    """The user's line of its training thread; empty if unknown."""
    calls: str
    collective: Place | None
    for_s: float
    """The seconds for which it does so."""
    note: str = ""
    stack: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hang:
    """Why the job stands still."""

    kind: str
    is_hang: bool
    """False where the ranks wait for one that is at work."""
    ranks: list[int]
    """The ranks that are the cause; all of them where it cannot be told."""
    waiting: list[int]
    """The ranks that wait for these."""
    collective: Place | None
    """What the others wait in, or what the ranks disagree on."""
    place: str
    """The line at which the first of `ranks` is; empty if unknown."""
    step: int
    """The number of steps that had ended."""
    for_s: float
    detail: str = ""
    lines: list[RankLine] = field(default_factory=list)


@dataclass(frozen=True)
class _Rank:
    number: int
    does: str
    state: RankState | None
    collective: Place | None
    note: str = ""


def find_hang(states: Iterable[RankState], ended: Mapping[int, str], world_size: int) -> Hang | None:
    """The reason, or None where no rank stands still. `ended`: the status of ranks that wrote a last line."""
    known = {state.rank: state for state in states if not state.resumed}
    if not any(state.stands or state.status != TRAINS for state in known.values()):
        return None
    ranks = {number: _rank(number, known, ended) for number in range(max(world_size, *(r + 1 for r in known)))}
    stands = any(state.stands for state in known.values())
    waits = {rank.number: _behind(rank, ranks, stands) for rank in ranks.values() if rank.collective is not None}
    found = _disagreement(ranks, waits) or _cycle(ranks, waits) or _roots(ranks, waits) or _network(ranks, waits)
    found = found or _alone(ranks)
    if found is None:
        return None
    return _with_lines(found, ranks, stands)


# -- the ranks --------------------------------------------------------------------------------------------------------


def _rank(number: int, known: Mapping[int, RankState], ended: Mapping[int, str]) -> _Rank:
    state = known.get(number)
    newest = max(each.unix_ns for each in known.values())
    if state is not None and state.status not in (TRAINS, "ok"):
        lost = state.error_in_collective and any(word in state.error.lower() for word in _LOST_PEER)
        return _Rank(number, FAILED, state, _latest(state) if lost else None, state.error)
    if number in ended:
        return _Rank(number, FAILED if ended[number] == "exception" else ENDED, state, None, ended[number])
    asked_ns = newest - min((each.first_unix_ns for each in known.values() if each.first_unix_ns), default=newest)
    answers_ns = max(each.answers_s for each in known.values()) * 1e9
    said = Counter(each.peers[str(number)] for each in known.values() if str(number) in each.peers)
    kernel = said.most_common(1)[0][0] if said else ""
    quiet = state is None or newest - state.unix_ns > 2 * answers_ns + 30e9 * state.stands
    if kernel in ("stopped", "gone", "zombie") or (quiet and asked_ns > answers_ns):
        return _Rank(number, STOPPED if kernel == "stopped" else SILENT, state, None, kernel)
    if state is None:
        return _Rank(number, "", None, None)
    collective = _current(state)
    return _Rank(number, COLLECTIVE if collective else state.doing, state, collective)


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


def _behind(rank: _Rank, ranks: Mapping[int, _Rank], stands: bool) -> list[int]:
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


def _disagreement(ranks: Mapping[int, _Rank], waits: Mapping[int, list[int]]) -> Hang | None:
    """Ranks that issued different collectives under one number of a group."""
    for name, members in {(r.collective.group, r.collective.members) for r in ranks.values() if r.collective}:
        issued: dict[int, dict[int, Issued]] = {}
        for rank in ranks.values():
            for group in rank.state.groups if rank.state is not None else ():
                if (group.name, tuple(group.members)) == (name, members):
                    issued[rank.number] = {each.seq: each for each in group.recent}
        found = _first_difference(issued)
        if found is not None:
            return _differing(name, members, *found, issued, ranks)
    return None


def _first_difference(issued: Mapping[int, Mapping[int, Issued]]) -> tuple[int, list[int]] | None:
    """The first number at which ranks differ, and the ranks that differ from most."""
    for seq in sorted({seq for each in issued.values() for seq in each}):
        by_form: dict[tuple[object, ...], list[int]] = {}
        for rank, each in issued.items():
            if seq in each:
                by_form.setdefault(_form(each[seq]), []).append(rank)
        if len(by_form) > 1:
            most = max(by_form.values(), key=len)
            ties = [of for of in by_form.values() if len(of) == len(most)]
            few = [rank for of in by_form.values() if of is not most or len(ties) > 1 for rank in of]
            return seq, sorted(few)
    return None


def _form(issued: Issued) -> tuple[object, ...]:
    """What all members must agree on: sizes of all-to-alls and messages may differ, and a gather's is the root's."""
    free = is_all_to_all(issued.op) or issued.op in (*MESSAGES, "gather", "scatter", "barrier")
    return ("message",) if issued.op in MESSAGES else (issued.op, None if free else issued.bytes, issued.root)


def _differing(
    name: str,
    members: tuple[int, ...],
    seq: int,
    few: list[int],
    issued: Mapping[int, Mapping[int, Issued]],
    ranks: Mapping[int, _Rank],
) -> Hang:
    """What the ranks that differ at a number issued in place of what the others did."""
    usual = next((each[seq] for rank, each in issued.items() if rank not in few and seq in each), None)
    if usual is None and (told := _by_habit(seq, few, issued)) is not None:
        few, usual = told
    own = issued[few[0]][seq]
    place = Place(name, _dimension(ranks, name), members, seq, (usual or own).op, (usual or own).bytes)
    waiting = [rank.number for rank in ranks.values() if rank.collective and rank.number not in few]
    if usual is None:
        forms = [f"rank {rank}: {issued[rank][seq].op} of {issued[rank][seq].bytes:,} bytes" for rank in few]
        return _hang(SHAPE, few, waiting, place, ranks, "; ".join(forms))
    others = [each for rank, each in issued.items() if rank not in few and seq in each] or [{}]
    after = _usually_after(issued[few[0]], [_form(usual)])
    if _continues(issued[few[0]], others[0], seq) or (after and _form(after) == _form(own) != _form(usual)):
        kind = SKIPPED
    elif _continues(others[0], issued[few[0]], seq):
        kind = EXTRA
    else:
        kind = SHAPE if usual.op == own.op else KIND
    return _hang(kind, few, waiting, place, ranks, f"{own.op} of {own.bytes:,} bytes")


def _dimension(ranks: Mapping[int, _Rank], name: str) -> str:
    places = (rank.collective for rank in ranks.values())
    return next((place.dimension for place in places if place is not None and place.group == name), "")


def _by_habit(
    seq: int, few: Sequence[int], issued: Mapping[int, Mapping[int, Issued]]
) -> tuple[list[int], Issued] | None:
    """Of ranks of which as many did one thing as another: those that broke the habit of the steps before."""
    history = {number: each for number, each in issued[few[0]].items() if number < seq}
    before = [_form(history[number]) for number in (seq - 2, seq - 1) if number in history]
    habit = _usually_after(history, before)
    if habit is None:
        return None
    broke = [rank for rank in few if _form(issued[rank][seq]) != _form(habit)]
    return (broke, habit) if broke and len(broke) < len(few) else None


def _usually_after(history: Mapping[int, Issued], forms: Sequence[tuple[object, ...]]) -> Issued | None:
    """What followed collectives of these forms most often; None where they never came before."""
    found: Counter[tuple[object, ...]] = Counter()
    example: dict[tuple[object, ...], Issued] = {}
    for number, each in history.items():
        before = [history.get(number - len(forms) + place) for place in range(len(forms))]
        if forms and all(b is not None and _form(b) == form for b, form in zip(before, forms, strict=True)):
            found[_form(each)] += 1
            example[_form(each)] = each
    return example[found.most_common(1)[0][0]] if found else None


def _continues(one: Mapping[int, Issued], other: Mapping[int, Issued], seq: int) -> bool:
    """Whether what one rank issued from `seq` on is what the other one issued from the number after it on."""
    pairs = [(each, other.get(number + 1)) for number, each in one.items() if number >= seq]
    known = [(_form(each), _form(after)) for each, after in pairs if after is not None]
    return bool(known) and all(each == after for each, after in known)


def _cycle(ranks: Mapping[int, _Rank], waits: Mapping[int, list[int]]) -> Hang | None:
    """Ranks that wait for each other in different groups."""
    inside = sorted(rank for rank in waits if rank in _reached(rank, waits))
    if not inside:
        return None
    groups = Counter(place.group for rank in inside if (place := ranks[rank].collective))
    usual, most = groups.most_common(1)[0]
    few = [rank for rank in inside if (place := ranks[rank].collective) and place.group != usual]
    few = few if few and most > max((count for name, count in groups.items() if name != usual), default=0) else inside
    others = [rank for rank in waits if rank not in few]
    place = ranks[others[0] if others else inside[0]].collective
    detail = "; ".join(
        f"rank {rank} in {p.op} #{p.seq} of group {p.group}" for rank in inside[:4] if (p := ranks[rank].collective)
    )
    return _hang(ORDER, few, others, place, ranks, detail)


def _reached(rank: int, waits: Mapping[int, list[int]]) -> set[int]:
    found: set[int] = set()
    new = list(waits.get(rank, ()))
    while new:
        each = new.pop()
        if each not in found:
            found.add(each)
            new += waits.get(each, ())
    return found


def _roots(ranks: Mapping[int, _Rank], waits: Mapping[int, list[int]]) -> Hang | None:
    """Ranks for which others wait and that wait for nobody themselves."""
    roots = sorted({each for rank in waits for each in _reached(rank, waits) if not waits.get(each)})
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
    return _hang(kind, alike, waiting, place, ranks, detail)


_CERTAIN = (FAILED, DISK, ENDED, STOPPED, SILENT, WORKER, INPUT, LOCK, MISSING, STANDS, BUSY, NETWORK)
"""Of several ranks behind, the one with the reason that comes first is named."""


def _reason(rank: _Rank) -> tuple[str, str]:
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
    if not state.stands:
        return True
    if state.doing in (CHECKPOINT, COMPILING) and state.quiet_s < _PATIENT * state.limit_s:
        return True
    return (state.cores or 0.0) >= BUSY_CORES or (state.io_bytes_per_s or 0.0) >= BUSY_BYTES_PER_S


def _network(ranks: Mapping[int, _Rank], waits: Mapping[int, list[int]]) -> Hang | None:
    """All are in the same collective, and it does not end."""
    inside: dict[tuple[str, tuple[int, ...], int], list[int]] = {}
    for rank in ranks.values():
        if (place := rank.collective) is not None:
            inside.setdefault((place.group, place.members, place.seq), []).append(rank.number)
    for (_, members, _), of in inside.items():
        if len(of) >= 2 and len(of) == len(members):
            hosts = {state.host for number in of if (state := ranks[number].state)}
            return _hang(NETWORK, of, of, ranks[of[0]].collective, ranks, ", ".join(sorted(hosts)))
    return None


def _alone(ranks: Mapping[int, _Rank]) -> Hang | None:
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
            return _hang(kind, alike, [], None, ranks, detail)
    return _hang(BUSY, [rank.number for rank in still], [], None, ranks, "") if still else None


# -- the result -------------------------------------------------------------------------------------------------------


def _hang(
    kind: str, of: Sequence[int], waiting: Iterable[int], place: Place | None, ranks: Mapping[int, _Rank], detail: str
) -> Hang:
    states = [rank.state for rank in ranks.values() if rank.state is not None]
    first = ranks[of[0]].state
    shown = first.thread.place if first is not None and ranks[of[0]].does not in (ENDED,) else ""
    if kind == LOCK and first is not None and not shown:
        shown = first.threads[0].place
    return Hang(
        kind,
        kind != BUSY,
        list(of),
        sorted(waiting),
        place,
        shown,
        max(state.step for state in states),
        max(state.since_step_s for state in states),
        detail,
    )


def _with_lines(found: Hang, ranks: Mapping[int, _Rank], stands: bool) -> Hang:
    from dataclasses import replace

    lines = [_line(rank) for rank in ranks.values()]
    is_hang = found.is_hang and (stands or found.kind not in (FAILED,))
    return replace(found, lines=lines, is_hang=is_hang)


def _line(rank: _Rank) -> RankLine:
    state = rank.state
    if state is None:
        return RankLine(rank.number, rank.does or SILENT, "", "", None, 0.0, rank.note)
    thread = state.thread
    note = rank.note or (f"device {state.device}" if state.device else "")
    return RankLine(
        rank.number, rank.does, thread.place, thread.calls, rank.collective, state.quiet_s, note, tuple(thread.stack)
    )
