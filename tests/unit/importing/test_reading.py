"""Traces whole, torn, damaged and of other things."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from ddlprof.base.errors import UserError
from ddlprof.importing import reading
from ddlprof.importing.reading import NoTraceError, OutsideEvents, events
from ddlprof.importing.trace_columns import Collector
from tests.unit.importing.traces import device_trace, write_trace


def read(path: Path) -> tuple[list[dict[str, object]], OutsideEvents]:
    beside = OutsideEvents()
    return list(events(path, beside)), beside


@pytest.mark.parametrize("size", [1, 7, 64, 1 << 20])
def test_pieces_of_any_size(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands at the end is found, and an event that goes over the end of a piece is whole."""
    monkeypatch.setattr(reading, "CHUNK_BYTES", size)
    path = write_trace(tmp_path / "a.json", device_trace(steps=1), note="ä\n", list=[1, {"b": None}])
    content = json.loads(path.read_text())
    found, beside = read(path)
    assert found == content.pop("traceEvents")
    assert beside.values == content
    assert not beside.torn


def test_a_list_of_events_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("\ufeff" + json.dumps(device_trace(steps=1)), encoding="utf-8")
    assert read(path)[0] == device_trace(steps=1)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_of_a_torn_trace_what_is_whole_is_read(name: str, share: float, tmp_path: Path) -> None:
    path = write_trace(tmp_path / name, device_trace(steps=50))
    whole, _ = read(path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    found, beside = read(path)
    assert beside.torn
    assert len(found) > (share - 0.2) * len(whole)
    assert found == whole[: len(found)]


def test_one_damaged_event_costs_only_itself(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json", device_trace(steps=3))
    before, _, after = path.read_text().partition('"name": "ProfilerStep#11"')
    path.write_text(before + '"name": Profiler"Step' + after)
    found, beside = read(path)
    assert beside.damaged == 1
    assert len(found) == len(device_trace(steps=3)) - 1
    assert not beside.torn


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"step,time\n1,2\n", "not JSON"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "not JSON"),
        (b'{"schema": 1, "argv": []}', "no traceEvents"),
        (b'{"traceEvents": {"a": 1}}', "no traceEvents"),
        (b"[" * 100_000, "no operator"),
        (b'{"a":' * 100_000, "no traceEvents"),
        (b'{"traceEvents": [1, "x", {"ph": "X"}]}', "no operator"),
        (gzip.compress(b""), "empty"),
        (gzip.compress(b"hello"), "not JSON"),
        (gzip.compress(bytes(range(256)) * 100)[:50], "damaged"),
        (b"\x1f\x8b garbage", "damaged"),
    ],
    ids=range(12),
)
def test_what_is_no_trace_is_refused_in_a_line(content: bytes, message: str, tmp_path: Path) -> None:
    from ddlprof.importing import import_traces

    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(NoTraceError, match=message) as caught:
        import_traces([path], tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


class Spy:
    """A decoder that counts the characters that it is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.characters = 0
        self._decoder = reading._DECODER
        monkeypatch.setattr(reading, "_DECODER", self)

    def raw_decode(self, text: str, at: int) -> tuple[object, int]:
        self.characters += len(text) - at
        return self._decoder.raw_decode(text, at)


def test_a_long_value_is_parsed_in_linear_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CHUNK_BYTES", 10)
    spy = Spy(monkeypatch)
    path = tmp_path / "a.json"
    content = json.dumps({"long": [[]] * 5000, "traceEvents": [{"ph": "X"}]})
    path.write_text(content)
    found, beside = read(path)
    assert (len(found), len(beside.values["long"])) == (1, 5000)
    assert spy.characters < 6 * len(content)


@pytest.mark.parametrize(
    "values", [{"long": [[]] * 5000}, {str(number): [[]] * 200 for number in range(25)}, {"a" * 9999: 1}]
)
def test_what_stands_beside_the_events_is_parsed_up_to_a_limit(
    values: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_BESIDE_CHARACTERS", 2000)
    monkeypatch.setattr(reading, "CHUNK_BYTES", 100)
    spy = Spy(monkeypatch)
    path = tmp_path / "a.json"
    path.write_text(json.dumps({**values, "traceEvents": [{"ph": "X"}]}))
    with pytest.raises(NoTraceError, match="no traceEvents in what can be read of it"):
        read(path)
    assert spy.characters < 6 * 2000


@pytest.mark.parametrize("piece", ['{"ph":[', '{"ph":[' + "1," * 40, "[],", "{},", '{"ph":' + "9" * 5000 + "},"])
def test_what_is_no_event_is_looked_through_up_to_a_limit(
    piece: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_DAMAGE_CHARACTERS", 10_000)
    monkeypatch.setattr(reading, "MAX_EVENT_CHARACTERS", 20_000)
    monkeypatch.setattr(reading, "MAX_DAMAGED", 100)
    monkeypatch.setattr(reading, "CHUNK_BYTES", 1000)
    spy = Spy(monkeypatch)
    path = tmp_path / "a.json"
    path.write_text("[" + piece * (1_000_000 // len(piece)))
    found, beside = read(path)
    assert found == []
    assert beside.torn
    assert spy.characters < 3_000_000


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SMALL_CHARACTERS", 100_000)
    monkeypatch.setattr(reading, "CHUNK_BYTES", 1000)
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b"[" + b'{"ph": "X"},' * 100_000))
    with pytest.raises(UserError, match="would unpack to more than 200 times its size"):
        read(path)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.json")
    for name, message in (("fifo.json", "not a regular file"), ("gone.json", "No such file")):
        with pytest.raises(UserError, match=message):
            read(tmp_path / name)


@pytest.mark.parametrize("value", [10**400, -(10**400), float("nan"), float("inf"), 2**63, "1", None, [1], True])
@pytest.mark.parametrize("name", ["ts", "dur"])
def test_a_time_that_is_none_costs_its_event(name: str, value: object) -> None:
    collector = Collector()
    for each in device_trace(steps=1):
        collector.add({**each, name: value} if each["name"] == "ProfilerStep#10" else each)
    found = collector.finish()
    assert found.unreadable == 1
