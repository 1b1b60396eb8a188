"""The collectives of steady steps by who issues them: DDP, FSDP, an optimizer, or a line of the script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ddlprof.analysis.collectives import can_split
from ddlprof.analysis.thresholds import SMALL_BUCKET_BYTES
from ddlprof.model.issuers import FSDP, FSDP2, REDUCER
from ddlprof.model.records import MISSING, NEVER
from ddlprof.model.source_locations import SourceLocation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ddlprof.analysis.collectives import RankCollectives

IssuedKind = tuple[SourceLocation, str]
"""An issuer and an operation. The issuer of what nobody is known to issue has neither text nor word."""
_KNOWN_SHARE = 0.9
"""If the issuers of less of the time of all collectives are known, they are not told apart."""


@dataclass(frozen=True)
class IssuedByRank:
    """The collectives of one kind in one rank's steady steps; times in microseconds."""

    number: int
    bytes: int
    small: int
    """The number of those below `SMALL_BUCKET_BYTES`; so with the bytes of the next field."""
    small_bytes: int
    largest_bytes: int
    duration_us: int
    exposed_us: int
    """The time that computing waited for them; in the next field, as far as known, without waiting for a later rank."""
    moving_us: int
    fastest_us: float | None
    """The mean transfer of the fastest shape of them."""


@dataclass(frozen=True)
class Issued:
    """The collectives of one operation from one issuer in a steady step, as means over ranks."""

    place: SourceLocation
    op: str
    number: float
    bytes: float
    small: float = 0.0
    small_bytes: float = 0.0
    largest_bytes: int = 0
    duration_s: float = 0.0
    exposed_s: float = 0.0
    moving_s: float = 0.0
    """The part of `exposed_s` that is no waiting for a later rank. Where that cannot be told, what is exposed on the
    rank on which it is least."""
    fastest_s: float | None = None


@dataclass(frozen=True)
class IssuedTraffic:
    """All collectives of a steady step by issuer; none where the issuers are not known."""

    kinds: list[Issued] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.kinds)

    @property
    def gradients(self) -> list[Issued]:
        """What DDP and FSDP add up over the ranks."""
        return [each for each in self.of(REDUCER, FSDP, FSDP2) if each.op.startswith(("allreduce", "reduce_scatter"))]

    def of(self, *whats: str) -> list[Issued]:
        """Those of these issuers, the one for which computing waits longest first."""
        return sorted((each for each in self.kinds if each.place.what in whats), key=lambda each: -each.moving_s)


def by_line(issued: Iterable[Issued], by_caller: bool = False) -> dict[str, list[Issued]]:
    """What each line issues, or what is issued where each line of the training loop has led."""
    found: dict[str, list[Issued]] = {}
    for each in issued:
        text = each.place.caller or each.place.text if by_caller else each.place.text
        found.setdefault(text, []).append(each)
    return found


def issued_by(
    matched: RankCollectives, steady: NDArray[np.bool_], places: Mapping[int, SourceLocation]
) -> dict[IssuedKind, IssuedByRank]:
    """The collectives of one rank by issuer and operation. `steady`: a mask over its steps; `places`: by number."""
    table = matched.table
    if all(shape.issuer < 0 for shape in table.shapes):
        return {}
    wanted = steady[table.row]
    exposed = np.where(table.exposed_us == NEVER, 0, table.exposed_us)
    waits = np.where(matched.transfer_us == MISSING, 0, matched.duration_us - matched.transfer_us)
    moving = np.maximum(exposed - np.maximum(waits, 0), 0)
    found: dict[IssuedKind, IssuedByRank] = {}
    for number, shape in enumerate(table.shapes):
        mine = wanted & (table.shape == number)
        count, small = int(mine.sum()), shape.bytes < SMALL_BUCKET_BYTES
        if not count:
            continue
        split = mine & (matched.transfer_us > 0) & can_split(shape.op)
        one = IssuedByRank(
            number=count,
            bytes=count * shape.bytes,
            small=count * small,
            small_bytes=count * shape.bytes * small,
            largest_bytes=shape.bytes,
            duration_us=int(np.maximum(matched.duration_us[mine], 0).sum()),
            exposed_us=int(exposed[mine].sum()),
            moving_us=int(moving[mine].sum()),
            fastest_us=float(matched.transfer_us[split].mean()) if split.any() else None,
        )
        key = places.get(shape.issuer, SourceLocation("")), shape.op
        found[key] = _plus(found[key], one) if key in found else one
    return found


def _plus(one: IssuedByRank, other: IssuedByRank) -> IssuedByRank:
    return IssuedByRank(
        one.number + other.number,
        one.bytes + other.bytes,
        one.small + other.small,
        one.small_bytes + other.small_bytes,
        max(one.largest_bytes, other.largest_bytes),
        one.duration_us + other.duration_us,
        one.exposed_us + other.exposed_us,
        one.moving_us + other.moving_us,
        min((us for us in (one.fastest_us, other.fastest_us) if us is not None), default=None),
    )


def issued_traffic(ranks: Sequence[Mapping[IssuedKind, IssuedByRank]], steps: Sequence[int]) -> IssuedTraffic:
    """The collectives of all ranks by issuer and operation. `steps`: the number of steady steps of each rank."""
    kinds = {key: None for rank in ranks for key in rank}
    kinds_found = [_issued(key, [rank.get(key) for rank in ranks], steps) for key in kinds]
    total_s = sum(each.duration_s for each in kinds_found)
    known_s = sum(each.duration_s for each in kinds_found if each.place.what)
    return IssuedTraffic(kinds_found if known_s and known_s >= _KNOWN_SHARE * total_s else [])


def _issued(key: IssuedKind, ranks: Sequence[IssuedByRank | None], steps: Sequence[int]) -> Issued:
    place, op = key
    found = [(rank, count) for rank, count in zip(ranks, steps, strict=True) if rank is not None and count]
    each = [rank for rank, _ in found]
    total = max(1, sum(steps))
    if can_split(op):
        moving_s = sum(rank.moving_us for rank in each) / total / 1e6
    else:  # a rank that waits for the root, or for a receiver, cannot be told from one that moves data
        moving_s = min((rank.exposed_us / count for rank, count in found), default=0.0) / 1e6
        moving_s *= len(found) / len(ranks)
    return Issued(
        place=place,
        op=op,
        number=sum(rank.number for rank in each) / total,
        bytes=sum(rank.bytes for rank in each) / total,
        small=sum(rank.small for rank in each) / total,
        small_bytes=sum(rank.small_bytes for rank in each) / total,
        largest_bytes=max((rank.largest_bytes for rank in each), default=0),
        duration_s=sum(rank.duration_us for rank in each) / total / 1e6,
        exposed_s=sum(rank.exposed_us for rank in each) / total / 1e6,
        moving_s=moving_s,
        fastest_s=min((rank.fastest_us / 1e6 for rank in each if rank.fastest_us is not None), default=None),
    )
