"""Transfers that are not seen are named."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ddlprof.collect.recorder import Recorder
from ddlprof.collect.unseen_transfers import PeerCopies, symmetric_memory_is_used


def test_symmetric_memory_is_used_where_it_keeps_something(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "torch.distributed._symmetric_memory"
    monkeypatch.delitem(sys.modules, name, raising=False)
    assert not symmetric_memory_is_used()
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(_backend_streams={}))
    assert not symmetric_memory_is_used()
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(_backend_streams={0: 1}))
    assert symmetric_memory_is_used()


@pytest.mark.parametrize(("devices", "said"), [(["cuda:0", "cuda:0"], 0), (["cuda:1", "cuda:0"], 1), (["cpu"], 0)])
def test_a_model_on_several_devices_copies_between_them(devices: list[str], said: int) -> None:
    import torch

    def parameters() -> Any:
        return [SimpleNamespace(device=torch.device(device)) for device in devices]

    recorder, notes = Recorder(), []
    recorder.note = lambda hook, message: notes.append(message)
    peers = PeerCopies(recorder)
    for _ in range(2):
        peers.look(SimpleNamespace(parameters=parameters))
    assert len(notes) == said
    assert all("cuda:0, cuda:1" in note for note in notes)
