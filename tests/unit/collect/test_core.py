"""Which core is chosen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zlib import crc32

import pytest

from ddlprof.collect import core

LOOK = "import sys, types; sys.modules['ddlprof.collect._core'] = types.ModuleType('_core'); "
LOOK += "import ddlprof.collect; ddlprof.collect._core = sys.modules['ddlprof.collect._core']; "
LOOK += "from ddlprof.collect import core; print(core.IN_C, core.STALE)"
"""Imports the core where the module in C does not say of which source it was built."""


def test_a_core_of_the_source_beside_it_fits_and_so_does_one_without_a_source(tmp_path: Path) -> None:
    source = tmp_path / "_core.c"
    assert not core.is_stale(None, source)
    source.write_text("int x;")
    assert not core.is_stale(crc32(b"int x;"), source)
    source.write_text("long x;")
    assert core.is_stale(crc32(b"int x;"), source)
    assert core.is_stale(None, source)


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0)])
def test_in_place_of_a_stale_core_that_in_python_runs_and_one_line_says_so(rank: str, lines: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK], env={"RANK": rank}, cwd=Path(__file__).parents[3], capture_output=True, text=True
    )
    assert done.stdout.split() == ["False", "True"]
    assert done.stderr.count(core.REBUILD) == done.stderr.count("\n") == lines
