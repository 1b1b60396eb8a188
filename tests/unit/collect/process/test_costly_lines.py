"""Lines of forwards, losses and updates whose work is known by the name of the function that they call."""

from __future__ import annotations

import sys
import threading

import pytest

from ddlprof.collect.process import stacks
from ddlprof.collect.process.frames import stack_of_thread
from ddlprof.collect.process.stacks import CodeLocator, StackSampler
from ddlprof.model.events import Event, Kind
from ddlprof.model.source_locations import CONSTANT, DECOMPOSES, DERIVES, DERIVES_EACH, ONE_HOT, PRECONDITIONS
from tests.unit.collect.process.standing import standing


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the instruction does not tell its columns")
@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("svd", DECOMPOSES),
        ("normal", DECOMPOSES),
        ("grad", DERIVES),
        ("gradient", ""),
        ("each", DERIVES_EACH),
        ("hot", ONE_HOT),
        ("cast", ONE_HOT),
        ("mask", CONSTANT),
        ("relu", ""),
    ],
)
def test_lines_that_decompose_or_derive_are_told(name: str, word: str) -> None:
    release, begun = threading.Event(), threading.Event()

    class Algebra:
        def svd(self, create_graph: bool = False) -> None:
            begun.set()
            release.wait()

        grad = one_hot = triu = relu = MultivariateNormal = float = svd

    def one_hot() -> Algebra:
        return Algebra()

    def penalty() -> None:
        algebra = Algebra()
        if name == "svd":
            algebra.svd()
        elif name == "normal":
            algebra.MultivariateNormal()
        elif name == "grad":
            algebra.grad(create_graph=True)
        elif name == "gradient":
            algebra.grad(create_graph=False)
        elif name == "each":
            for _ in range(1):
                algebra.grad()
        elif name == "hot":
            algebra.one_hot()
        elif name == "cast":
            one_hot().float()
        elif name == "mask":
            algebra.triu()
        else:
            algebra.relu()

    places = CodeLocator()
    with standing(penalty, begun, release) as thread:
        stack = [frame for frame in stack_of_thread(thread) if frame.code.co_name != "svd"]
    found = places.find_costly(places.inside(stack, []))
    assert ("" if found is None else found.what) == word


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the instruction does not tell its columns")
@pytest.mark.parametrize("kind", [Kind.OPTIMIZER_BEGIN, Kind.BACKWARD_END])
def test_a_line_that_decomposes_for_an_update_is_told(monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    release, begun = threading.Event(), threading.Event()

    def eigh() -> None:
        begun.set()
        release.wait()

    def precondition() -> None:
        for _ in range(1):
            eigh()

    with standing(precondition, begun, release) as thread:
        stack = [frame for frame in stack_of_thread(thread) if frame.code.co_name == "precondition"]
    monkeypatch.setattr(stacks, "stack_of_thread", lambda _: stack)  # as eigh is in C
    sampler = StackSampler()
    begins: Event = (kind, 0, None, None, None)
    sampler.sample(0, [begins], 1)
    ((place, _),) = sampler.of_step(2, 0).compute.items()
    assert place.what == PRECONDITIONS
    assert place.text == sampler.places.text(stack[0])
