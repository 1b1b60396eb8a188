"""Host-to-device copies: `Tensor.to`, `cuda`, `copy_`, and the compute stream's waits for a side stream's copies.

Installed only where there is an accelerator, so a CPU-only process has no patched tensor method. To tensor classes and
function modes of the script's ours look like methods of torch's own that are written in Python: `__torch_function__`
is given what `torch.Tensor.to` is now, so that comparing with it works as ever.
"""

from __future__ import annotations

import functools
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


Begins = Callable[[Any, Any, Any], bool]
"""Whether a call with this object, these arguments and these named arguments is a copy to be timed."""


class _Copies:
    def __init__(self, recorder: Recorder, torch: Any) -> None:
        self.recorder = recorder
        self.torch = torch
        self.nested = False
        self.copying: set[int] = set()
        """Side streams that host-to-device copies were issued on."""

    def timed(self, original: Callable[..., Any], begins: Begins) -> Callable[..., Any]:
        """Around a call that may be a copy."""

        @functools.wraps(original)
        def wrapper(this: Any, *args: Any, **kwargs: Any) -> Any:
            if self.torch.compiler.is_compiling() or self.nested or not self.recorder.active:
                return original(this, *args, **kwargs)
            if not self.is_copy(begins, this, args, kwargs) or not self.recorder.emit(Kind.H2D_BEGIN, _size(this)):
                return original(this, *args, **kwargs)
            self.nested = True
            try:
                return original(this, *args, **kwargs)
            finally:
                self.nested = False
                self.recorder.emit(Kind.H2D_END)

        return wrapper

    def method(self, name: str, begins: Begins) -> Callable[..., Any]:
        """Around a method of `torch.Tensor`."""
        call = self.timed(getattr(self.torch.Tensor, name), begins)
        overrides = self.torch.overrides

        @functools.wraps(call)
        def wrapper(this: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.torch.compiler.is_compiling():
                tensors = (this, *args, *kwargs.values())
                if overrides.has_torch_function(tensors):
                    return overrides.handle_torch_function(wrapper, tensors, this, *args, **kwargs)
            return call(this, *args, **kwargs)

        wrapper.__module__, wrapper.__qualname__ = "torch", f"Tensor.{name}"  # where pickle looks for it
        return wrapper

    def is_copy(self, begins: Begins, this: Any, args: Any, kwargs: Any) -> bool:
        if not self.torch.cuda.is_initialized():  # asking for a stream would do it, or fail
            return False
        try:
            return begins(this, args, kwargs)
        except Exception:
            return False

    def on_compute_stream(self) -> bool:
        current = self.torch.cuda.current_stream()
        if current == self.torch.cuda.default_stream():
            return True
        self.copying.add(current.cuda_stream)
        return False

    def to(self, this: Any, args: Any, kwargs: Any) -> bool:
        return this.device.type == "cpu" and _goes_to_device(args, kwargs) and self.on_compute_stream()

    def cuda(self, this: Any, args: Any, kwargs: Any) -> bool:
        return this.device.type == "cpu" and self.on_compute_stream()

    def copy(self, this: Any, args: Any, kwargs: Any) -> bool:
        from_host = bool(args) and getattr(args[0], "device", this.device).type == "cpu"
        return from_host and this.device.type == "cuda" and self.on_compute_stream()

    def wait(self, this: Any, args: Any, kwargs: Any) -> bool:
        awaited = getattr(args[0], "cuda_stream", None) if args else None
        return awaited in self.copying and this == self.torch.cuda.default_stream()


def install(recorder: Recorder, torch: Any) -> Uninstall:
    """Copies from the host's memory to the device's on the default stream, and its waits for streams that copied."""
    copies = _Copies(recorder, torch)
    begins = {"to": copies.to, "cuda": copies.cuda, "copy_": copies.copy}
    methods = {name: copies.method(name, begin) for name, begin in begins.items()}
    stream = torch.cuda.Stream
    # The methods are inherited from the C base class: setting them on Tensor shadows, deleting restores.
    return all_of(
        *(_shadow(torch.Tensor, name, method) for name, method in methods.items()),
        _shadow(stream, "wait_stream", copies.timed(stream.wait_stream, copies.wait)),
        _allow_before_materialized(torch, list(methods.values())),
    )


def _size(value: Any) -> int | None:
    return getattr(value, "nbytes", None)


def _allow_before_materialized(torch: Any, methods: list[Any]) -> Uninstall:
    """Lazy layers keep a list of the methods that their parameters have before their sizes are known."""
    allowed = getattr(getattr(torch.nn.parameter, "UninitializedTensorMixin", None), "_allowed_methods", None)
    if not isinstance(allowed, list):
        return lambda: None
    allowed.extend(methods)

    def restore() -> None:
        allowed[:] = [method for method in allowed if not any(method is ours for ours in methods)]

    return restore


def _shadow(owner: Any, name: str, value: Any) -> Uninstall:
    if name in vars(owner):
        return replace(owner, name, value)
    setattr(owner, name, value)

    def restore() -> None:
        if vars(owner).get(name) is value:
            delattr(owner, name)

    return restore
