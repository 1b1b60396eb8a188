"""What a job does besides steps, in real loops: evaluations, checkpoints of several libraries, compilations."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ddlprof.model.records import Flag, JobSpan
from tests.integration.hooks.conftest import Profile, Profiling

MS = 1_000_000
SAFETENSORS = """
import time

def save_file(tensors, path):
    time.sleep(0.02)

def save_model(model, path):
    time.sleep(0.02)
    save_file(model.state_dict(), path)
"""


def loader(batches: int) -> Any:
    return DataLoader(TensorDataset(torch.ones(4 * batches, 4)), batch_size=4)


def train(net: Any, steps: int = 3) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for (batch,) in loader(steps):
        optimizer.zero_grad()
        net(batch).sum().backward()
        optimizer.step()


def evaluate(net: nn.Module, batches: int = 3) -> None:
    net.eval()
    with torch.no_grad():
        for (batch,) in loader(batches):
            net(batch)
            time.sleep(0.02)
    net.train()


def spans(profile: Profile, what: str) -> list[JobSpan]:
    return [span for span in profile.records("p") if span.what == what]


def test_evaluations_inside_and_after_the_training(profiling: Profiling) -> None:
    with profiling() as profile:
        net = nn.Linear(4, 4)
        train(net)
        evaluate(net)
        train(net)
        evaluate(net, 2)
    first, second = spans(profile, "evaluation")
    assert first.duration_ns >= 60 * MS
    assert second.duration_ns >= 40 * MS
    last = profile.rows[-1]
    assert second.start_ns >= last.start_ns + last.step_ns
    assert profile.rows[3].start_ns <= first.start_ns
    assert first.start_ns + first.duration_ns <= profile.rows[3].start_ns + profile.rows[3].step_ns
    assert len(profile.rows) == 6
    assert spans(profile, "checkpoint") == []
    assert len(spans(profile, "profiling")) == 1


class Wrapper(nn.Module):
    """As DistributedDataParallel is one."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: torch.Tensor) -> Any:
        return self.module(batch)


@pytest.mark.parametrize("which", ["inner", "inner of a wrapper in eval mode", "copy"])
def test_a_model_that_only_evaluations_call(which: str, profiling: Profiling) -> None:
    with profiling() as profile:
        inner = nn.Linear(4, 4)
        net = Wrapper(inner)
        train(net, 6)
        if which == "copy":
            inner = nn.Linear(4, 4)
        if which == "inner of a wrapper in eval mode":
            net.eval()
        evaluate(inner)
        net.train()
        train(net, 6)
        evaluate(inner)
        assert "_compiled_call_impl" in vars(inner)
    first, second = spans(profile, "evaluation")
    assert min(first.duration_ns, second.duration_ns) >= 60 * MS
    assert [bool(row.flags & Flag.EVALUATION) for row in profile.rows] == [False] * 6 + [True] + [False] * 5
    assert "_compiled_call_impl" not in vars(inner)


def test_checkpoints_of_torch(profiling: Profiling, tmp_path: Path) -> None:
    with profiling() as profile:
        net = nn.Linear(4, 4)
        torch.save(net, tmp_path / "first.pt")
        train(net)
        torch.serialization.save(net, tmp_path / "a.pt")
        torch.save(net, tmp_path / "b.pt")
        train(net)
        torch.save(net, tmp_path / "last.pt")
        thread = threading.Thread(target=torch.save, args=(net, tmp_path / "aside.pt"))
        thread.start()
        thread.join()
    first, second, third = spans(profile, "checkpoint")
    assert first.start_ns < profile.rows[0].start_ns
    assert profile.rows[3].start_ns <= second.start_ns <= profile.rows[4].start_ns
    assert third.start_ns > profile.rows[-1].start_ns


def test_a_checkpoint_that_cannot_be_written(profiling: Profiling, tmp_path: Path) -> None:
    with profiling() as profile:
        net = nn.Linear(4, 4)
        for _ in range(2):
            with pytest.raises(RuntimeError):
                torch.save(net, tmp_path / "nowhere" / "net.pt")
            train(net)
    assert len(spans(profile, "checkpoint")) == 2


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.skipif(torch.__version__ < "2.11", reason="in torch 2.6 dcp.save needs a group")
def test_a_distributed_checkpoint_is_one_and_its_functions_are_given_back(profiling: Profiling, tmp_path: Path) -> None:
    dcp: Any = importlib.import_module("torch.distributed.checkpoint")
    saver: Any = importlib.import_module("torch.distributed.checkpoint.state_dict_saver")
    before = [dcp.save, dcp.async_save, saver.save, torch.save]
    with profiling() as profile:
        net = nn.Linear(4, 4)
        train(net)
        assert dcp.save is saver.save is not before[0]
        dcp.save({"net": net.state_dict(), "step": 1}, checkpoint_id=tmp_path / "dcp", no_dist=True)
        train(net)
    (span,) = spans(profile, "checkpoint")
    assert span.duration_ns > 0
    assert [dcp.save, dcp.async_save, saver.save, torch.save] == before


def test_a_library_that_is_imported_later(
    profiling: Profiling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "safetensors"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "torch.py").write_text(SAFETENSORS)
    for name in ("safetensors", "safetensors.torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with profiling() as profile:
        net = nn.Linear(4, 4)
        train(net)
        safetensors = importlib.import_module("safetensors.torch")
        safetensors.save_model(net, "x")
        train(net)
        safetensors.save_file({}, "x")
    for name in ("safetensors", "safetensors.torch"):
        sys.modules.pop(name)
    outer, inner = spans(profile, "checkpoint")
    assert outer.duration_ns >= 40 * MS
    assert inner.duration_ns >= 20 * MS
    assert not hasattr(safetensors.save_file, "__wrapped__")


def test_compiling_is_timed(profiling: Profiling) -> None:
    def backend(graph: Any, inputs: Any) -> Any:
        time.sleep(0.05)
        return graph.forward

    with profiling() as profile:
        train(torch.compile(nn.Linear(4, 4), backend=backend))
    (span,) = spans(profile, "compilation")
    assert span.duration_ns >= 50 * MS
    first = profile.rows[0]
    assert first.start_ns <= span.start_ns < first.start_ns + first.step_ns
    torch._dynamo.reset()


def test_files_that_are_written_and_read_are_known_again(profiling: Profiling, tmp_path: Path) -> None:
    torch.save({"step": 7, "net": nn.Linear(4, 4).state_dict()}, tmp_path / "before.pt")
    with profiling() as first:
        net = nn.Linear(4, 4)
        torch.load(tmp_path / "before.pt")
        train(net)
        torch.save(net.state_dict(), tmp_path / "new.tmp")
        (tmp_path / "new.tmp").rename(tmp_path / "latest.pt")
        train(net)
        torch.load(tmp_path / "before.pt")  # after the first step, reads are of data or of other models
        with (tmp_path / "open.pt").open("wb") as file:
            torch.save(net.state_dict(), file)
    loaded, saved, open_file = sorted(first.records("r"), key=lambda file: file.step)
    assert (loaded.what, loaded.step, loaded.told) == ("loaded", 0, 7)
    assert (saved.what, saved.step, saved.told) == ("saved", 3, None)
    assert (open_file.what, open_file.step) == ("saved", 6)
    with profiling() as second:
        torch.load(tmp_path / "latest.pt")
        with (tmp_path / "open.pt").open("rb") as to_read:
            torch.load(to_read)
        train(nn.Linear(4, 4))
    again, opened = second.records("r")
    assert again.file == saved.file != ""
    assert again.place != saved.place
    assert opened.place == open_file.place != ""


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_distributed_checkpoint_is_known_again(profiling: Profiling, tmp_path: Path) -> None:
    dcp: Any = importlib.import_module("torch.distributed.checkpoint")
    with profiling() as first:
        net = nn.Linear(4, 4)
        train(net)
        dcp.save({"net": net.state_dict()}, checkpoint_id=tmp_path / "a", no_dist=True)
    (tmp_path / "a").rename(tmp_path / "b")
    with profiling() as second:
        dcp.load({"net": nn.Linear(4, 4).state_dict()}, checkpoint_id=tmp_path / "b", no_dist=True)
        train(nn.Linear(4, 4))
    (saved,), (loaded,) = first.records("r"), second.records("r")
    assert (saved.step, loaded.what) == (3, "loaded")
    assert loaded.file == saved.file != ""
