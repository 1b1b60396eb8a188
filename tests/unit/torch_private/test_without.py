"""In a torch that lacks a name, what needs it does without, or says so in one line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddlprof.collect.hooks.table import hook_context
from ddlprof.collect.install import Uninstall
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Kind
from ddlprof.torch_private import collectives, compile, engine, loader, modules, profiler

BARE: Any = SimpleNamespace(__version__="9.0", _C=SimpleNamespace(), autograd=SimpleNamespace())


def test_what_can_be_done_without() -> None:
    assert engine.graph_task(BARE)() == -1
    assert engine.dispatch_modes(BARE)() == 0
    with engine.no_torch_function(BARE):
        pass
    assert engine.call_at_backward_end(BARE) is None
    assert engine.recorded_operations(BARE) is None
    assert engine.version_or_none(BARE) is None
    assert engine.sequence_number(BARE) is None
    assert engine.forward_class(BARE) is None
    assert compile.skip_code(BARE) is None
    assert compile.set_callback(BARE) is None
    assert collectives.flight_recorder(BARE) is None
    assert profiler.owner_of_synchronize(BARE) is None
    assert loader.number_of_workers(BARE) is None
    assert modules.scaler_state(BARE, BARE) == {}
    assert not modules.skips_on_device(BARE)


@pytest.mark.parametrize(
    ("needing", "name"),
    [
        (collectives.unboxing, "_C._distributed_c10d.ProcessGroup.unbox"),
        (collectives.process_group, "_C._distributed_c10d.ProcessGroup"),
        (collectives.reducer, "_C._distributed_c10d.Reducer"),
        (collectives.below_backend_selection, "_C._dispatch_keyset_full_after"),
        (collectives.wait_operator, "ops._c10d_functional.wait_tensor.default"),
        (profiler.of_operators, "_C._autograd._profiler_enabled"),
        (profiler.of_device, "_C._autograd._prepare_profiler"),
        (lambda torch: profiler.config(torch, "CPU"), "_C._profiler"),
    ],
)
def test_what_a_measurement_needs_is_named(needing: Any, name: str) -> None:
    with pytest.raises(AttributeError) as error:
        needing(BARE)
    assert str(error.value) == f"torch 9.0 has no torch.{name}"


def test_the_way_of_torch_2_6_and_before_to_skip_code() -> None:
    skipped: list[Any] = []
    old = SimpleNamespace(
        _C=SimpleNamespace(_dynamo=SimpleNamespace(eval_frame=SimpleNamespace(skip_code=skipped.append)))
    )
    skip = compile.skip_code(old)
    assert skip is not None
    skip(test_what_can_be_done_without.__code__)
    assert len(skipped) == 1


def test_updates_are_seen_where_nothing_tells_of_a_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_current_graph_task_id")
    recorder = Recorder()
    uninstall: Uninstall = hook_context(torch, recorder).steps.install()
    try:
        torch.optim.SGD([torch.ones(1, requires_grad=True)]).step()
    finally:
        uninstall()
    assert recorder.boundaries == 1
    assert [event[0] for chunk in recorder.chunks for event in chunk][-1] == Kind.OPTIMIZER_END
    assert recorder.drops.take() == []
