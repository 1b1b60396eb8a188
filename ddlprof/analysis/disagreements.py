"""Ranks that disagree: on what is issued under one number of a group, or on the order of the groups. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ddlprof.analysis.hang_facts import (
    EXTRA,
    KIND,
    ORDER,
    SHAPE,
    SKIPPED,
    CollectivePosition,
    Hang,
    Standing,
    hang_of_kind,
)
from ddlprof.analysis.hang_waits import ReportedGroups, Waits, reached
from ddlprof.model.hang import Issued
from ddlprof.model.records import MESSAGES, is_all_to_all


def disagreement(ranks: Mapping[int, Standing], reported: ReportedGroups) -> Hang | None:
    """Ranks that issued different collectives under one number of a group."""
    waited_in = {(r.collective.group, r.collective.members) for r in ranks.values() if r.collective}
    for name, members in sorted(waited_in):
        groups = reported.get((name, members), {})
        issued = {rank: {each.seq: each for each in groups[rank].recent} for rank in sorted(groups)}
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
    ranks: Mapping[int, Standing],
) -> Hang:
    """What the ranks that differ at a number issued in place of what the others did."""
    odd = set(few)
    usual = next((each[seq] for rank, each in issued.items() if rank not in odd and seq in each), None)
    if usual is None and (reported := _by_habit(seq, few, issued)) is not None:
        few, usual = reported
        odd = set(few)
    own = issued[few[0]][seq]
    place = CollectivePosition(name, _dimension(ranks, name), members, seq, (usual or own).op, (usual or own).bytes)
    waiting = [rank.number for rank in ranks.values() if rank.collective and rank.number not in odd]
    if usual is None:
        forms = [f"rank {rank}: {issued[rank][seq].op} of {issued[rank][seq].bytes:,} bytes" for rank in few]
        return hang_of_kind(SHAPE, few, waiting, place, ranks, "; ".join(forms))
    others = [each for rank, each in issued.items() if rank not in odd and seq in each] or [{}]
    after = _usually_after(issued[few[0]], [_form(usual)])
    if _continues(issued[few[0]], others[0], seq) or (after and _form(after) == _form(own) != _form(usual)):
        kind = SKIPPED
    elif _continues(others[0], issued[few[0]], seq):
        kind = EXTRA
    else:
        kind = SHAPE if usual.op == own.op else KIND
    return hang_of_kind(kind, few, waiting, place, ranks, f"{own.op} of {own.bytes:,} bytes")


def _dimension(ranks: Mapping[int, Standing], name: str) -> str:
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


def cycle(ranks: Mapping[int, Standing], waits: Waits) -> Hang | None:
    """Ranks that wait for each other in different groups."""
    after = reached(waits)
    inside = sorted(rank for rank, of in waits.items() if rank in after[of])
    if not inside:
        return None
    groups = Counter(place.group for rank in inside if (place := ranks[rank].collective))
    usual, most = groups.most_common(1)[0]
    few = [rank for rank in inside if (place := ranks[rank].collective) and place.group != usual]
    few = few if few and most > max((count for name, count in groups.items() if name != usual), default=0) else inside
    odd = set(few)
    others = [rank for rank in waits if rank not in odd]
    place = ranks[others[0] if others else inside[0]].collective
    detail = "; ".join(
        f"rank {rank} in {p.op} #{p.seq} of group {p.group}" for rank in inside[:4] if (p := ranks[rank].collective)
    )
    return hang_of_kind(ORDER, few, others, place, ranks, detail)
