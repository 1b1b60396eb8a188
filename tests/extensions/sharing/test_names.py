"""Words that stay in a shared run as they are, because nobody chose them for this run, and what stands for others."""

from __future__ import annotations

import pytest

from ddlprof.extensions.sharing import names as words
from ddlprof.instance_catalog import load
from ddlprof.model import source_locations


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("cpu", "cpu"), ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"), ("Tesla T4", "Tesla T4"),
        ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"), ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
        ("AMD Instinct MI300X", "AMD Instinct MI300X"), ("NVIDIA H200 MIG 1g.18gb", "NVIDIA H200 MIG 1g.18gb"),
        ("ACME secret chip", "device"), ("NVIDIA of gpu-host-17", "device"), ("", "device"),
    ],
)  # fmt: skip
def test_models_of_gpus(name: str, shown: str) -> None:
    assert words.device(name) == shown


def test_every_gpu_of_the_catalogue_can_be_told() -> None:
    hidden = {gpu.gpu_model for gpu in load(None).gpus if words.device(gpu.gpu_model) == "device"}
    assert not hidden


def test_versions() -> None:
    found = {"torch": "2.13.0+cpu", "python": "3.11.7", "cuda": "12.4", "ddlprof": "0.1.0", "mine": "1.0"}
    assert words.versions(found) == {name: found[name] for name in ("torch", "python", "cuda", "ddlprof")}
    assert words.versions({"torch": "2.13.0+corp.host7"}) == {}
    assert words.versions({"torch": "2.8.0a0+git1234567", "cuda": "2.6.0+cu124"}) == {"cuda": "2.6.0+cu124"}


def test_words_that_are_nobodys_stay() -> None:
    assert words.strategy("ddp+fsdp") == "ddp+fsdp"
    assert words.strategy("ddp+mine") == "ddp+other"
    assert words.backend("cpu:gloo,cuda:nccl") == "cpu:gloo,cuda:nccl"
    assert (words.backend("mine"), words.precision("mine"), words.COMM_HOOK.kept("mine")) == (None, None, "hook")
    assert (words.OPTIMIZER.kept("AdamW"), words.OPTIMIZER.kept("MyAdam")) == ("AdamW", "optimizer")
    assert words.COMM_HOOK.kept("") == ""
    assert words.operator("mse_loss_backward", "reduction") == "mse_loss_backward"
    names = words.Pseudonyms()
    told = [names.operation(op) for op in ("allreduce_", "_allgather_base", "recv_any_source", "allreduce_mine", "x")]
    assert told == ["allreduce_", "_allgather_base", "recv_any_source", "allreduce_0", "operation_1"]


def test_every_kind_of_work_at_a_place_stays() -> None:
    kinds = [value for name, value in vars(source_locations).items() if name.isupper() and isinstance(value, str)]
    in_data = set(source_locations.data_words())
    told = {kind if source_locations.in_data(kind) not in in_data else source_locations.in_data(kind) for kind in kinds}
    assert {kind for kind in told if words.WORK.kept(kind) != kind} == set()
    assert words.WORK.kept("of the user's") == ""
