"""A process that has torch and the like in memory, and forks children that behave like a `python WORDS` just started.

A child begins with the modules of a bare interpreter. Importing one of those that lie in memory puts it back instead of
executing it, together with those that it imported in its turn, one after another through `sys.meta_path`: hooks that
wait for the import of a module (as ddlprof's do) see it happen. What a module registered with `atexit` is registered
then. Nothing of ddlprof is ever imported here. Run by `tests.integration.processes`; imports nothing but the standard
library until it is asked to.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import io
import os
import pickle
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import FrameType, ModuleType, TracebackType
from typing import Any, NoReturn

IMPORTED = (
    "torch", "torch._dynamo", "torch.utils.data", "torch.distributed.run", "torch.distributed.tensor.parallel",
    "torch.distributed.optim", "pandas", "typer", "rich.console", "psutil", "boto3",
)  # fmt: skip
"""What takes long. Those that are not installed are left out."""


class _Loader(Loader):
    """A module's own loader, but that `Kept` makes and executes the module."""

    def __init__(self, kept: Kept, own: Any) -> None:
        self._kept, self._own = kept, own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._kept.create(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._kept.execute(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


class Kept(MetaPathFinder):
    """The modules that lie in memory: watches their import here, and repeats it in a child."""

    def __init__(self, bare: Set[str]) -> None:
        self.bare = bare
        """The modules of an interpreter that has done nothing yet."""
        self.environment = dict(os.environ)
        self.modules: dict[str, ModuleType] = {}
        self._inside: dict[str, list[str]] = defaultdict(list)
        """By module, those that were first imported while it was executed, in that order."""
        self._loaded: set[str] = set()
        self._at_exit: dict[str, list[Any]] = {}
        self._specs: dict[str, ModuleSpec] = {}
        self._executing: list[str] = [""]
        self._watching = True

    def watch(self) -> None:
        """Imports everything."""
        register = atexit.register
        own = {name: getattr(module, "__spec__", None) for name, module in sys.modules.items() if name not in self.bare}
        self._specs = {name: spec for name, spec in own.items() if spec is not None}

        def note(function: Any, /, *args: Any, **more: Any) -> Any:
            self._at_exit.setdefault(self._executing[-1], []).append((function, args, more))
            return function

        atexit.register = note
        sys.meta_path.insert(0, self)
        for name in IMPORTED:
            with suppress(ImportError):
                importlib.import_module(name)
        atexit.register = register
        self._watching = False
        self.modules = {name: module for name, module in sys.modules.items() if name not in self.bare}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not self._watching and not (name in self._specs and name in self.modules):  # asked for, but not imported
            return None
        if self._watching or "." not in name:
            found = self._elsewhere(name, path, target)
            if found is None or not hasattr(found.loader, "exec_module"):
                return None
        if self._watching:
            assert found is not None
            self._specs[name] = found
        elif "." not in name and (found is None or found.origin != self._specs[name].origin):
            return None  # a module of the script has the name
        own = self._specs[name]
        spec = ModuleSpec(name, None)
        vars(spec).update({**vars(own), "loader": _Loader(self, own.loader)})
        return spec

    def _elsewhere(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
        return None

    def create(self, spec: ModuleSpec) -> ModuleType | None:
        """The module, not yet executed here."""
        if not self._watching:
            return self.modules[spec.name]
        own: Any = self._specs[spec.name].loader
        self._executing.append(spec.name)
        try:
            created: ModuleType | None = own.create_module(spec)
            return created
        finally:
            self._executing.pop()

    def execute(self, module: ModuleType) -> None:
        """Executes the module here; in a child, imports again what it had imported."""
        assert module.__spec__ is not None
        name = module.__spec__.name
        own: Any = self._specs[name].loader
        vars(module).update(__spec__=self._specs[name], __loader__=own)  # a module may refuse to be changed
        if self._watching:
            self._execute(name, module, own)
        else:
            self._repeat(name)

    def _execute(self, name: str, module: ModuleType, own: Any) -> None:
        self._inside[self._executing[-1]].append(name)
        self._loaded.add(name)
        self._executing.append(name)
        try:
            before = set(sys.modules)
            own.exec_module(module)
            for new in sys.modules.keys() - before - self._loaded:  # put there by hand
                self._loaded.add(new)
                self._inside[name].append(new)
        finally:
            self._executing.pop()

    def _repeat(self, name: str) -> None:
        for inner in self._inside[name]:
            if inner in sys.modules or inner not in self.modules:
                continue
            if inner in self._specs:
                importlib.import_module(inner)
            else:
                sys.modules[inner] = self.modules[inner]
        if name == "tempfile":
            vars(self.modules[name])["tempdir"] = None  # which was chosen by the variables of that time
        if name == "torch" and os.environ.get("OMP_NUM_THREADS", "").isdigit():  # was read long ago
            self.modules[name].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        for function, args, more in self._at_exit.get(name, ()):
            atexit.register(function, *args, **more)


class Replaced(BaseException):
    """The process is to become another program, as by exec."""


class Child:
    """The program that a forked process runs, and how it begins anew where it replaces itself by Python."""

    def __init__(self, kept: Kept, words: Sequence[str]) -> None:
        self._kept = kept
        self._pid = os.getpid()
        self._words = list(words)
        self._path = sys.path[1:]
        self._finders = [finder for finder in sys.meta_path if finder is not kept]
        self._filters = list(warnings.filters)
        self._streams: list[Any] = [sys.stdin, sys.stdout, sys.stderr]
        library: Any = ctypes.CDLL(None)
        if hasattr(library, "on_exit"):  # taking torch's libraries to pieces takes longer than most programs here
            library.on_exit(library._exit, None)
        self._exec: Any = os.execv
        vars(os)["execv"] = self._execv

    def run(self) -> None:
        """To its end. Errors leave like those of a program, without our frames."""
        while True:
            self._begin()
            try:
                _run_as_main(self._words)
            except Replaced:
                continue
            except BaseException:
                _hide_our_frames()
                raise
            return

    def _begin(self) -> None:
        for name in [name for name in sys.modules if name not in self._kept.bare]:
            del sys.modules[name]
        atexit._clear()
        sys.meta_path[:] = [self._kept, *self._finders]
        more = os.environ.get("PYTHONPATH", "")
        first = [os.path.abspath(each) for each in more.split(os.pathsep) if more]
        sys.path[:] = dict.fromkeys([*first, *self._path])
        sys.excepthook = sys.__excepthook__
        warnings.filters[:] = self._filters  # type: ignore[index]
        for each in signal.valid_signals():
            if callable(signal.getsignal(each)):
                signal.signal(each, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, like in enumerate(self._streams):
            at_once = like.write_through
            raw: Any = io.FileIO(number, "w" if number else "r", closefd=False)
            if not number or not at_once:
                raw = io.BufferedWriter(raw) if number else io.BufferedReader(raw)
            stream = io.TextIOWrapper(
                raw, like.encoding, like.errors, line_buffering=number == 2 or os.isatty(number), write_through=at_once
            )
            name = ("stdin", "stdout", "stderr")[number]
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)

    def _execv(self, path: str, words: Sequence[str]) -> NoReturn:
        """In place of `os.execv`."""
        ours = os.getpid() == self._pid and threading.active_count() == 1 and path == sys.executable
        if not ours or not can_be_forked(list(words[1:]), os.environ, self._kept.environment):
            self._exec(path, words)
        sys.stdout.flush()
        self._words = list(words[1:])
        raise Replaced


def read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that Python and torch look at when they start, or may."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(("PYTHON", "TORCH_", "LC_", "LANG")) and name != "PYTHONPATH"
    }


def can_be_forked(words: list[str], environment: Mapping[str, str], of_server: Mapping[str, str]) -> bool:
    """Whether `python WORDS` needs nothing that only an interpreter's start can do."""
    simple = words[0] in ("-c", "-m") or words[0].endswith(".py")
    path = environment.get("PYTHONPATH", "").split(os.pathsep)
    customized = any(os.path.exists(os.path.join(each, "sitecustomize.py")) for each in path)
    return simple and not customized and read_at_start(environment) == read_at_start(of_server)


def _run_as_main(words: list[str]) -> None:
    sys.orig_argv = [sys.executable, *words]
    namespace = sys.modules["__main__"].__dict__
    loader = namespace["__loader__"]
    there: dict[str, Any] = {"__annotations__": {}} if "__annotations__" in namespace else {}  # until Python 3.13
    namespace.clear()
    namespace.update(
        there,
        __name__="__main__", __doc__=None, __package__=None, __loader__=loader, __spec__=None,
        __builtins__=sys.modules["builtins"],
    )  # fmt: skip
    if words[0] == "-m":
        sys.argv = ["-m", *words[2:]]
        sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(words[1], alter_argv=True)  # type: ignore[attr-defined]
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path.insert(0, "")
        exec(compile(words[1], "<string>", "exec", dont_inherit=True), namespace)
    else:
        sys.argv = words
        script = os.path.join(os.getcwd(), words[0])
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
        namespace.update(__file__=script, __loader__=SourceFileLoader("__main__", script), __cached__=None)
        with io.open_code(script) as file:
            source = file.read()
        exec(compile(source, script, "exec", dont_inherit=True), namespace)


def _hide_our_frames() -> None:
    hook = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        traceback = traceback and traceback.tb_next  # what called `main`
        while traceback is not None and traceback.tb_frame.f_globals is globals():
            traceback = traceback.tb_next
        hook(kind, error.with_traceback(traceback), traceback)

    sys.excepthook = show


class _Server:
    """Forks as it is told through a socket, and tells how each child ended through a pipe that came with the order."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._reports: dict[int, int] = {}
        self._ended, self._wake = os.pipe()
        os.set_blocking(self._ended, False)
        os.set_blocking(self._wake, False)
        signal.signal(signal.SIGCHLD, _nothing)
        signal.set_wakeup_fd(self._wake)

    def serve(self, kept: Kept) -> Child:
        """Returns in a child; the server itself ends here."""
        while True:
            ready, _, _ = select.select([self._control.fileno(), self._ended], [], [])
            if self._ended in ready:
                os.read(self._ended, 4096)
            self._reap()
            if self._control.fileno() in ready:
                header, files, _, _ = socket.recv_fds(self._control, 4, 4)
                if not header:
                    self._end()
                child = self._fork(kept, files, self._order(struct.unpack("I", header)[0]))
                if child is not None:
                    return child

    def _order(self, size: int) -> Any:
        data = b""
        while len(data) < size:
            data += self._control.recv(size - len(data))
        return pickle.loads(data)

    def _fork(self, kept: Kept, files: list[int], order: Any) -> Child | None:
        *standard, report = files
        pid = os.fork()
        if pid:
            self._reports[pid] = report
            os.write(report, f"{pid}\n".encode())
            for number in standard:
                os.close(number)
            return None
        os.setsid()
        signal.set_wakeup_fd(-1)
        for target, number in enumerate(standard):
            os.dup2(number, target)
        for number in {*files, self._ended, self._wake, self._control.detach(), *self._reports.values()} - {0, 1, 2}:
            os.close(number)
        words, directory, environment = order
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        return Child(kept, words)

    def _reap(self) -> None:
        while self._reports:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            report = self._reports.pop(pid)
            with suppress(BrokenPipeError):
                os.write(report, f"{status}\n".encode())
            os.close(report)

    def _end(self) -> NoReturn:
        for pid in self._reports:
            with suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        os._exit(0)


def _nothing(number: int, frame: FrameType | None) -> None:
    pass


def main(bare: Set[str]) -> None:
    """Serves on the socket whose number is the argument."""
    del sys.path[:2]  # the current directory and this file's
    sys.path.insert(0, "")
    kept = Kept(bare)
    kept.watch()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))  # else children take it all to pieces when they end
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        child = _Server(control).serve(kept)
    child.run()
