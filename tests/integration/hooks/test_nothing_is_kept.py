"""No hook, sampler or probe keeps anything of the script's: without the cyclic garbage collector, all of it is gone.

Trainings that switch the collector off, as large ones do, count on that.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[3] / "scripts" / "jobs"))

import idioms
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional
from torch.utils.data import DataLoader, TensorDataset

from ddlprof.collect.hang.watch import Quiet
from ddlprof.collect.loader.data_calls import data_call
from ddlprof.collect.session import Session
from ddlprof.model.options import Options
from scripts.lab import simulated_cuda
from tests.integration.hooks.simulated_runs import Run

STEPS = 8
"""More than those in which the model is looked into, and enough that what is done once is done."""
WIDTH = 8
MOST_GROWTH = 20_000
"""Bytes a step. A batch has 786,432."""
PATIENCE_S = 10.0
"""What is kept would be kept for ever."""


class Mark:
    """A local variable, by which it is known whether a frame is alive."""


class BrokenError(Exception):
    """Of the script's own: those of Python take no weak references."""


class Locals:
    """Weak references to the local variables of all functions of a step."""

    def __init__(self, device: str, folder: Path) -> None:
        self.device = device
        self.folder = folder
        self.session: Session | None = None
        self._found: list[tuple[str, weakref.ref[Any]]] = []
        self._until_update: list[tuple[str, weakref.ref[Any]]] = []

    def note(self, where: str, variables: dict[str, Any], until_update: bool = False) -> None:
        """Called at the end of a function with its local variables. `until_update`: they may be kept until the next."""
        for name, value in variables.items():
            if value is not self:
                with suppress(TypeError):  # numbers, and other plain things
                    found = self._until_update if until_update else self._found
                    found.append((f"{where}: {name}", weakref.ref(value)))

    def alive(self, after_update: bool = True) -> list[str]:
        """The names of those that are not gone; they are not looked at again."""
        found, self._found = self._found, []
        if after_update:
            found, self._until_update = found + self._until_update, []
        begin = time.perf_counter()
        while any(value() is not None for _, value in found) and time.perf_counter() < begin + PATIENCE_S:
            time.sleep(0.001)  # threads of torch let go of what they worked on
        return [name for name, value in found if value() is not None]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 1:
            raise BrokenError
        y: Tensor = self.inner(x)
        return y


class Adam(torch.optim.Adam):
    """Made for each step, as in a sweep."""


def loader(workers: int = 0) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(16, WIDTH)), batch_size=4, num_workers=workers)


def trained(seen: Locals) -> None:
    frame, model = Mark(), Net().to(seen.device)
    optimizer = Adam(model.parameters())
    batches = loader()
    first = next(iter(batches))
    for (x,) in batches:
        y = model(x.to(seen.device))
        loss = y.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        evaluated = model.inner(first[0].to(seen.device))
    float(evaluated.sum())
    path = seen.folder / "checkpoint.pt"
    torch.save({"batch": first}, path)
    loaded = torch.load(path)["batch"]
    seen.note("trained", locals())


def scaled(seen: Locals) -> None:
    frame, model = Mark(), Net().to(seen.device)
    optimizer, scaler = Adam(model.parameters()), torch.amp.GradScaler(seen.device, init_scale=4.0)
    loss = model(torch.randn(4, WIDTH).to(seen.device)).sum()
    as_scaled = scaler.scale(loss)
    as_scaled.backward()
    scaler.step(optimizer)
    scaler.update()
    seen.note("scaled", locals())


def failed(seen: Locals) -> None:
    frame, model = Mark(), Net().to(seen.device)
    x = torch.randn(1, WIDTH).to(seen.device)
    try:
        model(x)
    except BrokenError as error:
        seen.note("failed", {"error": error})
    y = torch.randn(4, WIDTH, requires_grad=True)
    y.register_hook(broken)
    try:
        y.sum().backward()
    except BrokenError as error:
        seen.note("failed", {"error of backward": error})
    seen.note("failed", locals())


def broken(gradient: Tensor) -> None:
    raise BrokenError


def text(seen: Locals) -> None:
    """A batch of text that no model gets."""
    frame, numbers = Mark(), [{"input_ids": torch.ones(5, dtype=torch.int64)} for _ in range(4)]
    batch = next(iter(DataLoader(numbers, batch_size=2)))  # type: ignore[arg-type]
    ids = batch["input_ids"]
    seen.note("text", locals())


def worked(seen: Locals) -> None:
    frame, batches = Mark(), loader(workers=1)
    iterator = iter(batches)
    batch = next(iterator)[0]
    seen.note("worked", locals())


def made(count: int) -> Iterator[Tensor]:
    for _ in range(count):
        with suppress(BrokenError):
            yield torch.ones(4, WIDTH)


def throw(generator: Any, seen: Locals) -> None:
    try:
        raise BrokenError
    except BrokenError as error:
        seen.note("throw", {"error": error})
        with suppress(StopIteration):
            generator.throw(error)


def called(seen: Locals) -> None:
    frame, make = Mark(), data_call(made)
    batches = make(2)
    batch = next(batches)
    gone = weakref.ref(batch)
    del batch
    assert gone() is None, "held between two batches"
    for _ in range(2):  # it catches both, and the second one ends it
        throw(batches, seen)
    listed = list(data_call(as_list)())
    seen.note("called", {name: value for name, value in locals().items() if value is not made})


def as_list() -> Iterator[Tensor]:
    return iter([torch.ones(4, WIDTH)])


def agreed(seen: Locals) -> None:
    """Collectives: waited for, not waited for, and functional."""
    frame, one, two, three = Mark(), torch.ones(4), torch.ones(4), torch.ones(4)
    dist.all_reduce(one)
    dist.all_reduce(two, async_op=True).wait()
    work = dist.all_reduce(three, async_op=True)
    gathered = [torch.empty(4)]
    dist.all_gather(gathered, one)
    work.wait()
    world: Any = dist.group.WORLD
    summed: Any = functional.all_reduce(torch.ones(4), "sum", world)
    plain = summed + 1
    del world
    seen.note("agreed", {**locals(), "memory": summed.elem})


def not_waited_for(seen: Locals) -> None:
    """A collective whose end nobody waits for: until the next update it may be looked at."""
    frame, one, ended = Mark(), torch.ones(4), threading.Event()
    work = dist.all_reduce(one, async_op=True)
    work.get_future().add_done_callback(lambda _: ended.set())
    assert ended.wait(60)  # the next update must not come before, as it may on a busy machine
    seen.note("not_waited_for", {"frame": frame})
    seen.note("not_waited_for", {"one": one, "work": work}, until_update=True)


def looked_at(seen: Locals) -> None:
    """The stack is sampled, and the state of the rank written, in another thread as always."""
    frame = Mark()
    if seen.session is not None:
        thread = threading.Thread(target=look, args=(seen.session,))
        thread.start()
        thread.join()
        seen.session.pause()
        seen.session.resume()
        seen.session._install_in_group()
    seen.note("looked_at", {"frame": frame})


def look(session: Session) -> None:
    session.helper._sample_stack()
    state = session.hangs._states.state(Quiet(session.hangs.watch, True, 1.0, 1.0, 1))
    assert any("look" in line for line in (state.thread.calls, *state.thread.stack))


def kept_output(seen: Locals, model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
    """An output that is kept, which holds nothing of what it was made of."""
    frame, x = Mark(), torch.randn(4, WIDTH)
    hidden = model[0](x).relu()  # type: ignore[index]
    y: Tensor = model[1](hidden)  # type: ignore[index]
    y.sum().backward()
    optimizer.step()
    seen.note("kept_output", {"frame": frame, "x": x, "hidden": hidden})
    return y


PARTS: tuple[Callable[[Locals], None], ...] = (
    failed, text, worked, called, scaled, looked_at, agreed, not_waited_for, trained,
)  # fmt: skip


def all_steps(seen: Locals, steps: int = STEPS) -> list[str]:
    """What is alive after each part of each step."""
    found = []
    for _ in range(steps):
        for part in PARTS:
            part(seen)
            found += seen.alive(part is trained)
    return found


@pytest.fixture
def uncollected() -> Iterator[None]:
    """The collector is off."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def group() -> Iterator[None]:
    store: Any = torch._C._distributed_c10d.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_nothing_of_a_step_is_alive_after_it(device: str, tmp_path: Path, group: None, uncollected: None) -> None:
    with simulated_cuda.simulated() if device == "cuda" else nullcontext():
        seen = Locals(device, tmp_path)
        all_steps(seen, 1)  # what torch keeps of a first time
        assert all_steps(seen, 2) == []
        session = seen.session = Session(Options(out=str(tmp_path / "run"), quiet=True), "test", [])
        session.begin()
        try:
            session.input.watch()
            session._install_in_group()
            session.recorder.widest_gap = 1  # every event is timed
            assert all_steps(seen) == []
            assert session.context is not None
            assert {*session.context.groups.by_name} == {"0"}  # collectives were seen
        finally:
            session.finish("ok", 0)
    assert len(Run(tmp_path / "run").rows) > STEPS


IN_CI = ["gan"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", [*IN_CI, *(pytest.param(n, marks=pytest.mark.nightly) for n in idioms.IDIOMS if n not in IN_CI)]
)
def test_memory_grows_no_more_with_a_step_than_without_us(name: str, tmp_path: Path) -> None:
    """The loops of docs/compatibility.md, by processes of their own whose collector is off."""
    calls = [word.replace("__main__", "idioms") for word in idioms.OPTIONS.get(name, ())]
    ours = ["-m", "ddlprof", "run", "--quiet", "--out", str(tmp_path / "run"), *calls]
    assert grown(name, *ours) < max(grown(name), 0) + MOST_GROWTH


def grown(name: str, *before: str) -> int:
    """The bytes that a step adds to a process, whose arguments begin so."""
    script = Path(__file__).with_name("uncollected.py")
    freeing = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed is given back
    command = [sys.executable, *before, str(script), name]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=400, env=freeing)
    return int(done.stdout.partition("GREW")[2].split()[0])
