"""Looks now and then whether switches of torch's are on that make a training slower."""

from __future__ import annotations

import sys
from typing import Any


class Switches:
    """What was seen at the looks of the helper thread, a few a second while the training computes."""

    def __init__(self) -> None:
        self.deterministic: bool | None = None
        """Whether only deterministic algorithms were allowed at the last look."""
        self._looks = self._anomalies = 0

    @property
    def anomaly_share(self) -> float | None:
        """The share of looks at which autograd's anomaly mode was on; None: nobody looked."""
        return self._anomalies / self._looks if self._looks else None

    def look(self) -> None:
        """Looks once."""
        torch: Any = sys.modules.get("torch")
        self._anomalies += bool(torch.is_anomaly_enabled())
        chosen = torch.are_deterministic_algorithms_enabled()
        self.deterministic = bool(chosen or (torch.cuda.is_initialized() and torch.backends.cudnn.deterministic))
        self._looks += 1
