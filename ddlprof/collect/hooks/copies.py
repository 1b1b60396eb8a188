"""Host-to-device copies: `Tensor.to`, `cuda`, `copy_`, and the compute stream's waits for a side stream's copies.

Installed only where there is an accelerator, so a CPU-only process has no patched tensor method.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddlprof.collect.hooks import Uninstall, all_of, replace
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Kind


def _goes_to_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    for value in (*args, *kwargs.values()):
        kind = getattr(value, "type", None)
        if kind == "cuda" or (isinstance(value, str) and value.startswith("cuda")) or getattr(value, "is_cuda", False):
            return True
        if isinstance(value, int) and not isinstance(value, bool):
            return True  # a device ordinal
    return False


def install(recorder: Recorder, torch: Any) -> Uninstall:
    """Copies from the host's memory to the device's on the default stream, and its waits for streams that copied."""
    nested = False
    copying: set[int] = set()  # side streams that host-to-device copies were issued on

    def around(original: Callable[..., Any], begins: Callable[[Any, Any, Any], bool]) -> Callable[..., Any]:
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal nested
            if torch.compiler.is_compiling() or nested or not recorder.active or not begins(self, args, kwargs):
                return original(self, *args, **kwargs)
            if not recorder.emit(Kind.H2D_BEGIN, getattr(self, "nbytes", None)):
                return original(self, *args, **kwargs)
            nested = True
            try:
                return original(self, *args, **kwargs)
            finally:
                nested = False
                recorder.emit(Kind.H2D_END)

        return wrapper

    def on_compute_stream() -> bool:
        current = torch.cuda.current_stream()
        if current == torch.cuda.default_stream():
            return True
        copying.add(current.cuda_stream)
        return False

    def to(self: Any, args: Any, kwargs: Any) -> bool:
        return self.device.type == "cpu" and _goes_to_device(args, kwargs) and on_compute_stream()

    def cuda(self: Any, args: Any, kwargs: Any) -> bool:
        return self.device.type == "cpu" and on_compute_stream()

    def copy(self: Any, args: Any, kwargs: Any) -> bool:
        from_host = bool(args) and getattr(args[0], "device", self.device).type == "cpu"
        return from_host and self.device.type == "cuda" and on_compute_stream()

    def wait(self: Any, args: Any, kwargs: Any) -> bool:
        return bool(args) and getattr(args[0], "cuda_stream", None) in copying and self == torch.cuda.default_stream()

    tensor, stream = torch.Tensor, torch.cuda.Stream
    # `to` and the others are inherited from the C base class: setting them on Tensor shadows, deleting restores.
    return all_of(
        _shadow(tensor, "to", around(tensor.to, to)),
        _shadow(tensor, "cuda", around(tensor.cuda, cuda)),
        _shadow(tensor, "copy_", around(tensor.copy_, copy)),
        _shadow(stream, "wait_stream", around(stream.wait_stream, wait)),
    )


def _shadow(owner: Any, name: str, value: Any) -> Uninstall:
    if name in vars(owner):
        return replace(owner, name, value)
    setattr(owner, name, value)
    return lambda: delattr(owner, name)
