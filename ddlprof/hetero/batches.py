"""Divides the samples of an epoch among ranks that get unequal shares. Standard library only: torch shuffles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence


def divided(whole: int, weights: Sequence[int]) -> tuple[int, ...]:
    """Whole numbers in proportion to the weights, with that sum: what is left goes to the largest remainders."""
    total = sum(weights)
    found = [whole * weight // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda index: (-(whole * weights[index] % total), index))
    for index in by_remainder[: whole - sum(found)]:
        found[index] += 1
    return tuple(found)


class UnevenBatches:
    """The batches of one rank, as `batch_sampler` of a DataLoader.

    Batch number i of all ranks together is the i-th piece of the epoch's order, so together they train with what one
    process would with the same order and the whole batch. The last one is smaller, unless it is dropped; a rank that
    would get nothing of it gets a sample of another's that counts for nothing, as every rank has to take part.
    """

    def __init__(
        self, samples: Sequence[int], rank: int, length: int, drop_last: bool, order: Callable[[], Sequence[int]]
    ) -> None:
        """`samples` of each rank in a full batch; `length` samples an epoch; `order` gives their order anew."""
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
        """What the mean over this rank's samples of that batch counts in the mean over all ranks' samples."""
        shares = self._samples if number < self._full else self._tail
        return shares[self._rank] / sum(shares)
