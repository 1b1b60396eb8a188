"""The cost of operators by their sizes: FLOPs, rows and columns, launches. Used by all modules that count operators.

`graph_flops` and `graph_rules` take the sizes from an autograd graph, `trace_operators` and `trace_cuda` from fake
tensors. A multiply-add counts as two FLOPs, as in `torch.utils.flop_counter`. Sizes are those of
`ddlprof.model.operators.KINDS`. Torch is not needed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from ddlprof.model.operators import attended_share

_SHORT = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_MOST_UNSORTED_ROWS = 3072
"""CUDA sorts the indices first where more rows than this are added to a table's gradient."""


class Flops(NamedTuple):
    """The FLOPs of one operator in forward and in backward if all its operands have gradients."""

    forward: int
    backward: int


class Product(NamedTuple):
    """Where an operation of the autograd graph has the two matrices that it multiplies."""

    left: int
    """The position among the differentiable arguments."""
    right: int
    saved: tuple[str, str]
    """The names under which autograd saves the two matrices."""
    transposed: bool = False
    """Whether the right one is stored as a linear layer's weight is: output by input."""
    bias: int | None = None
    """The position of the added bias."""


PRODUCTS = {
    "Mm": Product(0, 1, ("self", "mat2")),
    "Addmm": Product(1, 2, ("mat1", "mat2"), bias=0),
    "Bmm": Product(0, 1, ("self", "mat2")),
    "Baddbmm": Product(1, 2, ("batch1", "batch2"), bias=0),
    "GroupedMm": Product(0, 1, ("self", "mat2")),
    "Linear": Product(0, 1, ("input", "weight"), transposed=True, bias=2),
    "MkldnnLinear": Product(0, 1, ("self", "weight"), transposed=True, bias=2),
}
"""Matrix products by the name of the operation in the autograd graph."""
CONVOLUTIONS = ("Convolution", "ConvolutionOverrideable")
RECURRENT = ("CudnnRnn", "MiopenRnn", "MkldnnRnnLayer")
ATTENTION = tuple(
    f"ScaledDotProduct{kernel}"
    for kernel in (
        "FlashAttention", "FlashAttentionForCpu", "EfficientAttention", "CudnnAttention", "FusedAttentionOverrideable",
    )
)  # fmt: skip
"""The fused kernels of attention."""


def product_flops(*sizes: int) -> int:
    """The FLOPs of matrix products: all sizes of the result, and the size that is summed over."""
    return 2 * prod(sizes)


class Convolution(NamedTuple):
    """The sizes of a convolution. For a transposed convolution, of the convolution whose gradient it is."""

    images: int
    pixels: int
    """The pixels of one image on the side with fewer: of the result, or of the input if it is transposed."""
    channels_in: int
    """The input channels of one group."""
    channels_out: int
    """The output channels of one group."""
    groups: int
    taps: int
    """The pixels of the kernel."""

    @property
    def forward(self) -> tuple[int, ...]:
        """`Operator.shape` of the convolution and of the gradient of its weight."""
        return self._shape(self.channels_out, self.channels_in)

    @property
    def input_gradient(self) -> tuple[int, ...]:
        """`Operator.shape` of the gradient of the input."""
        return self._shape(self.channels_in, self.channels_out)

    @property
    def flops(self) -> int:
        """The FLOPs of the convolution, of the gradient of its input and of that of its weight, each."""
        return product_flops(*self.forward[:5])

    def _shape(self, made: int, summed: int) -> tuple[int, ...]:
        return self.images, self.pixels, made, summed * self.taps, self.groups, self.taps


def convolution(
    x: Sequence[int], weight: Sequence[int], out: Sequence[int], groups: int, transposed: bool
) -> Convolution:
    """The sizes of a convolution from the shapes of its input, weight and result.

    Of input and result only the one with fewer pixels is used: the input if it is transposed, else the result.
    """
    points = x if transposed else out
    first, second = weight[0] // groups, weight[1]  # output and input channels; the other way round if transposed
    channels_in, channels_out = (first, second) if transposed else (second, first)
    return Convolution(points[0], prod(points[2:]), channels_in, channels_out, groups, prod(weight[2:]))


def attention_flops(queries: int, keys: int, width: int, value_width: int) -> Flops:
    """The FLOPs of attention in a model: two products in forward, four in backward, each of every query with every key,
    as in `ddlprof.model.operators.model_flops`. `queries`: those of all heads of all samples."""
    forward = product_flops(queries, keys, width + value_width)
    return Flops(forward, 2 * forward)


def fused_attention_flops(
    heads: int, queries: int, keys: int, width: int, value_width: int, causal: bool = False
) -> tuple[float, float]:
    """The FLOPs of a fused kernel of attention in forward and backward, which computes the scores again.

    `heads`: those of all samples. `causal`: whether it knows that the mask is causal; with a mask that is a tensor, all
    scores are computed.
    """
    share = attended_share(queries, keys) if causal else 1.0
    scores = share * product_flops(heads, queries, keys)
    return scores * (width + value_width), scores * (3 * width + 2 * value_width)


def recurrent_flops(elements: int, matrices: Sequence[int], input_gradient: bool = True) -> Flops:
    """The FLOPs of recurrent layers in one kernel: each matrix is multiplied once with each element of the sequence.

    `elements`: steps times batch. `matrices`: the elements of each weight, that of the input first.
    """
    forward = product_flops(elements, sum(matrices))
    return Flops(forward, 2 * forward - (0 if input_gradient else product_flops(elements, matrices[0])))


def rows_and_columns(elements: int, columns: int) -> tuple[int, int]:
    """Rows and columns of a normalisation, a softmax or a look-up of so many elements."""
    return elements // max(1, columns), columns


def batch_norm_shape(x: Sequence[int]) -> tuple[int, int]:
    """Channels, and elements of each channel."""
    channels = x[1] if len(x) > 1 else 1
    return channels, prod(x) // max(1, channels)


def group_norm_shape(samples: int, groups: int, elements: int) -> tuple[int, int]:
    """Groups of all samples, and elements of each group."""
    rows = samples * groups
    return rows, elements // max(1, rows)


def pooling_window(larger: int, smaller: int) -> int:
    """The number of input elements for each element of the result, used if the kernel's size is not known."""
    return max(1, larger // max(1, smaller))


def embedding_backward_launches(rows: int) -> int:
    """The kernels that add so many rows to a table's gradient.

    With many rows the indices are sorted, which takes more.
    """
    return 2 if rows <= _MOST_UNSORTED_ROWS else 10


def short_dtype(dtype: str) -> str:
    """The short name of a data type, as in operators: `fp32` for float32."""
    return "fp8" if dtype.startswith("float8") else _SHORT.get(dtype, dtype)
