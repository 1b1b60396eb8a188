"""Where collectives are seen: each operator at one of two places, so that none is counted twice.

- At the methods of `ProcessGroup` by which Python issues it. This costs the host about a small operator, and nothing in
  C++ comes by.
- At the dispatcher (`c10d::*`), where everything comes by, at the price of a redispatch through Python: some five small
  operators more. Redispatching changes no result, unlike a DDP communication hook of our own, which rounds differently.
  The key is BackendSelect: below autograd, so that it also sees what tensor parallelism and DTensor issue, and above
  every backend.

The operators that training issues often begin at the methods. They move to the dispatcher, for good, before C++ first
issues them: with the first of DDP's reducers, and in front of functional collectives; also if they are called in a way
that is not read here, or if torch counts collectives that nobody has seen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container
from threading import Lock
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist

from ddlprof.collect.drops import COLLECTIVE, Drops
from ddlprof.collect.hooks.method_wrappers import MethodWrapper
from ddlprof.collect.install import Uninstall, all_of, replace
from ddlprof.torch_private import collectives as private

AtDispatcher = Callable[[str], Callable[..., Any]]
"""Makes the function that runs in front of an operator."""
AtMethod = Callable[[Callable[..., Any], private.Form, Container[str], Callable[[str], None]], Any]
"""Makes the function that runs in place of a method; the last arguments are the operators that are still seen at
methods, and `Issuing.move`."""


class Method(MethodWrapper):
    """Of torch's own groups. A class of the script's that derives from theirs may be called from C++, by its name."""

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
        if this is not None:
            self._elsewhere()
        return self._bind(this, kind)


class Issuing:
    """The places where operators are seen now."""

    def __init__(self, drops: Drops, at_dispatcher: AtDispatcher, at_method: AtMethod) -> None:
        self._drops = drops
        self._at_dispatcher = at_dispatcher
        self._at_method = at_method
        self._library = torch.library.Library("c10d", "IMPL")
        self._methods: dict[str, Uninstall] = {}
        """What takes an operator's methods back."""
        self._functional: dict[str, Any] = {}
        """The library that waits for functional collectives which issue an operator."""
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
                wrappers = {name: Method(kind, name, self._at_method, self._methods, self.move) for name in names}
                self._methods[operator] = all_of(*(replace(kind, name, wrapper) for name, wrapper in wrappers.items()))
            else:
                self._put_at_dispatcher(operator)
        self._await_functional()
        undo = self._await_reducers()
        if private.has_reducers(dist):
            self.move(*private.OF_REDUCERS)
        return all_of(self._destroy, undo)

    def move(self, *operators: str) -> None:
        """To the dispatcher with these, or with all."""
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
        """A function whose C++ issues operators."""

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self.move(*operators)
            return original(*args, **kwargs)

        return wrapper

    def tidy(self) -> None:
        """Takes back what no longer waits for anything, where none of it can be running."""
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
