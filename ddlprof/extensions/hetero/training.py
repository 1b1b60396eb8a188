"""Applies a plan to a training with DistributedDataParallel by one call; the loop stays as it is.

Every rank gets its share of each batch. The gradient of its mean loss is weighted by that share, so that
DistributedDataParallel's mean over ranks is the gradient of the mean over all samples: the same as one process would
compute with the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlprof.base.errors import UserError
from ddlprof.base.units import count

if TYPE_CHECKING:
    from ddlprof.extensions.hetero.plan_file import PlanFile

_KEPT = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
    "prefetch_factor", "persistent_workers", "pin_memory_device",
)  # fmt: skip
"""The attributes that the new loader takes from the old one."""
_DEFAULT_SEED = 0


def apply(plan: str | Path | PlanFile, model: Any, loader: Any) -> Any:
    """Returns the loader to use in place of `loader`. Each of its batches is this rank's share of the plan's batch.

    `model`: the DistributedDataParallel that the loop calls. From now on its gradients are weighted, and exchanged as
    the plan says. The order of samples is that of `loader`: of its DistributedSampler with seed and epoch (`set_epoch`
    still works), or of its other sampler, shuffled or not. The loss must be a mean over samples. Call it on every rank
    after `init_process_group`. Raises `UserError` if the plan is for another number of ranks or the loader chooses
    batches in its own way.
    """
    from ddlprof.extensions.hetero.plan_file import PlanFile, read_plan

    found = plan if isinstance(plan, PlanFile) else read_plan(plan)
    if found.stages:
        raise UserError("the plan divides the layers: use ddlprof.hetero.apply_stages")
    batches = _batches(found.samples, found.own_rank(), loader)
    weighting = _Weighting(len(found.ranks))
    model.register_forward_hook(weighting)
    if any(group.server_rank is not None for group in found.groups):
        from ddlprof.extensions.hetero.parameter_server import serve

        serve(model, found.groups)
    return _loader(loader, batches, weighting)


class _Weighting:
    """A forward hook that multiplies the gradient of everything that the model returns by this rank's weight.

    The gradients of all parameters are then weighted once for every micro-batch. DistributedDataParallel divides by the
    number of ranks.
    """

    def __init__(self, world: int) -> None:
        self._world = world
        self._factor = 1.0

    def begins(self, weight: float) -> None:
        """Sets the weight of the next batch."""
        self._factor = weight * self._world

    def __call__(self, module: Any, arguments: Any, output: Any) -> None:
        factor = self._factor
        if factor != 1.0:
            for tensor in _with_gradient(output):
                tensor.register_hook(lambda gradient: gradient * factor)


def _with_gradient(output: Any) -> Iterator[Any]:
    """The tensors with gradients in what a model returned, each once."""
    import torch

    seen: set[int] = set()
    left = [output]
    while left:
        each = left.pop()
        if isinstance(each, torch.Tensor):
            if each.requires_grad and id(each) not in seen:
                seen.add(id(each))
                yield each
        elif isinstance(each, dict):
            left += each.values()
        elif isinstance(each, (list, tuple)):
            left += each
        elif hasattr(each, "__dataclass_fields__"):
            left += [getattr(each, name) for name in each.__dataclass_fields__]


def _batches(samples: Sequence[int], rank: int, loader: Any) -> UnevenBatches:
    from torch.utils.data import (
        BatchSampler,
        DataLoader,
        DistributedSampler,
        IterableDataset,
        RandomSampler,
        SequentialSampler,
    )

    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        raise UserError("a plan needs a DataLoader of a data set with a length: an iterable one divides itself")
    sampler = loader.sampler
    known = isinstance(sampler, (DistributedSampler, RandomSampler, SequentialSampler))
    if type(loader.batch_sampler) is not BatchSampler or not known:
        kind = type(sampler if not known else loader.batch_sampler).__name__
        raise UserError(
            f"a plan cannot divide what {kind} chooses: give the loader a DistributedSampler, or shuffle=True or False"
        )
    shuffled = sampler.shuffle if isinstance(sampler, DistributedSampler) else isinstance(sampler, RandomSampler)
    drop_last = bool(loader.drop_last or getattr(sampler, "drop_last", False))
    length = len(loader.dataset)  # type: ignore[arg-type]
    batches = UnevenBatches(samples, rank, length, drop_last, _Order(sampler, length, shuffled))
    if not len(batches):
        raise UserError(f"the data set has {count(length, 'sample')}, less than a batch of the plan, {sum(samples):,}")
    return batches


class _Order:
    """The order of samples in an epoch, equal on all ranks: shuffled by seed and epoch, as DistributedSampler does."""

    def __init__(self, sampler: Any, length: int, shuffled: bool) -> None:
        self._sampler, self._length, self._shuffled = sampler, length, shuffled
        self._epochs = 0

    def __call__(self) -> Sequence[int]:
        import torch

        epoch = getattr(self._sampler, "epoch", self._epochs)
        self._epochs += 1
        if not self._shuffled:
            return range(self._length)
        generator = torch.Generator()
        generator.manual_seed(getattr(self._sampler, "seed", _DEFAULT_SEED) + epoch)
        order: list[int] = torch.randperm(self._length, generator=generator).tolist()
        return order


def _loader(loader: Any, batches: UnevenBatches, weighting: _Weighting) -> Any:
    from torch.utils.data import DataLoader

    class UnevenLoader(DataLoader[Any]):
        """A loader that sets the weight of each batch when it hands it out, as workers fetch ahead."""

        def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
            for number, batch in enumerate(super().__iter__()):
                weighting.begins(batches.weight(number))
                yield batch

    options = {name: getattr(loader, name) for name in _KEPT if hasattr(loader, name)}
    return UnevenLoader(loader.dataset, batch_sampler=batches, **options)


def divided(whole: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Divides `whole` into whole numbers in proportion to the weights. The rest goes to the largest remainders."""
    total = sum(weights)
    found = [int(whole * weight // total) for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda index: (-(whole * weights[index] % total), index))
    for index in by_remainder[: whole - sum(found)]:
        found[index] += 1
    return tuple(found)


class UnevenBatches:
    """The batches of one rank, for `batch_sampler` of a DataLoader.

    Batch i of all ranks together is the i-th piece of the epoch's order, so together they train as one process would
    with the same order and the whole batch. The last batch is smaller unless it is dropped. A rank without samples of
    it gets a sample of another rank with weight 0, as every rank must take part.
    """

    def __init__(
        self, samples: Sequence[int], rank: int, length: int, drop_last: bool, order: Callable[[], Sequence[int]]
    ) -> None:
        """`samples`: those of each rank in a full batch. `length`: the samples of an epoch.

        `order`: returns a new epoch's order.
        """
        self._samples, self._rank, self._length, self._order = tuple(samples), rank, length, order
        self._full, rest = divmod(length, sum(samples))
        self._tail = () if drop_last or not rest else divided(rest, samples)

    def __len__(self) -> int:
        return self._full + bool(self._tail)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        if len(order) != self._length:
            raise ValueError(f"an epoch of {len(order)} samples; the plan was applied to one of {self._length}")
        whole = sum(self._samples)
        for number in range(self._full):
            yield self._mine(order, number * whole, self._samples)
        if self._tail:
            yield self._mine(order, self._full * whole, self._tail) or [order[self._full * whole]]

    def _mine(self, order: Sequence[int], begin: int, shares: Sequence[int]) -> list[int]:
        begin += sum(shares[: self._rank])
        return list(order[begin : begin + shares[self._rank]])

    def weight(self, number: int) -> float:
        """The weight of the mean over this rank's samples in the mean over all ranks' samples of that batch."""
        shares = self._samples if number < self._full else self._tail
        return shares[self._rank] / sum(shares)
