"""The operators of transformers' models, beside those that were measured on GPUs when the models really ran."""

from __future__ import annotations

import csv
import json
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

from ddlprof.model.operators import StepOperators
from ddlprof.operators.model_alone import build
from ddlprof.operators.trace_step import Inputs, StepSettings, trace_step

transformers = pytest.importorskip("transformers", reason="needs transformers")

_FILE = "shared/data/operators/model_operators.csv"
PUBLISHED = next((each / _FILE for each in Path(__file__).resolve().parents if (each / _FILE).exists()), None)
Sizes = Counter[tuple[int, ...]]


def bert_large(pretraining: bool = False) -> Any:
    config = transformers.BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
        attn_implementation="eager",
    )  # fmt: skip
    kind = transformers.BertForPreTraining if pretraining else transformers.BertForSequenceClassification
    return kind(config)


def gpt2_large() -> Any:
    config = transformers.GPT2Config(n_embd=1280, n_layer=36, n_head=20, attn_implementation="eager")
    return transformers.GPT2LMHeadModel(config)


def opt_13() -> Any:
    config = transformers.OPTConfig(
        hidden_size=2048, word_embed_proj_dim=2048, num_hidden_layers=24, num_attention_heads=32, ffn_dim=8192,
        attn_implementation="eager",
    )  # fmt: skip
    return transformers.OPTForCausalLM(config)


CASES = [
    pytest.param("bert_large", "inf", 512, 8, bert_large, id="bert_large-inf"),
    pytest.param("gpt2_large", "inf", 1024, 4, gpt2_large, id="gpt2_large-inf"),
    pytest.param("opt_13", "inf", 2048, 2, opt_13, id="opt_13-inf"),
    pytest.param("bert_large", "train", 512, 2, lambda: bert_large(pretraining=True), id="bert_large-train"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "mode", "length", "batch", "factory"), CASES)
def test_products_softmax_and_norms_are_those_that_ran(
    model: str, mode: str, length: int, batch: int, factory: Any
) -> None:
    if PUBLISHED is None:
        pytest.skip("needs ../shared/data/operators")
    published = rows(model, mode, batch)
    settings = StepSettings(batch=batch, optimizer="none", training=mode == "train")
    step = trace_step(build(factory), lambda samples: tokens(samples, length), settings)
    forward = [each for each in step.operators if each.phase == "forward"]
    found: Sizes = Counter()
    for each in forward:
        if each.kind == "product":
            found[each.shape] += int(each.count)
    assert found == products(published)
    for kind, names in (("softmax", {"softmax"}), ("normalization", {"LayerNorm"}), ("embedding", {"Embedding"})):
        own = [each for each in forward if each.kind == kind and (kind != "embedding" or each.name == kind)]
        ours = sum(each.count for each in own)
        assert ours == sum(row["count"] for row in published if row["op"].lower() in {n.lower() for n in names}), kind
    # Versions of the library differ in copies, but not by much in what is moved.
    assert moved(step) == pytest.approx(sum(elements(row) for row in published if not is_mask(row)), rel=0.15)


def is_mask(row: dict[str, Any]) -> bool:
    """Whether a mask is added to the scores of BERT, which newer versions leave out where all tokens count."""
    return row["op"] == "add" and len(row["inputs"]) == 2 and row["inputs"][1][1:3] == [1, 1]


def tokens(samples: int, length: int) -> Inputs:
    return Inputs([], {"input_ids": torch.ones((samples, length), dtype=torch.int64)})


def rows(model: str, mode: str, batch: int) -> list[dict[str, Any]]:
    """The launched operators of one case on the first GPU that has it, with lists for shapes."""
    assert PUBLISHED is not None
    with PUBLISHED.open(encoding="utf-8") as file:
        found = [
            row
            for row in csv.DictReader(file)
            if (row["model"], row["mode"], row["batch"]) == (model, mode, str(batch))
        ]
    return [
        {
            "op": row["op"], "count": int(row["count"]), "inputs": json.loads(row["input_shapes"]),
            "output": json.loads(row["output_shape"]),
        }
        for row in found
        if row["kernel"] == "1" and row["gpu_model"] == found[0]["gpu_model"]
    ]  # fmt: skip


def products(published: list[dict[str, Any]]) -> Sizes:
    found: Sizes = Counter()
    for row in published:
        inputs, output = row["inputs"], row["output"]
        if row["op"] == "Linear":
            found[1, prod(output[:-1]), output[-1], inputs[0][-1]] += row["count"]
        elif row["op"] == "addmm":
            (m, k), (_, n) = inputs[1], inputs[2]
            found[1, m, n, k] += row["count"]
        elif row["op"] in ("matmul", "bmm"):
            found[prod(output[:-2]), output[-2], output[-1], inputs[0][-1]] += row["count"]
    return found


def elements(row: dict[str, Any]) -> float:
    """What an elementwise operator, softmax or norm of the published ones writes."""
    return float(prod(row["output"]) * row["count"]) if row["op"].lower() in ELEMENTWISE else 0.0


ELEMENTWISE = {"add", "mul", "sub", "truediv", "gelu", "tanh", "relu", "pow", "where", "max", "softmax", "layernorm",
               "dropout"}  # fmt: skip


def moved(step: StepOperators) -> float:
    """The same of ours."""
    return float(
        sum(
            prod(each.shape) * each.count
            for each in step.operators
            if each.phase == "forward" and each.kind in ("elementwise", "softmax", "normalization")
        )
    )
