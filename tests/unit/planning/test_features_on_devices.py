"""What `ddlprof features` counts is the same with and without a GPU, and it leaves the GPU alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from ddlprof.planning.features import CountedModel, count_model
from scripts.lab import simulated_cuda

NETS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, device=None):
        super().__init__()
        self.embedding = nn.Embedding(1000, 64, device=device)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, device=device)
        self.out = nn.Linear(64, 1000, device=device)
        self.register_buffer("places", torch.arange(16.0, device=device)[:, None].expand(16, 64).clone())

    def forward(self, x):
        return self.out(self.layer(self.embedding(x) + self.places))

def plain(): return Net()
def moved(): return Net().to("cuda:0")
def by_cuda(): return Net().cuda()
def made_there(): return Net("cuda")
def under_a_device():
    with torch.device("cuda"):
        return Net()
def where_there_is_one(): return Net("cuda" if torch.cuda.is_available() else "cpu")
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("nets")
    (folder / "made_up_devices.py").write_text(NETS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield "made_up_devices"


@pytest.fixture(scope="module")
def expected(module: str) -> CountedModel:
    return counted(module, "plain")


def counted(module: str, factory: str, precision: str = "fp32") -> CountedModel:
    found = count_model(f"{module}:{factory}", ["int64:16"], precision=precision)
    return replace(found, facts=replace(found.facts, name=None))


FACTORIES = ("plain", "moved", "made_there", "under_a_device", "where_there_is_one")


@pytest.mark.parametrize("factory", FACTORIES)
def test_the_figures_are_those_of_the_cpu_and_no_context_is_opened(
    module: str, factory: str, expected: CountedModel
) -> None:
    assert expected.step is not None
    with simulated_cuda.simulated() as machine:
        found = counted(module, factory)
        assert machine.contexts == set()
        assert not torch.cuda.is_initialized()
    assert found == expected


@pytest.mark.parametrize("factory", ["moved", "by_cuda", "made_there", "under_a_device"])
def test_a_factory_that_asks_for_cuda_works_without_a_gpu(module: str, factory: str, expected: CountedModel) -> None:
    assert counted(module, factory) == expected
