"""What NVML counts of a GPU that is not well: errors of its memory, its links and the bus, and the driver's Xid errors.

None of it needs root. What a GPU or driver does not support is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_MOST_LINKS = 18


class NvmlHealth:
    """The counters of one device."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._links: list[int] = [link for link in range(_MOST_LINKS) if self._is_active(link)]
        self._xids: Counter[int] = Counter()
        self._events = self._asked(self._listen)

    def read(self) -> dict[tuple[str, str], int]:
        """The counters by name and place."""
        nvml, handle = self._nvml, self._handle
        questions: dict[str, Callable[[], int]] = {
            "gpu_ecc_corrected": lambda: self._ecc_errors("CORRECTED"),
            "gpu_ecc_uncorrected": lambda: self._ecc_errors("UNCORRECTED"),
            "gpu_remapped_rows": lambda: sum(nvml.nvmlDeviceGetRemappedRows(handle)[:2]),
            "pcie_replays": lambda: nvml.nvmlDeviceGetPcieReplayCounter(handle),
            "pcie_lanes_missing": self._lanes_missing,
            **({"nvlink_errors": self._link_errors} if self._links else {}),
        }
        answers = {name: self._asked(question) for name, question in questions.items()}
        self._hear()
        found = {(name, ""): value for name, value in answers.items() if value is not None}
        return found | {("gpu_xid", str(xid)): number for xid, number in self._xids.items()}

    def _ecc_errors(self, kind: str) -> int:
        nvml = self._nvml
        of_kind = getattr(nvml, f"NVML_MEMORY_ERROR_TYPE_{kind}")
        return int(nvml.nvmlDeviceGetTotalEccErrors(self._handle, of_kind, nvml.NVML_VOLATILE_ECC))

    def _lanes_missing(self) -> int:
        most = self._nvml.nvmlDeviceGetMaxPcieLinkWidth(self._handle)
        return int(most - self._nvml.nvmlDeviceGetCurrPcieLinkWidth(self._handle))

    def _link_errors(self) -> int:
        nvml = self._nvml
        kinds = [getattr(nvml, f"NVML_NVLINK_ERROR_DL_{kind}") for kind in ("REPLAY", "RECOVERY", "CRC_FLIT")]
        asked = [(link, kind) for link in self._links for kind in kinds]
        return sum(nvml.nvmlDeviceGetNvLinkErrorCounter(self._handle, link, kind) for link, kind in asked)

    def _is_active(self, link: int) -> bool:
        return bool(self._asked(lambda: self._nvml.nvmlDeviceGetNvLinkState(self._handle, link)))

    def _listen(self) -> Any:
        nvml = self._nvml
        events = nvml.nvmlEventSetCreate()
        nvml.nvmlDeviceRegisterEvents(self._handle, nvml.nvmlEventTypeXidCriticalError, events)
        return events

    def _hear(self) -> None:
        """Counts the Xid errors since the last call; waits for none."""
        while self._events is not None:
            event = self._asked(lambda: self._nvml.nvmlEventSetWait_v2(self._events, 0))
            if event is None:  # NVML says that nothing came in time by an error
                return
            self._xids[int(event.eventData)] += 1

    def _asked(self, question: Any) -> Any:
        """The answer; None where the driver, the device or this version of the library does not support it."""
        with suppress(self._nvml.NVMLError, AttributeError):
            return question()
        return None
