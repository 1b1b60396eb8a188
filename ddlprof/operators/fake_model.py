"""Models built without their data, so that one of any size takes neither memory nor time.

Small tensors keep their values, which a factory may ask for (`torch.linspace(...)[i].item()`); large ones have none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

from ddlprof.base.errors import UserError
from ddlprof.torch_private import fake, operators

SMALL_ELEMENTS = 4096
"""Tensors of at most so many elements are real while a model is built."""
_OF_SIZE = frozenset(["empty", "empty_strided", "zeros", "ones", "full", "rand", "randn", "randint", "normal"])
"""Operators that make a tensor of the sizes in their first list."""
_WITHOUT_CUDA = ("not compiled with CUDA", "No CUDA GPUs", "Found no NVIDIA driver", "not linked with support for cuda")


def build(factory: Callable[[], Any]) -> Any:
    """The model that `factory` makes, its large tensors without data. Raises what the factory raises.

    Where a factory does not work so, it is called again and makes its model in memory. Raises UserError where it needs
    a GPU that is not there.
    """
    try:
        with contextlib.suppress(Exception), large_ones_empty():
            return factory()
        return factory()  # in memory, only what is wrong with the factory itself comes again
    except (AssertionError, RuntimeError) as error:
        if any(text in str(error) for text in _WITHOUT_CUDA):
            raise UserError(
                "the model asks for CUDA while it is built, and there is none here; let the factory build it on the CPU"
            ) from None
        raise


@contextlib.contextmanager
def large_ones_empty() -> Iterator[None]:
    """In this context, tensors of more than `SMALL_ELEMENTS` elements are made without data."""
    base: Any = operators.mode_class()
    mode = fake.fake_mode()

    class LargeOnesEmpty(base):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if operators.packet(func).__name__ in _OF_SIZE and str(kwargs.get("device") or "cpu") == "cpu":
                sizes = next((each for each in args if isinstance(each, (list, tuple))), ())
                if prod(sizes) > SMALL_ELEMENTS:
                    with mode:
                        return func(*args, **kwargs)
            return func(*args, **kwargs)

    with LargeOnesEmpty():
        yield
