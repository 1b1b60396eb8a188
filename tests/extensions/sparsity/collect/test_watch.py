"""Which steps are counted, what they find, and that a training is the same with and without."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ddlprof.extensions.sparsity.analysis.hints import hints
from ddlprof.extensions.sparsity.analysis.potential import potential
from ddlprof.extensions.sparsity.collect.watch import SparsityWatch
from ddlprof.extensions.sparsity.model import LayerCounts, SparsityCounts, SparsityRequest, read_counts


@pytest.fixture(autouse=True)
def nothing_was_compiled() -> None:
    """By other tests in this process: where functions may be compiled, no layer is counted."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.utils.counters.clear()


def network(normalised: bool = False) -> nn.Sequential:
    norm = [nn.BatchNorm2d(8)] if normalised else []
    layers = [nn.Conv2d(1, 8, 3), *norm, nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 4))


def train(net: nn.Module, steps: int, shape: tuple[int, ...] = (16, 1, 8, 8)) -> None:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(steps):
        x, y = torch.randn(shape), torch.randint(0, 4, shape[:1])
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def counted(net: nn.Module, folder: Path, trained: int = 9, **request: Any) -> SparsityCounts:
    watch = SparsityWatch(SparsityRequest(str(folder / "counts.json"), **request))
    watch.begin()
    train(net, trained)
    watch.finish()
    found = read_counts(folder / "counts.json")
    assert found is not None
    assert found.notes == []
    return found


def layers(found: SparsityCounts) -> dict[str, LayerCounts]:
    return {each.name.rpartition(".")[2]: each for each in found.layers}


def test_steps_to_count(tmp_path: Path) -> None:
    found = counted(network(), tmp_path, 12, every=3)
    assert [each.step for each in found.steps] == [1, 4, 7, 10]
    assert found.steps_seen == 12
    assert [each.step for each in counted(network(), tmp_path, 12, steps=2, every=3).steps] == [1, 4]


def test_an_output_without_elements_has_nothing_to_count(tmp_path: Path) -> None:
    class Aside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.aside = network(), nn.ConvTranspose2d(1, 1, 1, padding=(0, 4))

        def forward(self, x: Any) -> Any:
            return self.body(x) + self.aside(x).sum()

    assert "aside" not in layers(counted(Aside(), tmp_path))


@pytest.mark.parametrize("normalised", [False, True])
def test_a_training_is_the_same_bit_by_bit(normalised: bool, tmp_path: Path) -> None:
    results = []
    for with_us in (False, True):
        torch.manual_seed(0)
        net = network(normalised)
        if with_us:
            counted(net, tmp_path, every=2)
        else:
            train(net, 9)
        results.append([torch.random.get_rng_state(), *net.state_dict().values(), *(p.grad for p in net.parameters())])
        assert not any(module._forward_hooks for module in net.modules())
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


class ByHand:
    """Keeps every input of a convolution or a linear layer and every gradient of its output, as copies."""

    def __init__(self, net: nn.Module) -> None:
        self.of: dict[str, list[list[torch.Tensor]]] = {}
        for name, module in net.named_modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                self.of[name] = []
                module.register_forward_hook(self._hook(self.of[name]))

    def _hook(self, kept: list[list[torch.Tensor]]) -> Any:
        def forward(module: Any, args: Any, output: Any) -> None:
            kept.append([args[0].detach().clone()])
            output.register_hook(lambda gradient: kept[-1].append(gradient.clone()))

        return forward


@pytest.mark.parametrize("limit", [0, 3000, 1 << 30], ids=["nothing waits", "some wait", "all wait"])
def test_sums_over_steps_are_those_by_hand(limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "counting.LARGEST",
        "zeros.LARGEST",
        "zeros._LARGEST_SAVED",
    ):  # `counting` takes it over when imported
        monkeypatch.setattr(f"ddlprof.extensions.sparsity.collect.{name}", limit)
    torch.manual_seed(0)
    net = network()
    by_hand = ByHand(net)
    found = counted(net, tmp_path, 12, every=3)
    steps = [each.step for each in found.steps]
    assert set(layers(found)) == set(by_hand.of)
    for name, layer in layers(found).items():
        pairs = [by_hand.of[name][step] for step in steps]
        assert layer.calls == 4
        assert layer.input_zeros == sum(int((x == 0).sum()) for x, _ in pairs)
        assert layer.gradient_zeros == sum(int((dy == 0).sum()) for _, dy in pairs)
        if layer.kind == "Linear":
            ones = [((x != 0).double(), (dy != 0).double()) for x, dy in pairs]
            assert layer.weight_needed == sum(int((x.T @ dy).sum()) for x, dy in ones)
    for sums in found.steps:
        assert 0 < sums.backward_needed < sums.backward_macs
    assert sum(each.backward_needed for each in found.steps) == sum(
        each.data_needed + each.weight_needed for each in found.layers
    )


def test_a_batch_that_is_filled_anew_before_the_step_ends_is_counted_as_it_was(tmp_path: Path) -> None:
    net = nn.Linear(8, 4)
    batch = torch.zeros(5, 8)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    watch = SparsityWatch(SparsityRequest(str(tmp_path / "counts"), every=1))
    watch.begin()
    for _ in range(4):
        batch.zero_()[0] = 1
        net(batch).square().sum().backward()
        batch.numpy()[:] = 1  # not even torch sees it
        optimizer.step()
    watch.finish()
    (layer,) = watch.counts.layers
    assert (layer.calls, layer.input_zeros) == (3, 3 * 4 * 8)


def test_a_gradient_that_is_changed_in_place_while_it_waits_is_said_and_looked_at_at_once_from_then_on(
    tmp_path: Path,
) -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    watch = SparsityWatch(SparsityRequest(str(tmp_path / "counts"), every=1))
    watch.begin()
    for _ in range(4):
        y = net(torch.randn(5, 8))
        gradients: list[torch.Tensor] = []
        y.register_hook(gradients.append)
        y.square().sum().backward()
        gradients[0].zero_()
        optimizer.step()
    watch.finish()
    first, last = watch.counts.layers
    assert (first.calls, last.calls) == (3, 2)
    assert last.gradient_zeros == 0
    assert "2 was changed in place" in watch.counts.notes[0]


def test_other_hooks_of_optimizers_go_on_when_the_last_step_is_counted(tmp_path: Path) -> None:
    calls: list[int] = []
    watch = SparsityWatch(SparsityRequest(str(tmp_path / "counts"), steps=2, every=1))
    watch.begin()
    others = register_optimizer_step_post_hook(lambda *_: calls.append(watch.counts.steps_seen))
    train(network(), 6)
    watch.finish()
    others.remove()
    assert calls == [1, 2, 3, 3, 3, 3]


def test_a_normalisation_makes_gradients_dense_and_a_hint_says_so(tmp_path: Path) -> None:
    torch.manual_seed(0)
    dense, sparse = counted(network(normalised=True), tmp_path), counted(network(), tmp_path)
    assert layers(dense)["0"].gradient_zeros == 0
    assert "BatchNorm" in layers(dense)["0"].after[0]
    assert any("normalisation" in hint for hint in hints(potential(dense)))
    assert not any("normalisation" in hint for hint in hints(potential(sparse)))
    slow, fast = (potential(each).total.backward_speedup or 0 for each in (dense, sparse))
    assert slow < fast


def test_without_relu_there_is_one_hint(tmp_path: Path) -> None:
    found = counted(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.GELU(), nn.Linear(8, 4)), tmp_path)
    assert [hint.partition(":")[0] for hint in hints(potential(found))] == ["no layer has zeros to speak of"]


def test_attention_lstm_and_dropout(tmp_path: Path) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 16, 2, batch_first=True)
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
            self.out = nn.Sequential(nn.Dropout(0.5), nn.Linear(16, 4))

        def forward(self, x: Any) -> Any:
            y = self.lstm(x.squeeze(1))[0]
            return self.out(self.attention(y, y, y)[0][:, -1])

    linear = nn.functional.linear
    found = layers(counted(Mixed(), tmp_path))
    assert nn.functional.linear is linear
    assert set(found) == {"lstm", "in_proj", "out_proj", "1"}
    assert found["in_proj"].shape == "16 -> 48"
    assert found["lstm"].gradients is None
    assert found["1"].before[0] == "Dropout"
    assert 0.3 < found["1"].input_zeros / found["1"].inputs < 0.7


def test_recomputed_and_frozen_layers(tmp_path: Path) -> None:
    from torch.utils.checkpoint import checkpoint

    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(64, 8), nn.Linear(8, 4)
            self.a.requires_grad_(False)

        def forward(self, x: Any) -> Any:
            return checkpoint(self.b, self.a(x.flatten(1).requires_grad_()).relu(), use_reentrant=False)

    found = counted(Recomputed(), tmp_path, steps=1)
    a, b = found.layers
    assert (a.calls, b.calls) == (1, 1)
    assert a.weight_macs == 0 < a.data_macs
    assert b.forward_macs == 16 * 8 * 4


def test_a_layer_that_breaks_our_hook_leaves_the_training_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ValueError("odd")

    monkeypatch.setattr("ddlprof.extensions.sparsity.collect.counting.call_of", broken)
    watch = SparsityWatch(SparsityRequest(str(tmp_path / "counts.json")))
    watch.begin()
    train(network(), 5)
    watch.finish()
    found = read_counts(tmp_path / "counts.json")
    assert found is not None
    assert "odd" in found.notes[0]


def test_compiled_modules_are_left_alone_and_named(tmp_path: Path) -> None:
    net = network()
    net.compile(backend="eager")
    torch._dynamo.utils.counters.clear()
    if hasattr(torch._dynamo.config, "caching_precompile"):
        torch._dynamo.config.caching_precompile = False
    found = counted(net, tmp_path)
    assert found.layers == []
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 1
    torch._dynamo.reset()


def test_the_module_that_torch_compile_returns_is_left_alone_and_its_layers_are_named(tmp_path: Path) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolutions: Any = torch.compile(network()[:-1], backend="eager")
            self.head = nn.Linear(32, 4)

        def forward(self, x: Any) -> Any:
            return self.head(self.convolutions(x))

    found = counted(Both(), tmp_path)
    assert list(layers(found)) == ["head"]
    unseen = [name.rpartition("convolutions")[2] for name in found.unseen if "convolutions" in name]
    assert unseen == [".0", ".2"]  # and those of networks that other tests have left behind
    assert found.compiled
    torch._dynamo.reset()
