"""Where collectives are seen: each operator at one of two places, so that none is counted twice.

- At the methods of `ProcessGroup` by which Python issues it. This costs the host as much as one small operator, but it
  does not see what C++ issues.
- At the dispatcher (`c10d::*`), which sees everything, but redispatches through Python: that costs as much as some five
  small operators more. Redispatching changes no result; a DDP communication hook of our own would round differently.
  The key is BackendSelect: below autograd, so that it also sees what tensor parallelism and DTensor issue, and above
  every backend.

The operators that training issues often begin at the methods. They move to the dispatcher, for good, before C++ first
issues them: with the first of DDP's reducers, and in front of functional collectives; also if they are called with
arguments that the methods' hooks cannot read, or if torch counts collectives that the hooks have not seen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Mapping
from itertools import islice
from threading import Lock
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist

from ddlprof.collect.drops import COLLECTIVE, COUNT, Drops
from ddlprof.collect.hooks.method_wrappers import MethodWrapper
from ddlprof.collect.install import Uninstall, all_of, replace
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Kind
from ddlprof.torch_private import collectives as private

MOST_GROUPS = 16
"""The most groups whose counts are compared. Reading a count takes some tenths of a microsecond, and of the many groups
of a mesh the hooks see all or none."""

AtDispatcher = Callable[[str], Callable[..., Any]]
"""Makes the function that runs in front of an operator."""
AtMethod = Callable[[Callable[..., Any], private.Form, Container[str], Callable[[str], None]], Any]
"""Makes the function that runs in place of a method; the last arguments are the operators that are still seen at
methods, and `Interception.move`."""


class InterceptedMethod(MethodWrapper):
    """A method of torch's own process groups.

    For a class of the script's that derives from `ProcessGroup`, the operator moves to the dispatcher instead, because
    C++ may call the method of such a class by its name.
    """

    __slots__ = ("_bind", "_elsewhere", "_kind", "_run")

    def __init__(
        self, kind: type, name: str, make: AtMethod, here: Container[str], move: Callable[[str], None]
    ) -> None:
        original, form = getattr(kind, name), private.METHODS[name]
        self._run = make(original, form, here, move)
        super().__init__(original, self._run)
        self._bind = vars(kind)[name].__get__
        self._kind = kind
        self._elsewhere = functools.partial(move, form.operator)

    def __get__(self, this: Any, kind: Any = None) -> Any:
        if type(this) is self._kind:
            return MethodType(self._run, this)
        if this is None:
            return super().__get__(this, kind)
        self._elsewhere()
        return self._bind(this, kind)


class Interception:
    """Where each operator is seen now, and how operators move from one place to the other."""

    def __init__(self, drops: Drops, at_dispatcher: AtDispatcher, at_method: AtMethod) -> None:
        self._drops = drops
        self._at_dispatcher = at_dispatcher
        self._at_method = at_method
        self._library = torch.library.Library("c10d", "IMPL")
        self._methods: dict[str, Uninstall] = {}
        """For each operator seen at methods, the function that restores these methods."""
        self._functional: dict[str, Any] = {}
        """By operator: the torch library with the hooks in front of the functional collectives that issue it."""
        self._spent: list[Any] = []
        self._lock = Lock()

    def install(self) -> Uninstall:
        """Puts every operator in its place. Raises RuntimeError or AttributeError where this torch cannot be hooked."""
        kind = private.process_group(torch)
        for operator in private.OPERATORS:
            if not hasattr(torch.ops.c10d, operator):
                continue
            names = [name for name in private.methods(torch, operator) if name in vars(kind)]
            if names:
                wrappers = {
                    name: InterceptedMethod(kind, name, self._at_method, self._methods, self.move) for name in names
                }
                self._methods[operator] = all_of(*(replace(kind, name, wrapper) for name, wrapper in wrappers.items()))
            else:
                self._put_at_dispatcher(operator)
        self._await_functional()
        undo = self._await_reducers()
        if private.has_reducers(dist):
            self.move(*private.OF_REDUCERS)
        return all_of(self._destroy, undo)

    def move(self, *operators: str) -> None:
        """Moves these operators to the dispatcher; without arguments, all of them."""
        with self._lock:
            for operator in operators or tuple(self._methods):
                if operator not in self._methods:
                    continue
                try:
                    self._put_at_dispatcher(operator)
                except Exception as error:  # it stays where it was
                    self._drops.add(COLLECTIVE, error)
                    continue
                self._methods.pop(operator)()
                self._spent.append(self._functional.pop(operator, None))

    def before(self, original: Callable[..., Any], *operators: str) -> Callable[..., Any]:
        """Wraps a function whose C++ issues operators: they move to the dispatcher first."""

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self.move(*operators)
            return original(*args, **kwargs)

        return wrapper

    def tidy(self) -> None:
        """Removes the libraries of operators that have moved. To be called when none of their hooks can be running."""
        while self._spent:
            library = self._spent.pop()
            if library is not None:
                private.take_back(library)()

    def _put_at_dispatcher(self, operator: str) -> None:
        self._library.impl(operator, self._at_dispatcher(operator), private.KEY, with_keyset=True)

    def _await_functional(self) -> None:
        below = private.below_backend_selection(torch)

        def passing_by(functional: Any, operator: str) -> Callable[..., Any]:
            def run(keyset: Any, *args: Any, **kwargs: Any) -> Any:
                self.move(operator)
                return functional.redispatch(keyset & below, *args, **kwargs)

            return run

        for name, operator in private.functional_operators(torch).items():
            if operator in self._methods:
                library = self._functional.setdefault(operator, torch.library.Library(private.FUNCTIONAL, "IMPL"))
                library.impl(name, passing_by(private.functional(torch, name), operator), private.KEY, with_keyset=True)

    def _await_reducers(self) -> Uninstall:
        reducer = private.reducer(torch)
        made = self.before(reducer.__init__, *private.OF_REDUCERS)
        checked = self.before(vars(dist)[private.CHECK], private.BROADCAST_OPERATOR)
        return all_of(replace(reducer, "__init__", made), replace(dist, private.CHECK, checked))

    def _destroy(self) -> None:
        self._spent += self._functional.values()
        self._functional.clear()
        self.tidy()
        for take_back in self._methods.values():
            take_back()
        self._methods.clear()
        private.take_back(self._library)()


class TorchCount:
    """Compares torch's own count of collectives with what the hooks saw, once a step.

    A process group of gloo or NCCL numbers its collectives. The two counts often differ (torch may count a barrier
    twice, and coalesced collectives once), so only one thing is a sure sign: torch counted in a step, and the hooks saw
    nothing. The communication of such a step is then "not measured" rather than 0. Not counted by torch: other
    backends, symmetric memory, and collectives that a CUDA graph replays.

    `seen(name)`: the number that the hooks saw in groups of that name; `groups()`: the existing groups and their names.
    """

    def __init__(self, seen: Callable[[str], int], groups: Callable[[], Mapping[Any, str]]) -> None:
        self._seen = seen
        self._groups = groups  # asked anew each time: a group that is kept here could not be destroyed
        self._counts: dict[str, tuple[int, int]] = {}
        self._silent: set[str] = set()

    def unseen(self) -> int:
        """The number of collectives that torch has counted since the last call, in groups where the hooks saw none."""
        unseen = 0
        for group, name in islice(self._groups().items(), MOST_GROUPS):
            if name in self._silent:
                continue
            try:
                theirs, ours = private.issued_in(group), self._seen(name)
            except Exception:  # a backend that does not count, or a group that this rank is not in
                self._silent.add(name)
                continue
            theirs_before, ours_before = self._counts.get(name, (theirs, ours))
            self._counts[name] = theirs, ours
            if ours == ours_before:
                unseen += max(theirs - theirs_before, 0)  # less: another group of the same name
        return unseen


def compare_counts(
    recorder: Recorder, seen: Callable[[str], int], interception: Interception, first: Callable[[], None]
) -> Uninstall:
    """Before each update, in the training thread, records how many collectives torch counted that no hook saw.

    `first` is called before each comparison.
    """

    said = False

    def compare() -> None:
        nonlocal said
        try:
            first()
            interception.tidy()
            if not said and private.symmetric_memory_in_use():
                said = True
                recorder.note("comm", private.SYMMETRIC_UNSEEN)
            if unseen := count.unseen():
                recorder.emit(Kind.UNSEEN, unseen)
                interception.move()  # from now on they may be seen
        except Exception as error:
            recorder.drops.add(COUNT, error)
            forget()

    def forget() -> None:
        recorder.before_update = None

    try:
        count = TorchCount(seen, lambda: private.group_names(dist))
        count.unseen()  # what there was before the hooks
        recorder.before_update = compare
    except Exception as error:  # private names of torch: without them nothing is compared
        recorder.drops.add(COUNT, error)
        forget()
    return forget
