"""Operators as columns of numbers, so that a whole step is computed at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddlprof.model.operators import Operator

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

_SIZES = 6
_ELEMENT_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "bool": 1, "int32": 4, "int64": 8}


@dataclass(frozen=True)
class OperatorTable:
    """One row for each operator, in their order; numbers are those of one call."""

    kind: NDArray[np.str_]
    phase: NDArray[np.str_]
    dtype: NDArray[np.str_]
    sizes: Array
    """(operators, 6): `Operator.shape`, filled up with ones."""
    flops: Array
    bytes: Array
    launches: Array
    count: Array
    names: tuple[str, ...]

    @classmethod
    def of(cls, operators: Sequence[Operator]) -> OperatorTable:
        """Sizes below one are taken as one: an empty tensor costs a launch."""
        shapes = [(*operator.shape[:_SIZES], *(1,) * (_SIZES - len(operator.shape))) for operator in operators]
        return cls(
            np.array([operator.kind for operator in operators], dtype=np.str_),
            np.array([operator.phase for operator in operators], dtype=np.str_),
            np.array([operator.dtype for operator in operators], dtype=np.str_),
            np.maximum(np.array(shapes, dtype=np.float64).reshape(-1, _SIZES), 1.0),
            np.array([operator.flops for operator in operators], dtype=np.float64),
            np.array([operator.bytes for operator in operators], dtype=np.float64),
            np.array([operator.launches for operator in operators], dtype=np.float64),
            np.array([operator.count for operator in operators], dtype=np.float64),
            tuple(operator.name for operator in operators),
        )

    def __len__(self) -> int:
        return len(self.names)

    def rows(self, chosen: Flags) -> OperatorTable:
        """The rows where `chosen` is true."""
        names = tuple(name for name, keep in zip(self.names, chosen, strict=True) if keep)
        return OperatorTable(
            self.kind[chosen],
            self.phase[chosen],
            self.dtype[chosen],
            self.sizes[chosen],
            self.flops[chosen],
            self.bytes[chosen],
            self.launches[chosen],
            self.count[chosen],
            names,
        )

    def element_bytes(self) -> Array:
        """Bytes of one element by the type; 4 for types nobody knows."""
        return np.array([_ELEMENT_BYTES.get(str(dtype), 4) for dtype in self.dtype], dtype=np.float64)
