"""How the calling thread gets on with the captures of graphs of others, whoever captures: torch, the script, a library.

CUDA forbids a thread in its default mode what might harm a capture, such as asking an event, and ends the capture
where it is done all the same. In the relaxed mode nothing is forbidden but what needs the captured work itself, which
we never ask for.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_CUDA = ("libcuda.so.1", "cuThreadExchangeStreamCaptureMode")
_HIP = ("libc10_hip.so", "hipThreadExchangeStreamCaptureMode")
"""The shared objects by which torch's own driver is found, through which the function is, too."""
_RELAXED = 2


class CaptureMode:
    """Raises RuntimeError where torch has not loaded the library: then no thread of ours may ask the device."""

    def __init__(self, torch: Any) -> None:
        library, function = _HIP if torch.version.hip else _CUDA
        try:
            self._exchange = getattr(ctypes.CDLL(library, mode=os.RTLD_NOLOAD), function)
        except (AttributeError, OSError) as error:
            raise RuntimeError(f"asking it might end captures of graphs ({error})") from None

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Calls in it end no capture."""
        mode = ctypes.c_int(_RELAXED)
        self._swap(mode)
        try:
            yield
        finally:
            self._swap(mode)

    def _swap(self, mode: ctypes.c_int) -> None:
        """Sets the mode of this thread; `mode` becomes the former one."""
        failure = self._exchange(ctypes.byref(mode))
        if failure:
            raise RuntimeError(f"the driver refused another capture mode: error {failure}")
