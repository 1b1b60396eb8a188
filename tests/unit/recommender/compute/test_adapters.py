"""Adapters asked of a counted step, against a step that was counted with adapters, and by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ddlprof.model.operators import Operator, StepMemory, StepOperators
from ddlprof.recommender import PredictionError, Workload
from ddlprof.recommender.compute.adapters import adapters_of, linear_layers, target_shares
from ddlprof.recommender.compute.memory import JobMemory, MemoryNeed
from ddlprof.recommender.compute.packing import FORMATS
from ddlprof.recommender.compute.step_parts import Changes
from ddlprof.recommender.compute.what_if import as_asked, trained
from tests.unit.collect.facts.graph_jobs import job, step
from tests.unit.recommender.compute.decoder import (
    BATCH,
    CLASSES,
    INNER,
    LAYERS,
    TOKENS,
    WIDTH,
    Decoder,
    counted_step,
    decoder,
)

RANK = 4


class InFp32(nn.Linear):
    """A layer of an adapter that stays in fp32 when the model is cast (`autocast_adapter_dtype` of PEFT)."""

    def _apply(self, fn: Any, recurse: bool = True) -> InFp32:
        return self


class Adapted(nn.Module):
    """A linear layer with an adapter, as `peft.tuners.lora.Linear`."""

    def __init__(self, base: nn.Linear, layer: type[nn.Linear], dropout: bool) -> None:
        super().__init__()
        self.base, self.before = base, nn.Dropout(0.05) if dropout else nn.Identity()
        self.down = layer(base.in_features, RANK, bias=False)
        self.up = layer(RANK, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.base(x)
        own: Tensor = self.up(self.down(self.before(x.to(self.down.weight.dtype))))
        return (result + own * 2.0).to(result.dtype)


@cache
def counted(
    adapted: bool, precision: str = "bf16", checkpointing: bool = False, names: tuple[str, ...] = ("up", "down"),
    layer: Any = InFp32, dropout: bool = False,
) -> StepOperators:  # fmt: skip
    """The step as it is counted from the tensors of the model, with real adapters or without any."""
    model = decoder()
    if adapted:
        model.requires_grad_(False)
        with torch.device("meta"):
            for block in model.blocks:
                for name in names:
                    setattr(block, name, Adapted(getattr(block, name), layer, dropout))
    return counted_step(model, precision, checkpointing=checkpointing)


def flops(step: StepOperators, phase: str) -> float:
    return sum(each.flops * each.count for each in step.operators if each.phase == phase)


def launches(step: StepOperators, phase: str) -> float:
    return sum(each.launches * each.count for each in step.operators if each.phase == phase)


def types(step: StepOperators) -> dict[str, float]:
    """FLOPs of products by type."""
    found: dict[str, float] = {}
    for each in step.operators:
        if each.kind == "product" and each.phase == "forward":
            found[each.dtype] = found.get(each.dtype, 0.0) + each.flops * each.count
    return found


def memory_of(step: StepOperators) -> Any:
    return step.memory


def need(step: StepOperators, **asked: Any) -> MemoryNeed:
    found = JobMemory(Workload("", step=step), changes=Changes(**asked)).need(2, 1)
    assert found is not None
    return found


@pytest.mark.parametrize("precision", ["bf16", "amp-bf16"])
def test_a_step_asked_with_adapters_is_the_one_that_is_counted_with_them(precision: str) -> None:
    asked, real = as_asked(counted(False, precision), batch=2, lora=RANK), counted(True, precision)
    assert flops(asked, "forward") == flops(real, "forward")
    # The first block passes no gradient on to the frozen embedding, one product of so many.
    assert flops(real, "backward") <= flops(asked, "backward") <= 1.1 * flops(real, "backward")
    for phase in ("forward", "backward"):
        assert launches(asked, phase) == pytest.approx(launches(real, phase), rel=0.15)
    assert trained(asked)[0] == trained(real)[0] == LAYERS * 2 * RANK * (WIDTH + INNER)
    assert flops(asked, "backward") < 0.65 * flops(counted(False, precision), "backward")
    assert types(asked) == types(real)


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize(("asked", "layer"), [(None, InFp32), ("bf16", nn.Linear)])
def test_adapters_beside_16_bit_weights_are_in_fp32_unless_asked_otherwise(
    asked: str | None, layer: Any, dropout: bool
) -> None:
    found = as_asked(counted(False), batch=2, lora=RANK, lora_precision=asked, lora_dropout=dropout)
    real = counted(True, layer=layer, dropout=dropout)
    assert types(found) == types(real)
    for phase in ("forward", "backward"):
        moved = [sum(e.bytes * e.count for e in each.operators if e.phase == phase) for each in (found, real)]
        assert moved[0] == pytest.approx(moved[1], rel=0.1)
    mine, theirs = (memory_of(each) for each in (found, real))
    assert mine.trained_bytes == theirs.trained_bytes
    assert mine.parameter_bytes == theirs.parameter_bytes
    assert mine.saved_bytes == pytest.approx(theirs.saved_bytes, rel=0.05)


def test_adapters_are_compiled_where_the_step_is() -> None:
    plain = counted(False)
    asked = as_asked(as_asked(plain, batch=2, compiled=True), batch=2, lora=RANK)
    assert asked == as_asked(plain, batch=2, lora=RANK, compiled=True)
    assert asked.compiled
    assert launches(asked, "forward") < launches(as_asked(plain, batch=2, lora=RANK), "forward")


def test_adapters_under_autocast_keep_fp32_and_compute_in_16_bit() -> None:
    steps = {
        name: as_asked(counted(False), batch=2, lora=RANK, lora_precision=name) for name in ("fp32", "amp-bf16", "bf16")
    }
    assert types(steps["amp-bf16"]) == types(steps["bf16"]) != types(steps["fp32"])
    held = [memory_of(each).trained_bytes for each in steps.values()]
    assert held[0] == held[1] == 2 * held[2]


def test_four_bits_take_memory_off_linear_layers_alone_and_cost_time() -> None:
    lora, qlora = need(counted(False), lora=RANK), need(counted(False), qlora=RANK)
    weights = LAYERS * 2 * WIDTH * INNER
    assert lora.parameters - qlora.parameters == pytest.approx(weights * (2 - FORMATS["nf4"].held_bytes))
    alive = [each.gradients + each.activations for each in (lora, qlora)]
    assert alive[1] == pytest.approx(alive[0] + 2 * WIDTH * INNER)  # one layer made whole
    assert "four bits" in qlora.basis
    assert qlora.high / qlora.bytes > lora.high / lora.bytes
    steps = [as_asked(counted(False), batch=2, lora=RANK), as_asked(counted(False), batch=2, qlora=RANK)]
    assert flops(steps[0], "forward") == flops(steps[1], "forward")
    for phase in ("forward", "backward"):
        extra = launches(steps[1], phase) - launches(steps[0], phase)
        assert extra == 3 * 2 * LAYERS


def test_weights_packed_by_gptq_are_made_whole_by_single_operators_and_saved() -> None:
    by = {name: as_asked(counted(False), batch=2, qlora=RANK, qlora_format=name) for name in FORMATS}
    whole = {name: [e for e in step.operators if "dequant" in e.name] for name, step in by.items()}
    assert {each.phase for each in whole["gptq"]} == {"forward"}  # autograd saves them
    assert {each.phase for each in whole["nf4"]} == {"forward", "backward"}
    assert whole["gptq"][0].bytes > whole["nf4"][0].bytes
    weights = LAYERS * 2 * WIDTH * INNER
    saved = memory_of(by["gptq"]).saved_bytes - memory_of(by["nf4"]).saved_bytes
    assert saved == pytest.approx(2 * weights)
    plain = need(counted(False), qlora=RANK, qlora_format="gptq").bytes
    for checkpointed in (counted(False, checkpointing=True), counted(False)):
        again = need(checkpointed, qlora=RANK, qlora_format="gptq", checkpointing=True).bytes
        assert plain - again > weights  # those of one block alone


def test_weights_in_four_bits_are_not_cast_by_autocast() -> None:
    step = counted(False, "amp-bf16")
    asked = {"lora": as_asked(step, batch=2, lora=RANK), "qlora": as_asked(step, batch=2, qlora=RANK)}
    casts = {
        name: sum(each.count for each in found.operators
                  if (each.phase, each.kind, each.grows) == ("forward", "copy", None) and "dequant" not in each.name)
        for name, found in asked.items()
    }  # fmt: skip
    assert casts["qlora"] == 2 * 2 * LAYERS < casts["lora"]  # those of the adapters alone


def test_a_checkpointed_step_computes_its_adapters_again() -> None:
    plain = as_asked(counted(False), batch=2, lora=RANK, checkpointing=True)
    before = as_asked(counted(False, checkpointing=True), batch=2, lora=RANK)
    assert flops(before, "backward") == pytest.approx(flops(plain, "backward"))
    assert before.checkpointing is True


class _Checkpointed(Decoder):
    """The decoder with a method of its own for checkpointing, as models of transformers have it."""

    reentrant = False

    def gradient_checkpointing_enable(self) -> None:
        for block in self.blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=self.reentrant)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_no_product_is_computed_again_twice(reentrant: bool, biased: bool) -> None:
    """Reentrance computes the last product of a block again as well; and as there are as many tokens as the model is
    wide, gradients of weights have sizes of products that are computed again."""
    with torch.device("meta"):
        model = _Checkpointed()
    model.reentrant = reentrant
    for block in model.blocks if not biased else ():
        for name in ("up", "down"):
            getattr(block, name).register_parameter("bias", None)
    assert BATCH * TOKENS == WIDTH
    asked = as_asked(counted_step(model, checkpointing=True), batch=BATCH, lora=RANK)
    plain = as_asked(counted(False), batch=BATCH, lora=RANK)
    logits = 2 * BATCH * TOKENS * WIDTH * CLASSES
    assert flops(asked, "backward") - flops(plain, "backward") == flops(plain, "forward") - logits


def test_a_step_asked_with_adapters_on_some_layers_is_the_one_that_is_counted_with_them() -> None:
    asked, real = as_asked(counted(False), batch=2, lora=RANK, lora_targets="down"), counted(True, names=("down",))
    assert flops(asked, "forward") == flops(real, "forward")
    assert trained(asked)[0] == trained(real)[0] == LAYERS * RANK * (WIDTH + INNER)
    packed = need(counted(False), qlora=RANK, lora_targets="down").parameters
    whole = need(counted(False), lora=RANK, lora_targets="down").parameters
    assert whole - packed == pytest.approx(
        LAYERS * 2 * WIDTH * INNER * (2 - FORMATS["nf4"].held_bytes)
    )  # all linear layers


def test_every_layer_but_the_logits_has_an_adapter_and_shared_weights_share_it() -> None:
    step = counted(False)
    assert {each.shape[2:] for each in linear_layers(step)} == {(INNER, WIDTH), (WIDTH, INNER)}
    elements, _ = trained(step)
    shares = target_shares(step, None)
    alone = adapters_of(step, RANK, elements, shares)
    shared = adapters_of(step, RANK, alone.packable / LAYERS, shares)
    assert shared.elements == pytest.approx(alone.elements / LAYERS)
    assert shared.tensors == pytest.approx(alone.tensors / LAYERS)


def test_an_optimizer_of_ones_own_updates_as_much_less() -> None:
    step = counted(False)
    own = replace(step, optimizer="mine")
    updates = [each for each in as_asked(own, batch=2, lora=RANK).operators if each.phase == "optimizer"]
    share = adapters_of(step, RANK, trained(step)[0], target_shares(step, None)).share
    assert updates[0].bytes == pytest.approx(share * step.operators[-1].bytes)


def test_what_has_no_linear_layer_or_trains_little_is_refused() -> None:
    relu = Operator("elementwise", "forward", "relu", "fp32", (64,), 0.0, 512.0, 1.0, 1.0, 0)
    memory = StepMemory(parameter_bytes=4e6, trained_bytes=4e6)
    step = StepOperators(1, "fp32", (relu,), optimizer="sgd", memory=memory)
    with pytest.raises(PredictionError, match="no linear layers"):
        as_asked(step, batch=1, lora=8)
    with pytest.raises(PredictionError, match="small part of its parameters already"):
        as_asked(counted(True), batch=2, lora=8)
    with pytest.raises(PredictionError, match="count a training step"):
        as_asked(replace(counted(False), training=False), batch=2, qlora=8)


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
def test_operators_that_a_run_has_read_lose_the_gradients_of_weights_alone(precision: str) -> None:
    model, loss = job("gpt", precision=precision)
    memory = StepMemory(parameter_bytes=4e5, trained_bytes=4e5)
    run = StepOperators(4, precision, tuple(step(model, loss, 4).operators), optimizer="adamw", memory=memory)
    left = as_asked(run, batch=4, lora=RANK).operators
    gone = [each for each in run.operators if each not in left]
    # Each linear layer has one product for the gradient of its weight, as large as its own.
    products = [each for each in run.operators if (each.phase, each.kind) == ("forward", "product")]
    assert sum(e.flops * e.count for e in gone) == sum(e.flops * e.count for e in products)
    assert {each.phase for each in gone} == {"backward"}
    assert {each.kind for each in gone} <= {"product", "reduction", "embedding", "copy", "elementwise"}
