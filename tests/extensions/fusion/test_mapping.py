"""Autocast and attention of models that train as one are those of each model by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional

from ddlprof.extensions.fusion import Fused
from ddlprof.extensions.fusion.mapping import mappable
from ddlprof.extensions.fusion.random_state import draws_undone
from scripts.lab import simulated_cuda

MODELS = 3
CPU = torch.device("cpu")


SHAPES = {"samples": (4, 2, 5, 8), "no samples": (2, 5, 8), "one head": (5, 8), "more": (2, 3, 2, 5, 8)}
MASKS: dict[str, Callable[[], Tensor | None]] = {
    "none": lambda: None,
    "of all": lambda: torch.randn(5, 5),
    "of each sample": lambda: torch.randn(4, 1, 5, 5) > 0,
    "of each head": lambda: torch.randn(1, 2, 5, 5),
}


@pytest.mark.parametrize(
    ("shape", "mask"), [(name, "none") for name in SHAPES] + [(name, "of all") for name in SHAPES]
    + [("samples", name) for name in MASKS if name.startswith("of each")]
)  # fmt: skip
@pytest.mark.parametrize("own_mask", [False, True])
def test_attention_of_all_models_is_that_of_each(shape: str, mask: str, own_mask: bool) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(MODELS, *SHAPES[shape], requires_grad=True) for _ in range(3))
    made = MASKS[mask]()
    if made is not None and made.dtype == torch.bool:
        made |= torch.eye(5, dtype=torch.bool)
    masks = [made if made is None or made.dtype == torch.bool or not own_mask else made * n for n in range(MODELS)]
    given = torch.stack(masks) if own_mask and made is not None else made  # type: ignore[arg-type]
    attend = functional.scaled_dot_product_attention
    alone = torch.stack([attend(*each, masks[n]) for n, each in enumerate(zip(q, k, v, strict=True))])
    with mappable(CPU):
        together = vmap(attend, in_dims=(0, 0, 0, 0 if own_mask and made is not None else None))(q, k, v, given)
    assert torch.allclose(together, alone, atol=1e-6)
    found = [torch.autograd.grad(each.square().sum(), (q, k, v)) for each in (alone, together)]
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(*found, strict=True))


class Small(nn.Module):
    """Layers whose operators autocast casts as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.attention = nn.Conv1d(4, 8, 1), nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.out = nn.LayerNorm(8), nn.Linear(8, 3)
        self.dtypes: list[torch.dtype] = []

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).transpose(1, 2)
        self.dtypes = [x.dtype]
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        found = self.out(x).mean(1)
        self.dtypes += [x.dtype, found.dtype]
        return found  # type: ignore[no-any-return]


def loss_of(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), y)


@pytest.mark.parametrize("traced", [False, True])
def test_autocast_trains_each_model_as_it_would_alone(traced: bool) -> None:
    torch.manual_seed(0)
    models = [Small() for _ in range(MODELS)]
    rates = [0.05, 0.1, 0.2]
    fused = Fused(models, "sgd", traced=traced, lr=rates)
    optimizers = [torch.optim.SGD(model.parameters(), rate) for model, rate in zip(models, rates, strict=True)]
    for _ in range(6):
        x, y = torch.randn(6, 4, 5), torch.randint(3, (6,))
        with torch.autocast("cpu", torch.bfloat16):
            fused.gradients(loss_of, x, y)
            losses = [loss_of(model, x, y) for model in models]
        fused.step()
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert fused.recordings == int(traced)
    assert models[0].dtypes == [torch.bfloat16, torch.bfloat16, torch.bfloat16]
    assert fused._called.dtypes == models[0].dtypes
    for number, model in enumerate(models):
        state = fused.state_dict(number)
        for name, tensor in model.state_dict().items():
            assert float((tensor - state[name]).norm()) < 0.01 * float(tensor.norm()) + 1e-3


def test_on_a_gpu_normalisations_and_softmaxes_keep_single_precision() -> None:
    """Autocast for CUDA casts them up; below vmap it would not see them."""
    seen: dict[str, torch.dtype] = {}

    def parts(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        seen["linear"] = functional.linear(x, weight, bias).dtype
        for name, found in (
            ("layer_norm", functional.layer_norm(x.bfloat16(), (4,))),
            ("softmax", x.bfloat16().softmax(-1)),
            ("log_softmax", functional.log_softmax(x.bfloat16(), -1)),
        ):
            seen[name] = found.dtype
        return x

    with simulated_cuda.simulated():
        x, weight, bias = torch.randn(3, 4).cuda(), torch.randn(4, 4).cuda(), torch.randn(4).cuda()
        with torch.autocast("cuda", torch.bfloat16), mappable(x.device):
            parts(x, weight, bias)
    assert seen == {
        "linear": torch.bfloat16, "layer_norm": torch.float32, "softmax": torch.float32, "log_softmax": torch.float32,
    }  # fmt: skip


def test_random_numbers_are_put_back_without_contexts_on_other_devices() -> None:
    with simulated_cuda.simulated(devices=3) as machine:
        with draws_undone(torch.device("cpu")):
            torch.rand(3)
        assert machine.contexts == set()
        torch.cuda.set_device(1)
        with draws_undone(torch.device("cuda")):
            pass
        assert machine.contexts == {1}
