"""A step that computes activations again in backward, all of them or some, or that keeps them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import prod

from ddlprof.model.operators import Checkpointing, Operator, StepMemory, StepOperators, highest
from ddlprof.recommender.compute.precisions import BYTES, results

_OUTSIDE_BLOCKS = ("embedding", "optimizer")
"""Kinds that checkpointing of blocks never recomputes."""
_DEAR = ("product", "convolution", "recurrent")
"""Kinds that selective checkpointing does not recompute where they have weights."""


def with_checkpointing(step: StepOperators, asked: Checkpointing) -> StepOperators:
    """The step with this checkpointing. What a step saves that was counted with it and is asked for without is known
    where it was counted as well."""
    if asked == step.checkpointing or not step.training:
        return step
    if step.checkpointing:
        step = without_checkpointing(step)
    if not asked:
        return step
    again = tuple(replace(operator, phase="backward") for operator in recomputed(step, asked))
    memory = _memory(step, asked, step.memory) if step.memory else None
    return replace(step, operators=step.operators + again, checkpointing=asked, memory=memory)


def without_checkpointing(step: StepOperators) -> StepOperators:
    """The step without checkpointing: recomputed operators are left out. What would be saved is then known only where
    it was counted as well."""
    operators = [
        replace(operator, count=operator.count - calls) if calls else operator
        for operator, calls in zip(step.operators, computed_again(step), strict=True)
        if calls < operator.count
    ]
    memory = step.plain_memory or (replace(step.memory, saved_bytes=None, points=()) if step.memory else None)
    return replace(step, operators=tuple(operators), checkpointing=False, memory=memory, plain_memory=None)


def computed_again(step: StepOperators) -> list[float]:
    """How many calls of each operator of the step are those that checkpointing computes again."""
    left: dict[tuple[object, ...], float] = defaultdict(float)
    for operator in recomputed(step, step.checkpointing) if step.checkpointing else ():
        left[_key(operator)] += operator.count
    found = []
    for operator in reversed(step.operators):  # those computed again come last where `with_checkpointing` added them
        calls = min(left[_key(operator)], operator.count) if operator.phase == "backward" else 0.0
        left[_key(operator)] -= calls
        found.append(calls)
    return found[::-1]


def blocks_of(step: StepOperators) -> float:
    """How many blocks checkpointing computes again, one by one: a block has up to four linear layers of one shape."""
    counts = [operator.count for operator in _in_blocks(step) if _is_dear(operator)]
    return min((count for count in counts if 4 * count >= max(counts)), default=0.0)


def recomputed(step: StepOperators, checkpointing: Checkpointing) -> list[Operator]:
    """The operators of forward that this checkpointing computes again.

    torch stops once it has all that backward needs (`torch.utils.checkpoint`, `set_checkpoint_early_stop`): before the
    last product of a block if only a sum follows it, and behind it otherwise. With reentrance it computes all of it.
    """
    found = _in_blocks(step)
    if checkpointing == "selective":
        return [operator for operator in found if not _is_dear(operator)]
    if _is_from_the_end(step):  # a graph is read from its loss on
        found.reverse()
    products = [operator for operator in found if _is_dear(operator)]
    usual = max((operator.count for operator in products), default=0.0) / 2
    last = next((operator for operator in reversed(products) if operator.count >= usual), None)
    if last is None or any(_needs(each, last, after=each in found[found.index(last) :]) for each in found):
        return found
    if step.checkpointing == checkpointing and _is_counted_again(step, last):
        return found
    return [operator for operator in found if operator is not last]


def _is_counted_again(step: StepOperators, product: Operator) -> bool:
    """Whether backward has a product of forward once more, beside those of its sizes that pass gradients on."""
    batch, rows, columns, summed = product.shape[:4]
    products = [each for each in step.operators if (each.kind, each.grows) == ("product", product.grows)]
    sized = sum(each.count for each in products if each.phase == "backward" and each.shape == product.shape)
    passing = (
        each.count for each in products if each.phase == "forward" and each.shape == (batch, rows, summed, columns)
    )
    return sized - sum(passing) >= product.count


def _is_from_the_end(step: StepOperators) -> bool:
    forward = [operator for operator in step.operators if operator.phase == "forward"]
    losses = (number for number, operator in enumerate(forward) if _is_of_loss(operator))
    products = (number for number, operator in enumerate(forward) if _is_dear(operator))
    return next(losses, len(forward)) < next(products, 0)


def _is_of_loss(operator: Operator) -> bool:
    return any(part in operator.name for part in ("log_softmax", "loss", "cross_entropy"))


def _needs(operator: Operator, product: Operator, after: bool) -> bool:
    """Whether an operator of a block needs the result of its last product, going by its size and place: a dropout of
    each block, or what is listed `after` it and is no sum."""
    made = prod(product.shape[:3])
    if operator.kind not in ("elementwise", "normalization") or prod(operator.shape) != made:
        return False
    if operator.count < product.count:
        return False
    return "dropout" in operator.name or (after and not operator.name.strip("_").startswith("add"))


def classes_of(step: StepOperators) -> set[int]:
    """The numbers of classes that the step's losses tell apart: the width of its logits."""
    return {
        operator.shape[1]
        for operator in step.operators
        if operator.kind == "softmax" and ("log_softmax" in operator.name or "cross_entropy" in operator.name)
    }


def _in_blocks(step: StepOperators) -> list[Operator]:
    classes = classes_of(step)
    return [operator for operator in step.operators if _is_in_block(operator, classes)]


def _is_in_block(operator: Operator, classes: set[int]) -> bool:
    """Whether an operator of forward is in a block.

    Outside of all blocks are embeddings, the product that makes the logits, and the loss.
    """
    if operator.phase != "forward" or operator.kind in _OUTSIDE_BLOCKS:
        return False
    if _is_of_loss(operator):
        return False
    return not (operator.kind == "product" and operator.shape[2] in classes)


def _is_dear(operator: Operator) -> bool:
    """Whether selective checkpointing keeps the result. Products without weights are those of attention."""
    return operator.kind in _DEAR and operator.fixed_bytes > 0


def _key(operator: Operator) -> tuple[object, ...]:
    # A gradient of weights has the shape of a layer where there are as many tokens as the layer is wide.
    return operator.kind, operator.name, operator.dtype, operator.shape, operator.grows


def _memory(step: StepOperators, checkpointing: Checkpointing, memory: StepMemory) -> StepMemory:
    """The memory with checkpointing; `layer_bytes` becomes what the largest block makes again.

    Autocast casts the weights of a block again when it is recomputed, so casts are not kept.
    """
    kept, layer = memory.kept_bytes, memory.layer_bytes
    if kept is None or layer is None:
        return replace(memory, saved_bytes=None, points=())
    dear = _bytes_of_dear(step) if checkpointing == "selective" else 0.0
    saved = kept + dear
    if memory.saved_bytes is not None:
        saved = min(memory.saved_bytes, saved)
        in_blocks = memory.saved_bytes - kept - memory.saved_cast_bytes
        layer *= 1.0 - min(dear / in_blocks, 1.0) if in_blocks > 0 else 1.0
    points = _points(memory, saved, layer)
    return replace(
        memory,
        saved_bytes=saved,
        saved_fixed_bytes=0.0,
        saved_cast_bytes=0.0,
        joined_bytes=0.0,
        layer_bytes=layer,
        points=points,
    )


def _points(memory: StepMemory, saved: float, layer: float) -> tuple[tuple[float, float], ...]:
    """The moments with `saved` bytes kept and `layer` bytes made again. What is there at a moment beyond all that was
    saved, such as copies of logits in the loss, stays, and is gone when a block is computed again."""
    most = max((grown for _, grown in memory.points), default=0.0)
    if not most:
        return ()
    before = most if memory.saved_bytes is None else min(memory.saved_bytes, most)
    found = []
    for fixed, grown in memory.points:
        left = min(grown / before, 1.0) if before else 0.0
        beyond = max(grown - before, 0.0)
        found.append((max(0.0, fixed - memory.saved_cast_bytes * left), saved * left + max(layer, beyond)))
    return highest(found)


def _bytes_of_dear(step: StepOperators) -> float:
    """The bytes of the results that selective checkpointing keeps in all blocks."""
    dear = tuple(operator for operator in _in_blocks(step) if _is_dear(operator))
    made = results(replace(step, operators=dear))
    return sum(elements * BYTES.get(operator.dtype, 4) for operator, elements in made)
