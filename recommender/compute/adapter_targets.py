"""Which linear layers of a model get adapters (LoRA): those named, or those that PEFT takes where none are named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from ddlprof.model.operators import StepOperators
from ddlprof.recommender.errors import PredictionError

ALL_LINEAR = "all-linear"
"""The target that stands for every linear layer but the one that makes the logits, as in PEFT."""
_PEFT = (
    (("q_proj", "v_proj", "dense", "fc1", "fc2"), ("q_proj", "v_proj", "fc1", "fc2")),  # Phi
    (("q_proj", "v_proj", "in_proj", "out_proj"), ("q_proj", "k_proj", "v_proj", "o_proj")),  # Nemotron-H
    (("q_proj", "v_proj"), ("q_proj", "v_proj")),  # Llama, Mistral, Qwen, Gemma, OPT, GPT-J, BART, ...
    (("key", "value", "receptance", "output"), ("key", "value", "receptance", "output")),  # RWKV
    (("query", "value"), ("query", "value")),  # BERT, RoBERTa, ELECTRA, ViT
    (("q", "v"), ("q", "v")),  # T5
    (("query_proj", "value_proj"), ("query_proj", "value_proj")),  # DeBERTa 2 and 3
    (("in_proj", "dense"), ("in_proj",)),  # DeBERTa
    (("c_attn",), ("c_attn",)),  # GPT-2, StarCoder
    (("query_key_value",), ("query_key_value",)),  # BLOOM, GPT-NeoX, Falcon, ChatGLM
    (("Wqkv",), ("Wqkv",)),  # MPT
    (("qkv_proj",), ("qkv_proj",)),  # CodeGen
)
"""Names that tell a family of models, and the layers that PEFT gives adapters in it by default
(`peft.utils.constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING` of PEFT 0.21, which goes by model types)."""
_MOST_NAMES = 12

Shape = tuple[int, int]
"""The outputs and the inputs of a linear layer."""


def usual_targets(names: Collection[str]) -> tuple[str, ...] | None:
    """What PEFT takes of layers with these names; None: it knows no such model, and asks for targets."""
    return next((targets for needed, targets in _PEFT if set(needed) <= set(names)), None)


def targets_of(step: StepOperators, asked: str | None, linear: Collection[Shape]) -> tuple[str, ...]:
    """The names of layers with adapters, or `all-linear`. See `targeted`."""
    if asked is not None:
        return tuple(name.strip() for name in asked.split(","))
    return usual_targets({_last(name) for name, _ in _layers(step, linear)}) or (ALL_LINEAR,)


def targeted(step: StepOperators, asked: str | None, linear: Collection[Shape]) -> Mapping[Shape, float]:
    """The share of the linear layers of each shape that gets adapters, by names such as `q_proj,v_proj`.

    `asked` None: as PEFT has it, or else every linear layer. `linear`: the shapes that layers may have. A name is the
    last part of a layer's, or more of it, as in PEFT. Raises `PredictionError` for one that no linear layer has, and
    where the step does not have the names of its layers.
    """
    layers, targets = _layers(step, linear), targets_of(step, asked, linear)
    if ALL_LINEAR in targets:
        return dict.fromkeys(linear, 1.0)
    if not layers:
        raise PredictionError(
            "lora targets: the names of the layers are not known: count the step again with ddlprof features, or ask"
            f" for {ALL_LINEAR}"
        )
    missing = [target for target in targets if not any(_is(name, target) for name, _ in layers)]
    if missing:
        names = sorted({_last(name) for name, _ in layers})
        known = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
        raise PredictionError(f"lora targets: no linear layer is called {missing[0]!r}; there are {known}")
    chosen = Counter(shape for name, shape in layers if any(_is(name, target) for target in targets))
    every = Counter(shape for _, shape in layers)
    return {shape: chosen[shape] / count for shape, count in every.items()}


def _layers(step: StepOperators, linear: Collection[Shape]) -> list[tuple[str, Shape]]:
    return [(each.name, each.shape) for each in step.layers if each.shape is not None and each.shape in linear]


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _is(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")
