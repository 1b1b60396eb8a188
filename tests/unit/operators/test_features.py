"""Facts of a model, read without touching it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim.swa_utils import AveragedModel

from ddlprof.collect.accelerator import known
from ddlprof.model.manifest import ModelFacts
from ddlprof.operators.features import model_facts, outermost, parameter_bytes, precision_of, reduced_in
from tests.unit.collect.programs import run_all


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        if stride != 1 or inputs != 4 * width:
            shortcut = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(4 * width))


class ResNet50(nn.Sequential):
    """Only its parameters matter here."""

    def __init__(self) -> None:
        blocks: list[nn.Module] = []
        inputs = 64
        for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for i in range(depth):
                blocks.append(Bottleneck(inputs, width, stride if i == 0 else 1))
                inputs = 4 * width
        stem = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64))
        super().__init__(*stem, *blocks, nn.Linear(2048, 1000))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight
        self.positions = nn.Parameter(torch.zeros(7, 4))  # a table of a container is no layer


def test_resnet50_has_54_layers() -> None:
    with torch.device("meta"):
        facts = model_facts(ResNet50())
    assert facts == ModelFacts(
        name="ResNet50",
        layers=54,
        parameter_tensors=161,
        parameters=25_557_032,
        gradient_bytes=4 * 25_557_032,
        compiled=False,
        channels_last=False,
    )


def test_frozen_parameters_have_no_gradient() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2).to(torch.bfloat16))
    model[0].requires_grad_(False)
    facts = model_facts(model)
    assert (facts.layers, facts.parameters, facts.parameter_tensors, facts.gradient_bytes) == (2, 30, 2, 20)


def test_a_parametrised_weight_belongs_to_its_layer() -> None:
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
        nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)),
        nn.Linear(4, 4),
    )
    assert model_facts(model).layers == 3
    assert model_facts(model[0]).name == "Linear"


def test_a_lazy_module_is_not_known_until_it_has_run() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2))
    assert model_facts(model) == ModelFacts(name="Sequential", compiled=False)
    model(torch.ones(1, 3))
    assert model_facts(model).layers == 2


def test_partitioned_and_packed_parameters_have_their_original_shape() -> None:
    model = nn.Linear(4, 3, bias=False)
    model.weight = nn.Parameter(torch.empty(0))
    model.weight.ds_shape = torch.Size([3, 4])  # type: ignore[attr-defined]
    assert (model_facts(model).layers, model_facts(model).parameters) == (1, 12)

    packed = nn.Linear(4, 3, bias=False)
    packed.weight = nn.Parameter(torch.empty(6, 1, dtype=torch.uint8), requires_grad=False)
    packed.weight.quant_state = SimpleNamespace(shape=torch.Size([3, 4]))  # type: ignore[attr-defined]
    assert (model_facts(packed).parameters, model_facts(packed).gradient_bytes) == (12, 0)


def test_a_packed_weight_has_half_a_byte_an_element_and_its_scales() -> None:
    model = nn.Sequential(nn.Linear(64, 8, bias=False), nn.Linear(8, 2, bias=False))
    packed: Any = nn.Parameter(torch.zeros(256, 1, dtype=torch.uint8), requires_grad=False)
    packed.quant_state = SimpleNamespace(shape=torch.Size([8, 64]), absmax=torch.zeros(8))
    model[0].weight = packed
    assert parameter_bytes(model).all == 256 + 4 * 8 + 4 * 16
    assert parameter_bytes(model).trained == 4 * 16
    packed.quant_state.absmax = torch.zeros(8, dtype=torch.uint8)
    packed.quant_state.state2 = SimpleNamespace(absmax=torch.zeros(1))
    assert parameter_bytes(model).all == 256 + 8 + 4 + 4 * 16
    assert model_facts(model).parameters == 8 * 64 + 16


def test_channels_last_are_told_by_weights_of_windows_larger_than_a_pixel() -> None:
    def last(module: Any) -> Any:
        return module.to(memory_format=torch.channels_last)

    assert model_facts(last(ResNet50())).channels_last is True
    assert model_facts(last(nn.Conv2d(8, 8, 1))).channels_last is False
    assert model_facts(Tied()).channels_last is False


class Holding(nn.Module):
    """A wrapper as libraries write them, such as Lightning's and PEFT's: what it lacks it takes from what it holds."""

    def __init__(self, held: nn.Module, **beside: nn.Module) -> None:
        super().__init__()
        self.held = held
        for name, module in beside.items():
            setattr(self, name, module)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("held"), name)


@pytest.mark.parametrize(
    "wrap",
    [
        nn.DataParallel,
        AveragedModel,
        checkpoint_wrapper,
        Holding,
        lambda model: Holding(nn.DataParallel(model), original=model),
        lambda model: torch.compile(Holding(Holding(model)), backend="eager"),
        lambda model: Holding(model, prompts=nn.Embedding(3, 4)),
    ],
    ids=["parallel", "averaged", "checkpointed", "holding", "twice", "nested", "with parameters"],
)
def test_a_wrapped_model_has_its_own_name(wrap: Callable[[nn.Module], Any]) -> None:
    assert model_facts(wrap(Tied())).name == "Tied"


class Head(nn.Module):
    """Nothing but one module inside, which it uses as its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Tied()


def test_a_model_of_one_part_is_no_wrapper() -> None:
    assert model_facts(Head()).name == "Head"
    assert model_facts(nn.Sequential(Tied())).name == "Sequential"
    assert model_facts(Holding(nn.Linear(2, 2), other=nn.Linear(2, 2))).name == "Holding"


def test_parts_of_another_model_are_not_outermost() -> None:
    inner, big = nn.Linear(4, 4), nn.Linear(9, 9)
    whole = nn.Sequential(inner, nn.Linear(4, 1))
    assert outermost([inner, whole, big]) == [big, whole]


def test_looking_changes_nothing() -> None:
    model = Tied()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    attributes = {name: repr(vars(part)) for name, part in model.named_modules()}  # hooks too
    model_facts(model)
    precision_of(model)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
    assert torch.equal(state, torch.get_rng_state())
    assert attributes == {name: repr(vars(part)) for name, part in model.named_modules()}


def test_what_is_no_module_gives_none() -> None:
    assert model_facts(object()) == ModelFacts(name="object")
    assert precision_of(object()) is None


@pytest.mark.parametrize(
    ("dtype", "autocast", "expected"),
    [
        (torch.float32, None, "fp32"),
        (torch.float32, torch.bfloat16, "amp-bf16"),
        (torch.float32, "float16", "amp-fp16"),
        (torch.bfloat16, None, "bf16"),
        (torch.bfloat16, torch.bfloat16, "bf16"),
        (torch.float16, None, "fp16"),
        (torch.float64, None, "fp64"),
    ],
)
def test_precision(dtype: torch.dtype, autocast: Any, expected: str) -> None:
    assert precision_of(nn.Linear(4, 4).to(dtype), autocast) == expected


@pytest.mark.parametrize(
    ("policy", "hook", "expected"),
    [
        ({}, "", None),
        ({"param_dtype": torch.bfloat16}, "", "bf16"),  # as torch does it
        ({"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}, "", "fp32"),
        ({"reduce_dtype": torch.float16}, None, "fp16"),
        ({}, "bf16_compress_hook", "bf16"),
        ({}, "allreduce_hook", None),
    ],
)
def test_gradients_are_reduced_in_the_type_of_a_policy_or_a_hook(
    policy: dict[str, Any], hook: str | None, expected: str | None
) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model.mixed_precision = SimpleNamespace(**policy)  # type: ignore[assignment]
    assert reduced_in(model, hook) == expected


def test_precision_of_mixed_precision_policies() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    model.mixed_precision = SimpleNamespace(param_dtype=torch.bfloat16)  # type: ignore[assignment]
    assert precision_of(model) == "amp-bf16"


class OnGpu(nn.Module):
    """Claims that its parameters are on a GPU."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def parameters(self, recurse: bool = True) -> Any:
        return iter([SimpleNamespace(device=torch.device("cuda:0"))])


@pytest.mark.parametrize(("capability", "expected"), [((8, 0), ["tf32", "fp32"]), ((7, 5), ["fp32", "fp32"])])
def test_tf32_is_on_for_convolutions_by_default(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], expected: list[str]
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"), raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    convolutions = OnGpu(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3), nn.Linear(3, 3))
    matrices = OnGpu(nn.Conv2d(3, 3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    assert [precision_of(model, uses_tf32=known.uses_tf32) for model in (convolutions, matrices)] == expected


SHARDED = """
import os, sys, torch
import torch.distributed as dist
from torch import nn
from ddlprof.operators.features import comm_hook_of, model_facts, precision_of
from ddlprof.operators.parallel import parallelism_of

rank = int(sys.argv[1])
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[2], 2), rank=rank, world_size=2)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(10, 6), nn.LayerNorm(6)
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 10, bias=False)
        self.head.weight = self.embedding.weight
    def forward(self, x):
        return self.head(self.body(self.norm(self.embedding(x))))

want = model_facts(Net())
assert (want.layers, want.parameters) == (3, 60 + 12 + 42)

ddp = nn.parallel.DistributedDataParallel(Net())
assert model_facts(ddp) == want
assert parallelism_of([ddp], ["SGD"], 2).strategy == "ddp"
assert comm_hook_of(ddp) == ""
assert comm_hook_of(ddp.module) is None
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
ddp.register_comm_hook(None, fp16_compress_hook)
assert comm_hook_of(ddp) == "fp16_compress_hook"

assert parallelism_of([ddp], ["ZeroRedundancyOptimizer"], 2).strategy == "zero"

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
mesh, net = init_device_mesh("cpu", (2,)), Net()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
fully_shard(net.body, mesh=mesh, mp_policy=policy)
fully_shard(net, mesh=mesh, mp_policy=policy)
assert model_facts(net) == want, model_facts(net)
assert parallelism_of([net], (), 2).strategy == "fsdp"
assert precision_of(net) == "amp-bf16"

for use_orig_params in (False, True):
    flat = FullyShardedDataParallel(Net(), use_orig_params=use_orig_params, device_id=torch.device("cpu"))
    flat(torch.zeros(2, dtype=torch.long)).sum().backward()
    assert model_facts(flat) == want, (use_orig_params, model_facts(flat), want)
    assert parallelism_of([flat], (), 2).strategy == "fsdp"
dist.barrier()
os._exit(0)  # torch's own shutdown of gloo sometimes aborts
"""


@pytest.mark.dist
@pytest.mark.slow
def test_sharded_models_are_counted_whole(tmp_path: Path) -> None:
    run_all(*([SHARDED, str(rank), str(tmp_path / "store")] for rank in range(2)))
