"""How weights are held in four bits beside adapters (QLoRA), and what it takes to make them whole."""

from __future__ import annotations

from dataclasses import dataclass

from ddlprof.recommender.errors import PredictionError


@dataclass(frozen=True)
class Packing:
    """A format of four bits. Bytes are those of one weight."""

    held_bytes: float
    moved_bytes: float
    """A weight is made whole as slowly as an elementwise operator moves so many bytes."""
    launches: float
    """Kernels for the weights of one layer."""
    again: bool
    """Whether backward makes them whole again; if not, forward saves them."""
    beside_bytes: float
    """Held for a moment while a layer is made whole, besides its weights in the type of the product."""


FORMATS = {
    "nf4": Packing(
        # Four bits, a byte for 64 weights, and four for 256 of these (doubly quantised scales, bitsandbytes).
        held_bytes=0.5 + 1 / 64 + 4 / (64 * 256),
        # It is looked up, not only read and written: fitted to what double quantisation added to the steps of four
        # models on an A100 (LitGPT, bitsandbytes 0.41).
        moved_bytes=9.0,
        launches=3.0,  # two for its scales and one for itself
        again=True,
        beside_bytes=0.0,
    ),
    "gptq": Packing(
        held_bytes=0.5 + 2.5 / 128,  # a scale in 16 bit and a zero in four for 128 weights
        # torch's own operators (auto_gptq's `qlinear_cuda_old`, beyond its threshold of 128 rows) move 16.5: a shift
        # (4.5: to int32), a cast to int8 (5), a mask (2), the zeros off (2) and the scale on (3). Operators on single
        # bytes reach less of the bandwidth than others: 0.6, by QLoRA of Qwen-14B on 256 tokens (A100).
        moved_bytes=16.5 / 0.6,
        launches=10.0,  # these five, for weights and zeros
        again=False,  # the product is one of autograd's own, which saves it
        beside_bytes=5.0,  # int32 and int8
    ),
}
"""The formats by name."""
NF4 = "nf4"


def packing_named(name: str | None) -> Packing:
    """The format with this name; None: nf4. Raises `PredictionError` that names the known ones."""
    found = FORMATS.get(name or NF4)
    if found is None:
        raise PredictionError(f"qlora format {name!r} is not known; one of: {', '.join(FORMATS)}")
    return found
