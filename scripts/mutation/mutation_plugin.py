"""What pytest does for `scripts.mutate`: loaded by `-p`, in a checkout that may not have this file, so it stands alone.

With MUTATION_SEEN it notes how long each test took, whether it passed and is `slow`, and names it to coverage. With
MUTATION_TESTS it runs the tests of that file and no others, in this order, and says in MUTATION_KILLER which one runs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

SEEN = os.environ.get("MUTATION_SEEN")
TESTS = os.environ.get("MUTATION_TESTS")
KILLER = os.environ.get("MUTATION_KILLER")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the tests that are asked for, in the order in which they are."""
    if TESTS:
        order = {name: number for number, name in enumerate(json.loads(Path(TESTS).read_text()))}
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Names the test to coverage, and to the one who waits."""
    if KILLER:
        Path(KILLER).write_text(item.nodeid)
    if SEEN and (measured := coverage.Coverage.current()):
        measured.switch_context(item.nodeid)
    started = time.perf_counter()
    item.stash[PASSED] = True
    result = yield
    if SEEN:
        seen = {
            "test": item.nodeid,
            "seconds": round(time.perf_counter() - started, 3),
            "passed": item.stash[PASSED],
            "slow": item.get_closest_marker("slow") is not None,
        }
        with open(SEEN, "a") as out:
            out.write(json.dumps(seen) + "\n")
    return result


PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keeps whether all parts of a test passed."""
    report = yield
    item.stash[PASSED] = item.stash[PASSED] and not report.failed
    return report


def pytest_sessionfinish() -> None:
    """Saves what coverage saw: execnet ends its workers in a way that coverage does not notice."""
    if SEEN and (measured := coverage.Coverage.current()):
        measured.save()
