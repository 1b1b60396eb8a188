"""A small transformer, a GPU and links for the tests of layouts."""

from __future__ import annotations

from typing import Any

from ddlprof.recommender import transformer
from ddlprof.recommender.architecture import Transformer
from ddlprof.recommender.layouts.coefficients import shipped_layouts
from ddlprof.recommender.layouts.links import Fabric
from ddlprof.recommender.layouts.time import LayoutTime
from ddlprof.recommender.target import default_catalog

SIZES: dict[str, Any] = {
    "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256, "seq": 4096,
}  # fmt: skip
H100 = default_catalog().gpu("H100-SXM5-80GB")
FABRIC = Fabric(domain=8, link_gb_s=450.0, network_gb_s=50.0)


def model(**changes: Any) -> Transformer:
    """The sizes of Llama-3 8B, with changes."""
    found = transformer(**{**SIZES, **changes}).transformer
    assert found is not None
    return found


def experts(**changes: Any) -> Transformer:
    """A model with experts."""
    return model(experts=64, experts_per_token=8, expert_ffn=1408, shared_experts=2, dense_layers=1, **changes)


def timed(sizes: Transformer | None = None, software: str | None = "megatron", **fabric: Any) -> LayoutTime:
    """The time of a model on H100s."""
    fitted = shipped_layouts().of(software)
    return LayoutTime(sizes or model(), H100, FABRIC._replace(**fabric), fitted)
