"""What holds for every test: a clean environment, and the markers that depend on the machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips, with the reason, what this machine cannot run."""
    if item.get_closest_marker("gpu"):
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
    if item.get_closest_marker("root") and (os.geteuid() != 0 or shutil.which("ip") is None):
        pytest.skip("needs root and iproute2")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The surroundings of the developer's shell change no result: no options of ours, no job of torchrun's."""
    for name in os.environ:
        if name.startswith(("DDLPROF_", "TORCHELASTIC_")) or name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)


@pytest.fixture
def dynamo_forgets() -> Iterator[None]:
    """For a test that compiles: to the ones after it, nothing was compiled in this process."""
    yield
    import torch._dynamo

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
