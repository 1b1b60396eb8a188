"""The operators of one training step, counted in a run or on a model that is not run, and the cost of optimizers.

Operators of the same kind, phase, type and sizes are one record with a count, so a large model has one or two hundred.
Sizes are those at `StepOperators.batch` samples; `Operator.grows` tells how they follow the batch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from ddlprof.base.files import replace_whole
from ddlprof.base.reading import NOT_NEGATIVE, Interval, Length, ReadingError
from ddlprof.base.units import listed
from ddlprof.model.annotations import Shared, SharedAs
from ddlprof.model.manifest import OPERATORS_NAME

KINDS = {
    "product": "b, m, n, k: b products of m x k by k x n; a linear layer is one of them",
    "convolution": "images, output pixels of one, output channels of a group, summed (input channels of a group times"
    " the kernel's pixels), groups, the kernel's pixels",
    "attention": "batch times heads, queries, keys, width of a head: a fused kernel (flash, efficient, cudnn)",
    "recurrent": "steps, batch, width, layers times directions: one call of a fused kernel through time",
    "normalization": "rows, columns: layer, RMS, group and batch normalisation",
    "softmax": "rows, columns: with its logarithm and losses over classes",
    "elementwise": "elements of the output: activations, sums, dropout, ...",
    "reduction": "elements of the input, elements of the output",
    "embedding": "rows looked up or added to, width; gathering, scattering and indexing too",
    "pooling": "elements of the output, elements of one window",
    "copy": "elements: copies, casts, concatenations",
    "optimizer": "elements updated, parameter tensors: the update of all parameters, or of those in one call",
    "other": "elements of the outputs: not one of the kinds above",
}
"""The kinds of operators and what `Operator.shape` means."""

ELEMENT_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "bool": 1, "int32": 4, "int64": 8}
"""The bytes of an element by the type."""

SIZES = {
    "product": 4, "convolution": 6, "attention": 4, "recurrent": 4, "normalization": 2, "softmax": 2, "elementwise": 1,
    "reduction": 2, "embedding": 2, "pooling": 2, "copy": 1, "optimizer": 2, "other": 1,
}  # fmt: skip
"""How many sizes `Operator.shape` has, by the kind."""

BACKWARD = "_backward"
"""What the name of a kernel of backward ends in."""
CAUSAL = "_causal"
"""What the name of fused attention has where its mask is causal: the kernel then skips what the mask hides."""
CAST = "_to_copy"
"""The name of a cast; its type is that of the result."""
BY_PLACE = "_by_place"
"""What the name of an elementwise operator or copy ends in whose kernel computes the place of each element, or converts
each, in place of loading several at once: an operand is broadcast, lies in another order, or has another type."""
_ATTENTION_TILE = 128
"""The queries and keys of a tile of scores."""

PHASES = ("forward", "backward", "optimizer")
"""The phases of a step. Recomputation by activation checkpointing belongs to backward."""


Checkpointing = bool | Literal["selective"]
"""Whether blocks are computed again in backward; selective: all of them except products with weights and convolutions,
whose results are kept (Korthikanti et al. 2022)."""
_Size = Annotated[int, Interval(1, 10**13)]
_Flops = Annotated[float, Interval(0, 1e21)]
_Bytes = Annotated[float, Interval(0, 1e18)]
_Count = Annotated[float, Interval(0, 1e9)]
"""Beyond these are no operators of any training, and their uncertainty would become infinite."""
_Name = Annotated[str, Length(0, 1000)]


@dataclass(frozen=True)
class Operator:
    """One operator of a step. Numbers are those of one call, at the batch of `StepOperators`."""

    kind: Annotated[str, SharedAs("word")]
    """A key of `KINDS`."""
    phase: Annotated[str, SharedAs("word")]
    """One of `PHASES`."""
    name: Annotated[_Name, SharedAs("operator")]
    """Its name in torch: mm, native_layer_norm, _fused_adamw_, ..."""
    dtype: Annotated[_Name, SharedAs("dtype")]
    """The type that it computes in: fp64, fp32, bf16, fp16, fp8, int64, ..."""
    shape: Shared[Annotated[tuple[_Size, ...], Length(1, 16)]]
    """The sizes; `KINDS` says which."""
    flops: Shared[_Flops]
    """FLOPs; a multiply-add counts as two. 0 except for products, convolutions, attention and recurrent layers."""
    bytes: Shared[_Bytes]
    """The bytes if every operand is read once and every result written once."""
    launches: Shared[_Count]
    """The number of kernels launched on a GPU; 0 for views."""
    count: Shared[_Count]
    """The number of calls in one micro-batch (in phase optimizer: in one update)."""
    grows: Shared[Annotated[int, NOT_NEGATIVE] | None] = None
    """The index in `shape` of the size that is proportional to the batch, as FLOPs then are, too; None: there is
    none."""
    fixed_bytes: Shared[_Bytes] = 0.0
    """The part of `bytes` that does not grow with the batch (weights); all of it where `grows` is None."""
    fused_bytes: Shared[_Bytes | None] = None
    """The bytes left if torch.compile fuses the operator with its neighbours; None: not known."""
    fused_launches: Shared[_Count | None] = None
    """The launches left if it does."""
    unfused_bytes: Shared[_Bytes | None] = None
    """The bytes without torch.compile, of an operator that it fused; None: not known."""
    unfused_launches: Shared[_Count | None] = None
    """The launches without it."""

    def contradiction(self) -> str | None:
        """The field that cannot be as it is, and why; None: there is none."""
        if self.kind not in KINDS:
            return "kind: not a kind of operators"
        if self.phase not in PHASES:
            return "phase: not a phase of a step"
        if len(self.shape) != SIZES[self.kind]:
            return f"shape: {SIZES[self.kind]} sizes are expected of kind {self.kind}, not {len(self.shape)}"
        if self.grows is not None and self.grows >= len(self.shape):
            return f"grows: there is no such size; {len(self.shape)} are in shape"
        return "fixed_bytes: more than all bytes" if self.fixed_bytes > self.bytes else None

    def fused(self, moved_bytes: float, launches: float) -> Operator:
        """The operator after fusion by torch.compile, with these bytes and launches."""
        return replace(
            self, bytes=moved_bytes, launches=launches, fixed_bytes=min(self.fixed_bytes, moved_bytes),
            fused_bytes=None, fused_launches=None, unfused_bytes=self.bytes, unfused_launches=self.launches,
        )  # fmt: skip

    def unfused(self, fused_share: float, fused_launches: float) -> Operator:
        """The operator without torch.compile. What is not known of it follows from the usual factors of fusion."""
        moved, launches = self.unfused_bytes, self.unfused_launches
        return replace(
            self, bytes=self.bytes / fused_share if moved is None else moved,
            launches=self.launches / fused_launches if launches is None else launches,
            fused_bytes=self.bytes, fused_launches=self.launches, unfused_bytes=None, unfused_launches=None,
        )  # fmt: skip


def attended_share(queries: float, keys: float) -> float:
    """The share of the scores of causal attention that a fused kernel computes: it skips tiles that the mask hides
    whole (Dao, FlashAttention-2, 2023, section 3.1). 1/2 for long sequences, 1 for those of one tile."""
    high, wide = math.ceil(queries / _ATTENTION_TILE), math.ceil(keys / _ATTENTION_TILE)
    square = min(high, wide)
    return (square * (square + 1) / 2 + (high - square) * wide) / (high * wide)


def model_flops(operator: Operator) -> float:
    """The FLOPs that the model needs of one call, whatever its kernel does: attention counts every key for every query,
    masked or not, and backward two products for each of forward (Chowdhery et al., PaLM, 2022, appendix B)."""
    if operator.kind != "attention":
        return operator.flops
    heads, queries, keys, width = operator.shape
    whole = operator.flops / (attended_share(queries, keys) if CAUSAL in operator.name else 1.0)
    again = operator.phase == "backward" and operator.name.endswith(BACKWARD)
    return whole - 2.0 * heads * queries * keys * width if again else whole


ALIGNED_ELEMENTS = 8
"""Tensor cores load 16 bytes at a time: so many elements of 16 bits (NVIDIA's Matrix Multiplication Background User's
Guide). A matrix whose rows are no multiple of that gets kernels that load element by element."""
UNALIGNED_SLOWER = 2.5
"""Such a product over one of a padded size. GPT-2 124M was "about 25% faster" on an A100 with a vocabulary of 50,304 in
place of 50,257 (karpathy/nanoGPT, commit 77e7e04c): its step gets 25 % longer by products that take 17 % of the padded
one, as predicted. intel/torch-xpu-ops#1129 has 30 % for GPT-2 in fp16 on an A100."""
_PADDED = 64


def unaligned_sizes(operator: Operator) -> tuple[int, ...]:
    """The sizes of a single product of 16 bits that are no multiple of 8, without the one that grows with the batch.

    torch.compile pads such products itself (`shape_padding`, on by default since 2024).
    """
    if operator.kind != "product" or operator.dtype not in ("bf16", "fp16") or operator.shape[0] != 1:
        return ()
    own = (size for place, size in enumerate(operator.shape) if place not in (0, operator.grows))
    return tuple(size for size in own if size > 1 and size % ALIGNED_ELEMENTS)


def padded(sizes: Iterable[int]) -> str:
    """What to pad, in words: `50,257 to 50,304`."""
    return listed([f"{size:,} to {-(-size // _PADDED) * _PADDED:,}" for size in sorted(set(sizes))], most=3)


@dataclass(frozen=True)
class StepMemory:
    """The memory of one micro-batch on one device, in bytes at the batch of `StepOperators`. None: not known.

    Parameters, gradients and optimizer states are not included: they follow from `Workload.gradient_bytes`, the
    optimizer, the precision and the strategy.
    """

    parameter_bytes: Shared[_Bytes | None] = None
    """All parameters of the model, in their own types, frozen ones and buffers included."""
    trained_bytes: Shared[_Bytes | None] = None
    """The parameters that require gradients, in their own types."""
    saved_bytes: Shared[_Bytes | None] = None
    """Activations kept from forward for backward (parameters are not activations)."""
    saved_fixed_bytes: Shared[_Bytes] = 0.0
    """The part of `saved_bytes` that does not grow with the batch."""
    saved_cast_bytes: Shared[_Bytes] = 0.0
    """The part of `saved_bytes` that is copies of weights in another type, made by autocast."""
    joined_bytes: Shared[_Bytes] = 0.0
    """The part of `saved_bytes` that torch.compile computes again in backward, element by element, instead of saving
    it."""
    temporary_bytes: Shared[_Bytes | None] = None
    """The most bytes alive at once besides the saved activations, such as inputs and outputs of the largest
    operator."""
    layer_bytes: Shared[_Bytes | None] = None
    """The saved activations of the largest block that checkpointing would compute again as one."""
    kept_bytes: Shared[_Bytes | None] = None
    """The saved activations if every such block is checkpointed: inputs of blocks, and what is outside of blocks."""
    input_bytes: Shared[_Bytes | None] = None
    """The batch itself, as the model receives it."""
    points: Shared[tuple[tuple[_Bytes, _Bytes], ...]] = ()
    """Bytes alive at moments of a micro-batch besides parameters, optimizer states and the batch: pairs of those that
    do not grow with the batch (gradients of parameters so far, casts of weights) and those that do. Only moments that
    may be the peak, as `highest` chooses them; empty: not known."""
    largest_tensor_bytes: Shared[_Bytes | None] = None
    """The largest parameter that is trained."""
    largest_block_bytes: Shared[_Bytes | None] = None
    """The parameters of the largest block, such as a layer of a transformer or a block of a ResNet."""


def highest(points: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The points with the largest weighted sum of both numbers for some positive weights: part of the convex hull.

    Given `(fixed bytes, growing bytes)` after each operator of a step, the peak at any batch and precision is at one of
    these few. Ordered by the first number.
    """
    hull: list[tuple[float, float]] = []
    for x, y in sorted(points):
        while hull and hull[-1][1] <= y and hull[-1][0] <= x:
            hull.pop()
        while len(hull) > 1 and _right_of(hull[-2], hull[-1], (x, y)):
            hull.pop()
        hull.append((x, y))
    return tuple(hull)


def _right_of(first: tuple[float, float], second: tuple[float, float], third: tuple[float, float]) -> bool:
    """Whether the second point lies on or under the line from the first to the third."""
    (x1, y1), (x2, y2), (x3, y3) = first, second, third
    return (y2 - y1) * (x3 - x1) <= (y3 - y1) * (x2 - x1)


MOST_OPERATORS = 10_000
MOST_LAYERS = 5000
"""Models with more layers are not divided into layers."""


@dataclass(frozen=True)
class Layer:
    """A module with trained parameters of its own."""

    name: _Name
    gradient_bytes: _Bytes
    """The bytes of the gradients of its parameters. Parameters shared with an earlier layer count there."""
    forward_flops: _Flops
    """FLOPs of products and convolutions with its parameters in the forward of one micro-batch. A multiply-add counts
    as two."""
    shape: tuple[_Size, _Size] | None = None
    """Outputs and inputs, of a layer whose weight is a matrix; None: it has another weight, or it is not known."""
    input_bytes: _Bytes | None = None
    """The bytes that pass to it from the layers before in the forward of one micro-batch; None: not known, or the model
    cannot be divided here."""
    saved_bytes: _Bytes | None = None
    """The activations that are kept for backward from it up to the next layer at which the model can be divided; None:
    not known."""


@dataclass(frozen=True)
class CountedIn:
    """The operators and the memory of a step that was counted in another precision as well, at the same batch."""

    precision: _Name
    operators: tuple[Operator, ...]
    memory: StepMemory | None = None
    plain_memory: StepMemory | None = None
    """As in `StepOperators`."""


@dataclass(frozen=True)
class StepOperators:
    """The operators of one training step, independent of the machine."""

    batch: Shared[Annotated[int, Interval(1)]]
    """The number of samples of the micro-batch to which sizes refer."""
    precision: Annotated[str, SharedAs("known precision")]
    """As in `TrainingFacts.precision`: fp32, bf16, fp16, amp-bf16, amp-fp16, ..."""
    operators: Shared[tuple[Operator, ...]]
    optimizer: Annotated[str | None, SharedAs("optimizer")] = None
    """adamw, adam, sgd, ..., `none` for a step without an update; None: not known."""
    training: Shared[bool] = True
    """False for the forward pass alone, as in inference."""
    checkpointing: Annotated[Checkpointing, SharedAs("word")] = False
    """Whether parts of forward are recomputed in backward."""
    compiled: Shared[bool] = False
    """Whether torch.compile fused the operators."""
    channels_last: Shared[bool] = False
    """Whether weights of convolutions lie in memory with channels last (torch.channels_last)."""
    memory: Shared[StepMemory | None] = None
    unseen: tuple[str, ...] = ()
    """What could not be counted, one short sentence each."""
    layers: tuple[Layer, ...] = ()
    """The layers in the order in which the model lists them, usually that of forward; empty: not known."""
    plain_memory: StepMemory | None = None
    """The memory without checkpointing, of a step that was counted with it; None: not known."""
    others: tuple[CountedIn, ...] = ()
    """The same step in other precisions, as far as it was counted in them: types of results, casts and kernels of
    attention follow from the model's code, which operators do not show."""

    def require_consistent(self) -> None:
        """Raises ReadingError if fields contradict each other, for whoever reads the record from a file."""
        for operators in (self.operators, *(each.operators for each in self.others)):
            if len(operators) > MOST_OPERATORS:
                raise ReadingError(f"operators: at most {MOST_OPERATORS} are expected, not {len(operators)}")
            for number, operator in enumerate(operators):
                if problem := operator.contradiction():
                    raise ReadingError(f"operators[{number}].{problem}")
        if len(self.layers) > MOST_LAYERS:
            raise ReadingError(f"layers: at most {MOST_LAYERS} are expected, not {len(self.layers)}")

    @property
    def has_forward(self) -> bool:
        """Whether anything of forward is known. A step cannot be estimated from its update alone."""
        return any(operator.phase == "forward" for operator in self.operators)


OPERATORS_SCHEMA = 1


@dataclass(frozen=True)
class OperatorsFile:
    """The file `operators.json` of a run directory, beside the manifest.

    Rank 0 writes it once, one line for each operator.
    """

    job_id: Annotated[str, SharedAs("job id")]
    """As in the manifest."""
    step: Shared[StepOperators]
    schema: int = OPERATORS_SCHEMA

    def text(self) -> str:
        """The content of the file, with a line for each operator."""
        known = (
            {name: value for name, value in asdict(each).items() if value is not None} for each in self.step.operators
        )
        lines = [json.dumps(each, allow_nan=False) for each in known]
        rest = asdict(replace(self, step=replace(self.step, operators=())))
        rest["step"].pop("operators")
        text = json.dumps(rest, allow_nan=False)
        operators = ",\n".join(lines)
        return f'{text[:-1]}, "operators": [\n{operators}\n]}}\n'

    def write(self, directory: Path) -> None:
        """Replaces the file of `directory` atomically. Raises OSError where it cannot be written."""
        replace_whole(directory / OPERATORS_NAME, self.text())


FUSED, FOREACH, SINGLE = "fused", "foreach", "single"
"""How an update is done: by one kernel (fused), by one operation after the other over all tensors (foreach, the default
on GPUs), or by the same operations on one tensor after another (single)."""
_ELEMENTS_OF_A_LAUNCH = 65_536 * 320
"""The number of elements that one launch of torch's multi_tensor_apply takes: 320 blocks of one chunk each."""
_TENSORS_OF_A_LAUNCH = {FUSED: 36, FOREACH: 64}
"""The number of tensors that one launch takes, with the four lists of a fused Adam or the two of most foreach
operations."""


@dataclass(frozen=True)
class OptimizerUpdate:
    """What the update of an optimizer reads, writes and keeps.

    Accesses are counted in reads and writes of a whole copy of the parameters in their own type.
    """

    fused: float | None
    """The accesses of a fused update; None if there is none."""
    foreach: float
    """The accesses of a foreach update."""
    calls: int
    """The number of operations of a foreach update."""
    states: float = 0.0
    """The states kept between updates, in copies of the parameters."""
    state_bytes: float = 0.0
    """Quantised states kept in addition, in bytes for each element of any type."""
    temporary: float = 0.0
    """Temporary copies of a foreach update. A single update has temporary copies of one tensor only."""
    default: str = FOREACH
    """How the update is done on a GPU by default."""


OPTIMIZER_UPDATES = {
    "none": OptimizerUpdate(0, 0, 0),
    "sgd": OptimizerUpdate(3, 3, 1),
    "sgd-momentum": OptimizerUpdate(5, 8, 3, states=1),
    "adam": OptimizerUpdate(7, 18, 7, states=2, temporary=1),
    "adamw": OptimizerUpdate(7, 20, 8, states=2, temporary=1),
    "amsgrad": OptimizerUpdate(9, 21, 8, states=3, temporary=1),
    "nadam": OptimizerUpdate(None, 24, 10, states=2, temporary=1),
    "radam": OptimizerUpdate(None, 24, 10, states=2, temporary=1),
    "adamax": OptimizerUpdate(None, 16, 6, states=2, temporary=1),
    "adagrad": OptimizerUpdate(5, 13, 5, states=1, temporary=1),
    "rmsprop": OptimizerUpdate(None, 13, 5, states=1, temporary=1),
    "adadelta": OptimizerUpdate(None, 27, 11, states=2, temporary=2),
    "rprop": OptimizerUpdate(None, 20, 8, states=2, temporary=1),
    # Not in torch, without multi-tensor kernels, or by default without them: one tensor after the other.
    "adafactor": OptimizerUpdate(None, 17, 12, states=0.01, temporary=1, default=SINGLE),
    "lion": OptimizerUpdate(5, 13, 5, states=1, temporary=1, default=SINGLE),
    "lamb": OptimizerUpdate(12, 24, 11, states=2, temporary=1, default=SINGLE),
    "muon": OptimizerUpdate(None, 14, 9, states=1, temporary=1, default=SINGLE),  # and its products
    "adam8bit": OptimizerUpdate(4, 4, 1, state_bytes=2.0, default=FUSED),
    "adamw8bit": OptimizerUpdate(4, 4, 1, state_bytes=2.0, default=FUSED),
}
"""The optimizers by their names. Accesses are counted from torch 2.x's own updates."""


def update_operator(
    name: str, implementation: str, dtype: str, elements: float, tensors: float, moved_bytes: float, calls: int
) -> Operator:
    """The update of all parameters of one type as one operator.

    `calls`: the number of operations of a foreach update.
    """
    if implementation == SINGLE:
        launches = calls * max(tensors, 1)
    else:
        rounds = math.ceil(tensors / _TENSORS_OF_A_LAUNCH[implementation] + elements / _ELEMENTS_OF_A_LAUNCH)
        launches = rounds if implementation == FUSED else calls * rounds
    return Operator(
        kind="optimizer", phase="optimizer", name=f"_{implementation}_{name}_", dtype=dtype,
        shape=(round(elements), round(tensors)), flops=0.0, bytes=moved_bytes, launches=float(launches), count=1.0,
        fixed_bytes=moved_bytes,
    )  # fmt: skip
