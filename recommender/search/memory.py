"""The memory of layouts on any GPU. Which layers a stage has depends on the GPU a little, and so does the memory."""

from __future__ import annotations

from ddlprof.recommender.architecture import Transformer
from ddlprof.recommender.compute.memory import GIB
from ddlprof.recommender.layout import Layout, require_layouts
from ddlprof.recommender.layouts.coefficients import shipped_layouts
from ddlprof.recommender.layouts.data_parallel import coefficients_of
from ddlprof.recommender.layouts.memory import layout_memory
from ddlprof.recommender.layouts.time import divide
from ddlprof.recommender.search.search import MemoryOfLayout
from ddlprof.recommender.workload import Workload

_HEADS = (1.0, 0.0, 2.0)
"""The head's time beside that of a layer, over its FLOPs beside those of a layer: as by FLOPs, none, and twice as much.
What a GPU takes for them lies between, and decides how layers are divided."""


def memory_of(workload: Workload, precision: str = "bf16") -> MemoryOfLayout:
    """The memory of the layouts of a job: what is expected, and what must be there however layers are divided."""
    model = require_layouts(workload.transformer, workload.name)
    fitted = coefficients_of(workload, precision, shipped_layouts())
    layer, head = _flops(model)

    def needed(layout: Layout, gpus: int, sequences: int, micro_batches: int) -> tuple[float, float]:
        factors = _HEADS if fitted.balanced and layout.pipeline > 1 else (0.0,)
        divided = dict.fromkeys(divide(model.layers, layout.pipeline, layer, factor * head) for factor in factors)
        found = [layout_memory(model, layout, gpus, sequences, micro_batches, each, fitted) for each in divided]
        return found[0].gib, min(each.high for each in found) / GIB

    return needed


def _flops(model: Transformer) -> tuple[float, float]:
    """FLOPs of a token in a layer, the mean of all, and in the head; forward."""
    head = 2.0 * model.embedding_parameters
    return 2.0 * (model.active_parameters - model.embedding_parameters) / model.layers + model.attention_flops, head
