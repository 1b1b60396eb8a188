"""Transfers that are not seen are named."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from ddlprof.torch_private.collectives import symmetric_memory_in_use


def test_symmetric_memory_is_used_where_it_keeps_something(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "torch.distributed._symmetric_memory"
    monkeypatch.delitem(sys.modules, name, raising=False)
    assert not symmetric_memory_in_use()
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(_backend_streams={}))
    assert not symmetric_memory_in_use()
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(_backend_streams={0: 1}))
    assert symmetric_memory_in_use()
