"""The memory of layouts on any GPU, for stages that are divided by the FLOPs of layers and head."""

from __future__ import annotations

from recommender.architecture import Transformer
from recommender.compute.memory import GIB
from recommender.layout import Layout
from recommender.layouts.coefficients import shipped_layouts
from recommender.layouts.memory import layout_memory
from recommender.layouts.time import divide
from recommender.search.rules import require_layouts
from recommender.search.search import MemoryOfLayout
from recommender.workload import Workload


def memory_of(workload: Workload, precision: str = "bf16") -> MemoryOfLayout:
    """The memory of the layouts of a job: what is expected, and the upper end of it, which must be there."""
    model = require_layouts(workload.transformer, workload.name)
    fitted = shipped_layouts().of(workload.software, precision, bool(model.experts))
    layer, head = _flops(model)

    def needed(layout: Layout, gpus: int, sequences: int, micro_batches: int) -> tuple[float, float]:
        stages = divide(model.layers, layout.pipeline, layer, head if fitted.balanced else 0.0)
        memory = layout_memory(model, layout, gpus, sequences, micro_batches, stages, fitted)
        return memory.gib, memory.high / GIB

    return needed


def _flops(model: Transformer) -> tuple[float, float]:
    """FLOPs of a token in a layer, the mean of all, and in the head; forward."""
    head = 2.0 * model.embedding_parameters
    return (model.flops_per_token / 3 - head) / model.layers, head
