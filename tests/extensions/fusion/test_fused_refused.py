"""Models of which a part would be lost are not trained as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddlprof.base.errors import UserError
from ddlprof.extensions.fusion import Fused
from tests.extensions.fusion.test_fused import Tokens, batches, differences, loss_of, train_both, words

RECURRENT = (nn.LSTM, nn.GRU, nn.RNN)


def doubling(kind: Any) -> Any:
    """A subclass with a forward that calls torch's."""

    def forward(self: Any, x: Tensor, hx: Any = None) -> Any:
        output, state = kind.forward(self, x, hx)
        return 2 * output, state

    return type("Doubles", (kind,), {"forward": forward})


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_forward_that_is_not_torchs_is_not_replaced(kind: Any) -> None:
    fused = Fused([Tokens(doubling(kind)(8, 16)) for _ in range(2)])
    with pytest.raises(RuntimeError, match="Batching rule not implemented"):
        fused.gradients(loss_of, *batches(words, 12)[0])


def test_structured_dropout_is_not_lost() -> None:
    ours: Any = pytest.importorskip("ddlprof.extensions.sparsity.nn")  # a room may be taken out
    fused = Fused([Tokens(ours.StructuredDropoutLSTM(8, 16, recurrent_dropout=0.5)) for _ in range(2)])
    with pytest.raises(RuntimeError, match="vmap"):
        fused.gradients(loss_of, *batches(words, 12)[0])


def test_a_subclass_with_torchs_forward_is_fused() -> None:
    torch.manual_seed(0)
    models: list[nn.Module] = [Tokens(type("Named", (nn.LSTM,), {})(8, 16)) for _ in range(3)]
    assert max(differences(models, train_both(models, "sgd", {}, batches(words, 12)[:3])).values()) < 1e-5


def looks(*gradients: Any) -> Any:
    return None


def on_parameter(model: nn.Linear) -> Any:
    return model.weight.register_hook(looks)


def after_accumulation(model: nn.Linear) -> Any:
    return model.bias.register_post_accumulate_grad_hook(looks)


def on_module(model: nn.Linear) -> Any:
    return model.register_full_backward_hook(looks)


def before_module(model: nn.Linear) -> Any:
    return model.register_full_backward_pre_hook(looks)


def on_all_modules(model: nn.Linear) -> Any:
    return nn.modules.module.register_module_full_backward_hook(looks)


@pytest.mark.parametrize("register", [on_parameter, after_accumulation, on_module, before_module, on_all_modules])
def test_hooks_on_gradients(register: Callable[[nn.Linear], Any]) -> None:
    models = [nn.Linear(2, 2), nn.Linear(2, 2)]
    handle = register(models[1])
    try:
        with pytest.raises(UserError, match="has hooks on its gradient, which are of one model"):
            Fused(models)
    finally:
        handle.remove()
    Fused(models)


class Clamps(nn.Linear):
    """Registers a hook wherever there are gradients."""

    def forward(self, input: Tensor) -> Tensor:
        found = super().forward(input)
        if found.requires_grad:
            found.register_hook(lambda gradient: gradient.clamp(-1e3, 1e3))
        return found


@pytest.mark.parametrize("traced", [False, True])
def test_hooks_that_forward_registers(traced: bool) -> None:
    fused = Fused([Clamps(2, 2), Clamps(2, 2)], traced=traced)
    with pytest.raises(UserError, match="a tensor of forward has hooks on its gradient, which are of one model"):
        fused.gradients(lambda model, x: model(x).sum(), torch.ones(1, 2))


def test_a_forward_that_copies_would_take_from_the_first_model() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    layer = model[0]
    layer.forward = lambda x: x @ layer.weight
    with pytest.raises(UserError, match="the forward of module 0 was set to a function that may refer to this one"):
        Fused([model, model])
