"""How many tokens a sample of text has, and how much of a batch is padding, by the batches of the first steps.

A batch is text if the first tensor that the model gets is a row of whole numbers for each sample. Padding is told by a
mask that the loader gives beside it (`attention_mask`), or by the number that the model's own settings name
(`config.pad_token_id`). Some masks are 1 for a token, others for padding (`src_key_padding_mask` of torch), or tell a
prompt from its answer: padding is where the numbers beside the mask are all the same. Values are read only of tensors
in the host's memory, so nothing waits for a device. Labels that losses leave out are those of -100, in numbers of the
same shape as the text.
"""

from __future__ import annotations

import weakref
from collections import UserDict
from collections.abc import Callable
from itertools import compress
from operator import ne, not_
from typing import Any

from ddlprof.base.guarded import dead_reference
from ddlprof.collect.loader.batch import arguments_tensors
from ddlprof.torch_private.engine import no_torch_function

_ATTENTION = "attention_mask"
MASKS = (_ATTENTION, "padding_mask", "mask")
"""Names of masks; the first is 1 for a token and 0 for padding wherever it is used."""
_IDS = "input_ids"
_COMPARED_ROWS = 16
"""So many samples at most tell which value of a mask is padding."""
_COMPARED_PLACES = 20_000
"""They have no more places than that together."""
_WHOLE = ("torch.int64", "torch.int32")
_IGNORED = -100
"""The label that losses of torch leave out (`ignore_index`): where it stands there may be text."""
_LABELLED = 4
"""So many batches are searched for such labels."""
_MOST_LABELS = 100_000
"""Larger batches are not."""
_MOST_TOKENS = 1_000_000
"""Larger batches are not counted: it takes some 10 ms for each of them."""


class TextBatches:
    """Counts over the batches that were looked at."""

    def __init__(self) -> None:
        self.calls = self.tokens = 0
        self._first = self._second = 0
        """Sums of both dimensions: the number of samples is in the first one, but for [time, batch] in the second."""
        self._places = self._padding = 0
        """The places in batches of which the padding is known, and those of them that are padding."""
        self._labelled = self._labels = self._ignored = 0
        """The batches that were searched for labels, the labels in them, and those of them that losses leave out."""
        self._loaded: Callable[[], Any] = dead_reference
        """The numbers that the loader gave last, weakly, until the model is called and names its padding."""

    def tokens_per_sample(self, batch: int | None) -> float | None:
        """The mean length of a sample, padding included; None: no text. `batch`: the samples of a micro-batch."""
        if not self.calls:
            return None
        turned = batch is not None and self._second == batch * self.calls != self._first
        return self.tokens / (self._second if turned else self._first)

    @property
    def places(self) -> int:
        """The places in batches of which the padding is known."""
        return self._places if self.calls else 0

    @property
    def padding(self) -> int:
        """Those of `places` that are padding."""
        return self._padding if self.calls else 0

    @property
    def padding_share(self) -> float | None:
        """The share of padding; None: not known."""
        return self._padding / self._places if self._places and self.calls else None

    @property
    def ignored_share(self) -> float | None:
        """The share of labels that losses leave out; None: not known."""
        return self._ignored / self._labels if self._ignored and self.calls else None

    def loaded(self, batch: Any) -> None:
        """Called with a batch of the loader."""
        self._loaded = dead_reference
        if self._labelled < _LABELLED:
            self._labelled += 1
            self._count_ignored(batch)
        held = batch.data if issubclass(type(batch), UserDict) else batch
        if not issubclass(type(held), dict):
            return
        name = next((name for name in MASKS if _rows(dict.get(held, name)) is not None), None)
        if name is not None:
            marks = _values(dict.get(held, name))
            self._count(marks, _padding_in(held, name, marks))
        elif (numbers := _rows(dict.get(held, _IDS))) is not None:
            self._loaded = weakref.ref(numbers)

    def forward(self, module: Any, inputs: Any) -> None:
        """Called with the arguments of an outermost forward that is trained."""
        rows = _rows(next(iter(arguments_tensors(inputs)), None))
        with no_torch_function():  # a tensor of the script's own class would be asked
            if rows is None or not is_text(rows):
                return
            samples, length = map(int, rows.shape)
        self.calls += 1
        self._first, self._second = self._first + samples, self._second + length
        self.tokens += samples * length
        numbers, self._loaded = self._loaded(), dead_reference
        padding = _padding_of(module)
        if numbers is not None and padding is not None:
            self._count(_values(numbers), padding)

    def _count(self, values: list[list[Any]], padding: int | None) -> None:
        for row in values if padding is not None else []:
            self._places += len(row)
            self._padding += row.count(padding)

    def _count_ignored(self, batch: Any) -> None:
        with no_torch_function():
            tensors = [each for each in arguments_tensors((batch,)) if each.is_cpu and is_text(each)]
            sizes = [int(each.shape[0]) * int(each.shape[1]) for each in tensors]
            pairs = [each for each in tensors if sum(each.shape == other.shape for other in tensors) > 1]
            rows = [each.tolist() for each in pairs] if sum(sizes) <= _MOST_LABELS else []
        found = [[number for row in each for number in row if number < 0] for each in rows]
        labels = [each for each in found if each and each.count(_IGNORED) == len(each)]
        if rows:
            self._labels += max(sizes)
            self._ignored += len(labels[0]) if len(labels) == 1 else 0


def is_text(tensor: Any) -> bool:
    """Whether a tensor is a row of whole numbers for each sample. Ask where no torch function may be called."""
    return len(tensor.shape) == 2 and tensor.shape[1] > 1 and str(tensor.dtype) in _WHOLE


def _is_tensor(value: Any) -> bool:
    found = arguments_tensors((value,))
    return len(found) == 1 and found[0] is value


def _rows(value: Any) -> Any:
    """The tensor if it has a row of several values for each sample; None for anything else."""
    if not _is_tensor(value):
        return None
    with no_torch_function():
        return value if len(value.shape) == 2 and value.shape[1] > 1 else None


def _values(rows: Any) -> list[list[Any]]:
    """Plain numbers, as operations of torch would be seen by modes of the script's; none of a large batch."""
    with no_torch_function():
        values: list[list[Any]] = rows.tolist() if rows.is_cpu and rows.numel() <= _MOST_TOKENS else []
    return values


def _padding_in(batch: dict[str, Any], name: str, marks: list[list[Any]]) -> int | None:
    """The value of a mask of the batch that stands for padding, by the numbers beside it; None: not known."""
    mask: Any = dict.get(batch, name)
    texts = [each for each in (dict.get(batch, _IDS), *dict.values(batch)) if each is not mask and _is_tensor(each)]
    rows = marks[: min(_COMPARED_ROWS, _COMPARED_PLACES // len(marks[0]))] if marks else []
    if rows and all(sum(map(ne, row, row[1:])) <= 1 for row in rows):  # at the ends
        with no_torch_function():
            texts = [each for each in texts if each.is_cpu and each.shape == mask.shape and str(each.dtype) in _WHOLE]
        for text in texts:
            several = _several(_values(text), rows)
            if all(several):  # text on both sides, such as a prompt and its answer
                return None
            if any(several):
                return int(several[0])
    return 0 if name == _ATTENTION else None


def _several(values: list[list[int]], rows: list[list[Any]]) -> tuple[bool, bool]:
    """Whether there are several numbers where a mask is 0, and elsewhere."""
    found: tuple[set[int], set[int]] = set(), set()
    for numbers, marks in zip(values, rows, strict=False):
        if _IGNORED in numbers:
            return False, False
        found[0].update(compress(numbers, map(not_, marks)))
        found[1].update(compress(numbers, marks))
    return len(found[0]) > 1, len(found[1]) > 1


def _padding_of(module: Any) -> int | None:
    """The number that stands for padding; None: not known, or it stands for something else as well."""
    config = getattr(getattr(module, "module", module), "config", None)
    padding = getattr(config, "pad_token_id", None)
    return padding if type(padding) is int and padding != getattr(config, "eos_token_id", None) else None
