"""Whose code a frame is, and which line of a stack is named."""

from __future__ import annotations

import importlib
import json
import logging
import multiprocessing.process
import os
import sys
import sysconfig
import textwrap
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest
import torch
from torch.distributed import distributed_c10d

import ddlprof.collect.process.stacks
from ddlprof.collect.process.frames import (
    INSTALLED,
    INTERPRETER,
    OURS,
    USER,
    StackFrame,
    inside_loop,
    positions,
    stack_of_frame,
    stack_of_thread,
)
from ddlprof.collect.process.stacks import CodeLocator, StackSampler
from ddlprof.model.source_locations import LOGGING, LOOP, MAKES_GROUPS, MODULE, PROGRAMS, SourceLocation

PACKAGES = sysconfig.get_paths()["purelib"]


@pytest.mark.parametrize(
    ("filename", "owner"),
    [
        (__file__, USER),
        ("train.py", USER),
        ("/home/me/my-site-packages/train.py", USER),
        ("/tmp/ipykernel_4711/123.py", USER),
        ("/home/me/editable/transformers/src/transformers/trainer.py", USER),
        ("/home/me/train.pyz/__main__.py", USER),
        (json.__file__, INTERPRETER),
        (threading.__file__, INTERPRETER),
        ("<frozen importlib._bootstrap>", INTERPRETER),
        ("<frozen runpy>", INTERPRETER),
        ("<string>", INTERPRETER),
        ("<__array_function__ internals>", INTERPRETER),
        (f"/usr/lib/python{sys.version_info[0]}{sys.version_info[1]}.zip/queue.py", INTERPRETER),
        (os.path.join(PACKAGES, "torch", "nn", "modules", "module.py"), INSTALLED),
        ("/opt/conda/envs/other/lib/python3.11/site-packages/lightning/loop.py", INSTALLED),
        ("/usr/lib/python3/dist-packages/yaml/__init__.py", INSTALLED),
        (ddlprof.collect.process.stacks.__file__, OURS),
    ],
)
def test_whose_code_it_is(filename: str, owner: str) -> None:
    assert CodeLocator().owner(filename) == owner


def test_code_given_as_text_is_the_users_only_where_it_is_the_program() -> None:
    assert CodeLocator().owner("<string>", main=True) == USER
    assert CodeLocator().owner("<stdin>", main=True) == USER
    assert CodeLocator().owner("<frozen runpy>", main=True) == INTERPRETER


def test_a_package_that_is_run_as_a_program_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.machinery.ModuleSpec("recipes.train", None)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    assert CodeLocator().owner(os.path.join(PACKAGES, "recipes", "loop.py")) == USER
    assert CodeLocator().owner(os.path.join(PACKAGES, "torch", "loop.py")) == INSTALLED


@pytest.mark.parametrize("own", [False, True])
def test_a_folder_that_packages_were_installed_into_is_not_the_users_but_for_that_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    target, plain = tmp_path / "target", tmp_path / "plain"
    for folder in (target / "reader-1.0.dist-info", plain):
        folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [*sys.path, str(target), str(plain), str(tmp_path / "none")])
    monkeypatch.setattr(sys, "argv", [str((target if own else plain) / "train.py")])
    places = CodeLocator()
    assert places.owner(str(target / "reader" / "files.py")) == (USER if own else INSTALLED)
    assert places.owner(str(plain / "helpers.py")) == USER
    assert own or places.package(str(target / "reader" / "files.py")) == "reader"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """An installed framework whose loop trains, logs, and calls the user's callbacks."""
    folder = tmp_path / "lib" / "site-packages"
    folder.mkdir(parents=True)
    (folder / "framework.py").write_text(
        textwrap.dedent("""
        class Trainer:
            def __init__(self, update, see):
                self.update, self.see = update, see

            def fit(self, callback=None):
                self.step()
                self.after(callback)

            def step(self):
                self.update()

            def after(self, callback):
                import queue
                self.write()
                if callback:
                    callback()

            def write(self):
                self.see()

            def _save_checkpoint(self):
                self.see()
        """)
    )
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module("framework")
    del sys.modules["framework"]


class Watcher:
    """Takes the stack of an update, and later the places of other stacks; skips its own frame."""

    def __init__(self) -> None:
        self.places = CodeLocator()
        self.update: list[Any] = []
        self.seen: list[SourceLocation | None] = []

    def at_update(self) -> None:
        self.update = positions(sys._getframe(1))

    def look(self) -> None:
        self.seen.append(self.places.find(self.places.inside(stack_of_frame(sys._getframe(1)), self.update)))


def test_a_loop_in_a_library_is_named_by_what_it_calls(library: ModuleType) -> None:
    watcher = Watcher()
    library.Trainer(watcher.at_update, watcher.look).fit()
    (place,) = watcher.seen
    assert place is not None
    assert place.what == "library"
    file, name = place.text.split(" ")
    assert file.startswith("framework.py:")
    assert name == ("Trainer.after" if sys.version_info >= (3, 11) else "after")


def test_a_callback_of_the_users_in_a_librarys_loop(library: ModuleType) -> None:
    watcher = Watcher()

    def callback() -> None:
        watcher.look()

    library.Trainer(watcher.at_update, lambda: None).fit(callback)
    (place,) = watcher.seen
    assert place is not None
    assert place.text.startswith("tests/unit/collect/process/test_whose_code.py:")
    assert place.text.endswith("callback")
    assert place.what == ""


def test_an_unknown_loop_leaves_the_entry_into_the_innermost_package(library: ModuleType) -> None:
    watcher = Watcher()
    thread = threading.Thread(target=library.Trainer(lambda: None, watcher.look).fit)  # without a line of the user's
    thread.start()
    thread.join()
    (place,) = watcher.seen
    assert place is not None
    assert place.text.endswith("fit")


def test_the_interpreter_alone_is_not_named() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    places = CodeLocator()
    assert places.find(places.inside(stack_of_thread(thread.ident or 0), [])) is None
    release.set()
    thread.join()


def test_what_is_known_of_a_line() -> None:
    class Handler(logging.Handler):
        def __init__(self, look: Callable[[], None]) -> None:
            super().__init__()
            self.look = look

    def log(look: Callable[[], None]) -> None:
        frames: list[FrameType] = []

        class Frames(logging.Filter):
            def filter(self, record: logging.LogRecord) -> bool:
                frames.append(sys._getframe(1))
                places = CodeLocator()
                seen.append(places.find(places.inside(stack_of_frame(sys._getframe(1)), [])))
                return False

        logger = logging.getLogger("test_places")
        logger.addFilter(Frames())
        logger.warning("now")

    seen: list[SourceLocation | None] = []
    log(lambda: None)
    assert seen[0] is not None
    assert seen[0].what == "logging"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="which call a line is at is not told before Python 3.11")
def test_a_sleep_is_told_from_its_source() -> None:
    begun = threading.Event()

    def sleeps() -> None:
        begun.set()
        time.sleep(1.5)

    thread = threading.Thread(target=sleeps, daemon=True)
    thread.start()
    begun.wait()
    time.sleep(0.1)
    places = CodeLocator()
    place = places.find(places.inside(stack_of_thread(thread.ident or 0), []))
    assert place is not None
    assert place.what == "sleep"
    assert place.text.endswith("sleeps")


def test_the_stack_inside_the_loop() -> None:
    frames: list[FrameType] = []

    def update() -> None:
        frames.append(sys._getframe())

    def log() -> None:
        frames.append(sys._getframe())

    def loop() -> None:
        update()
        stack = positions(frames[0])
        log()
        inside, outermost = inside_loop(stack_of_frame(frames[1]), stack)
        assert [frame.code.co_name for frame in inside] == ["log", "loop"]
        assert outermost is inside[-1]
        assert inside_loop(stack_of_frame(frames[1]), [])[1] is None

    loop()


def test_the_end_of_an_update_is_of_the_line_that_makes_it() -> None:
    places = CodeLocator()
    seen: list[SourceLocation | None] = []

    def look(*_: object) -> None:
        caller = sys._getframe(1)  # torch's own, which may still be there when the update is over
        inside = places.inside(stack_of_frame(caller), places.without_torch(positions(caller)))
        seen.append(places.find(inside))

    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer.register_step_post_hook(look)
    net(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    (place,) = seen
    assert place is not None
    assert place.text.startswith("tests/unit/collect/process/test_whose_code.py:")


def test_saving_is_told_by_the_names_of_functions(library: ModuleType) -> None:
    watcher = Watcher()

    def _save_checkpoint() -> None:
        watcher.look()

    library.Trainer(watcher.at_update, lambda: None).fit(_save_checkpoint)
    trainer = library.Trainer(watcher.at_update, lambda: None)
    trainer.write = library.Trainer(None, watcher.look)._save_checkpoint
    trainer.fit()
    assert [place and place.what for place in watcher.seen] == ["checkpoint", "checkpoint"]


def test_making_a_process_group_is_told_by_torchs_function(monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = Watcher()
    inner: dict[str, Any] = {"look": watcher.look, "__name__": distributed_c10d.__name__}
    exec(compile("def waits(*_, **__): look()", distributed_c10d.__file__, "exec"), inner)
    monkeypatch.setattr(distributed_c10d, "_new_group_with_tag", inner["waits"])
    torch.distributed.new_group([0])
    (place,) = watcher.seen
    assert place is not None
    assert place.what == MAKES_GROUPS


def test_a_fork_is_no_logging() -> None:
    """`logging` has functions that a fork calls, in which its lock is let go, so that looks fall there."""
    watcher = Watcher()
    inner: dict[str, Any] = {"look": watcher.look, "__name__": "logging"}
    exec(compile("def _releaseLock(): look()", logging.__file__, "exec"), inner)
    outer: dict[str, Any] = {"fork": inner["_releaseLock"], "__name__": "multiprocessing.process"}
    exec(compile("def start(): fork()", multiprocessing.process.__file__, "exec"), outer)
    outer["start"]()
    inner["_releaseLock"]()
    assert [place and place.what for place in watcher.seen] == [PROGRAMS, LOGGING]


def test_a_zip_application(tmp_path: Path) -> None:
    archive = tmp_path / "app.pyz"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("__main__.py", "")
    assert CodeLocator().owner(str(archive / "__main__.py")) == USER


def test_a_file_that_is_known_is_not_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question to the system lets the interpreter's lock go, which the training may then keep for long."""
    places, asked = CodeLocator(), list[str]()
    stack = stack_of_frame(sys._getframe())
    said = [(places.text(frame), places.package(frame.code.co_filename)) for frame in stack]
    monkeypatch.setattr(os, "lstat", lambda path, **more: asked.append(path))
    monkeypatch.setattr(os.path, "realpath", lambda path, **more: asked.append(path))
    assert [(places.text(frame), places.package(frame.code.co_filename)) for frame in stack] == said
    assert asked == []


def test_a_line_that_calls_a_module_of_torchs_is_told() -> None:
    stacks: list[list[StackFrame]] = []

    class Looks(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_: object) -> torch.Tensor:
            stacks.append(stack_of_frame(sys._getframe(1)))
            return torch.zeros(1)

    torch.nn.Sequential(torch.nn.Tanh())(torch.zeros(1).as_subclass(Looks))
    place = StackSampler()._computing_at(LOOP, stacks[-1])
    assert place is not None
    assert place.what == MODULE
