"""One job has one answer, however it is asked for: counted with its settings, or with others and asked for with these;
by strategy, or by the layout that says the same; with the precision of the run, or of the model."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from ddlprof.operators.model_alone import InputSpec, build, look
from ddlprof.operators.trace_step import StepSettings
from ddlprof.planning.choose import predictions
from ddlprof.planning.features import CountedModel
from ddlprof.planning.job import DescribedJob
from ddlprof.planning.layouts import LayoutQuestion, predict_layouts
from ddlprof.recommender import Measurement, Settings, Workload, transformer
from ddlprof.recommender.compute.step_parts import Changes
from ddlprof.recommender.exchanged import exchanged_by
from ddlprof.recommender.layout import parse_layout
from ddlprof.recommender.strategy import STRATEGIES

WIDTH, HEADS, TOKENS, LAYERS, VOCABULARY, BATCH = 1024, 8, 512, 4, 1024, 8
AS_COUNTED = 0.01
AGAIN = 0.08
"""With checkpointing, what a block computes again is counted of torch, or told by a rule that knows operators and not
which of them save what they get."""


class Norm(nn.Module):
    """An RMS norm of single operators in fp32, as many models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList((Norm(), Norm()))
        self.query, self.keys = nn.Linear(WIDTH, WIDTH, False), nn.Linear(WIDTH, WIDTH // 2, False)
        self.out, self.up, self.down = (
            nn.Linear(WIDTH, WIDTH, False), nn.Linear(WIDTH, 4 * WIDTH, False), nn.Linear(4 * WIDTH, WIDTH, False),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        normed, size = self.norms[0](x), WIDTH // HEADS
        query = self.query(normed).unflatten(-1, (HEADS, size)).transpose(1, 2)
        key, value = (each.transpose(1, 2) for each in self.keys(normed).unflatten(-1, (2, HEADS // 4, size)).unbind(2))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        result: Tensor = x + self.down(functional.gelu(self.up(self.norms[1](x))))
        return result


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), Norm()

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return {"loss": functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()), "logits": logits}


class Ways(NamedTuple):
    """The settings of a job."""

    precision: str
    checkpointing: bool
    compiled: bool
    optimizer: str


WAYS = st.builds(
    Ways, st.sampled_from(["fp32", "bf16", "amp-bf16", "amp-fp16"]), st.booleans(), st.booleans(),
    st.sampled_from(["adamw", "adamw-fused", "sgd"]),
)  # fmt: skip
SIZES = transformer(
    layers=LAYERS, hidden=WIDTH, heads=HEADS, kv_heads=HEADS // 4, vocab=VOCABULARY, seq=TOKENS, gated=False
).transformer


@lru_cache
def counted(ways: Ways) -> Workload:
    step = StepSettings(
        BATCH, ways.precision, ways.optimizer, checkpointing=ways.checkpointing, compiled=ways.compiled
    )  # fmt: skip
    found = look(build(Decoder), [InputSpec((TOKENS,), "int64")], step, others=True)
    return CountedModel(found.facts, found.step, TOKENS, found.notes, SIZES).workload()


def answer(job: Workload, **asked: Any) -> tuple[float, float, float]:
    """Seconds of the step, GiB that a GPU needs, and FLOPs of the MFU (as MFU times seconds)."""
    questions = [(("gpu_model", "A100-SXM4-80GB"), Settings(**asked))]
    (found,) = predictions(DescribedJob("job", job), BATCH, lambda _: (2,), questions, {"interconnect": "nvlink3"})
    assert found.estimate is not None
    assert found.memory is not None
    assert found.mfu is not None
    return found.estimate.step_s, found.memory.needed_gib, found.mfu * found.estimate.step_s


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 12)
@given(WAYS, WAYS)
def test_what_is_counted_is_what_is_asked_for(before: Ways, after: Ways) -> None:
    job, as_it_is = counted(before), counted(after)
    asked, alone = answer(job, **after._asdict()), answer(as_it_is)
    assert asked == pytest.approx(alone, rel=AGAIN if before.checkpointing != after.checkpointing else AS_COUNTED)
    for strategy in STRATEGIES.values():
        of_asked = exchanged_by(job, strategy, Changes(), after.precision).bytes
        assert of_asked == pytest.approx(exchanged_by(as_it_is, strategy, Changes()).bytes)


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 16)
@given(WAYS, st.sampled_from([("none", "ddp"), ("zero1", "zero"), ("zero2", "zero2"), ("zero3", "fsdp")]))
def test_a_layout_that_divides_the_batch_alone_is_its_strategy(ways: Ways, names: tuple[str, str]) -> None:
    ways = ways._replace(precision="bf16" if ways.precision == "fp32" else ways.precision)
    job, (shard, strategy) = counted(ways), names
    parts = [f"dp2,mb{BATCH}", *([shard] if shard != "none" else []), *(["full"] if ways.checkpointing else [])]
    question = LayoutQuestion(parse_layout(",".join(parts)), interconnect="nvlink3")
    (found,) = predict_layouts(DescribedJob("job", job), [("gpu_model", "A100-SXM4-80GB")], question)
    assert found.estimate is not None
    assert found.estimate.mfu is not None
    mine = (found.estimate.step_s, found.estimate.memory_gib, found.estimate.mfu * found.estimate.step_s)
    assert mine == pytest.approx(answer(job, strategy=strategy))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp-bf16"])
def test_a_run_exchanges_what_its_model_alone_does(precision: str) -> None:
    """A run knows its own precision; what others exchange follows from it."""
    alone = counted(Ways("fp32", False, False, "adamw"))
    held = counted(Ways(precision, False, False, "adamw"))
    measured = Measurement(placement=(1,), batch_per_gpu=BATCH, step_s=1.0, precision=precision)
    run = replace(held, measurements=[measured], step=replace(held.step, others=()) if held.step else None)
    for asked in ("fp32", "bf16", "amp-bf16", "fp16"):
        for strategy in STRATEGIES.values():
            of_run = exchanged_by(run, strategy, Changes(), asked).bytes
            assert of_run == pytest.approx(exchanged_by(alone, strategy, Changes(), asked).bytes)


def test_the_mfu_counts_the_model_by_its_sizes_or_its_operators() -> None:
    job = counted(Ways("bf16", False, False, "adamw"))
    assert SIZES is not None
    assert job.flops_per_sample == pytest.approx(SIZES.flops_per_token * TOKENS, rel=0.001)


@pytest.mark.slow
def test_adapters_are_not_credited_with_the_gradients_of_frozen_weights() -> None:
    job = counted(Ways("bf16", False, False, "adamw"))
    again = counted(Ways("bf16", True, False, "adamw"))
    full, lora, once_more = answer(job), answer(job, lora=8), answer(again, lora=8)
    assert 2 / 3 < lora[2] / full[2] < 0.72  # forward, gradients of what goes in, and adapters
    assert once_more[2] == pytest.approx(lora[2], rel=AS_COUNTED)
