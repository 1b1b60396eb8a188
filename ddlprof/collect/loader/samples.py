"""How many samples a batch holds where its first dimension does not say.

Two witnesses are heard before the shape is believed: the loader, which knows how many samples it draws for a batch, and
the layers inside a model that take [time, batch, features], as nn.LSTM and nn.Transformer do by default.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from ddlprof.collect.loader.batch import first_shape
from ddlprof.torch_private.loader import batch_sampler


class Drawn(NamedTuple):
    """What a loader draws from its data set for one batch."""

    samples: int
    last: int | None
    """The samples of an epoch's last batch; None: not known."""


def drawn_by(iterator: Any) -> Drawn | None:
    """The number drawn for the batches of a loader's iterator; None where it is not a fixed number of samples."""
    try:
        batches = batch_sampler(iterator)
        samples = getattr(batches, "batch_size", None)
        if type(samples) is not int or samples < 1:
            return None
    except Exception:  # internals of another torch version
        return None
    try:
        last = samples if batches.drop_last else (len(batches.sampler) - 1) % samples + 1
    except Exception:  # an iterable data set has no length
        last = None
    return Drawn(samples, last)


def loaded_samples(batch: Any, size: int | None, drawn: Drawn | None) -> int | None:
    """Samples in a batch that a loader gave, of which `size` are seen.

    Fewer than were drawn are the end of an epoch, or the share of one rank; more, such as the nodes of graphs or the
    words of texts laid end to end, are no samples. A single sample that was drawn may be a batch in itself.
    """
    if drawn is None or drawn.samples == 1 or size == drawn.samples:
        return size
    if size is None:
        return drawn.samples
    second = first_shape(batch)[1:2]
    if size > drawn.samples:
        return drawn.last if second == (drawn.last,) else drawn.samples
    if second == (drawn.samples,):  # [time, batch]
        return drawn.samples
    laid_end_to_end = size == 1 and drawn.last not in (None, 1)
    return drawn.samples if laid_end_to_end else size


class ForwardSamples:
    """Samples of the inputs of outermost modules; learns from the layers inside which dimension counts them."""

    def __init__(self) -> None:
        self.is_learned = False
        """Whether the first dimension does not count the samples of some module's input."""
        self._second: weakref.WeakSet[Any] = weakref.WeakSet()
        self._outer: weakref.ref[Any] | None = None
        self._shape: tuple[int, ...] = ()

    def begin(self, module: Any, args: Any, kwargs: Any, size: int | None, learn: bool = True) -> int | None:
        """Of the input of an outermost module that is about to run, of which `size` are seen.

        `learn`: `inside` will be called for the layers inside.
        """
        try:
            second = module in self._second
            if not learn and not second:  # its shape would tell nothing more
                return size
            self._outer, self._shape = weakref.ref(module), first_shape((args, kwargs))
            return self._shape[1] if second and len(self._shape) > 1 else size
        except Exception:  # whatever a user's input type does
            return size

    def end(self) -> None:
        """The outermost module is through."""
        self._outer, self._shape = None, ()

    def inside(self, layer: Any, args: Any) -> None:
        """A layer inside is called: one with its batch in the second dimension tells whether that is the input's."""
        if getattr(layer, "batch_first", None) is not False or len(self._shape) < 2 or not args:
            return
        try:
            module = self._outer() if self._outer is not None else None
            if module is not None and self._shape[0] != self._shape[1] == _second_dimension(args[0]):
                self._second.add(module)
                self.is_learned = True
        except Exception:  # a layer of the user's that has an attribute of that name
            return


def _second_dimension(value: Any) -> int | None:
    """The batch size in the input of a layer that takes [time, batch, features], packed or not."""
    counts = getattr(value, "batch_sizes", None)  # nn.utils.rnn.PackedSequence
    if counts is not None:
        return int(counts[0])
    return int(value.shape[1]) if len(value.shape) == 3 else None
