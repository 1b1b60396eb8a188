"""Samples the source line of the training thread a few times a second while its time goes to `other`, or to `data`.

A sample counts for the step in which it was taken, once that step has ended. Samples after the last step (an
evaluation, the end of the process) count for none.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

from ddlprof.collect.process.calls import called_name, is_given
from ddlprof.collect.process.data_places import data_places, names_called, starts_processes, work_of_data
from ddlprof.collect.process.frames import (
    INSTALLED,
    INTERPRETER,
    OURS,
    USER,
    Position,
    StackFrame,
    inside_loop,
    positions,
    stack_of_thread,
)
from ddlprof.collect.process.loops import Loop, iterates, keeps, loop_around
from ddlprof.collect.process.moments import Where, compute_work, evaluates, where, work_by_events
from ddlprof.collect.process.named_work import CALLS, CASTS, IN_PASSES, ITERATES, SAVING, work_of_package
from ddlprof.collect.process.start_places import start_place
from ddlprof.model.events import Event
from ddlprof.model.records import Flag
from ddlprof.model.source_locations import (
    CHECKPOINT,
    COLLECT,
    DECOMPOSES,
    DERIVES,
    DERIVES_EACH,
    EACH,
    EVALUATION,
    FORWARD,
    LIBRARY,
    LOGGING,
    LOOP,
    MODULE,
    NETWORK,
    ONE_HOT,
    OWN_LOOP,
    PARAMETRIZED,
    PLOT,
    PRECONDITIONS,
    SLEEP,
    START_WAITS,
    STEPPING,
    WRITES,
    SourceLocation,
)
from ddlprof.torch_private.modules import CACHED_WEIGHT, CALL

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_INSTALL_FOLDERS = frozenset(("site-packages", "dist-packages"))
_CACHED = 10_000


def _real(path: str | None) -> str:
    return os.path.join(os.path.realpath(path), "") if path else ""


def _folders(*names: str) -> tuple[str, ...]:
    paths = (sysconfig.get_paths().get(name) for name in names)
    return tuple({_real(path) for path in paths if path})


def _has_packages(folder: str) -> bool:
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:
        return False


class _Inside(NamedTuple):
    """What of a stack is inside the training loop, innermost frame first."""

    frames: list[StackFrame]
    users: list[StackFrame]
    """Those of the user's code."""
    loop: StackFrame | None
    """That of the loop, if known."""
    update: Sequence[Position]
    """The stack of an optimizer's update."""

    @property
    def inner(self) -> list[StackFrame]:
        """What the innermost of the user's frames has called."""
        return self.frames[: self.frames.index(self.users[0])] if self.users else []


class CodeLocator:
    """Decides whose code a frame runs, and which line of a stack to report.

    The user's code is all code outside of the interpreter, of installed packages and of ddlprof: a script, an editable
    install, a notebook, a zip application. With `python -m PACKAGE` that package counts as well, wherever it is
    installed. Must be created before the script can change its working directory.
    """

    def __init__(self) -> None:
        self._base = os.getcwd()
        self._interpreter = _folders("stdlib", "platstdlib")
        packages = {*_folders("purelib", "platlib", "scripts"), _real(site.getusersitepackages()), *self._targets()}
        self._packages = tuple(sorted(packages - {""}, key=len, reverse=True))
        self._owners: dict[tuple[str, bool], str] = {}
        self._called: dict[Position, str] = {}
        self._paths: dict[str, str] = {}

    def _targets(self) -> list[str]:
        """Other folders that packages were installed into (`pip install --target`), but for that of the script."""
        own = {_real(self._base), _real(os.path.dirname(sys.argv[0]) or self._base)}
        found = {_real(path) for path in sys.path} - {"", *own}
        return [path for path in found if _has_packages(path)]

    def owner(self, filename: str, main: bool = False) -> str:
        """Whose code a file is. `main`: the frame belongs to the module `__main__`."""
        key = (filename, main)
        owner = self._owners.get(key)
        if owner is None:
            if len(self._owners) >= _CACHED:
                self._owners.clear()
            owner = self._owners[key] = self._find_owner(filename, main)
        return owner

    def _find_owner(self, filename: str, main: bool) -> str:
        if filename.startswith("<"):  # compiled from text: the user's with `python -c` or exec, else generated
            return USER if main and not filename.startswith("<frozen ") else INTERPRETER
        path = os.path.realpath(os.path.join(self._base, filename))
        if path.startswith(os.path.join(_PACKAGE, "")):
            return OURS
        parts = path.split(os.sep)
        if path.startswith(self._packages) or not _INSTALL_FOLDERS.isdisjoint(parts):
            return USER if (package := _main_package()) and self.package(filename) == package else INSTALLED
        zipped = f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
        return INTERPRETER if path.startswith(self._interpreter) or zipped in parts else USER

    def package(self, filename: str) -> str:
        """The installed package that a file belongs to; empty for other files."""
        return self._shown(filename).partition(os.sep)[0].removesuffix(".py") if os.sep in filename else ""

    def _shown(self, filename: str) -> str:
        """The path to show: relative to the working directory or to the folder of installed packages.

        Found once for each file: asking the system lets the interpreter's lock go, which a script of Python alone may
        then keep for as long as it reads a file.
        """
        shown = self._paths.get(filename)
        if shown is None:
            if len(self._paths) >= _CACHED:
                self._paths.clear()
            shown = self._paths[filename] = self._find_shown(filename)
        return shown

    def _find_shown(self, filename: str) -> str:
        path = os.path.realpath(os.path.join(self._base, filename))
        parts = path.split(os.sep)
        for index in range(len(parts) - 1, 0, -1):
            if parts[index] in _INSTALL_FOLDERS:
                return os.sep.join(parts[index + 1 :])
        for folder in self._packages:
            if path.startswith(folder):
                return path[len(folder) :]
        for plain in (os.path.join(self._base, filename), path):
            for base in (self._base, os.path.realpath(self._base)):
                if plain.startswith(os.path.join(base, "")):
                    return plain[len(base.rstrip(os.sep)) + 1 :]
        return filename

    def without_torch(self, update: list[Position]) -> list[Position]:
        """The stack of an update without its innermost frames in torch's optimizer and in ddlprof."""
        kept = len(update)
        while kept and self._is_of_torch_or_ours(update[kept - 1][0].co_filename):
            kept -= 1
        return update[:kept]

    def _is_of_torch_or_ours(self, filename: str) -> bool:
        owner = self.owner(filename)
        return owner in (OURS, INTERPRETER) or (owner == INSTALLED and self.package(filename) == "torch")

    def in_torch(self, stack: list[StackFrame]) -> bool:
        """Whether the innermost frame is torch's, so that the thread presumably computes."""
        filename = stack[0].code.co_filename if stack else ""
        return self.owner(filename) == INSTALLED and self.package(filename) == "torch"

    def inside(self, stack: list[StackFrame], update: Sequence[Position]) -> _Inside:
        """What of a stack (innermost frame first) is inside the training loop.

        `update`: the stack of an optimizer's update (`positions`). Frames in both stacks at the same instruction are
        outside of the training loop. So a line of the user's that only calls a framework's loop is not reported.
        """
        frames, loop = inside_loop(stack, update)
        return _Inside(frames, [frame for frame in frames if self.is_users(frame)], loop, update)

    def find(self, inside: _Inside) -> SourceLocation | None:
        """The line to report for a stack; None if only ddlprof and the interpreter are on it."""
        frames, _, loop, _ = inside
        owners = [self.owner(f.code.co_filename, f.module == "__main__") for f in frames]
        ours = next((index for index, owner in enumerate(owners) if owner != OURS), 0)
        frames, owners = frames[ours:], owners[ours:]  # such as our callback of the garbage collector
        if frames and _calls_module(frames[0]):  # on its way into a forward, which will be told by its event
            return None
        users = [index for index, owner in enumerate(owners) if owner == USER]
        if users:
            innermost, what = users[0], self._what(frames[: users[0] + 1])
            if what in ("", SLEEP, WRITES):  # such as a stream of the user's that `print` writes to
                called = ((index, self._work_of_call(frames[index])) for index in users[1:])
                innermost, what = next(((index, work) for index, work in called if work), (innermost, what))
            outermost = users[-1] if loop is not None else innermost
            caller = self.text(frames[outermost]) if outermost != innermost else ""
            what = what or work_of_data(self, frames[:innermost], frames[innermost])
            return SourceLocation(self.text(frames[innermost]), what, caller)
        installed = [f for f, owner in zip(frames, owners, strict=True) if owner == INSTALLED]
        if not installed:
            return None
        return SourceLocation(self.text(self._library_frame(installed, loop)), self._what(frames) or LIBRARY)

    def repeated(self, inside: _Inside) -> SourceLocation | None:
        """The loop inside the training loop that repeats the user's innermost line: one of its own function, or one on
        a single line further out, such as a comprehension; None if it trains, and for a line that communicates."""
        frames, users, loop, update = inside
        if any(each.module.startswith("torch.distributed") for each in frames):
            return None
        for frame, outer in zip(users, [*users[1:], None], strict=True):
            found = _loop_of(frame, loop, update, training=False)
            asking = outer if frame.code.co_name == "<genexpr>" else frame if frame is not users[0] else None
            if found and asking and iterates(asking.code, asking.instruction):  # for the next batch
                continue
            if found and (frame is users[0] or found.line == frame.line()):
                return SourceLocation(self.text(frame, found.line), OWN_LOOP, self.text(users[-1]))
        return None

    def find_loop(self, inside: _Inside) -> SourceLocation | None:
        """The outermost loop of the user's code inside the training loop, else the innermost line of the user's."""
        frames, users, loop, update = inside
        for frame in reversed(users):
            if found := _loop_of(frame, loop, update):
                caller = self.text(users[-1]) if frame is not users[-1] else ""
                what = self._loop_kind(found, frames[: frames.index(frame)])
                return SourceLocation(self.text(frame, found.line), what, caller)
        return SourceLocation(self.text(users[0])) if users else None

    def _loop_kind(self, loop: Loop, called: list[StackFrame]) -> str:
        """What a loop is that these frames are called from; what they keep matters only if they call modules."""
        if not any(map(_calls_module, called)):
            return OWN_LOOP
        own = (each.code for each in called if not self._is_of_torch_or_ours(each.code.co_filename))
        return LOOP if loop.carries or any(map(keeps, own)) else EACH

    def find_hook(self, inside: _Inside) -> SourceLocation | None:
        """Where a package that logs or draws was entered from the user's innermost line, such as by a hook of it."""
        hooked = [frame for frame in inside.inner if work_of_package(frame.module) in (LOGGING, PLOT)]
        if not hooked:
            return None
        return SourceLocation(self.text(hooked[-1]), work_of_package(hooked[-1].module), self.text(inside.users[-1]))

    def find_parametrized(self, inside: _Inside) -> SourceLocation | None:
        """The user's line in a loop for which a parametrization of torch's computes a weight that is not cached."""
        frames, _, loop, update = inside
        computing = [n for n, frame in enumerate(frames) if work_of_package(frame.module) == PARAMETRIZED]
        cached = any(frames[n].code.co_name == CACHED_WEIGHT for n in computing)
        users = list(filter(self.is_users, frames[computing[-1] :])) if computing and not cached else []
        if any(_loop_of(frame, loop, update, training=False) for frame in users):
            return SourceLocation(self.text(users[0]), PARAMETRIZED, self.text(users[-1]))
        return None

    def find_costly(self, inside: _Inside) -> SourceLocation | None:
        """The user's innermost line if it decomposes matrices, makes one-hot vectors or tensors of sizes alone, or
        computes gradients that have gradients, or in a loop."""
        _, users, loop, update = inside
        if not users or any(map(_calls_module, inside.inner)):  # a module with such a name
            return None
        called = self.call_of(users[0])
        what = next((what for what, names in IN_PASSES.items() if called in names), "")
        if called in CASTS and names_called(users[0]) & IN_PASSES[ONE_HOT]:
            what = ONE_HOT
        if what == DERIVES and not is_given(users[0].code, users[0].instruction, "create_graph"):
            what = DERIVES_EACH if _loop_of(users[0], loop, update, training=False) else ""
        if not what:
            return None
        return SourceLocation(self.text(users[0]), what, self.text(users[-1]))

    def caller(self, inside: _Inside) -> str:
        """The line of the training loop that leads to a stack, where it is not the user's innermost one; else empty."""
        return self.text(inside.users[-1]) if inside.loop is not None and len(inside.users) > 1 else ""

    def lines(self, stack: list[StackFrame]) -> list[str]:
        """Every frame as `file:line function`, innermost first, without ddlprof's own."""
        return [self.text(frame) for frame in stack if self.owner(frame.code.co_filename) != OURS]

    def has_users(self, stack: list[StackFrame]) -> bool:
        """Whether a frame is of the user's code."""
        return any(map(self.is_users, stack))

    def is_users(self, frame: StackFrame) -> bool:
        """Whether a frame is of the user's code."""
        return self.owner(frame.code.co_filename, frame.module == "__main__") == USER

    def calls(self, stack: list[StackFrame]) -> str:
        """The name of the function that the innermost frame of the user's calls; empty if unknown."""
        for number, frame in enumerate(stack):
            if self.is_users(frame):
                return self.call_of(frame) or (stack[number - 1].code.co_name if number else "")
        return ""

    def _library_frame(self, installed: list[StackFrame], loop: StackFrame | None) -> StackFrame:
        """The frame that a framework's loop calls; if unknown, the one in which the innermost package was entered."""
        package = self.package(installed[-1 if installed[-1] is loop else 0].code.co_filename)
        if installed[-1] is loop:
            return next((f for f in reversed(installed[:-1]) if self._is_of(f, package)), loop)
        return installed[: next((i for i, f in enumerate(installed) if not self._is_of(f, package)), None)][-1]

    def _is_of(self, frame: StackFrame, package: str) -> bool:
        return self.package(frame.code.co_filename) == package

    def text(self, frame: StackFrame, line: int | None = None) -> str:
        """A frame as `file:line function`; `line`: in place of its own."""
        code = frame.code
        name = getattr(code, "co_qualname", code.co_name)
        return self.text_of(code.co_filename, line or frame.line(), name)

    def text_of(self, filename: str, line: int, name: str) -> str:
        """A line of a function as `file:line function`."""
        return f"{self._shown(filename)}:{line} {name.replace('.<locals>.', '.')}"

    def _what(self, frames: list[StackFrame]) -> str:
        """What the innermost frames do; the last of them is the one to report."""
        if any(frame.code.co_name.lstrip("_") in SAVING for frame in frames):
            return CHECKPOINT
        if starts_processes(frames[:-1]):
            return ""  # which `work_of_data` tells; a fork calls what `logging` has registered for it
        found = ""
        for frame in frames[:-1]:
            module, name = frame.module, frame.code.co_name
            if _calls_module(frame):
                return FORWARD
            if module == "torch.serialization" and name == "save":
                return CHECKPOINT
            if name not in ITERATES:  # what a progress bar goes through is its own work
                found = work_of_package(module, name) or found
            if found not in ("", NETWORK):  # what it is asked for is told by the package around it
                return found
        if found:
            return found
        called = self.call_of(frames[-1]) if len(frames) == 1 else frames[-2].code.co_name
        if len(frames) == 1 and called == "collect":  # of a function in C
            return COLLECT
        return next((what for what, names in CALLS.items() if called in names), "")

    def _work_of_call(self, frame: StackFrame) -> str:
        """What a line does by the name of the function it calls, as far as its callees are told as that work."""
        called = self.call_of(frame)
        return next((what for what in (LOGGING, PLOT) if called in CALLS[what]), "")

    def call_of(self, frame: StackFrame) -> str:
        """The name of the function that the frame calls, from its source: C functions have no frame."""
        key = (frame.code, frame.instruction)
        if key not in self._called:
            if len(self._called) >= _CACHED:
                self._called.clear()
            try:
                self._called[key] = called_name(*key)
            except Exception:  # no source, or a version of Python that does not tell
                self._called[key] = ""
        return self._called[key]


def _loop_of(
    frame: StackFrame, outermost: StackFrame | None, update: Sequence[Position], training: bool = True
) -> Loop | None:
    """The outermost loop that a frame is in; of the frame of the training loop, one that makes no updates."""
    but = dict(update).get(frame.code) if frame is outermost else None
    return loop_around(frame.code, frame.instruction, but, training)


def _calls_module(frame: StackFrame) -> bool:
    return frame.module == "torch.nn.modules.module" and frame.code.co_name.endswith(CALL)


def _main_package() -> str:
    """The package that `python -m` runs; empty if a file is run."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec.name.partition(".")[0] if spec is not None and spec.name != "__main__" else ""


_BOOKKEEPING = "ddlprof.collect.steps"
"""Where ddlprof works for itself: it reads files, which lets the lock go, so that looks fall on it."""
_MOST_WAITING = 1000
_PLACES_A_STEP = 20


class _Sample(NamedTuple):
    marks: int
    """The value of `Recorder.marks` before the step."""
    place: SourceLocation


class StepSamples(NamedTuple):
    """The samples of one step by place."""

    other: dict[SourceLocation, int]
    compute: dict[SourceLocation, int]


class StackSampler:
    """Takes samples, and keeps them until the step in which they were taken has ended."""

    def __init__(self) -> None:
        self.places = CodeLocator()
        self._update: list[Position] = []
        self._new_update: list[Position] = []
        self._waiting: deque[_Sample] = deque(maxlen=_MOST_WAITING)
        self._computing: deque[_Sample] = deque(maxlen=_MOST_WAITING)
        self._starting: int | None = None
        """The thread that was looked at before the first step."""

    def at_update(self) -> None:
        """Called in the training thread after an update, whose stack shows where the training loop is."""
        self._new_update = positions(sys._getframe(1))

    @property
    def update(self) -> list[Position]:
        """The stack of the latest of these updates without torch's frames; empty before the first one."""
        if self._new_update:
            self._update, self._new_update = self.places.without_torch(self._new_update), []
        return self._update

    def sample(self, thread: int | None, recent: list[Event], marks: int) -> None:
        """Samples the stack of the training thread if the latest events say that its time goes to `other`, or to
        computing in Python."""
        here, work = where(recent), compute_work(recent)
        if here is Where.ELSEWHERE and work is None:
            return
        stack = stack_of_thread(thread or 0)
        if stack and stack[0].module.startswith(_BOOKKEEPING):
            return
        if here is Where.DATA:
            self._waiting.extend(_Sample(marks, place) for place in data_places(self.places, stack))
            return
        if work is not None and (place := self._computing_at(work, stack)) is not None:
            self._computing.append(_Sample(marks, place))
        if here is Where.OTHER or (here is Where.GAP and not self.places.in_torch(stack)):
            inside = self.places.inside(stack, self.update)
            place = self.places.find(inside)
            if place is not None:
                place = place._replace(what=work_by_events(recent) or place.what)
                loops = place.what == "" and not evaluates(recent)
                place = (self.places.repeated(inside) if loops else None) or place
                self._waiting.append(_Sample(marks, place))

    def _computing_at(self, work: str, stack: list[StackFrame]) -> SourceLocation | None:
        places, inside = self.places, self.places.inside(stack, self.update)
        if work == LOOP:
            finders = (places.find_hook, places.find_parametrized, places.find_costly, places.find_loop)
            place = next(filter(None, (find(inside) for find in finders)), None)
            calls_module = place is not None and not place.what and any(map(_calls_module, inside.inner))
            return place._replace(what=MODULE) if place is not None and calls_module else place
        costly, loop = places.find_costly(inside), places.find_loop(inside)
        if costly is not None and costly.what == DECOMPOSES:
            return costly._replace(what=PRECONDITIONS)
        return None if loop is None else loop._replace(what=work if loop.what else STEPPING)

    def sample_start(self, thread: int | None, recent: list[Event], marks: int) -> None:
        """Samples the stack of the training thread before its first step; the samples count for that step."""
        here, self._starting = where(recent), thread
        if here is Where.GAP or work_by_events(recent):
            return
        stack = stack_of_thread(thread or 0)
        if here is Where.DATA:
            self._waiting.extend(_Sample(marks, place) for place in data_places(self.places, stack))
        elif (place := start_place(self.places, stack)) and (here is Where.OTHER or place.what == START_WAITS):
            self._waiting.append(_Sample(marks, place))

    def of_step(self, marks: int, flags: int, thread: int | None = None) -> StepSamples:
        """The samples of the step that ended with this mark, by place. `flags`: those of the step; `thread`: the one
        that trains, which nobody knows before the first update: another one may only wait for it."""
        if None not in (self._starting, thread) and thread != self._starting:
            self._waiting.clear()
        self._starting = None
        return StepSamples(_taken(self._waiting, marks, flags), _taken(self._computing, marks, flags))


def _taken(waiting: deque[_Sample], marks: int, flags: int) -> dict[SourceLocation, int]:
    if not waiting or waiting[0].marks >= marks:
        return {}
    counts: Counter[SourceLocation] = Counter()
    while waiting and waiting[0].marks < marks:
        place = waiting.popleft().place
        evaluates = place.what == FORWARD and flags & Flag.EVALUATION
        counts[place._replace(what=EVALUATION) if evaluates else place] += 1
    return dict(counts.most_common(_PLACES_A_STEP))
