"""Graphs of operators: what is recorded, what is not, and what is left out of them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from ddlprof.extensions.fusion.graph_capture import Unrecordable, record

CODE = """
import sys, torch
from torch import nn
from ddlprof.extensions.fusion import Fused
from ddlprof.extensions.fusion.optimizers import torch_optimizer

def loss_of(model, x, y):
    return (model(x) - y).square().mean()

model = nn.Linear(4, 2)
fused = Fused([model, model], "adam", traced=True)
for _ in range(3):
    fused.gradients(loss_of, torch.ones(3, 4), torch.zeros(3, 2))
    fused.step()
assert fused.recordings == 1
optimizer = torch_optimizer("adam", model, {"lr": 0.1})
optimizer.zero_grad()
loss_of(model, torch.ones(3, 4), torch.zeros(3, 2)).backward()
optimizer.step()
print(sorted({"torch._dynamo", "torch._inductor", "sympy"} & set(sys.modules)))
"""


def targets(recording: object) -> list[str]:
    return [str(node.target) for node in recording.graph.nodes if node.op == "call_function"]  # type: ignore[attr-defined]


def test_a_recording_computes_the_same_of_other_values() -> None:
    weight = torch.randn(3, 2)

    def function() -> dict[str, object]:
        high, low = (x @ weight).relu().chunk(2)
        return {"sum": high + low, "rest": [None, 3, (low,)]}

    x = torch.randn(4, 3)
    run = record(function, [x]).compiled(differentiable=False)
    x = torch.randn(4, 3)
    found, wanted = run(x), function()
    assert torch.equal(found["sum"], wanted["sum"])  # type: ignore[arg-type]
    assert found["rest"][:2] == [None, 3]
    assert torch.equal(found["rest"][2][0], wanted["rest"][2][0])  # type: ignore[index]


def test_gradients_are_recorded_with_what_they_need() -> None:
    x, weight = torch.randn(2, 4, 3), torch.randn(2, 5, 3, requires_grad=True)

    def function() -> tuple[Tensor, ...]:
        return torch.autograd.grad(torch.bmm(x, weight.transpose(1, 2)).tanh().sum(), [weight])

    run = record(function, [x, weight]).compiled(differentiable=False)
    x = torch.randn(2, 4, 3)
    with torch.no_grad():
        (found,) = run(x, weight)
    assert torch.allclose(found, function()[0])
    assert found.is_contiguous()  # and not the transpose of a product


@pytest.mark.parametrize(
    "function",
    [lambda x: x.sum().item(), lambda x: x.nonzero(), lambda x: x if x.sum() > 0 else -x, lambda x: x[x > 0]],
)
def test_what_depends_on_values_is_not_recorded(function: object) -> None:
    x = torch.ones(3)
    with pytest.raises(Unrecordable):
        record(lambda: function(x), [x])  # type: ignore[operator]


def test_what_changes_nothing_is_left_out_and_what_writes_stays() -> None:
    x, kept = torch.ones(2, 3), torch.zeros(2, 3)

    def function() -> Tensor:
        x.exp()
        kept.add_(x)
        return (x.transpose(0, 1).transpose(0, 1).view(2, 3) * 1).detach() + 1

    recording = record(function, [x, kept])
    run = recording.compiled(differentiable=False)
    assert [name for name in targets(recording) if "add_" in name]
    assert not any("exp" in name or "transpose" in name or "detach" in name for name in targets(recording))
    assert torch.equal(run(x, kept), x + 1)
    assert torch.equal(kept, 2 * x)


def test_constants_tell_recordings_apart() -> None:
    x, graphs = torch.ones(2), []
    for value in (1.0, 1.0, 2.0):
        constant = torch.tensor([value, value])
        graphs.append(record(lambda constant=constant: x + constant, [x]))  # type: ignore[misc]
    assert graphs[0].same_as(graphs[1])
    assert not graphs[0].same_as(graphs[2])


def test_torchs_compiler_is_not_imported() -> None:
    """It takes more than a second, which many a sweep does not."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
