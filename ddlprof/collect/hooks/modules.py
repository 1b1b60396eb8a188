"""The forward of the outermost modules only; the modules inside them run untouched.

`NoGradModules` collects facts about forwards without gradients; `steps/no_grad.py` decides what these forwards are for.

A patch of `nn.Module.__call__` finds the outermost modules during the first steps, and again where others may be
called: another model is trained, or one is evaluated. Each time it is put on or taken off, Python forgets what it has
cached of all classes of modules, so it soon stays. Modules that were found are timed through their instance's
`_compiled_call_impl`, the slot that torch keeps for `Module.compile()` and leaves out of pickles and copies. Global
module hooks would do as well, but they break `fullgraph=True`, cause a recompilation when they are removed, and slow
down every module of the model.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from itertools import islice
from types import FrameType
from typing import Any

from ddlprof.base.guarded import dead_reference
from ddlprof.collect.compiler import used_dynamo
from ddlprof.collect.core import plain_size
from ddlprof.collect.drops import MODULE
from ddlprof.collect.install import Uninstall, all_of, fail_open, replace
from ddlprof.collect.left_behind import Left
from ddlprof.collect.loader.batch import ForwardSamples, arguments_size, first_shape
from ddlprof.collect.recorder import FIRST_STEPS, Recorder
from ddlprof.collect.steps.no_grad import NoGradCalls, NoGradModule, Read
from ddlprof.model.events import Kind
from ddlprof.operators.features import model_name
from ddlprof.operators.parameters import has_parameters, own_parameters, parameters_of
from ddlprof.torch_private.engine import no_torch_function
from ddlprof.torch_private.modules import (
    CALL,
    COMPILED_CALL,
    REPLICATE,
    StandIn,
    call_code,
    compiled_slot,
    keep_from_script,
    mapped,
    tracing,
)

_FORWARD_BEGIN, _FORWARD_END = int(Kind.FORWARD_BEGIN), int(Kind.FORWARD_END)  # slow to look up in an enumeration
_MOST_SEARCHES = 6
"""After so many searches the patch of `nn.Module.__call__` stays: it costs less than to put it on in each step."""
_EVALUATED_AGAIN = 10
"""`eval()` of a module begins another search only after so many times the updates that there were at the last one."""
_MOST_ASKED = 50
"""The most modules that are looked at to find the one that an optimizer trains."""
_PLAIN_FORWARDS = 16
"""After so many forwards without torch.vmap, none with it is expected any more."""
_MOST_SIZES = 32
"""After so many pairs of mode and batch size, the calls of a module are told apart by the mode alone."""


class OuterModules:
    """The outermost modules seen, and how their calls are timed."""

    def __init__(
        self,
        torch: Any,
        recorder: Recorder,
        look: Callable[[Any, Any], None],
        look_after: Callable[[Any], None] = lambda made: None,
    ) -> None:
        self.torch = torch
        self.is_dynamo_compiling: Callable[[], bool] = torch.compiler.is_dynamo_compiling
        self.is_tracing: Callable[[], bool] = tracing(torch)
        self.is_mapped: Callable[[], bool] = mapped(torch)
        self._until_plain = 0  # so many forwards without torch.vmap until the samples are read from the first dimension
        self.is_grad_enabled: Callable[[], bool] = torch.is_grad_enabled
        self.recorder = recorder
        self.look = fail_open(look, recorder)
        """See `Inspection.forward`."""
        self._look_after = fail_open(look_after, recorder)
        self.seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._latest: Callable[[], Any] = dead_reference  # the module that was adopted last
        self.inside = False
        """Whether an outermost call is under way, of a module or of a compiled function (`hooks.compiled`)."""
        self.is_settled = False
        """Whether forwards with gradients on plain batches are only timed, and their samples read from the first
        dimension."""
        self.count: Callable[[Any], None] | None = None
        """Called with the arguments of each outermost forward, in a step whose amount of work is to be noted."""
        self.compiled: Callable[[], Any] = dead_reference
        """A weak reference to the call of a compiled function that has set `inside`."""
        self._left = Left(recorder, _TimedCall.__call__)
        self.no_grad = NoGradModules()
        self._trains = fail_open(self.no_grad.trains, recorder)
        self._called_without = fail_open(self._note_no_grad, recorder)
        self._samples = ForwardSamples()
        self.searching = False
        """Whether a search is under way, which began with `search` and ends with `settle`."""
        self._searches = 0
        self._evaluated: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """For modules whose `eval()` has begun a search: the number of updates from which it begins another."""
        self._undo: Uninstall | None = None
        self.call_code: Any = None
        """The code of torch's function that calls a module's `_compiled_call_impl`."""

    def left_behind(self, frame: FrameType) -> bool:
        """Whether `inside` is set though no call is under way, see `Left.behind`."""
        return self.compiled() is None and self._left.behind(frame)

    def install(self) -> Uninstall:
        """Starts the search; modules that are known from before are timed again, without one."""
        self.call_code = call_code(self.torch)
        self.inside = False
        undo_script = keep_from_script(self.torch)
        undo_replicate = replace(self.torch.nn.Module, REPLICATE, self._replicate())
        self.search()
        known = list(self.seen)
        for module in known:
            self.adopt(module)
        if known:
            self.settle()
        return all_of(undo_script, undo_replicate, self._uninstall)

    def _replicate(self) -> Callable[[Any], Any]:
        original: Any = getattr(self.torch.nn.Module, REPLICATE)

        def _replicate_for_data_parallel(module: Any) -> Any:
            replica = original(module)
            timed = _timed_call(replica)
            if timed is not None:
                timed.remove(replica)  # it would call the original in the place of the copy
            return replica

        return _replicate_for_data_parallel

    @property
    def stays(self) -> bool:
        """Whether the patch stays, and finds each outermost module at its first call: no search is needed any more."""
        return self._undo is not None and not self.searching

    def search(self) -> None:
        """Looks for outermost modules until `settle`."""
        if self._undo is not None:
            return
        self.is_settled = False
        self.searching = True
        self._searches += 1
        original = self.torch.nn.Module.__call__
        is_compiling: Callable[[], bool] = self.torch.compiler.is_compiling
        outer = self

        # torch.profiler takes the local variable `self` of this function for the module.
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(self, *args, **kwargs)
            if outer.inside:
                if outer.searching:
                    outer._samples.inside(self, args)
            elif outer.recorder.active and _timed_call(self) is None and has_parameters(self):
                outer.is_settled = False
                outer.adopt(self)  # without parameters it is a loss, a metric or a transform
            return original(self, *args, **kwargs)

        self._undo = replace(self.torch.nn.Module, "__call__", __call__)

    def settle(self) -> None:
        """Ends the search: from now on only the modules found so far are timed, or those that the patch finds if it
        stays.

        It stays if torch.compile is in use, which would compile again what it has compiled through the patch.
        """
        if self._undo is not None and (self._searches >= _MOST_SEARCHES or used_dynamo()):
            self.searching = False
        else:
            self._take_back()

    def _take_back(self) -> None:
        self.searching = False
        if self._undo is not None:
            self._undo()
            self._undo = None

    def another_trains(self) -> None:
        """Called when the script has made an optimizer: what it trains may be a model that was not called before."""
        if self.recorder.boundaries and not self.inside and self.recorder.listens() and not used_dynamo():
            self.search()  # until `ModuleSearch` ends it

    def watch_evaluations(self, later: Callable[[Callable[[], None]], None]) -> Uninstall:
        """Finds modules that only evaluations call: the one inside DistributedDataParallel, or averaged weights.

        The first search ends after the first steps, so a call of `eval()` on a module that it cannot have found begins
        another one. `later` ends that one between two steps.
        """
        original = self.torch.nn.Module.eval

        def begins(module: Any) -> None:
            found = module in self.seen and not isinstance(getattr(module, "module", None), self.torch.nn.Module)
            # What torch.compile compiled without the patch of the search it would compile again with it.
            if found or self.inside or self._undo is not None or not self.recorder.listens() or used_dynamo():
                return
            if self.recorder.boundaries >= self._evaluated.get(module, 0):  # not in each step
                self._evaluated[module] = _EVALUATED_AGAIN * (self.recorder.boundaries + 1)
                self.search()
                later(self.settle)

        begins = fail_open(begins, self.recorder)

        @functools.wraps(original)
        def eval(module: Any) -> Any:
            if not self.torch.compiler.is_compiling():
                begins(module)
            return original(module)

        return replace(self.torch.nn.Module, "eval", eval)

    def adopt(self, module: Any) -> None:
        """Times the calls of a module from now on."""
        try:
            getattr(module, CALL)  # raises where this torch has none
            # Past Module.__setattr__, which in an OptimizedModule would set it on the compiled module inside.
            module.__dict__[COMPILED_CALL] = _TimedCall(self, module, compiled_slot(module))
            self.seen.add(module)
            self._latest = weakref.ref(module)
        except Exception as error:  # a module that cannot be marked is not timed
            self.recorder.drops.add(MODULE, error)

    def trained_by(self, optimizer: Any) -> str | None:
        """The class of the outermost module that has most of the optimizer's parameters; None if none has any."""
        wanted = {id(parameter) for parameter in parameters_of(optimizer)}
        latest, best, most = self._latest(), None, 0
        for module in [latest, *islice(self.seen, _MOST_ASKED)]:
            owned = 0 if module is None else sum(id(parameter) in wanted for parameter in own_parameters(module))
            if owned > most:
                best, most = module, owned
            if most == len(wanted):
                break
        return None if best is None else model_name(best)

    def _note_no_grad(self, module: Any, args: Any, kwargs: Any, payload: _Later) -> None:
        payload.value = self.no_grad.called(module, args or list(kwargs.values()))

    def _uninstall(self) -> None:
        self._take_back()
        for module in list(self.seen):
            timed = _timed_call(module)
            if timed is not None:
                timed.remove(module)

    def look_closely(self, module: Any, args: Any, kwargs: Any, payload: _Later, grad: bool) -> None:
        """Called after the event of a forward's begin: inspects module and inputs, which may take some time."""
        if not grad:
            self._called_without(module, args, kwargs, payload)
            return
        payload.value = samples_in(args, kwargs)
        learning = self.searching or self._samples.is_learned
        if learning:
            payload.value = self._samples.begin(module, args, kwargs, payload.value, learn=self.searching)
        self._until_plain = max(self._until_plain - 1, 0)
        if self.is_mapped():  # its tensors do not show the dimension of the batch
            payload.value, self._until_plain = None, _PLAIN_FORWARDS
        first = self.recorder.boundaries <= FIRST_STEPS
        if first or self.searching or not learning:
            self._trains(module)
        if first:
            self.look(module, (*args, *kwargs.values()))
        elif self.count is not None:
            fail_open(self.count, self.recorder)((*args, *kwargs.values()))
        else:
            self.is_settled = not learning and not self._until_plain

    def over(self, made: Any) -> None:
        """Called at the end of a forward for which `look_closely` was called, with what it returns."""
        if self.searching:
            self._samples.end()
        if self.recorder.boundaries <= FIRST_STEPS:
            self._look_after(made)


class _Later:
    """The payload of an event; its value is filled in after the event was recorded."""

    value: Any = None

    def __call__(self) -> Any:
        return self.value


class _TimedCall(StandIn):
    """The timed call, which takes the place of a module's `_compiled_call_impl`."""

    def __init__(self, outer: OuterModules, module: Any, compiled: Callable[..., Any] | None) -> None:
        self._outer = outer
        self._module = weakref.ref(module)  # no cycle: the model is freed when the script drops it
        self.compiled = compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # All in one function, because calling another one takes as long as its work.
        outer, module = self._outer, self._module()
        compiling = outer.is_dynamo_compiling()  # the recorder hears of any other
        if not compiling:
            frame = sys._getframe(1)
            called = frame.f_locals["self"] if frame.f_code is outer.call_code else None
            if called is not None and called is not module:  # it was given a copy of our module's attributes
                self.remove(called)
                return called(*args, **kwargs)
        function = self.compiled or getattr(module, CALL)
        if compiling or (outer.inside and not outer.left_behind(sys._getframe())) or outer.is_tracing():
            return function(*args, **kwargs)
        emit, grad = outer.recorder.emit, outer.is_grad_enabled()
        payload: int | _Later | None = plain_size(args) if grad and outer.is_settled else None
        if payload is None:
            payload = _Later()
        begun, made = True, None
        try:
            begun = emit(_FORWARD_BEGIN, grad, module.training, payload)  # type: ignore[union-attr]
            if not begun:
                return function(*args, **kwargs)
            outer.inside = True
            if type(payload) is _Later:
                outer.look_closely(module, args, kwargs, payload, grad)
            made = function(*args, **kwargs)
            return made
        finally:
            if begun:
                outer.inside = False
                if type(payload) is _Later:
                    outer.over(made)
                emit(_FORWARD_END, grad)

    def __reduce__(self) -> Any:
        return type(None), ()  # a pickle of the module knows nothing of us

    def __deepcopy__(self, memo: Any) -> Any:
        return self.compiled

    def remove(self, module: Any) -> None:
        """Removes this from the module, which is called as before."""
        if self.compiled is None:
            del module.__dict__[COMPILED_CALL]
        else:
            module.__dict__[COMPILED_CALL] = self.compiled


def _timed_call(module: Any) -> _TimedCall | None:
    call = module.__dict__.get(COMPILED_CALL)
    return call if isinstance(call, _TimedCall) else None


def samples_in(args: Any, kwargs: Any) -> int | None:
    """The number of samples in the arguments of a forward; None if it cannot be told."""
    try:
        return arguments_size(args or list(kwargs.values()))
    except Exception:  # whatever a user's input type does
        return None


class NoGradModules:
    """The modules that were called without gradients, and the parameters that were seen in forwards with them."""

    def __init__(self) -> None:
        self._trained: set[int] = set()
        self._seen_trained: weakref.WeakSet[Any] = weakref.WeakSet()
        self._modules: weakref.WeakKeyDictionary[Any, _ModuleCalls] = weakref.WeakKeyDictionary()
        self._last: NoGradCalls | None = None
        """The calls of the last forward, whose results nobody has read yet."""

    def trains(self, module: Any) -> None:
        """Called when a module is called with gradients."""
        self._last = None
        if module in self._seen_trained:
            return
        self._seen_trained.add(module)
        with no_torch_function():
            self._trained.update(id(parameter) for parameter in own_parameters(module) if parameter.requires_grad)
        for other, known in self._modules.items():
            known.look(other, self._trained)

    def called(self, module: Any, arguments: Any) -> NoGradCalls:
        """Called when a module is called without gradients; returns what is known of such calls."""
        known = self._modules.get(module)
        if known is None:
            known = self._modules[module] = _ModuleCalls()
            known.look(module, self._trained)
        self._last = calls = known.calls(module.training, arguments)
        return calls

    def reads(self, dimensions: int, is_fraction: bool) -> None:
        """Called when the host reads a tensor."""
        calls, self._last = self._last, None
        if calls is not None and calls.read is None:
            single = Read.LOSS if is_fraction else Read.COUNT
            calls.read = Read.VALUES if dimensions else single


class _ModuleCalls:
    """The calls of one module without gradients, by its mode and the first dimension of its input."""

    def __init__(self) -> None:
        self._module = NoGradModule()
        self._calls: dict[tuple[bool, int | None], NoGradCalls] = {}
        self._length = 0

    def look(self, module: Any, trained: set[int]) -> None:
        self._module.is_trained |= any(id(parameter) in trained for parameter in own_parameters(module))

    def calls(self, training_mode: bool, arguments: Any) -> NoGradCalls:
        first, *others = first_shape(arguments) or (None,)
        key = (training_mode, first if len(self._calls) < _MOST_SIZES else None)
        calls = self._calls.get(key)
        if calls is None:
            samples = arguments_size(arguments) if key[1] is not None else None
            calls = self._calls[key] = NoGradCalls(self._module, training_mode, samples)
        length = others[0] if others else 0
        # Tokens: one more than before, or only the new one where the others' keys and values are kept.
        follows = length == self._length + 1 > 1 or length == 1 < self._length
        calls.generates |= follows
        self._length = length
        return calls
