"""Times functions whose calls are waits for data: those named with --data-call, decorated, or well known.

A wrapped function behaves as before. It returns a batch, or an iterator; then each `next` of the iterator is a wait.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Generator, Sequence
from types import FrameType, GeneratorType
from typing import Any, TypeVar

from ddlprof.collect.install import Uninstall, replace
from ddlprof.collect.loader.batch import batch_size
from ddlprof.collect.loader.waits import SEEN, BatchSource, Waits, is_iterator
from ddlprof.collect.process.on_import import after_imports
from ddlprof.model.options import MAIN, DataCall

F = TypeVar("F")
_PLAIN_ITERATORS = ("builtins", "itertools")
"""Modules whose iterators offer nothing but `__next__`, so that a generator can take their place."""


class DataCalls:
    """The data calls of one session. `wanted`: what the user named."""

    def __init__(self, waits: Waits, wanted: Sequence[str] = ()) -> None:
        self.waits = waits
        self._wanted = [DataCall.parse(text) for text in wanted]
        self._sources: dict[str, list[BatchSource]] = {}
        self._wrong: dict[DataCall, str] = {}
        self._undo: list[Uninstall] = []

    # -- finding them ---------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Wraps the named functions as soon as their modules are imported; `marked` wraps the script's own."""
        global _current
        _current = self
        callbacks: dict[str, list[Callable[[], None]]] = {}
        for call in self._wanted:
            if call.module != MAIN:
                callbacks.setdefault(call.module, []).append(functools.partial(self._imported, call))
        self._undo.append(after_imports(callbacks))

    def _imported(self, call: DataCall) -> None:
        try:
            self._undo.append(self.patch(sys.modules[call.module], call.function, str(call)))
        except AttributeError:
            self._wrong[call] = "the module has no such function"
        except Exception as error:  # not into the script's import
            self._wrong[call] = str(error)

    def patch(self, module: Any, path: str, name: str, **how: Any) -> Uninstall:
        """Wraps the function or method `path` of a module. Raises AttributeError or TypeError where there is none."""
        *owners, last = path.split(".")
        owner = module
        for word in owners:
            owner = getattr(owner, word)
        wrapped = self.wrap(inspect.getattr_static(owner, last), name, **how)
        if last in vars(owner):
            return replace(owner, last, wrapped)
        setattr(owner, last, wrapped)  # inherited
        return lambda: delattr(owner, last) if vars(owner).get(last) is wrapped else None

    def close(self) -> None:
        """Removes the wrappers that can be removed: a decorated function stays wrapped, and does nothing more."""
        global _current
        if _current is self:
            _current = None
        while self._undo:
            self._undo.pop()()

    def complaints(self) -> list[str]:
        """One line for each function named that was never called by the training thread."""
        lines = []
        for call in self._wanted:
            sources = self._sources.get(str(call), [])
            if not any(source.called for source in sources):
                reason = self._wrong.get(call)
                text = f"--data-call {call} was never called" + (f" ({reason})" if reason else "")
                lines.append(f"{text}; functions of the script itself are {MAIN}:NAME")
        return lines

    # -- wrapping -------------------------------------------------------------------------------------------------

    def wrap(
        self,
        function: Any,
        name: str,
        samples: Callable[[Any], int | None] = batch_size,
        library: str | None = None,
    ) -> Any:
        """The function with its calls timed, except calls from the package `library` itself.

        `samples(batch)` counts the samples. Raises TypeError if `function` is a class, asynchronous or no function.
        """
        if isinstance(function, (staticmethod, classmethod)):
            return type(function)(self.wrap(function.__func__, name, samples, library))
        if not (inspect.isroutine(function) or isinstance(function, functools.partial)):
            raise TypeError("a class: name a method of it" if isinstance(function, type) else "it is no function")
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("it is asynchronous")
        source = BatchSource(self.waits, samples)
        self._sources.setdefault(name, []).append(source)
        return _timed(function, self, source, library)

    def follow(self, iterator: Any, source: BatchSource, ident: int) -> Any:
        """Times each `next` of an iterator as a wait. Returns the iterator itself, or a generator that wraps it."""
        if hasattr(type(iterator).__next__, SEEN):
            return iterator
        if isinstance(iterator, GeneratorType):
            return _delegate(iterator, source, ident)
        if type(iterator).__module__ in _PLAIN_ITERATORS:
            return _iterate(iterator, source, ident)
        with contextlib.suppress(Exception):  # it has no hash, or its class cannot be changed: its waits are not seen
            self._follow_objects(type(iterator))[iterator] = (source, ident)
        return iterator

    def _follow_objects(self, kind: Any) -> weakref.WeakKeyDictionary[Any, tuple[BatchSource, int]]:
        """The table of followed objects of a class, which the patched `__next__` of the class looks up."""
        original = kind.__next__
        known: weakref.WeakKeyDictionary[Any, tuple[BatchSource, int]] | None = getattr(
            original, "_ddlprof_followed", None
        )
        if known is not None:
            return known
        followed: weakref.WeakKeyDictionary[Any, tuple[BatchSource, int]] = weakref.WeakKeyDictionary()

        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:
            found = followed.get(iterator)
            return original(iterator) if found is None else found[0].wait(found[1], original, iterator)

        __next__._ddlprof_followed = followed  # type: ignore[attr-defined]
        owner = next(each for each in kind.__mro__ if "__next__" in vars(each))
        self._undo.append(replace(owner, "__next__", __next__))
        return followed


def _timed(function: Any, calls: DataCalls, source: BatchSource, library: str | None) -> Any:
    waits = calls.waits
    makes_generator = inspect.isgeneratorfunction(function)
    method = _is_method(function)
    advances = getattr(function, "__name__", "") == "__next__"

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if waits.is_compiling() or (library is not None and _package(sys._getframe(1)) == library):
            return function(*args, **kwargs)
        ident = source.id_for(args[0] if method and args else None)
        result = source.wait(ident, function, *args, **kwargs)
        if makes_generator or (not advances and is_iterator(result)):
            return calls.follow(result, source, ident)
        return result

    if advances:
        setattr(call, SEEN, True)
    return call


def _package(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]


def _is_method(function: Any) -> bool:
    """Whether its qualified name says that it is a method; each object of the class is then a separate loader."""
    name: str = getattr(function, "__qualname__", "")
    return "." in name.rpartition("<locals>.")[2] and not inspect.ismethod(function)


def _delegate(generator: Generator[Any, Any, Any], source: BatchSource, ident: int) -> Generator[Any, Any, Any]:
    """`yield from generator`, with each step timed. While it is suspended, it holds nothing that passes through it."""
    passing: list[Any] = [None]
    while True:
        try:
            passing.append(source.wait(ident, generator.send, passing.pop()))
            while True:
                try:
                    passing.append((yield passing.pop()))
                    break
                except GeneratorExit:
                    generator.close()
                    raise
                except BaseException as error:  # not timed: a wait that holds an error keeps itself alive
                    passing.append(generator.throw(error))
        except StopIteration as stop:
            return stop.value


def _iterate(iterator: Any, source: BatchSource, ident: int) -> Generator[Any, None, None]:
    try:
        while True:
            yield source.wait(ident, next, iterator)
    except StopIteration:
        return


# -- decorators -------------------------------------------------------------------------------------------------------

_current: DataCalls | None = None
"""The data calls of this process's session, if there is one."""


def marked(name: str) -> Callable[[F], F]:
    """A decorator that times calls of a function named with --data-call `name`; leaves alone what cannot be wrapped."""

    def decorate(function: F) -> F:
        if _current is None:
            return function
        try:
            wrapped: F = _current.wrap(function, name)
        except TypeError as error:
            _current._wrong[DataCall.parse(name)] = str(error)
            return function
        return wrapped

    return decorate


def data_call(function: F) -> F:
    """Decorator: calls of this function are waiting for data. It changes nothing without `ddlprof run`.

    The function returns a batch, or is a generator (or returns an iterator) of batches.
    """
    if _current is None:
        return function
    try:
        wrapped: F = _current.wrap(function, "decorated")
    except TypeError:
        return function
    return wrapped
