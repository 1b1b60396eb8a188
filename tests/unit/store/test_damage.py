"""Whatever happens to the files of a run, it is read, or refused with one line."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ddlprof.analysis.run import analyse
from ddlprof.model.errors import UserError
from ddlprof.report.run import card, csv, json
from ddlprof.report.run.data import build_report
from ddlprof.store import load_run
from tests.golden.runs import GOLDEN_RUN, HERE, NOW_UNIX_NS

FILES = sorted(p.relative_to(HERE / GOLDEN_RUN) for p in (HERE / GOLDEN_RUN).rglob("*") if p.is_file())
JSON_BYTES = st.sampled_from([bytes([b]) for b in b'0123456789",[]{}nul-.eE \n'])


@settings(deadline=None, max_examples=150)
@given(
    file=st.sampled_from(FILES),
    position=st.floats(0, 1, exclude_max=True),
    removed=st.integers(0, 40),
    inserted=st.one_of(JSON_BYTES, st.binary(max_size=8), st.just(b"9" * 25)),
)
def test_damage_never_raises(file: Path, position: float, removed: int, inserted: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "run"
        shutil.copytree(HERE / GOLDEN_RUN, directory)
        content = (directory / file).read_bytes()
        at = int(position * len(content))
        (directory / file).write_bytes(content[:at] + inserted + content[at + removed :])
        try:
            run = load_run(directory)
        except UserError:
            return
        attempts = analyse(run)
        report = build_report(run, attempts, NOW_UNIX_NS)
        assert card.render(report)
        assert json.render(report)
        csv.export(run, attempts, Path(folder) / "csv")
