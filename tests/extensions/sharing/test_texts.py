"""What `ddlprof share --inspect` reads of an archive that somebody made to be hostile."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ddlprof.base.errors import UserError
from ddlprof.extensions.sharing import texts
from ddlprof.store.operators import MAX_BYTES

LISTS = b"[" + b"[]," * (MAX_BYTES // 3) + b"[]]"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("operators.json", LISTS, "operators.json: has "),
        ("manifest.json", LISTS, "manifest.json: has "),
        ("operators.json", json.dumps([str(n) for n in range(30)]).encode(), "more than 20 different texts"),
        ("manifest.json", json.dumps({str(n): 0 for n in range(30)}).encode(), "more than 20 different texts"),
        ("attempt-0/rank-0.jsonl", b"\n".join(b"junk %d" % n for n in range(30)), "more than 20 different texts"),
    ],
)
def test_hostile_archives_are_parsed_within_bounds(
    name: str, content: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "MAX_TEXTS", 20)
    parsed: list[int] = []

    def parse(text: str) -> Any:
        parsed.append(len(text))
        return json.loads(text)

    monkeypatch.setattr(texts, "parse_json", parse)
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    with pytest.raises(UserError, match=message):
        texts.texts_in(tmp_path / "x.zip")
    assert sum(parsed) < MAX_BYTES


def test_a_long_text_is_shown_by_its_beginning(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", json.dumps({"name": "a" * 5000}))
    assert "a" * 1000 + "... (5,000 characters)" in texts.texts_in(tmp_path / "x.zip")["manifest.json"]
