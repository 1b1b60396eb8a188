"""Tokens and padding in batches whose contents are known."""

from __future__ import annotations

from collections import UserDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ddlprof.collect.loader.tokens import TextBatches

IDS = torch.tensor([[5, 6, 7, 0], [5, 0, 0, 0]])


class Model(nn.Module):
    def __init__(self, **config: Any) -> None:
        super().__init__()
        self.config = SimpleNamespace(**config)


def seen(batch: Any, *inputs: Any, module: nn.Module | None = None) -> TextBatches:
    text = TextBatches()
    text.loaded(batch)
    text.forward(module or nn.Linear(1, 1), inputs)
    return text


def test_a_row_of_whole_numbers_is_text() -> None:
    text = seen(None, IDS)
    assert text.tokens_per_sample(2) == 4
    assert text.padding_share is None  # nobody says what is padding
    text.forward(None, [torch.zeros(2, 8, dtype=torch.int32)])
    assert text.tokens_per_sample(2) == 6


@pytest.mark.parametrize(
    "inputs", [(torch.zeros(4, 3),), (torch.zeros(4, 3), IDS), (torch.zeros(4, 1, dtype=torch.long),), ()]
)
def test_other_inputs_are_not(inputs: tuple[Any, ...]) -> None:
    assert seen(None, *inputs).tokens_per_sample(4) is None


def test_the_batch_may_be_the_second_dimension() -> None:
    words = torch.zeros(35, 20, dtype=torch.long)
    assert seen(None, words).tokens_per_sample(20) == 35
    assert seen(None, words).tokens_per_sample(35) == 20
    assert seen(None, words).tokens_per_sample(None) == 20


LABELS = torch.tensor([[-100, 6, -100, -100], [-100, -100, -100, 3]])


@pytest.mark.parametrize("batch", [(IDS, LABELS), {"input_ids": IDS, "labels": LABELS}, [{"x": IDS, "y": LABELS}]])
def test_labels_that_losses_leave_out_are_counted(batch: Any) -> None:
    text = seen(batch, IDS)
    assert text.ignored_share == 0.75
    text.loaded((IDS, IDS))
    assert text.ignored_share == 0.375  # beside a batch in which each has one


@pytest.mark.parametrize(
    "batch",
    [None, IDS, (IDS, IDS), (IDS, LABELS[:, :3]), (IDS, LABELS.float()), (IDS, LABELS - 1), (IDS, LABELS, LABELS),
     (IDS, torch.tensor([[-100, -7, 3, 3], [1, 2, 3, 3]]))],
)  # fmt: skip
def test_other_numbers_are_no_such_labels(batch: Any) -> None:
    assert seen(batch, IDS).ignored_share is None
    assert seen((IDS, LABELS)).ignored_share is None  # the model gets no text


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_a_mask_tells_padding(kind: type[Any]) -> None:
    mask = (IDS != 0).long()
    assert seen(kind(input_ids=IDS, attention_mask=mask), IDS).padding_share == 0.5
    assert seen(kind(input_ids=IDS, attention_mask=mask.bool()), IDS).padding_share == 0.5
    assert seen(kind(input_ids=IDS), IDS).padding_share is None


def test_a_mask_may_be_one_where_padding_is() -> None:
    ids = torch.tensor([[5, 6, 7, 0], [5, 6, 8, 0], [9, 0, 0, 0]])
    padding = ids == 0
    for numbers in ({"input_ids": ids}, {"kinds": torch.zeros_like(ids), "words": ids}):
        for name in ("mask", "padding_mask", "attention_mask"):
            for mask in (padding, ~padding, padding.long(), (~padding).long()):
                assert seen({**numbers, name: mask}, ids).padding_share == 5 / 12
    assert seen({"mask": padding}, ids).padding_share is None  # no numbers tell
    assert seen({"mask": (~padding).long()}, ids).padding_share is None
    masked = torch.tensor([[5, 3, 7, 8], [5, 6, 3, 8], [9, 3, 7, 3]])
    for mask in (masked == 3, (masked == 3).long()):  # words to be guessed
        assert seen({"input_ids": masked, "mask": mask}, masked).padding_share is None
    full = torch.arange(4).expand(3, 4)
    assert seen({"input_ids": full, "mask": torch.zeros(3, 4, dtype=torch.bool)}, full).padding_share == 0


@pytest.mark.parametrize("name", ["mask", "attention_mask"])
def test_where_there_is_text_on_both_sides_of_a_mask_there_is_no_padding(name: str) -> None:
    ids = torch.tensor([[5, 6, 7, 8], [9, 6, 5, 8]])
    answer = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 1]])
    targets = {"labels": torch.where(answer == 1, ids, -100)}
    for batch in (
        {"input_ids": ids},
        {"words": ids, **targets},
        {**targets, "words": ids},
        {"input_ids": ids, **targets},
    ):
        for mask in (answer, 1 - answer, answer.bool()):
            assert seen({**batch, name: mask}, ids).padding_share is None
    assert seen({**targets, "mask": answer}, ids).padding_share is None


def test_no_more_is_read_than_tells_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    original = Tensor.tolist

    def tolist(tensor: Tensor) -> Any:
        read.append(tensor)
        return original(tensor)

    monkeypatch.setattr(Tensor, "tolist", tolist)
    monkeypatch.setattr("ddlprof.collect.loader.tokens._LABELLED", 0)
    mask = (IDS != 0).long()
    batch = {"kinds": IDS + 1, "labels": IDS + 2, "input_ids": IDS, "mask": mask}
    assert seen(batch, IDS).padding_share == 0.5
    assert [id(each) for each in read] == [id(mask), id(IDS)]


def test_the_marks_of_long_samples_are_compared_with_nothing() -> None:
    for length, share in ((20_000, 0.5), (20_001, None)):
        ids = torch.arange(length).repeat(3, 1)
        ids[:, length // 2 :] = 0
        mask = ids == 0
        mask[:, 0] = False
        text = seen({"input_ids": ids, "mask": mask}, ids)
        assert text.padding_share == share
        assert seen({"input_ids": ids, "attention_mask": (~mask).long()}, ids).padding_share == pytest.approx(
            0.5, rel=1e-3
        )


def test_a_batch_of_the_scripts_own_class_is_asked_for_nothing() -> None:
    class Batch(dict[str, Tensor]):
        def __getitem__(self, name: str) -> Tensor:
            raise AssertionError(name)

    assert seen(Batch(input_ids=IDS, attention_mask=(IDS != 0).long()), IDS).padding_share == 0.5


def test_the_models_settings_tell_padding() -> None:
    batch = {"input_ids": IDS}
    assert seen(batch, IDS, module=Model(pad_token_id=0)).padding_share == 0.5
    assert seen(batch, IDS, module=Model(pad_token_id=0, eos_token_id=0)).padding_share is None
    wrapped = nn.Module()
    wrapped.module = Model(pad_token_id=0)
    assert seen(batch, IDS, module=wrapped).padding_share == 0.5


def test_a_mask_beside_images_is_no_padding() -> None:
    assert seen({"x": torch.zeros(2, 4), "mask": torch.zeros(2, 4)}, torch.zeros(2, 4)).padding_share is None


def test_no_operation_of_torch_runs() -> None:
    ran: list[Any] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            ran.append(operator)
            return operator(*args, **(kwargs or {}))

    mask = (IDS != 0).long()
    with Watch():
        module = nn.Identity()
        text = seen({"input_ids": IDS, "attention_mask": mask}, IDS, module=module)
    assert text.padding_share == 0.5
    assert ran == []
