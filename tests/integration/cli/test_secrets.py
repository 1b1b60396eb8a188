"""A run whose arguments hold credentials in many forms has none of them in any of its files, nor in its card."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.collect.facts.forms import FORMS, LOOKS, spelled

Run = Callable[..., subprocess.CompletedProcess[bytes]]
KEPT = ["--lr", "0.1", "--model", "meta-llama/Llama-3-8B", "optimizer.lr=3e-4", "--max-tokens", "4096"]


@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
def test_no_file_of_a_run_holds_a_credential(
    fails: bool, ddlprof: Run, write_training: Callable[[int], str], tmp_path: Path
) -> None:
    script = write_training(12)
    if fails:
        with (tmp_path / script).open("a", encoding="utf-8") as file:
            file.write("\nimport sys\nraise ValueError(f'unrecognized arguments: {\" \".join(sys.argv)}')\n")
    argv, secrets = list(KEPT), list(LOOKS)
    for form in FORMS[::3]:
        words, found = spelled(form)
        argv += words
        secrets += [secret for secret in found if len(secret) > 5 and not secret.isdigit()]
    for look in LOOKS:
        argv += ["--note", look]
    ran = ddlprof("run", "--out=run", script, *argv)
    assert (ran.returncode != 0) is fails
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert any(path.name == "manifest.json" for path in files)
    for path in files:
        content = path.read_bytes().decode(errors="replace")
        for text in (content, content.replace("\\\\", "\\").replace('\\"', '"').replace("\\n", "\n")):
            assert [secret for secret in secrets if secret in text] == [], path
    kept = json.loads((tmp_path / "run" / "manifest.json").read_bytes())["argv"]
    assert kept[1 : 1 + len(KEPT)] == KEPT
    assert len(kept) == 1 + len(argv)
