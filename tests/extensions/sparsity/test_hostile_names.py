"""Names that would forge a line, in what this room shows."""

from __future__ import annotations

from ddlprof.extensions.sparsity import report
from ddlprof.extensions.sparsity.analysis.potential import potential
from ddlprof.extensions.sparsity.model import LayerCounts, SparsityCounts, StepCounts
from tests.unit.cli.test_hostile_names import shows_names


def test_layers() -> None:
    shows_names(layers)


def layers(name: str) -> str:
    layer = LayerCounts(name, name, name, calls=1, inputs=1, forward_macs=1, before=[name], after=[name])
    counts = SparsityCounts(2, [StepCounts(0)], [layer], unseen=[name], notes=[name])
    return report.as_table(name, counts, potential(counts))
