"""A step that trains low-rank adapters beside frozen weights: LoRA (Hu et al. 2021), QLoRA (Dettmers et al. 2023).

Linear layers get an adapter: y = W x + s B (A x), where A has `rank` rows and B as many columns. Which of them do is in
`adapter_targets`; the one that makes the logits does not. No other weight is trained, so its gradient, its state and
its update are gone, while gradients still pass through it. Beside weights in 16 bit, adapters are in fp32 and compute
in it unless autocast is on, as PEFT does it (`autocast_adapter_dtype`): their input is cast, and their result is added
in fp32. QLoRA holds the weights of all linear layers in four bits,
with an adapter or not, and makes them whole before each product.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ddlprof.model.operators import Operator, StepMemory, StepOperators, highest
from ddlprof.recommender.compute.adapter_targets import ALL_LINEAR, Shape, targeted, targets_of
from ddlprof.recommender.compute.optimizers import optimizer_named
from ddlprof.recommender.compute.packing import Packing
from ddlprof.recommender.compute.precisions import BYTES, computed_type, parameter_type, precision_named
from ddlprof.recommender.compute.recomputation import classes_of, recomputed, without_checkpointing
from ddlprof.recommender.errors import PredictionError

_DEQUANTIZING, _DROPPING = "dequantize_4bit", "lora_drop"
_ALREADY = 0.5
"""A step that trains a smaller share of its parameters has adapters already, or trains a head alone."""


@dataclass(frozen=True)
class AdapterTypes:
    """How adapters compute."""

    held: str
    """That of their parameters, gradients and states."""
    computed: str | None
    """That of their products; None: that of the product beside each."""
    dropout: bool = False
    """Whether what they get is dropped out before."""


def adapter_types(precision: str, asked: str | None) -> AdapterTypes:
    """The types of adapters in a step of this precision. `asked`: their own precision; None: fp32 beside weights in
    16 bit, as PEFT has it, and else as the step. Raises `PredictionError` for an unknown one."""
    own = precision_named(precision)
    if asked is None and parameter_type(own) == own:
        asked = "fp32"
    if asked is None:
        return AdapterTypes(parameter_type(own), None)
    return AdapterTypes(parameter_type(precision_named(asked)), computed_type(precision_named(asked)))


@dataclass(frozen=True)
class Adapters:
    """The size of all adapters of a step."""

    elements: float
    tensors: float
    packable: float
    """The weights of all linear layers, with an adapter or without: QLoRA packs them."""
    share: float
    """Their part of what is trained without adapters."""
    largest: float
    """The elements of their largest tensor."""


def is_in_four_bits(step: StepOperators) -> bool:
    """Whether weights of the step are held in four bits, as `with_adapters` does it."""
    return any(each.name == _DEQUANTIZING for each in step.operators)


def linear_layers(step: StepOperators) -> list[Operator]:
    """The products of forward that may have adapters. Raises PredictionError if there is none."""
    classes = classes_of(step)
    found = [
        each
        for each in step.operators
        if (each.phase, each.kind) == ("forward", "product")
        and each.grows == 1 and each.fixed_bytes > 0 and each.shape[2] not in classes
    ]  # fmt: skip
    if not found:
        raise PredictionError("the step has no linear layers for adapters (LoRA)")
    return found


def target_shares(step: StepOperators, targets: str | None) -> Mapping[Shape, float]:
    """The share of the linear layers of each shape that gets adapters. `targets`: names of layers, such as
    `q_proj,v_proj`, or all-linear; None: as PEFT. To be asked of the step as it was counted, which has names."""
    return targeted(step, targets, _shapes(step))


def targets_in_words(step: StepOperators, targets: str | None) -> str:
    """`adapters on q_proj, v_proj (PEFT's choice)`."""
    chosen = " (PEFT's choice)" if targets is None and ALL_LINEAR not in targets_of(step, None, _shapes(step)) else ""
    return f"adapters on {', '.join(targets_of(step, targets, _shapes(step)))}{chosen}"


def _shapes(step: StepOperators) -> set[Shape]:
    return {(each.shape[2], each.shape[3]) for each in linear_layers(step)}


def _adapted(layers: list[Operator], shares: Mapping[Shape, float]) -> list[Operator]:
    found = [replace(each, count=each.count * shares.get((each.shape[2], each.shape[3]), 0.0)) for each in layers]
    return [each for each in found if each.count > 0]


def adapters_of(step: StepOperators, rank: int, trained: float, shares: Mapping[Shape, float]) -> Adapters:
    """The adapters of a step that trains `trained` elements. Layers that share their weights share their adapter."""
    linear = linear_layers(step)
    packable, layers = sum(each.shape[2] * each.shape[3] * each.count for each in linear), _adapted(linear, shares)
    shared = min(1.0, trained / packable)
    elements = shared * sum(rank * (each.shape[2] + each.shape[3]) * each.count for each in layers)
    return Adapters(
        elements=elements,
        tensors=shared * sum(2 * each.count for each in layers),
        packable=shared * packable,
        share=elements / trained,
        largest=rank * max(max(each.shape[2:4]) for each in layers),
    )


def with_adapters(
    step: StepOperators, rank: int, *, packing: Packing | None, trained: tuple[float, float],
    shares: Mapping[Shape, float], precision: str | None = None, dropout: bool | None = None,
) -> StepOperators:  # fmt: skip
    """The step that trains adapters of this rank alone. `trained`: elements and tensors that it trains without them.
    `shares`: which layers get them, as `target_shares` says. `precision`: that of the adapters (`adapter_types`).
    `dropout`: whether there is one before each.
    `packing`: how the weights are held in four bits; None: they are not.

    Raises `PredictionError`, one line, where that cannot be.
    """
    if not step.training:
        raise PredictionError("adapters (LoRA) are trained: count a training step, not the forward pass alone")
    memory = step.memory
    if memory and memory.trained_bytes is not None and memory.trained_bytes < _ALREADY * (memory.parameter_bytes or 0):
        raise PredictionError(
            "the job trains a small part of its parameters already: adapters (LoRA) are for one that trains them all"
        )
    again, plain = step.checkpointing, without_checkpointing(step) if step.checkpointing else step
    linear, found = linear_layers(plain), adapters_of(plain, rank, trained[0], shares)
    layers = _adapted(linear, shares)
    operators = [each for each in plain.operators if each.phase != "optimizer" and not _is_of_frozen(each)]
    if packing:  # made whole in the type of the product, not cast to it
        operators = [each for each in operators if (each.phase, each.kind, each.grows) != ("forward", "copy", None)]
    types = replace(adapter_types(step.precision, precision), dropout=bool(dropout))
    operators += [each for layer in layers for each in _beside(layer, rank, types, packing is not None)]
    if packing:
        operators += [each for layer in linear for each in _made_whole(layer, packing)]
    plain = replace(plain, operators=tuple(operators), layers=())
    operators += [replace(each, phase="backward") for each in recomputed(plain, again)] if again else []
    operators += _updates(step, found, types.held)
    held = _memory(step, memory, found, (linear, layers), rank, packing, types) if memory else None
    return replace(step, operators=tuple(operators), layers=(), memory=held)


def _is_of_frozen(operator: Operator) -> bool:
    """Whether an operator of backward makes the gradient of a weight, or works on one: it has a result, or all of
    itself, of a size that does not grow with the batch."""
    if operator.phase != "backward":
        return False
    if operator.grows is None:  # casts and sums of gradients
        return True
    if operator.kind == "product":
        return operator.grows == 3 and operator.fixed_bytes > 0
    if operator.kind == "convolution":
        return "weight" in operator.name
    return operator.kind in ("reduction", "embedding") and operator.fixed_bytes > 0


def _beside(layer: Operator, rank: int, types: AdapterTypes, packed: bool) -> Iterator[Operator]:
    """The operators of the adapter of a layer, forward and backward, as `peft.tuners.lora.Linear` has them."""
    _, rows, outputs, inputs = layer.shape
    beside, held = layer.dtype, types.held
    own = replace(layer, dtype=types.computed or beside)
    computed = own.dtype
    if held != computed:  # autocast casts the weights, and the input that PEFT casts to their type
        for width in (inputs, outputs):
            yield _cast(layer, "forward", computed, rank * width, held)
            yield _cast(layer, "backward", held, rank * width, computed)
        for phase in ("forward", "backward") if not packed else ():
            yield _recast(layer, phase, rows * inputs, beside, held)
            yield _recast(layer, phase, rows * inputs, held, computed)
    elif computed != beside:  # the input, and the sum of both results in the wider type
        yield _recast(layer, "forward", rows * inputs, beside, computed)
        yield _recast(layer, "forward", rows * outputs, computed, beside)
        yield from 2 * (_recast(layer, "backward", rows * outputs, beside, computed),)
        yield _recast(layer, "backward", rows * inputs, computed, beside)
    if types.dropout:
        dropped = beside if packed and held != computed else held
        yield from (_dropped(layer, phase, rows * inputs, dropped) for phase in ("forward", "backward"))
    yield _product(own, "forward", rows, rank, inputs)
    yield _product(own, "forward", rows, outputs, rank)
    yield _elementwise(own, "forward", "mul", rows * outputs, 2)
    yield _elementwise(own, "forward", "add", rows * outputs, 3)
    yield _elementwise(own, "backward", "mul", rows * outputs, 2)
    yield _product(own, "backward", rows, rank, outputs)
    yield _product(own, "backward", rows, inputs, rank)
    yield _elementwise(layer, "backward", "add", rows * inputs, 3)
    yield _product(own, "backward", outputs, rank, rows, grows=3)
    yield _product(own, "backward", rank, inputs, rows, grows=3)


def _product(layer: Operator, phase: str, m: int, n: int, k: int, grows: int = 1) -> Operator:
    size = BYTES.get(layer.dtype, 4)
    fixed = n * k if grows == 1 else m * n
    return Operator(
        kind="product", phase=phase, name="mm", dtype=layer.dtype, shape=(1, m, n, k), flops=2.0 * m * n * k,
        bytes=size * (m * k + n * k + m * n), launches=1.0, count=layer.count, grows=grows, fixed_bytes=size * fixed,
    )  # fmt: skip


def _elementwise(layer: Operator, phase: str, name: str, elements: int, accesses: int) -> Operator:
    moved = float(accesses * elements * BYTES.get(layer.dtype, 4))
    return Operator("elementwise", phase, name, layer.dtype, (elements,), 0.0, moved, 1.0, layer.count, grows=0)


def _dropped(layer: Operator, phase: str, elements: int, dtype: str) -> Operator:
    """A dropout of activations: read, written, and a byte of mask for each."""
    moved = float(elements * (2 * BYTES.get(dtype, 4) + 1))
    return Operator("elementwise", phase, _DROPPING, dtype, (elements,), 0.0, moved, 1.0, layer.count, grows=0)


def _cast(layer: Operator, phase: str, dtype: str, elements: int, before: str) -> Operator:
    moved = float(elements * (BYTES.get(before, 4) + BYTES.get(dtype, 4)))
    return Operator("copy", phase, "_to_copy", dtype, (elements,), 0.0, moved, 1.0, layer.count, fixed_bytes=moved)


def _recast(layer: Operator, phase: str, elements: int, before: str, after: str) -> Operator:
    """A cast of activations."""
    return replace(_cast(layer, phase, after, elements, before), grows=0, fixed_bytes=0.0)


def _made_whole(layer: Operator, packing: Packing) -> Iterator[Operator]:
    """The weights of a layer made whole, in forward and maybe again in backward."""
    weights = layer.shape[2] * layer.shape[3]
    moved = packing.moved_bytes * weights
    for phase in ("forward", "backward") if packing.again else ("forward",):
        yield Operator(
            kind="copy", phase=phase, name=_DEQUANTIZING, dtype=layer.dtype, shape=(weights,), flops=0.0,
            bytes=moved, launches=packing.launches, count=layer.count, fixed_bytes=moved,
        )  # fmt: skip


def _updates(step: StepOperators, adapters: Adapters, dtype: str) -> list[Operator]:
    """The update of the adapters alone. An optimizer that is not known moves as much less as there is to update."""
    before = [each for each in step.operators if each.phase == "optimizer"]
    if not before:
        return []
    try:
        known = optimizer_named(step.optimizer or "")
    except PredictionError:
        share = adapters.share
        return [replace(each, bytes=share * each.bytes, fixed_bytes=share * each.fixed_bytes) for each in before]
    return [*known.operators(adapters.elements, adapters.tensors, dtype, BYTES[dtype])]


def _memory(
    step: StepOperators, memory: StepMemory, adapters: Adapters, layers: tuple[list[Operator], list[Operator]],
    rank: int, packing: Packing | None, types: AdapterTypes,
) -> StepMemory:  # fmt: skip
    """The memory with the adapters and what they save, without gradients of frozen weights. `layers`: all linear ones,
    and those with adapters."""
    size = BYTES[parameter_type(precision_named(step.precision))]
    made, left = _whole_bytes(layers[0], packing) if packing else (0.0, memory.saved_cast_bytes)
    trained, casts = adapters.elements * BYTES[types.held], 0.0 if step.checkpointing else left
    saved_more = _saved_more(*layers, rank, types)
    freed = adapters.packable * (size - packing.held_bytes) if packing else 0.0
    whole, block = memory.parameter_bytes, memory.largest_block_bytes
    blocks = max(layer.count for layer in layers[0])
    in_backward = memory.saved_bytes is not None and not step.checkpointing
    points, made_again = memory.points, memory.layer_bytes
    if step.checkpointing and made_again is not None:  # what adapters save in one block, made again in backward
        made_again += saved_more / blocks
        points = highest([*points, (0.0, (memory.saved_bytes or 0.0) + made_again)])
    points = _points(replace(memory, points=points), trained, casts, saved_more if in_backward else 0.0)
    made += left / blocks if step.checkpointing else 0.0
    return replace(
        memory,
        parameter_bytes=None if whole is None else whole - freed + trained,
        trained_bytes=trained,
        saved_bytes=memory.saved_bytes - memory.saved_cast_bytes + casts + saved_more
        if in_backward and memory.saved_bytes is not None
        else memory.saved_bytes,
        saved_cast_bytes=casts,
        layer_bytes=made_again,
        points=tuple((fixed + made, grown) for fixed, grown in points),
        largest_tensor_bytes=adapters.largest * BYTES[types.held],
        largest_block_bytes=block * packing.held_bytes / size if block is not None and packing else block,
    )


def _whole_bytes(linear: list[Operator], packing: Packing) -> tuple[float, float]:
    """The bytes of weights made whole: those of the largest layer while it is, and those that forward saves."""
    each = [(layer.shape[2] * layer.shape[3], BYTES.get(layer.dtype, 4), layer.count) for layer in linear]
    most = max(weights * (packing.beside_bytes + size) for weights, size, _ in each)
    return most, 0.0 if packing.again else sum(weights * size * count for weights, size, count in each)


def _saved_more(linear: list[Operator], layers: list[Operator], rank: int, types: AdapterTypes) -> float:
    """The bytes that forward saves beyond those of the step without adapters: their narrow results, their inputs where
    these are casts of their own or dropped out, and masks. Frozen layers keep no input, unless an adapter keeps the
    same one: taken off is one of each width in a block, as others may be kept by other operators."""
    saved, kept = 0.0, set[int]()
    for layer in layers:
        computed = types.computed or layer.dtype
        is_own = types.dropout or computed != layer.dtype or types.held != computed
        if not is_own:
            kept.add(layer.shape[3])
        saved += layer.count * layer.shape[1] * (rank + is_own * layer.shape[3]) * BYTES.get(computed, 4)
        saved += layer.count * layer.shape[1] * layer.shape[3] * types.dropout
    for width in {layer.shape[3] for layer in linear} - kept:
        first = min((layer for layer in linear if layer.shape[3] == width), key=lambda layer: layer.count)
        saved -= first.count * first.shape[1] * width * BYTES.get(first.dtype, 4)
    return saved


def _points(memory: StepMemory, trained: float, casts: float, saved_more: float) -> tuple[tuple[float, float], ...]:
    """The moments with the gradients of the adapters in place of all gradients, `casts` in place of all casts."""
    most = max((grown for _, grown in memory.points), default=0.0)
    most = most if memory.saved_bytes is None else min(memory.saved_bytes, most)
    before = memory.trained_bytes or 0.0
    found = []
    for fixed, grown in memory.points:
        left = min(grown / most, 1.0) if most else 0.0  # of what forward saved
        cast = min(fixed, memory.saved_cast_bytes * left)
        gradients = min(fixed - cast, before)
        rest = fixed - cast - gradients
        made = trained * gradients / before if before else 0.0
        found.append((rest + casts * left + made, grown + saved_more * left))
    return highest(found)
