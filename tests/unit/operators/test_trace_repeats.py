"""Equal blocks are traced once, and the step is exactly the one of a trace in full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddlprof.model.operators import StepOperators
from ddlprof.operators.trace_step import Inputs, StepSettings, trace_step
from tests.short import first_short

BLOCKS = 7


class Block(nn.Module):
    """A block of a decoder, with a number of its own as in libraries."""

    runs = 0

    def __init__(self, number: int, width: int = 32, heads: int = 4, kv_heads: int = 4, p: float = 0.1) -> None:
        super().__init__()
        self.number, self.heads, self.kv_heads = number, heads, kv_heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * kv_heads * width // heads)
        self.out, self.up, self.down = nn.Linear(width, width), nn.Linear(width, 96), nn.Linear(96, width)
        self.dropout = nn.Dropout(p)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        Block.runs += 1
        batch, length, width = x.shape
        normed = self.first(x)
        q = self.q(normed).view(batch, length, self.heads, -1).transpose(1, 2)
        k, v = self.kv(normed).view(batch, length, 2, self.kv_heads, -1).unbind(2)
        k, v = (each.transpose(1, 2).repeat_interleave(self.heads // self.kv_heads, 1) for each in (k, v))
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        x = x + self.dropout(self.out(found.transpose(1, 2).reshape(batch, length, width)))
        result: Tensor = x + self.dropout(self.down(F.gelu(self.up(self.second(x)))))
        return result


class AsksItsNumber(Block):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        found = super().forward(x, mask)
        return found.relu() if self.number % 6 == 5 else found


class Decoder(nn.Module):
    def __init__(self, make: Callable[[int], nn.Module] = Block, tied: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(60, 32)
        self.blocks = nn.ModuleList(make(number) for number in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 60, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def through(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.head(self.norm(self.through(self.table(tokens))))
        return found


class Llama(Decoder):
    """With grouped queries and without dropout."""

    def __init__(self) -> None:
        super().__init__(lambda number: Block(number, kv_heads=2, p=0.0))


class OtherInBetween(Decoder):
    """The model itself does something else after one of the blocks."""

    def through(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            x = block(x).relu() if number == 4 else block(x)
        return x


class AllHidden(Decoder):
    """The results of all blocks are used at the end."""

    def through(self, x: Tensor) -> Tensor:
        found = []
        for block in self.blocks:
            x = block(x)
            found.append(x)
        return torch.stack(found).sum(0)


class SharedMask(Decoder):
    """What all blocks are given has a gradient, as biases by distance have."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, 4, 8, 8))

    def through(self, x: Tensor) -> Tensor:
        mask = self.bias * 2
        for block in self.blocks:
            x = block(x, mask)
        return x


class Backwards(Decoder):
    def through(self, x: Tensor) -> Tensor:
        for block in reversed(self.blocks):
            x = block(x)
        return x


class Twice(Decoder):
    def through(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(block(x))
        return x


class Bert(Decoder):
    def __init__(self) -> None:
        super().__init__(lambda _: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True))


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.other = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        found = self.other(self.second(self.relu(self.norm(self.first(x)))))
        found += x
        return self.relu(found)  # type: ignore[no-any-return]


def resnet() -> nn.Module:
    stages = [nn.Sequential(*(Residual(width) for _ in range(blocks))) for width, blocks in ((8, 5), (16, 6))]
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), stages[0], nn.Conv2d(8, 16, 1, stride=2), stages[1], nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 10),
    )  # fmt: skip


def some_frozen() -> nn.Module:
    model = Decoder()
    for block in model.blocks:
        block.q.requires_grad_(False)
    return model


def shared_weight() -> nn.Module:
    model = Decoder()
    for block in model.blocks:
        block.get_submodule("up").weight = model.blocks[0].get_submodule("up").weight
    return model


def step_of(make: Callable[[], nn.Module], **settings: Any) -> StepOperators:
    pictures, dtype = make is resnet, torch.bfloat16 if settings.get("precision") == "bf16" else torch.float32

    def inputs(batch: int) -> Inputs:
        made = torch.empty(batch, 3, 12, 12, dtype=dtype) if pictures else torch.empty((batch, 8), dtype=torch.int64)
        return Inputs([made], {})

    return trace_step(make(), inputs, StepSettings(2, **settings))


def in_full(monkeypatch: pytest.MonkeyPatch, make: Callable[[], nn.Module], **settings: Any) -> StepOperators:
    with monkeypatch.context() as context:
        context.setattr("ddlprof.operators.trace_repeats.groups", lambda model: [])
        return step_of(make, **settings)


ALIKE: dict[str, Callable[[], nn.Module]] = {
    "Llama": Llama,
    "GPT-2, tied": lambda: Decoder(tied=True),
    "BERT": Bert,
    "ResNet": resnet,
    "frozen weights": some_frozen,
    "a shared mask": SharedMask,
}
OTHERS: dict[str, Callable[[], nn.Module]] = {
    "one of them has other heads": lambda: Decoder(lambda number: Block(number, heads=8 if number == 3 else 4)),
    "one of them has no dropout": lambda: Decoder(lambda number: Block(number, p=0.0 if number == 3 else 0.1)),
    "it asks for its number": lambda: Decoder(AsksItsNumber),
    "a weight is shared": shared_weight,
    "something in between": OtherInBetween,
    "all results are used": AllHidden,
    "in another order": Backwards,
    "several times": Twice,
}
SETTINGS: list[dict[str, Any]] = [
    {"precision": "amp-fp16"}, {"checkpointing": True}, {"compiled": True, "precision": "bf16"},
    {"training": False},
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "settings"),
    [*first_short((name, {}) for name in ALIKE), *first_short(("Llama", settings) for settings in SETTINGS)],
    ids=str,
)
def test_the_step_of_equal_blocks_is_that_of_a_full_trace(
    monkeypatch: pytest.MonkeyPatch, name: str, settings: dict[str, Any]
) -> None:
    make = ALIKE[name]
    assert step_of(make, **settings) == in_full(monkeypatch, make, **settings)


@pytest.mark.parametrize("name", first_short(OTHERS))
def test_the_step_of_blocks_that_differ_is_that_of_a_full_trace(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert step_of(OTHERS[name]) == in_full(monkeypatch, OTHERS[name])


@pytest.mark.parametrize("settings", [{}, {"precision": "amp-bf16"}], ids=str)
def test_of_equal_blocks_three_run(settings: dict[str, Any]) -> None:
    Block.runs = 0
    step_of(Llama, **settings)
    assert Block.runs == 2 * 3  # at each of both batches


def test_the_model_is_as_before() -> None:
    model = Decoder()
    before = [{name: value for name, value in vars(part).items() if name[0] != "_"} for part in model.modules()]
    trace_step(model, lambda batch: Inputs([torch.empty((batch, 8), dtype=torch.int64)], {}), StepSettings(2))
    after = [{name: value for name, value in vars(part).items() if name[0] != "_"} for part in model.modules()]
    assert after == before
