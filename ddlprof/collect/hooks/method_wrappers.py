"""Wrappers that time methods called on an object, while the class still shows the original methods.

`x.to` is our wrapper; `torch.Tensor.to` always is torch's own function. So code that compares it, keeps it in a table,
gets it through `__torch_function__`, prints or pickles it, or guards compiled code by it, notices no difference.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from types import MethodType
from typing import Any

from ddlprof.collect.compiler import around_tracing
from ddlprof.collect.hooks.context import HookContext
from ddlprof.collect.install import Uninstall, all_of


class MethodWrapper:
    """The object in the class's dictionary. It equals the original, for those who look there."""

    __slots__ = ("_original", "_timed")

    def __init__(self, original: Callable[..., Any], timed: Callable[..., Any]) -> None:
        self._original: Any = original
        self._timed = timed

    def __get__(self, this: Any, kind: Any = None) -> Any:
        return self._original if this is None else MethodType(self._timed, this)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._original(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __eq__(self, other: object) -> bool:
        return other is self or bool(other == self._original)

    def __hash__(self) -> int:
        return hash(self._original)


class TensorWrapper(MethodWrapper):
    """A wrapper of a method of tensors that times only tensors in host memory, or only those on a device."""

    __slots__ = ("_bind", "_is_overridden", "_of_host")

    def __init__(
        self,
        original: Callable[..., Any],
        timed: Callable[..., Any],
        of_host: bool,
        is_overridden: Callable[[Any], bool],
    ) -> None:
        super().__init__(original, timed)
        self._bind = self._original.__get__
        self._of_host = of_host
        """Whether tensors in host memory are timed; False: tensors on a device."""
        self._is_overridden = is_overridden
        """Whether a tensor class or function mode with a `__torch_function__` intercepts what is done with a tensor."""

    def __get__(self, this: Any, kind: Any = None) -> Any:
        if this is None:
            return self._original
        try:
            if self._is_overridden(this) or this.is_cpu is self._of_host:
                return MethodType(self._timed, this)
        except Exception:  # what the script's tensor classes do
            pass
        return self._bind(this)


class ReportingWrapper(MethodWrapper):
    """Reports the object whose method is looked up, and returns the original, whose warnings name the caller's line."""

    __slots__ = ("_bind",)

    def __init__(self, original: Callable[..., Any], on_call: Callable[[Any], None]) -> None:
        super().__init__(original, on_call)
        self._bind = self._original.__get__

    def __get__(self, this: Any, kind: Any = None) -> Any:
        if this is None:
            return self._original
        self._timed(this)
        return self._bind(this)


_ABSENT: Any = object()


class MethodWrappers:
    """Several wrappers that are put in place and taken away together, from any thread."""

    def __init__(self) -> None:
        self._methods: list[tuple[Any, str, Any, MethodWrapper]] = []
        self._lock = Lock()
        self._reasons = 1
        """The number of reasons to keep them away: one until they are installed, one per frame that dynamo traces."""
        self._there = False

    def add(self, owner: Any, name: str, wrapper: MethodWrapper) -> None:
        """Adds a method of a class, its own or inherited, for `put`."""
        self._methods.append((owner, name, vars(owner).get(name, _ABSENT), wrapper))

    def take(self) -> None:
        """Puts the original methods back; they stay until there was a `release` for each call of this."""
        with self._lock:
            self._reasons += 1
            if not self._there:
                return
            self._there = False
            for owner, name, own, wrapper in self._methods:
                if vars(owner).get(name) is not wrapper:  # the script has replaced it
                    continue
                if own is _ABSENT:
                    delattr(owner, name)
                else:
                    setattr(owner, name, own)

    def release(self) -> None:
        """Removes one reason to keep the wrappers away; `put` then puts them in place."""
        with self._lock:
            self._reasons -= 1

    def put(self) -> None:
        """Puts the wrappers in their places, if there is no reason to keep them away."""
        with self._lock:
            if self._reasons or self._there:
                return
            self._there = True
            for owner, name, own, wrapper in self._methods:
                if vars(owner).get(name, _ABSENT) is own:
                    setattr(owner, name, wrapper)

    def release_and_put(self) -> None:
        """Removes one reason to keep them away, and puts the wrappers in their places if it was the last."""
        self.release()
        self.put()


def away_while_tracing(context: HookContext, wrappers: MethodWrappers, name: str | None = None) -> Uninstall:
    """Puts wrappers in their places, except while dynamo traces, because it reads the dictionaries of classes.

    If this version of torch does not tell when it compiles, the wrappers stay away once dynamo is imported, and the
    class of step time `name` is not measured.
    """

    def traced() -> None:
        wrappers.release()
        context.later(wrappers.put)

    def imported(tells: bool) -> None:
        if tells:
            wrappers.release_and_put()
        elif name is not None:
            context.unmeasured(name)
            context.recorder.note(name, "not measured: this version of torch does not tell when it compiles")

    undo_tracing = around_tracing(wrappers.take, traced, imported)
    wrappers.release_and_put()
    return all_of(wrappers.take, undo_tracing)
