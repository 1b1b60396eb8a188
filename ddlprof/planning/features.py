"""The counts of a model that nobody has to run: `count_model` gives what `ddlprof features` shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ddlprof.base.errors import UserError

if TYPE_CHECKING:
    from ddlprof.model.manifest import ModelFacts
    from ddlprof.model.operators import StepOperators
    from ddlprof.operators.model_alone import InputSpec
    from ddlprof.recommender import Workload
    from ddlprof.recommender.architecture import Transformer


@dataclass(frozen=True)
class CountedModel:
    """What was counted of a model; `notes` say what could not be, and why."""

    facts: ModelFacts
    step: StepOperators | None
    """The operators of its step; None: not known."""
    tokens_per_sample: int | None
    """None: not known, or the samples are not text."""
    notes: list[str]
    sizes: Transformer | None = None
    """The sizes of the model, where it is a transformer of transformers."""

    def workload(self) -> Workload:
        """The job that `recommend` and `predict` take for a run. Raises PredictionError for counts that cannot be."""
        from ddlprof.api import model_workload

        counted = model_workload(self.facts, "")
        return replace(counted, step=self.step, tokens_per_sample=self.tokens_per_sample, transformer=self.sizes)


def count_model(
    model: str,
    inputs: Sequence[str] = (),
    *,
    seq_len: int | None = None,
    batch: int = 8,
    optimizer: str = "adamw",
    precision: str = "fp32",
    checkpointing: bool = False,
    compiled: bool = False,
    training: bool = True,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> CountedModel:
    """Counts layers, gradients, FLOPs, operators and memory of a model without running it.

    `model` is MODULE:FACTORY, or timm:NAME, transformers:NAME, torchvision:NAME. `inputs` are the shapes of one sample,
    `[NAME=][DTYPE:]SHAPE` for each argument of forward, where the library does not tell them; `seq_len` the tokens of a
    sample of transformers. `batch` are the samples of the step, which is the forward pass alone without `training`.
    Raises UserError where there is no torch, no such model, or the model's own code fails.
    """
    from ddlprof.base.torch_needed import require_torch

    require_torch()
    from ddlprof.launch.users_code import split_name, users_own
    from ddlprof.operators import named_models
    from ddlprof.operators.model_alone import build, look, parse_input
    from ddlprof.operators.trace_step import StepSettings

    settings = StepSettings(batch, precision, optimizer, training, checkpointing, compiled)
    settings.check()
    config = None
    module, factory = split_name(model, "MODULE:FACTORY, such as models.resnet:resnet50")
    given = [parse_input(text) for text in inputs]
    if module in named_models.LIBRARIES:
        named = named_models.find(module, factory, seq_len)
        config = named.config
        make, given = named.factory, given or named.inputs(settings.training)
    else:
        make = _factory(module, factory)
    made = users_own(model, lambda: build(make))
    if not hasattr(made, "named_modules"):
        raise UserError(f"{model}: it returned {type(made).__name__}, not a torch.nn.Module")
    found = users_own(f"forward of {model}", lambda: look(made, given, settings, others=True, advance=advance))
    tokens = _tokens(given)
    return CountedModel(
        replace(found.facts, name=factory), found.step, tokens, found.notes, _sizes(config, tokens) if config else None
    )


def _sizes(config: dict[str, Any], tokens: int | None) -> Transformer | None:
    """The sizes of a transformer with this config; None: it is no stack of equal blocks on tokens."""
    from ddlprof.recommender import PredictionError
    from ddlprof.recommender.model_config import sizes_of_config

    try:
        return sizes_of_config(config, tokens)
    except PredictionError:  # images, sound, two stacks: their layouts are not predicted
        return None


def _factory(module: str, name: str) -> Callable[[], Any]:
    """The function of the user's that returns the model, or one that returns the model that exists already."""
    from ddlprof.launch.users_code import find

    found = find(module, name)
    if hasattr(found, "named_modules") and not isinstance(found, type):
        return lambda: found
    if not callable(found):
        raise UserError(f"{module}:{name} is no function: it has to return the model")
    return found  # type: ignore[no-any-return]


def _tokens(inputs: Sequence[InputSpec]) -> int | None:
    """The tokens of a sample: the length of the first input, if that is a row of whole numbers."""
    if not inputs:
        return None
    shape, dtype = inputs[0].shape, inputs[0].dtype
    return shape[0] if len(shape) == 1 and str(dtype).startswith("int") else None
