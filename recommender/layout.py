"""How a model is divided over GPUs: tensor, pipeline, context, expert and data parallelism, and recomputation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from ddlprof.base.typed import Interval
from ddlprof.recommender.architecture import Transformer
from ddlprof.recommender.errors import Checked, PredictionError

Degree = Annotated[int, Interval(1, 100_000)]
SHARDS = ("none", "zero1", "zero2", "zero3")
"""What the data ranks divide: nothing; optimizer states; gradients too; parameters too (FSDP). `hsdp:N`: as zero3, but
among N ranks only."""
RECOMPUTES = ("none", "selective", "full")
"""What is computed again in backward: nothing, the scores of attention and cheap operators, or whole layers."""
DIMENSIONS = ("tensor", "pipeline", "context", "expert", "data")
_HSDP = re.compile(r"hsdp:([1-9]\d{0,5})")
_PART = re.compile(r"(tp|pp|vp|cp|ep|dp|mb|ga)(\d{1,6})")
_FORM = "such as tp8,pp4,zero1,mb1,ga16,selective"


@dataclass(frozen=True)
class Layout(Checked):
    """The degrees of parallelism. Data ranks = GPUs / (tensor x pipeline x context)."""

    tensor: Degree = 1
    """Ranks that share each product of a layer (tensor parallelism)."""
    pipeline: Degree = 1
    """Stages of consecutive layers."""
    virtual: Degree = 1
    """Parts of the model that each stage holds, for the interleaved schedule; 1: one part (1F1B)."""
    context: Degree = 1
    """Ranks that share each sequence."""
    expert: Degree = 1
    """Ranks that share the experts of a layer, each of which is whole: they are tensor, context and data ranks at the
    same time."""
    shard: str = "none"
    """What data ranks divide: none, zero1, zero2, zero3 (FSDP), or hsdp:N for zero3 among N ranks."""
    sequence_parallel: bool = True
    """Whether tensor ranks share norms and residuals along the sequence, too; without effect where `tensor` is 1."""
    recompute: str = "none"
    """none, selective (attention and cheap operators) or full (whole layers)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shard not in SHARDS and not _HSDP.fullmatch(self.shard):
            raise PredictionError(f"layout: shard {self.shard!r} is not known; one of: {', '.join(SHARDS)}, hsdp:N")
        if self.recompute not in RECOMPUTES:
            raise PredictionError(f"layout: recompute {self.recompute!r} is not known; one of: {', '.join(RECOMPUTES)}")
        if self.virtual > 1 and self.pipeline == 1:
            raise PredictionError("layout: virtual stages need a pipeline of more than one stage")

    @property
    def model_ranks(self) -> int:
        """The ranks among which one copy of the model and its sequences is divided."""
        return self.tensor * self.pipeline * self.context

    def data_ranks(self, gpus: int) -> int:
        """The ranks with different samples. Raises `PredictionError` where the layout does not divide the GPUs."""
        data, rest = divmod(gpus, self.model_ranks)
        if rest or not data:
            raise PredictionError(
                f"layout: {gpus} GPUs cannot be divided by tensor x pipeline x context = {self.model_ranks}"
            )
        return data

    def shard_ranks(self, gpus: int) -> int:
        """The ranks that divide what `shard` names: context ranks hold the same parameters and take part."""
        ranks = self.data_ranks(gpus) * self.context
        hybrid = _HSDP.fullmatch(self.shard)
        if hybrid is None:
            return 1 if self.shard == "none" else ranks
        if ranks % int(hybrid.group(1)):
            raise PredictionError(f"layout: {self.shard} does not divide the {ranks} data ranks")
        return int(hybrid.group(1))

    def expert_ranks(self, gpus: int) -> int:
        """The ranks that hold the same experts: tensor and context ranks have experts of their own, too."""
        return max(self.data_ranks(gpus) * self.context * self.tensor // self.expert, 1)

    def expert_shard_ranks(self, gpus: int) -> int:
        """The ranks that divide of experts what `shard` names: only such as hold the same experts."""
        shares = self.shard_ranks(gpus)
        return 1 if self.shard == "none" else max(shares * self.tensor // self.expert, 1)

    @property
    def shards(self) -> tuple[bool, bool, bool]:
        """Whether parameters, gradients and optimizer states are divided."""
        level = 3 if self.shard.startswith("hsdp") else SHARDS.index(self.shard)
        return level >= 3, level >= 2, level >= 1

    def text(self) -> str:
        """As on the command line: `tp8,pp4,zero1,selective`; degrees of 1 and defaults are left out."""
        degrees = {"tp": self.tensor, "pp": self.pipeline, "vp": self.virtual, "cp": self.context, "ep": self.expert}
        parts = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
        parts += [self.shard] if self.shard != "none" else []
        parts += ["nosp"] if self.tensor > 1 and not self.sequence_parallel else []
        parts += [self.recompute] if self.recompute != "none" else []
        return ",".join(parts) or "tp1"

    def problem(self, model: Transformer, gpus: int) -> str | None:
        """Why the model cannot be divided like that over the GPUs; None: it can."""
        heads = model.heads if model.kv_lora else max(model.kv_heads, self.tensor)
        sequence = 2 * self.context if self.context > 1 else 1
        networks = (model.ffn if model.mixed_layers < model.layers else 0, model.shared_experts * model.expert_ffn)
        width = next((each for each in networks if each % self.tensor), 0)
        wrong = {
            f"{gpus} GPUs cannot be divided by tensor x pipeline x context": gpus % self.model_ranks,
            f"{model.heads} heads cannot be divided by tensor {self.tensor}": (
                model.heads % self.tensor or heads % self.tensor
            ),
            f"{model.layers} layers are fewer than pipeline x virtual": model.layers < self.pipeline * self.virtual,
            f"a feed-forward width of {width} cannot be divided by tensor {self.tensor}": width,
            f"{model.seq} tokens cannot be divided by twice context {self.context}": model.seq % sequence,
            f"{model.seq} tokens cannot be divided by context x tensor {self.tensor}": (
                self.sequence_parallel and model.seq % (self.context * self.tensor)
            ),
            f"the model has no experts to divide by expert {self.expert}": self.expert > 1 and not model.experts,
            f"{model.experts} experts cannot be divided by expert {self.expert}": model.experts % self.expert,
        }
        found = next((text for text, is_wrong in wrong.items() if is_wrong), None)
        ranks = gpus // self.pipeline
        if found is None and ranks % self.expert:
            return f"{ranks} ranks of a stage cannot be divided by expert {self.expert}"
        return found


@dataclass(frozen=True)
class AskedLayout:
    """A layout as typed, with what else was named; None: not named."""

    layout: Layout
    data: int | None = None
    """Data ranks."""
    micro_batch: int | None = None
    """Sequences of a forward pass."""
    grad_accum: int | None = None
    """Micro-batches of a step in each data rank."""


def parse_layout(text: str) -> AskedLayout:
    """Reads `tp8,pp4,vp2,cp1,ep1,dp16,zero1,mb1,ga16,selective`, in any order; what is not named is 1 or none.

    `sp` and `nosp` turn sequence parallelism on and off; `fsdp` is zero3. Raises `PredictionError` for a part that is
    not known or that is there twice.
    """
    names = {"tp": "tensor", "pp": "pipeline", "vp": "virtual", "cp": "context", "ep": "expert"}
    besides = {"dp": "data", "mb": "micro_batch", "ga": "grad_accum"}
    found: dict[str, int | str | bool] = {}
    for part in filter(None, (each.strip().lower() for each in text.split(","))):
        number = _PART.fullmatch(part)
        if number:
            name: str = (names | besides)[number.group(1)]
            value: int | str | bool = int(number.group(2))
            if not value:
                raise PredictionError(f"layout {text!r}: {part} is less than 1")
        elif part in SHARDS[1:] or part in ("fsdp", "zero0") or _HSDP.fullmatch(part):
            name, value = "shard", {"fsdp": "zero3", "zero0": "none"}.get(part, part)
        elif part in ("sp", "nosp"):
            name, value = "sequence_parallel", part == "sp"
        elif part in RECOMPUTES:
            name, value = "recompute", part
        else:
            raise PredictionError(f"layout {text!r}: {part!r} is not known; {_FORM}")
        if name in found:
            raise PredictionError(f"layout {text!r}: {part!r} says a second time what was said before")
        found[name] = value
    asked = {name: found.pop(name, None) for name in besides.values()}
    return AskedLayout(Layout(**found), **asked)  # type: ignore[arg-type]


def require_layouts(model: Transformer | None, name: str) -> Transformer:
    """The sizes of the model of a job. Raises PredictionError where they are not known."""
    if model is None:
        raise PredictionError(
            f"{name}: layouts need the sizes of a transformer: take a file of ddlprof features transformer, of a"
            " config.json or of transformers:NAME"
        )
    return model
