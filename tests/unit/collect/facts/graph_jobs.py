"""Small jobs whose operators are read off the autograd graph, and what torch's dispatcher shows of them."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from ddlprof.collect.hooks.backward import install
from ddlprof.collect.hooks.context import Inspection
from ddlprof.collect.hooks.table import hook_context
from ddlprof.collect.recorder import Recorder
from ddlprof.operators.graph_operators import GraphStep, step_of
from ddlprof.operators.graph_reader import GraphReader, storages
from tests.unit.operators.test_graph_flops import TELLS_HOOKS, Attention

needs_hooks_told = pytest.mark.skipif(not TELLS_HOOKS, reason="needs torch 2.13")
Loss = Callable[[Any], Tensor]


class Block(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """Tied embeddings, positions, fused attention; `kind` of checkpointing: None, or whether reentrant."""

    def __init__(self, reentrant: bool | None = None, width: int = 32, tokens: int = 12) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(60, width), nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, 60, bias=False)
        self.head.weight = self.tokens.weight
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        y = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            y = block(y) if self.reentrant is None else checkpoint(block, y, use_reentrant=self.reentrant)
        return self.head(y)  # type: ignore[no-any-return]


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, groups=2),
            nn.GroupNorm(4, 16),
            nn.SiLU(),
            nn.MaxPool2d(2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.LSTM(8, 16, 2, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x)[0][:, -1])  # type: ignore[no-any-return]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def squares(output: Tensor) -> Tensor:
    return output.float().square().mean()


def classes(output: Tensor) -> Tensor:
    scores = output.flatten(0, -2)
    return F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.int64))


JOBS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor], Loss]] = {
    "mlp": (perceptron, lambda b: torch.randn(b, 16), squares),
    "convolutions": (Convolutions, lambda b: torch.randn(b, 3, 12, 12), squares),
    "encoder": (encoder, lambda b: torch.randn(b, 10, 32), classes),
    "gpt": (Gpt, lambda b: torch.randint(0, 60, (b, 12)), classes),
    "lstm": (Recurrent, lambda b: torch.randn(b, 7, 8), classes),
}  # fmt: skip


class Reading(Inspection):
    def __init__(self) -> None:
        self.reader = GraphReader()

    def forward(self, module: Any, inputs: Any) -> None:
        pass

    def update(self, optimizer: Any) -> None:
        pass

    def backward(self, roots: Any, nested: bool, kept: bool, created: bool = False) -> None:
        self.reader.read(roots, nested, kept)


def read(loss: Tensor) -> GraphReader:
    """Runs a backward under the hook; returns what was read before it."""
    looks = Reading()
    uninstall = install(hook_context(torch, Recorder(), inspection=looks))
    try:
        loss.backward()
    finally:
        uninstall()
    return looks.reader


def step(model: nn.Module, loss: Tensor, batch: int) -> GraphStep:
    found = step_of(read(loss), batch, storages([model]))
    assert found is not None
    return found


def lower(precision: str) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16) if precision == "amp-bf16" else contextlib.nullcontext()


@functools.cache
def runs_bf16_lstm() -> bool:
    """Whether oneDNN has one for this processor (not without AVX-512), which nothing tells but trying."""
    try:
        with lower("amp-bf16"):
            nn.LSTM(8, 16)(torch.ones(2, 1, 8))
    except RuntimeError as error:
        if "could not create a primitive" not in str(error):
            raise
        return False
    return True


def job(name: str, batch: int = 4, precision: str = "fp32") -> tuple[nn.Module, Tensor]:
    if (name, precision) == ("lstm", "amp-bf16") and not runs_bf16_lstm():
        pytest.skip("oneDNN has no bf16 LSTM for this processor")
    build, make, loss = JOBS[name]
    torch.manual_seed(0)
    model, x = build(), make(batch)
    with lower(precision):
        return model, loss(model(x))


def flops(operators: Any, phase: str) -> float:
    return float(sum(each.count * each.flops for each in operators if each.phase == phase))


class Dispatched(TorchDispatchMode):
    """Bytes of what is dispatched, by phase and operator: everything read and written once."""

    VIEWS = frozenset(
        {"view", "_unsafe_view", "t", "transpose", "permute", "expand", "slice", "split", "unbind", "unsqueeze",
         "split_with_sizes", "squeeze", "detach", "alias", "as_strided", "_reshape_alias", "lift_fresh", "arange",
         "select", "empty", "empty_like", "new_empty", "zeros", "zeros_like"}
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.phase = "forward"
        self.bytes: Counter[str] = Counter()
        self.calls: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in self.VIEWS:
            leaves = tree_leaves((args, kwargs, out))
            self.bytes[self.phase] += sum(x.numel() * x.element_size() for x in leaves if isinstance(x, Tensor))
            self.calls[self.phase, name.strip("_")] += 1
        return out


def dispatched(name: str, precision: str = "fp32") -> Dispatched:
    build, make, loss_of = JOBS[name]
    model, x, mode = build(), make(4), Dispatched()
    with mode:
        with lower(precision):
            loss = loss_of(model(x))
        mode.phase = "backward"
        loss.backward()
    return mode
