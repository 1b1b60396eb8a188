"""What torch's allocator keeps of the parameters that ZeRO-3 gathers, followed allocation by allocation."""

from __future__ import annotations

import pytest

from ddlprof.recommender.compute.deepspeed import gathered_bytes
from scripts.fit.gathers import MB, Allocator, Coordinator, micro_batch


def test_blocks_are_split_and_joined() -> None:
    memory = Allocator()
    whole = memory.take(100 * MB)
    memory.give(whole)
    parts = [memory.take(50 * MB), memory.take(50 * MB)]
    assert memory.reserved == 100 * MB
    memory.take(50 * MB)
    assert memory.reserved == 150 * MB
    for part in parts:
        memory.give(part)
    memory.take(100 * MB)
    assert memory.reserved == 150 * MB


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("decoder", [(12, 4096, 11008, 151936), (12, 4096, 11008, 32000)])
def test_the_recommender_takes_as_much_for_it(decoder: tuple[int, int, int, int], adapters: bool) -> None:
    layers, width, inner, vocabulary = decoder
    whole = 2 * (layers * (4 * width**2 + 3 * width * inner) + 2 * vocabulary * width)
    kept = Coordinator(micro_batch(decoder, adapters), 5e7).run()
    least, taken = gathered_bytes(2, whole, 2 * width * max(vocabulary, 3 * width), 4)
    assert taken == pytest.approx(kept, rel=0.15)
    assert least < 0.8 * kept


def test_every_fetch_finds_its_parameters_and_gives_them_back() -> None:
    """Nothing is counted as gathered twice, and at the end only what is used again soon is still there."""
    coordinator = Coordinator(micro_batch((4, 1024, 4096, 32000), False), 5e7)
    coordinator.run()
    parameters = {parameter for _, module in coordinator.events for parameter in module.own}
    there = [each for each in parameters if each.available]
    assert 0 <= coordinator.gathered <= sum(each.elements for each in parameters)
    assert all(each.persistent or each.block for each in there)
