"""The loss of the training, where it can be seen without the script's help: what `backward` is called on.

Only of tensors in the host's memory, whose number is read as it lies there: no operation of torch runs, so nothing that
watches operations sees it, and nothing is waited for. A loss on an accelerator would have to be waited for, and is not
read.
"""

from __future__ import annotations

import ctypes
import math
from collections import deque
from typing import Any

from ddlprof.model.records import LossValue

AT_STRIDE = 256
"""After so many values, every second one is left out from then on: a run of 10^9 updates keeps some 6,000."""
LARGEST = 1e15
"""What is larger has diverged."""
_NUMBERS: dict[str, Any] = {"torch.float32": ctypes.c_float, "torch.float64": ctypes.c_double}


class TrainingLoss:
    """`note` belongs to the training thread, `take` to the helper thread."""

    def __init__(self) -> None:
        self.due = 0
        """The number of updates from which on the next one is noted; of an update the first backward only."""
        self.scaled: tuple[Any, Any] | None = None
        """Weak references to what a `GradScaler` made last, and to what it made it of."""
        self._stride, self._at_stride = 1, 0
        self._noted: deque[tuple[int, float | None]] = deque()
        """What becomes `LossValue`, whose constructor torch.compile would look at in the training thread."""

    def note(self, roots: Any, update: int) -> None:
        """Notes the loss of the backward that begins, if that is a number in the host's memory."""
        self.due = update + self._stride
        if isinstance(roots, (list, tuple)):
            if len(roots) != 1:
                return
            roots = roots[0]
        value = self._read(roots)
        if value is None:
            return
        is_finite = math.isfinite(value) and abs(value) < LARGEST
        self._noted.append((update, value if is_finite else None))
        self._at_stride += 1
        if self._at_stride == AT_STRIDE:
            self._stride, self._at_stride = 2 * self._stride, 0

    def take(self) -> list[LossValue]:
        """The values since the last call."""
        values = []
        while self._noted:
            values.append(LossValue(*self._noted.popleft()))
        return values

    def _read(self, root: Any) -> float | None:
        if self.scaled is not None and self.scaled[0]() is root:
            root = self.scaled[1]()
        kind = _NUMBERS.get(str(getattr(root, "dtype", "")))
        # A subclass may be anything, as a tensor without memory or one of many machines.
        if kind is None or type(root).__name__ not in ("Tensor", "Parameter") or root.numel() != 1 or not root.is_cpu:
            return None
        address = root.data_ptr()
        return float(kind.from_address(address).value) if address else None
