"""The file of what was learned: what is written is read, and anything else ends in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddlprof.extensions.learn.judge import learn
from ddlprof.recommender import PredictionError
from ddlprof.recommender.learned import Learned, learned_text, read_learned
from tests.extensions.learn.teams import team


@pytest.fixture(scope="module")
def learned() -> Learned:
    found = learn([*team(4, factor=1.5, gpus=4)]).learned
    assert found is not None
    return found


def test_what_is_written_is_read(learned: Learned, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(learned_text(learned))
    again = read_learned(path)
    assert learned_text(again) == learned_text(learned)
    assert {row.where for row in (*again.compute,)} | {row.where for row in again.links} == {str(path)}
    assert str(path) in again.sentence


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 2}, "has format 2, and this version reads 1"),
        ({"format": None}, "has format None"),
        ({"shipped": "0"}, "with the coefficients of another version"),
        ({"parameters": ["other"]}, "with the coefficients of another version"),
        ({"links": [{}]}, "links"),
        ({"compute": [{"gpu_model": "T4"}]}, "compute"),
        ({"compute": "all"}, "compute"),
        ({"errors": [{"what": 3}]}, "errors"),
    ],
    ids=str,
)
def test_a_wrong_file_is_one_line(change: dict[str, Any], says: str, learned: Learned, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(json.loads(learned_text(learned)) | change))
    with pytest.raises(PredictionError) as raised:
        read_learned(path)
    text = str(raised.value)
    assert says in text
    assert "\n" not in text
    assert text.startswith(str(path))
    assert "make one with: ddlprof learn" in text


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\x80\x04K\x01.", b'{"format": 1, "format": 1}', b"nan"])
def test_no_such_file_is_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(content)
    with pytest.raises(PredictionError, match=r"make one with"):
        read_learned(path)
    with pytest.raises(PredictionError, match=r"gone\.json"):
        read_learned(tmp_path / "gone.json")


@pytest.mark.parametrize("value", [1e9, -1e9, "x", None])
def test_numbers_out_of_range_are_refused(value: object, learned: Learned, tmp_path: Path) -> None:
    content = json.loads(learned_text(learned))
    content["links"][0]["shift"][0] = value
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(content))
    with pytest.raises(PredictionError, match="shift"):
        read_learned(path)
