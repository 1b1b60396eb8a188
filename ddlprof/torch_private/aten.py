"""Names of torch's operators (aten), most of them private, by kind: for `ddlprof features` only.

Names that this torch lacks do no harm. An operator that is missing here is classified by torch's own tags or counts as
`other`. In-place operators are listed without their last underscore.
"""

from __future__ import annotations

from typing import Any

from ddlprof.torch_private.names import PrivateName


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NAMES = (
    PrivateName(
        "torch.library:Library._destroy",
        "takes CUDA's operators back out after a trace",
        "ddlprof features leaves them in, until its process ends",
    ),
)

VALUE, COPY_TO = "_local_scalar_dense", "_to_copy"
GROUPED_PRODUCT = "_grouped_mm"
FUSED_RMS_NORM = "_fused_rms_norm"
UNIQUE = frozenset({"_unique2", "unique_consecutive", "_unique", "unique_dim"})
INDEXED = frozenset({"index", "_unsafe_index", "index_put", "_index_put_impl", "_unsafe_index_put"})
"""Operators whose second argument is a list of indices, which may be masks."""
LOOKUPS = ("index", "_unsafe_index", "gather", "index_select", "take")
SCATTERS = (
    "index_put", "_unsafe_index_put", "_index_put_impl", "scatter", "scatter_add", "scatter_reduce", "index_add",
    "index_copy", "masked_scatter",
)  # fmt: skip
FOREACH, FUSED, SCALER = "_foreach_", "_fused_", "_amp_foreach_"
"""Prefixes of the names of operators over lists of tensors."""


def written_places(function: Any) -> list[tuple[int, str]]:
    """Place and name of the arguments that an operator's schema says it writes."""
    schema = getattr(function, "_schema", None)
    return [
        (place, argument.name)
        for place, argument in enumerate(schema.arguments if schema is not None else ())
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def take_back(library: Any) -> None:
    """Ends what a `torch.library.Library` has registered."""
    destroy = getattr(library, "_destroy", None)
    if destroy is not None:
        destroy()


SILENT = _words(
    "device empty empty_like empty_strided empty_permuted new_empty new_empty_strided detach alias lift_fresh "
    "lift sym_size sym_stride sym_numel sym_storage_offset is_same_size set resize record_stream "
    "_record_function_enter_new _record_function_exit is_pinned _assert_async _assert_tensor_metadata "
    "_functional_assert_async"
)
"""Operators that launch nothing."""

OVERWRITES = frozenset({"copy", "fill", "zero", "uniform", "normal", "exponential", "random", "geometric"})
"""Operators whose in-place forms do not read what they write."""
WRITE_ONLY = _words(
    "arange full zeros ones eye linspace scalar_tensor fill zero uniform normal exponential random "
    "tril_indices triu_indices randperm full_like zeros_like ones_like"
)
POINTWISE = _words(
    "floor_divide native_dropout where tril triu masked_fill mse_loss mse_loss_backward smooth_l1_loss "
    "smooth_l1_loss_backward huber_loss huber_loss_backward glu glu_backward bernoulli lerp addcmul addcdiv "
    "prelu _prelu_kernel _prelu_kernel_backward hardtanh_backward leaky_relu_backward elu_backward "
    "softplus_backward silu_backward mish_backward hardswish_backward hardsigmoid_backward "
    "log_sigmoid_forward log_sigmoid_backward binary_cross_entropy binary_cross_entropy_backward "
    "_euclidean_dist complex polar view_as_complex rrelu_with_noise _conj_physical isnan nan_to_num "
    "logical_and logical_or logical_not logical_xor"
)
OWN_KERNELS = _words("native_dropout tril triu glu glu_backward")
"""Pointwise operators whose kernels are not those of torch's iterator over tensors."""
KINDS = {
    "normalization": _words(
            "native_layer_norm native_layer_norm_backward native_batch_norm native_batch_norm_backward "
            "cudnn_batch_norm cudnn_batch_norm_backward _native_batch_norm_legit "
            "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training _batch_norm_with_update "
            "batch_norm_backward native_group_norm native_group_norm_backward _fused_rms_norm "
            "_fused_rms_norm_backward"
        ),
    "softmax": _words(
            "_softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data logsumexp"
        ),
    "reduction": _words(
            "sum mean amax amin max min var std var_mean std_mean norm linalg_vector_norm prod any all argmax "
            "argmin cumsum cumprod logcumsumexp nansum median count_nonzero aminmax _foreach_norm"
        ),
    "pooling": _words(
            "max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices max_pool2d "
            "max_pool1d max_pool3d_with_indices_backward avg_pool2d avg_pool2d_backward avg_pool3d "
            "avg_pool3d_backward avg_pool1d _adaptive_avg_pool2d _adaptive_avg_pool2d_backward "
            "_adaptive_avg_pool3d _adaptive_avg_pool3d_backward adaptive_max_pool2d "
            "adaptive_max_pool2d_backward upsample_nearest2d upsample_nearest2d_backward upsample_bilinear2d "
            "upsample_bilinear2d_backward upsample_bicubic2d upsample_bicubic2d_backward "
            "_upsample_bicubic2d_aa _upsample_bilinear2d_aa upsample_nearest1d upsample_linear1d "
            "upsample_trilinear3d upsample_nearest3d upsample_nearest1d_backward upsample_linear1d_backward "
            "upsample_trilinear3d_backward"
        ),
    "copy": _words(
            "clone copy _to_copy cat stack repeat constant_pad_nd reflection_pad1d reflection_pad2d "
            "replication_pad2d flip roll slice_backward select_backward slice_scatter select_scatter "
            "unfold_backward im2col col2im pixel_shuffle pixel_unshuffle index_fill repeat_interleave "
            "_pin_memory contiguous diagonal_backward reflection_pad2d_backward reflection_pad1d_backward "
            "channel_shuffle as_strided_scatter fft_shift"
        ),
}  # fmt: skip
LAUNCHES = {
    "native_layer_norm_backward": 2.0, "native_batch_norm": 2.0, "native_batch_norm_backward": 2.0,
    "_native_batch_norm_legit": 2.0, "_batch_norm_with_update": 2.0, "batch_norm_backward": 2.0,
    "native_group_norm": 2.0, "native_group_norm_backward": 4.0, "slice_backward": 2.0, "select_backward": 2.0,
    "max_pool2d_with_indices_backward": 2.0, "_fused_rms_norm_backward": 2.0, "topk": 3.0, "sort": 4.0, "nonzero": 4.0,
    "_unique2": 6.0, "masked_select": 5.0,
}  # fmt: skip
"""The number of kernels that one call launches on CUDA, if several: they clear the result, add partial sums, sort."""


OPERANDS = {
    "mm": 0, "bmm": 0, "mv": 0, "dot": 0, "vdot": 0, "_int_mm": 0, "_scaled_mm": 0, "addmm": 1, "baddbmm": 1,
    "addbmm": 1, "addmv": 1, "_grouped_mm": 0,
}  # fmt: skip
"""Matrix products and the place of the first of their two operands."""
