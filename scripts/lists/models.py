"""Writes the table of docs/models.md: fifty much used models of timm, torchvision and transformers, without weights.

    python scripts/lists/models.py [NAME ...] > table.md

Needs timm, torchvision and transformers. Where torchvision's compiled operators do not load beside the installed torch,
their schemas are defined here first, so that it can be imported; no model of the list calls one of them.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

MODELS = (
    *(f"torchvision:{name}" for name in (
        "alexnet", "vgg16", "resnet18", "resnet50", "resnet101", "resnet152", "resnext50_32x4d", "wide_resnet50_2",
        "densenet121", "googlenet", "inception_v3", "mobilenet_v2", "mobilenet_v3_large", "squeezenet1_0",
        "shufflenet_v2_x1_0", "efficientnet_b0", "convnext_tiny", "vit_b_16", "swin_t",
    )),
    *(f"timm:{name}" for name in (
        "resnet50", "resnetv2_50", "efficientnet_b3", "mobilenetv3_large_100", "convnext_base", "vit_base_patch16_224",
        "vit_large_patch16_224", "deit_small_patch16_224", "swin_base_patch4_window7_224", "mixer_b16_224",
        "regnety_032", "nfnet_l0",
    )),
    *(f"transformers:{name}" for name in (
        "bert-base-uncased", "bert-large-uncased", "distilbert-base-uncased", "roberta-base", "xlm-roberta-base",
        "deberta-v3-base", "albert-base-v2", "gpt2", "gpt2-large", "gpt2-xl", "opt-1.3b", "bloom-560m", "t5-small",
        "t5-base", "bart-base", "llama-2-7b", "llama-3-8b", "mistral-7b", "mixtral-8x7b", "qwen2.5-7b",
        "switch-base-8", "whisper-small",
    )),
)  # fmt: skip
_OPERATORS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align": "(Tensor input, Tensor rois, float spatial_scale, int pooled_height, int pooled_width,"
    " int sampling_ratio, bool aligned) -> Tensor",
    "_roi_align_backward": "(Tensor grad, Tensor rois, float spatial_scale, int pooled_height, int pooled_width,"
    " int batch_size, int channels, int height, int width, int sampling_ratio, bool aligned) -> Tensor",
    "roi_pool": "(Tensor input, Tensor rois, float spatial_scale, int pooled_height, int pooled_width)"
    " -> (Tensor, Tensor)",
    "_roi_pool_backward": "(Tensor grad, Tensor rois, Tensor argmax, float spatial_scale, int pooled_height,"
    " int pooled_width, int batch_size, int channels, int height, int width) -> Tensor",
    "ps_roi_align": "(Tensor input, Tensor rois, float spatial_scale, int pooled_height, int pooled_width,"
    " int sampling_ratio) -> (Tensor, Tensor)",
    "_ps_roi_align_backward": "(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale,"
    " int pooled_height, int pooled_width, int sampling_ratio, int batch_size, int channels, int height, int width)"
    " -> Tensor",
    "ps_roi_pool": "(Tensor input, Tensor rois, float spatial_scale, int pooled_height, int pooled_width)"
    " -> (Tensor, Tensor)",
    "_ps_roi_pool_backward": "(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale,"
    " int pooled_height, int pooled_width, int batch_size, int channels, int height, int width) -> Tensor",
    "deform_conv2d": "(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, int stride_h,"
    " int stride_w, int pad_h, int pad_w, int dilation_h, int dilation_w, int groups, int offset_groups,"
    " bool use_mask) -> Tensor",
    "_deform_conv2d_backward": "(Tensor grad, Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias,"
    " int stride_h, int stride_w, int pad_h, int pad_w, int dilation_h, int dilation_w, int groups, int offset_groups,"
    " bool use_mask) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
}
"""torchvision's own operators."""


def define_missing_operators() -> object:
    """Defines those that are not there; keep the result, with it they go."""
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for name, schema in _OPERATORS.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(name + schema)
    return library


def row(model: str) -> str:
    """A row of the table: the step of one model in fp32 at batch 8, counts of one sample."""
    import warnings

    from ddlprof.operators import named_models
    from ddlprof.operators.model_alone import build, look
    from ddlprof.operators.trace_step import StepSettings

    warnings.simplefilter("ignore")
    kept = define_missing_operators()
    library, _, name = model.partition(":")
    found = named_models.find(library, name)
    inputs = found.inputs(True)
    began = time.perf_counter()
    looked = look(build(found.factory), inputs, StepSettings(batch=8, optimizer="adamw"))
    seconds = time.perf_counter() - began
    facts, step = looked.facts, looked.step
    assert kept is not None
    assert step is not None
    assert step.memory is not None
    launches = {
        training: sum(each.launches * each.count for each in step.operators if training or each.phase == "forward")
        for training in (False, True)
    }
    shape = ",".join(map(str, inputs[0].shape))
    saved_mb = (step.memory.saved_bytes or 0) / step.batch / 1e6
    cells = [
        f"`{model}`", shape, f"{(facts.parameters or 0) / 1e6:,.1f}", str(facts.layers),
        f"{(facts.forward_flops_per_sample or 0) / 1e9:,.1f}", f"{saved_mb:,.0f}",
        f"{launches[False]:,.0f}", f"{launches[True]:,.0f}", f"{seconds:.1f}",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def table(models: tuple[str, ...]) -> Iterator[str]:
    """The table, one model after the other, each in a process of its own."""
    yield ("| model | sample | parameters (M) | layers | forward (GFLOP) | saved (MB) | launches, forward"
           " | launches, step | traced in (s) |")  # fmt: skip
    yield "|---|---|---|---|---|---|---|---|---|"
    for model in models:
        done = subprocess.run([sys.executable, __file__, "--row", model], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{model}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        else:
            yield done.stdout.strip().splitlines()[-1]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--row"]:
        print(row(sys.argv[2]))
    else:
        for line in table(tuple(sys.argv[1:]) or MODELS):
            print(line, flush=True)
