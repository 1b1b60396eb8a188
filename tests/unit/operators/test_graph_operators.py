"""Operators read off the autograd graph are those that torch dispatches, and reading changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ddlprof.model.operators import KINDS, Operator, StepOperators
from ddlprof.operators.graph_operators import MOST_OPERATORS, step_of
from ddlprof.operators.graph_reader import GraphReader, storages
from ddlprof.recommender.compute.what_if import as_asked
from tests.unit.collect.asked import AskedMode, AskedTensor, asked
from tests.unit.collect.facts.graph_jobs import (
    JOBS,
    Dispatched,
    Gpt,
    classes,
    dispatched,
    flops,
    job,
    needs_hooks_told,
    step,
)
from tests.unit.operators.test_graph_flops import MODELS, OwnActivation, OwnProduct, count_of


@pytest.mark.parametrize("name", MODELS)
def test_flops_are_those_of_the_count(name: str) -> None:
    """Which `test_graph_flops` compares with torch's own."""
    build, shape = MODELS[name]
    model, x = build(), torch.randn(shape)
    with sdpa_kernel(SDPBackend.MATH):
        found = step(model, model(x).sum(), shape[0])
        assert (flops(found.operators, "forward"), flops(found.operators, "backward")) == count_of(model, x)


FACTORS = {"mlp": 1.1, "convolutions": 1.25, "encoder": 1.2, "gpt": 1.1}


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
@pytest.mark.parametrize("name", FACTORS)
def test_bytes_are_about_those_that_are_dispatched(name: str, precision: str) -> None:
    """The dispatcher shows a convolution's backward as one operator, ddlprof a gradient each."""
    reference = dispatched(name, precision)
    model, loss = job(name, precision=precision)
    found = step(model, loss, 4).operators
    for phase in ("forward", "backward"):
        moved = sum(each.count * each.bytes for each in found if each.phase == phase)
        assert 1 / FACTORS[name] <= moved / reference.bytes[phase] <= FACTORS[name], phase


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
@pytest.mark.parametrize("name", JOBS)
def test_sizes_follow_the_batch_as_said(name: str, precision: str) -> None:
    """The step at 4 samples, asked for 8, is the step that is read at 8."""
    four, eight = (step(*job(name, batch, precision), batch) for batch in (4, 8))
    asked_for = as_asked(StepOperators(4, precision, four.operators), batch=8).operators
    assert Counter(map(_rounded, asked_for)) == Counter(map(_rounded, eight.operators))
    assert any(each.grows is not None for each in four.operators)


def _rounded(each: Operator) -> tuple[Any, ...]:
    sizes = each.shape if len(each.shape) != 2 or each.kind != "reduction" else each.shape[:1]
    return each.kind, each.phase, each.name, each.dtype, sizes, each.count, round(each.flops), round(each.bytes)


@pytest.mark.parametrize("name", JOBS)
def test_records_hold_together(name: str) -> None:
    for each in step(*job(name), 4).operators:
        assert each.kind in KINDS
        assert len(each.shape) == len(KINDS[each.kind].split(":")[0].split(",")) or each.kind not in (
            "product",
            "softmax",
        )
        assert 0 <= each.fixed_bytes <= each.bytes
        assert each.grows is None or each.grows < len(each.shape)
        assert each.grows is not None or each.fixed_bytes == each.bytes
        assert each.launches > 0
        if each.kind in ("product", "convolution"):
            assert each.flops == 2 * prod(each.shape[:5])


def test_lower_precision_is_told() -> None:
    found = step(*job("gpt", precision="amp-bf16"), 4)
    assert {each.dtype for each in found.operators if each.kind in ("product", "attention")} == {"bf16"}
    casts = [each for each in found.operators if each.name == "to_copy" and each.phase == "forward"]
    assert any(each.grows is None for each in casts)
    assert any(each.grows is not None for each in casts)


@pytest.mark.parametrize("reentrant", [True, pytest.param(False, marks=needs_hooks_told)])
def test_checkpointing_computes_again_in_backward(reentrant: bool) -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 60, (4, 12))
    plain, again = Gpt(), Gpt(reentrant)
    one, two = (step(model, classes(model(x)), 4) for model in (plain, again))
    assert (one.checkpointing, two.checkpointing) == (False, True)
    assert flops(two.operators, "forward") == flops(one.operators, "forward")
    head = 2 * 4 * 12 * 32 * 60
    last = (
        0 if reentrant else 2 * 2 * 4 * 12 * 128 * 32
    )  # of each block: its result is not needed, so torch stops there
    repeated = flops(one.operators, "forward") - head - last
    assert flops(two.operators, "backward") == flops(one.operators, "backward") + repeated


def test_what_two_operations_take_has_two_gradients_to_add() -> None:
    layer = nn.Linear(16, 16)
    y = layer(torch.ones(8, 16))
    z = y.view(16, 8).sin()  # has as many elements, and two uses as well
    found = step(layer, (y + layer(y)).sum() + (z * z.cos()).sum(), 8).operators
    sums = {each.shape: each.count for each in found if each.phase == "backward" and each.name == "add"}
    assert sums == {(8 * 16,): 3, (16,): 1, (16 * 16,): 1}


@needs_hooks_told
@pytest.mark.parametrize(("mask", "kernel"), [(None, "flash"), (torch.zeros(1, 1, 6, 6), "efficient")])
def test_attention_with_a_mask_is_no_flash_attention_on_a_device(mask: torch.Tensor | None, kernel: str) -> None:
    project = nn.Linear(8, 8)
    q = project(torch.ones(2, 4, 6, 8))
    loss = nn.functional.scaled_dot_product_attention(q, q, q, mask, is_causal=mask is None).sum()
    names = [each.name for each in step(project, loss, 2).operators if each.kind == "attention"]
    assert names
    assert all(f"_{kernel}_attention" in name for name in names)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_sparse_gradient_of_an_embedding_is_of_the_rows_that_are_looked_up(sparse: bool) -> None:
    model = nn.Sequential(nn.Embedding(1000, 8, sparse=sparse), nn.Linear(8, 2))
    found = step(model, model(torch.arange(4)).sum(), 4).operators
    (backward,) = (each for each in found if each.kind == "embedding" and each.phase == "backward")
    assert backward.name == ("embedding_sparse_backward" if sparse else "embedding_dense_backward")
    assert (backward.bytes < 1000 * 8) is sparse


@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_graph_that_is_kept_has_one_forward() -> None:
    reader, layer = GraphReader(), nn.Linear(4, 4)
    y = layer(torch.ones(2, 4)).sum()
    reader.read(y, kept=True)
    reader.read(y)
    found = step_of(reader, 2, microbatches=1)
    assert found is not None
    assert flops(found.operators, "forward") == 64
    assert flops(found.operators, "backward") == 2 * 64


def test_functions_of_somebodys_own_are_named() -> None:
    first, weight = nn.Linear(4, 4), torch.ones(4, 4, requires_grad=True)
    y = OwnProduct.apply(OwnActivation.apply(OwnActivation.apply(first(torch.ones(2, 4)))), weight)
    assert step(first, y.sum(), 2).unseen == (
        "autograd function OwnActivation (2 calls): its operators are not in the graph",
        "autograd function OwnProduct (1 call): its operators are not in the graph",
    )


@pytest.mark.usefixtures("dynamo_forgets")
def test_compiled_code_is_one_piece() -> None:
    model = nn.Linear(4, 4)
    compiled: Any = torch.compile(model, backend="aot_eager")
    found = step(model, compiled(torch.ones(2, 4)).sum(), 2)
    assert found.compiled
    (sentence,) = found.unseen
    assert "torch.compile" in sentence
    assert not flops(found.operators, "forward")


def test_classes_and_modes_of_the_script_are_not_asked() -> None:
    model = nn.Linear(4, 4)
    loss = model(torch.ones(2, 4).as_subclass(AskedTensor)).sum()
    reader = GraphReader()
    asked.clear()
    with AskedMode(), Dispatched() as mode:
        reader.read([loss])
        storages([model])
        assert not asked
        assert not mode.calls
    found = step_of(reader, 2)
    assert found is not None
    assert flops(found.operators, "forward") == 64


def test_a_large_graph_is_given_up(slow_clock: Callable[[], int]) -> None:
    loss = torch.ones(2, requires_grad=True)
    for _ in range(512):
        loss = loss + 1
    reader = GraphReader(slow_clock)
    reader.read(loss.sum())
    assert reader.enough
    assert step_of(reader, 2) is None


def test_a_record_is_not_larger_than_it_may_be() -> None:
    weight = torch.ones(1, requires_grad=True)
    terms = [(weight.expand(n) * torch.arange(n)).sum() for n in range(2, MOST_OPERATORS // 2)]
    reader = GraphReader(lambda: 0)
    reader.read(sum(terms))
    found = step_of(reader, 1)
    assert found is not None
    assert len(found.operators) == MOST_OPERATORS
    assert "left out" in found.unseen[-1]
    assert max(each.bytes for each in found.operators) >= 4 * (MOST_OPERATORS // 2 - 1)


@pytest.mark.parametrize("roots", [None, [], torch.ones(2), object(), [None]])
def test_roots_without_a_graph(roots: Any) -> None:
    reader = GraphReader()
    reader.read(roots)
    found = step_of(reader, 1)
    assert found is None or found.operators == ()
