"""Errors of ours in front of a collective are not the collective's."""

from __future__ import annotations

from typing import Any

import torch

from ddlprof.collect.hooks.collectives import _Collectives
from ddlprof.collect.hooks.streams import Streams
from ddlprof.collect.recorder import Recorder
from ddlprof.collect.seen_groups import SeenGroups
from ddlprof.model.events import Kind


def test_a_wait_for_something_without_an_address_goes_on() -> None:
    def which(tensor: Any) -> Any:
        raise RuntimeError("Cannot access data pointer of Tensor (e.g. FakeTensor)")

    recorder = Recorder()
    wait = _Collectives(recorder, Streams(torch, recorder, None), SeenGroups()).blocking(lambda tensor: tensor, which)
    assert wait("waited for") == "waited for"
    assert [event[0] for event in recorder.recent()] == [Kind.COMM_BEGIN, Kind.COMM_END]
