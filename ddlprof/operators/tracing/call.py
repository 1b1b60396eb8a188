"""One operator as it was seen, before equal ones are merged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ddlprof.operators.formulas import short_dtype


class Access(NamedTuple):
    """A tensor that an operator reads or writes, and how many bytes of it."""

    storage: int
    """The number of its storage, as `Storages` gives it."""
    bytes: float


@dataclass
class Call:
    """One call of an operator; the fields are those of `ddlprof.model.operators.Operator`."""

    phase: str
    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    flops: float
    launches: float
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    by_rows: bool = False
    """A reduction over the last sizes, each result of which one row of elements gives; batch normalisation that has
    its sums already."""
    fused_bytes: float | None = None
    fused_launches: float | None = None

    @property
    def bytes(self) -> float:
        """Everything read and written."""
        return sum(access.bytes for access in self.reads) + sum(access.bytes for access in self.writes)


@dataclass
class Piece:
    """What an operator consists of: one, or several of an operator that launches different work."""

    kind: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    flops: float
    launches: float
    reads: list[tuple[Any, float]]
    """Tensors and the bytes read of them."""
    writes: list[tuple[Any, float]]
    by_rows: bool = False


def type_name(dtype: Any) -> str:
    """fp32, bf16, fp8, int64, ... of a torch dtype."""
    return short_dtype(str(dtype).removeprefix("torch."))


def touched_bytes(tensor: Any) -> float:
    """The bytes of a tensor's own elements: an expanded one has each of them once."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride or not size else 1
    return float(elements * tensor.element_size())


def whole_bytes(tensor: Any) -> float:
    """The bytes that a tensor has where it lies in memory without gaps."""
    return float(tensor.numel() * tensor.element_size())


def piece(
    kind: str, name: str, dtype: Any, shape: Iterable[int], reads: Iterable[Any], writes: Iterable[Any],
    flops: float, launches: float = 1.0,
) -> Piece:  # fmt: skip
    """An operator that reads and writes whole tensors."""
    sizes = tuple(int(size) for size in shape)
    return Piece(
        kind, name, type_name(dtype), sizes, float(flops), launches,
        [(tensor, whole_bytes(tensor)) for tensor in reads],
        [(tensor, whole_bytes(tensor)) for tensor in writes],
    )  # fmt: skip
