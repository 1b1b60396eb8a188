"""The operators and the memory of a step in another precision.

`ddlprof features` counts a step in fp32, in 16 bit and under autocast, and what is asked for is one of these. A step
that was counted in one precision alone, as that of a run, is converted to fp32 and then to the wanted precision, by
rules that know operators but not the code between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ddlprof.model.operators import CAST, Operator, StepMemory, StepOperators, highest
from ddlprof.recommender.errors import PredictionError

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "amp-bf16", "amp-fp16", "fp8")
"""fp32 and tf32 differ in the products' speed only. amp: autocast around parameters in fp32. fp8: products in fp8 with
scales; parameters stay in half precision where the step has them so, else everything else is as under amp-bf16."""
_FP8_OF = {"fp8-bf16": "bf16", "fp8-fp16": "fp16"}
"""What fp8 is of a step with parameters in half precision. Nobody asks for these names: they ask for fp8."""

_SPELLINGS = {
    "float32": "fp32", "32": "fp32", "32-true": "fp32", "amp": "amp-fp16", "16-mixed": "amp-fp16", "mixed": "amp-fp16",
    "bf16-mixed": "amp-bf16", "bfloat16": "bf16", "bf16-true": "bf16", "float16": "fp16", "half": "fp16",
    "16": "fp16", "16-true": "fp16", "amp-fp8": "fp8", "float8": "fp8",
}  # fmt: skip

BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
"""The bytes of an element."""
_HALVES = ("bf16", "fp16")

_IN_HALF = ("product", "convolution", "attention", "recurrent")
"""The kinds that autocast computes in half precision."""
_IN_FP32 = (
    "pow", "exp", "log", "softplus", "cumsum", "cumprod", "prod", "rsqrt", "reciprocal", "tan", "cosh", "sinh",
    "acos", "asin", "erfinv", "expm1", "norm", "renorm", "dist", "loss", "binary_cross_entropy", "sum",
)  # fmt: skip
"""What torch's autocast computes in fp32 on CUDA, besides normalisation and softmax:
https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float32 (November 2026)."""
_FP8_CAST = "_to_float8"
"""The name that casts from half precision to fp8 have here."""
_UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"
_UNCHANGED, _HALVED, _COPIED = 1.0, 0.5, 1.5
"""The factors of autocast on the size of a saved result: in fp32, in half, or in fp32 with a copy in half."""
_NOT_KEPT = ("copy", "embedding", "optimizer")
"""Kinds whose results are copies of other tensors, or whose backward needs only indices."""


def precision_named(text: str) -> str:
    """The precision of `PRECISIONS` for any usual spelling. Raises `PredictionError` that names the known ones."""
    name = text.strip().lower().replace("_", "-").replace(" ", "-")
    name = _SPELLINGS.get(name, name)
    if name not in PRECISIONS and name not in _FP8_OF:
        raise PredictionError(f"precision {text!r} is not known; one of: {', '.join(PRECISIONS)}")
    return name


def parameter_type(precision: str) -> str:
    """The type of the parameters, their gradients and the optimizer's states."""
    return _FP8_OF.get(precision, precision if precision in _HALVES else "fp32")


def computed_type(precision: str) -> str:
    """The type that layers compute in, and so the one in which FSDP's mixed precision gathers parameters."""
    return parameter_type(precision) if _kind(precision) in ("pure", "fp32") else _half_of(precision)


def in_terms_of(counted: str, asked: str) -> str:
    """The precision that a step counted in one precision has once it is asked for in another: fp8 leaves parameters in
    half precision as they are. Raises `PredictionError` for an unknown one."""
    before, after = precision_named(counted), precision_named(asked)
    half = _FP8_OF.get(before, before)
    return f"fp8-{half}" if after == "fp8" and half in _HALVES else after


def in_precision(step: StepOperators, precision: str) -> StepOperators:
    """The step in another precision; products of an update (Muon's) keep their type. Raises `PredictionError` for an
    unknown one."""
    after = precision_named(precision)
    if any(map(_of_update, step.operators)):
        others = tuple(replace(each, operators=_without_update(each.operators)) for each in step.others)
        rest = in_precision(replace(step, operators=_without_update(step.operators), others=others), after)
        return replace(rest, operators=(*rest.operators, *filter(_of_update, step.operators)))
    step = _counted(step, after)
    if step.plain_memory and precision_named(step.precision) != after:
        step = replace(step, plain_memory=None)
    before = precision_named(step.precision)
    if before in _FP8_OF and after != "fp8":
        step, before = _without_fp8(step), _FP8_OF[before]
    if before == after or before in _FP8_OF:
        return step
    if _kind(before) in ("pure", "amp") and after == "fp8":
        return _with_fp8(step, _half_of(before))
    if _kind(before) == _kind(after):
        return _renamed(step, before, after)
    step = _to_fp32(step, before)
    if _kind(after) == "fp32":
        return replace(step, precision=after)
    return _all_in(step, after) if _kind(after) == "pure" else _autocast(step, after)


def _of_update(operator: Operator) -> bool:
    return operator.phase == "optimizer" and operator.kind == "product"


def _without_update(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    return tuple(operator for operator in operators if not _of_update(operator))


def _counted(step: StepOperators, after: str) -> StepOperators:
    """The step in the counted precision that is nearest to the wanted one."""
    before = precision_named(step.precision)
    kind = _kind(after)
    if kind == "fp8":  # parameters stay in half precision where they are
        kind = "pure" if _FP8_OF.get(before, before) in _HALVES else "amp"
    found = next((each for each in step.others if _kind(each.precision) == kind), None)
    if found is None or _kind(before) == kind:
        return step
    return replace(step, **vars(found), layers=(), others=())


def _kind(precision: str) -> str:
    if precision == "fp8":
        return "fp8"
    if precision.startswith("amp-"):
        return "amp"
    return "pure" if precision in _HALVES else "fp32"


def _half_of(precision: str) -> str:
    return "fp16" if precision.endswith("fp16") else "bf16"


def _with_fp8(step: StepOperators, half: str) -> StepOperators:
    """Products in fp8, and the casts of what goes into them; all else stays in half precision."""
    operators: list[Operator] = []
    for operator in step.operators:
        if operator.kind != "product" or operator.dtype != half:
            operators.append(operator)
            continue
        operators.append(_scaled(operator, "fp8", _fp8_share(operator, half)))
        b, m, _, k = operator.shape
        casts = [_cast_like(operator, b * m * k, 3.0, 1)]
        if operator.phase == "forward" and operator.grows is not None and operator.fixed_bytes:
            weights = round(operator.fixed_bytes / BYTES[half])
            casts.append(_cast_like(replace(operator, grows=None), weights, 3.0, 1))
        operators += [replace(cast, dtype=half, name=_FP8_CAST) for cast in casts]
    name = f"fp8-{half}" if _kind(step.precision) == "pure" else "fp8"
    return replace(step, precision=name, operators=tuple(operators))


def _without_fp8(step: StepOperators) -> StepOperators:
    """The step before `_with_fp8`."""
    half = _FP8_OF[step.precision]
    kept = (operator for operator in step.operators if operator.name != _FP8_CAST)
    operators = tuple(_scaled(o, half, 1 / _fp8_share(o, half)) if o.dtype == "fp8" else o for o in kept)
    return replace(step, precision=half, operators=operators)


def _renamed(step: StepOperators, before: str, after: str) -> StepOperators:
    """The step with another type of equal size: bf16 for fp16 or the other way round, or tf32 for fp32."""
    old, new = _half_of(before), _half_of(after)
    if _kind(after) == "fp32":
        return replace(step, precision=after)
    operators = [replace(o, dtype=new) if o.dtype == old else o for o in step.operators if o.name != _UNSCALE]
    if after == "amp-fp16":
        operators += _unscale(step.operators)
    return replace(step, precision=after, operators=tuple(operators))


def _scaled(operator: Operator, dtype: str, factor: float) -> Operator:
    fused, unfused = operator.fused_bytes, operator.unfused_bytes
    return replace(
        operator,
        dtype=dtype,
        bytes=operator.bytes * factor,
        fixed_bytes=operator.fixed_bytes * factor,
        fused_bytes=None if fused is None else fused * factor,
        unfused_bytes=None if unfused is None else unfused * factor,
    )


def _to_fp32(step: StepOperators, before: str) -> StepOperators:
    if _kind(before) == "fp32":
        return step
    autocast = _kind(before) != "pure"
    operators = []
    for operator in step.operators:
        cast = operator.name == _FP8_CAST or (operator.name == CAST and operator.dtype in BYTES)
        if autocast and (operator.name == _UNSCALE or cast):
            continue
        if operator.dtype == "fp8":
            operator = _scaled(operator, "fp32", 1 / _fp8_share(operator))
        elif operator.dtype in _HALVES:
            operator = _scaled(operator, "fp32", 2.0)
        operators.append(operator)
    step = replace(step, precision="fp32", operators=tuple(operators))
    if not step.memory:
        return step
    if not autocast:
        return replace(step, memory=_memory_scaled(step.memory, 2.0))
    return replace(step, memory=_memory_scaled(step.memory, 1 / _saved_share(step), parameters=False))


def _all_in(step: StepOperators, half: str) -> StepOperators:
    operators = [_scaled(o, half, 0.5) if o.dtype == "fp32" else o for o in step.operators]
    memory = _memory_scaled(step.memory, 0.5) if step.memory else None
    return replace(step, precision=half, operators=tuple(operators), memory=memory)


def _autocast(step: StepOperators, after: str) -> StepOperators:
    residual, half = _residual_in_fp32(step), _half_of(after)
    operators: list[Operator] = []
    for operator in step.operators:
        if operator.dtype != "fp32" or "optimizer" in (operator.kind, operator.phase):
            operators.append(operator)
            continue
        if after == "fp8" and operator.kind == "product":
            operators.append(_scaled(operator, "fp8", _fp8_share(operator)))
        else:
            stays = _stays_in_fp32(operator, residual)
            operators.append(operator if stays else _scaled(operator, half, 0.5))
        operators += [replace(cast, dtype=half) for cast in _casts(operator, after)]
        if operator.phase == "forward" and step.training:  # the gradients of weights, back to fp32
            operators += [replace(cast, dtype=half, phase="backward") for cast in _weight_casts(operator)]
    if after == "amp-fp16":
        operators += _unscale(step.operators)
    memory = step.memory
    if memory:
        casts = BYTES[half] * _cast_elements(step)
        memory = _memory_scaled(memory, _saved_share(step), parameters=False, casts=casts)
    return replace(step, precision=after, operators=tuple(operators), memory=memory)


def _residual_in_fp32(step: StepOperators) -> bool:
    """Whether sums around blocks stay in fp32, as with layer norms. Under autocast batch norm stays in half."""
    return any(o.kind == "normalization" and "batch_norm" not in o.name for o in step.operators)


def _stays_in_fp32(operator: Operator, residual: bool) -> bool:
    name = operator.name.strip("_")
    if operator.kind in _IN_HALF:
        return False
    if operator.kind in ("softmax", "embedding"):
        return True
    if operator.kind == "normalization":
        return "batch_norm" not in name
    if operator.kind in ("elementwise", "reduction", "other"):
        if name.startswith("add"):
            return residual
        # Backward runs in the type of what arrives: a sum there is that of a bias in half precision.
        in_list = any(name.startswith(each) or f"_{each}" in name for each in _IN_FP32)
        return in_list and not (operator.phase == "backward" and name.startswith("sum"))
    return False


def _casts(operator: Operator, after: str) -> Iterator[Operator]:
    """The casts that autocast adds for an operator in its phase: of weights, inputs and results."""
    if operator.phase == "forward":
        yield from _weight_casts(operator)
    elements = math.prod(operator.shape[:2])
    if operator.kind == "normalization" and "batch_norm" not in operator.name:
        yield _cast_like(operator, elements, 6.0, 1)  # out of it in fp32, into a product in half
    elif operator.kind == "softmax":
        # The softmax of attention is between two products, that of a loss has nothing behind it.
        yield _cast_like(operator, elements, 6.0, 1 if "log" in operator.name or "loss" in operator.name else 2)
    elif after == "fp8" and operator.kind == "product":
        b, m, _, k = operator.shape
        yield _cast_like(operator, b * m * k, 3.0, 1)


def _cast_like(operator: Operator, elements: int, element_bytes: float, times: int) -> Operator:
    """A cast of so many elements, read in one type and written in another, that grows as the operator does.

    torch.compile fuses it into the kernel before or after.
    """
    grows = operator.grows is not None
    moved = element_bytes * elements
    return Operator(
        kind="copy", phase=operator.phase, name=CAST, dtype="fp32", shape=(elements,), flops=0.0, bytes=moved,
        launches=1.0, count=operator.count * times, grows=0 if grows else None, fixed_bytes=0.0 if grows else moved,
        fused_bytes=0.0, fused_launches=0.0,
    )  # fmt: skip


def _weight_casts(operator: Operator) -> Iterator[Operator]:
    """Casts of weights: fp32 is read and half written; for the gradient the other way round."""
    elements = _weights(operator)
    if elements:
        yield replace(
            _cast_like(replace(operator, grows=None), elements, 6.0, 1),
            launches=2.0 if "addmm" in operator.name else 1.0,
            fused_bytes=6.0 * elements,
            fused_launches=1.0,
        )


def _weights(operator: Operator) -> int:
    """The elements of the weights of one call of an operator in fp32 that autocast computes in half precision."""
    if operator.kind not in ("product", "convolution", "recurrent") or operator.grows is None:
        return 0
    return round(operator.fixed_bytes / BYTES["fp32"])


def _cast_elements(step: StepOperators) -> float:
    return sum(_weights(o) * o.count for o in step.operators if o.phase == "forward")


def _fp8_share(operator: Operator, before: str = "fp32") -> float:
    """The bytes of a product in fp8, its result in half precision, over those in another type."""
    b, m, n, k = operator.shape
    read, written = b * (m * k + k * n), b * m * n
    return (read + 2 * written) / (BYTES[before] * (read + written))


def _unscale(operators: tuple[Operator, ...]) -> list[Operator]:
    """The gradient scaler's check of all gradients before an update in fp16: each is read and written."""
    updates = [o for o in operators if o.kind == "optimizer" and o.name != _UNSCALE]
    if not updates:
        return []
    largest = max(updates, key=lambda o: o.shape[0] * o.count)
    elements, tensors = largest.shape[0] * largest.count, largest.shape[1] * largest.count
    moved = 8.0 * elements
    return [
        Operator(
            kind="optimizer", phase="optimizer", name=_UNSCALE, dtype="fp32", shape=(round(elements), round(tensors)),
            flops=0.0, bytes=moved, launches=math.ceil(tensors / 110), count=1.0, fixed_bytes=moved,
        )
    ]  # fmt: skip


def _memory_scaled(memory: StepMemory, factor: float, *, parameters: bool = True, casts: float = 0.0) -> StepMemory:
    """The memory with activations (and parameters) in types of other sizes, and with autocast's casts of weights.

    Saved integers are treated like activations. Casts are freed during backward.
    """
    before, saved = memory.saved_cast_bytes, memory.saved_bytes
    most = max((grown for _, grown in memory.points), default=0.0) or 1.0
    of_parameters = factor if parameters else 1.0

    def changed(kept: float) -> float:
        return max(kept - before, 0.0) * factor + casts

    def moment(fixed: float, grown: float) -> tuple[float, float]:
        left = grown / most  # of what is saved, and so of the casts
        return max(fixed - before * left, 0.0) * of_parameters + casts * left, grown * factor

    return replace(
        memory,
        parameter_bytes=times(memory.parameter_bytes, of_parameters),
        trained_bytes=times(memory.trained_bytes, of_parameters),
        saved_bytes=None if saved is None else changed(saved),
        saved_fixed_bytes=changed(memory.saved_fixed_bytes),
        saved_cast_bytes=casts,
        joined_bytes=memory.joined_bytes * factor,
        temporary_bytes=times(memory.temporary_bytes, of_parameters),
        layer_bytes=times(memory.layer_bytes, factor),
        kept_bytes=times(memory.kept_bytes, factor),
        points=highest(moment(*each) for each in memory.points),
        largest_tensor_bytes=times(memory.largest_tensor_bytes, of_parameters),
        largest_block_bytes=times(memory.largest_block_bytes, of_parameters),
    )


def _saved_share(step: StepOperators) -> float:
    """The factor of autocast on the saved activations of a step in fp32, by the results of operators in forward."""
    residual = _residual_in_fp32(step)
    before = after = 0.0
    for operator, result in results(step):
        before += result
        after += result * _left(operator, residual)
    return after / before if before else _HALVED


def _left(operator: Operator, residual: bool) -> float:
    if operator.kind == "softmax":
        # That of a loss keeps its own result; that of attention goes into a product, which saves a copy.
        return _UNCHANGED if "log" in operator.name or "loss" in operator.name else _COPIED
    if operator.kind == "normalization" or not _stays_in_fp32(operator, residual):
        return _HALVED  # behind a norm it is the copy for a product that is saved
    return _UNCHANGED


def times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def results(step: StepOperators) -> Iterator[tuple[Operator, float]]:
    """The operators of forward whose results grow with the batch, each with the elements of all of its results."""
    for operator in step.operators:
        if operator.phase == "forward" and operator.grows is not None and operator.kind not in _NOT_KEPT:
            yield operator, _elements(operator) * operator.count


def _elements(operator: Operator) -> float:
    shape, kind = operator.shape, operator.kind
    if kind == "product":
        return math.prod(shape[:3])
    if kind == "convolution":
        return math.prod(shape[:3]) * shape[4]
    if kind == "attention":
        return shape[0] * shape[1] * shape[3]
    if kind == "recurrent":
        return math.prod(shape[:4])
    if kind == "reduction":
        return shape[1]
    return math.prod(shape[:2]) if kind in ("softmax", "normalization") else shape[0]
