"""Models that train as one have the parameters that each would have alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ddlprof.base.errors import UserError
from ddlprof.extensions.fusion import Fused
from ddlprof.extensions.fusion.optimizers import torch_optimizer

STEPS = 20
RATES = [0.003, 0.01, 0.02]


class Tokens(nn.Module):
    """Embeds tokens, passes them through a layer, and predicts a token at each place."""

    def __init__(self, layer: nn.Module, size: int = 16) -> None:
        super().__init__()
        self.embedding, self.layer, self.out = nn.Embedding(12, 8), layer, nn.Linear(size, 12)

    def forward(self, tokens: Tensor) -> Tensor:
        found = self.layer(self.embedding(tokens))
        return self.out(found[0] if isinstance(found, tuple) else found).transpose(1, 2)  # type: ignore[no-any-return]


class Tied(nn.Module):
    """The output's weights are the embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(12, 8), nn.Linear(8, 12)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.embedding(tokens))).transpose(1, 2)  # type: ignore[no-any-return]


class Replaces(nn.Module):
    """Replaces a buffer in place of writing into it, and has a parameter that is not trained and one never used."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.unused = nn.Linear(6, 3), nn.Parameter(torch.ones(2))
        self.scale = nn.Parameter(torch.tensor(1.5), requires_grad=False)
        self.gain = nn.Parameter(torch.tensor(0.5))
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach() * self.gain.detach()
        return self.linear(x - self.mean) * self.scale * self.gain  # type: ignore[no-any-return]


class Times(nn.Module):
    """Multiplies by one."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.one


def convolutions(bias: bool = True) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=bias),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, groups=2, bias=bias),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 12),
    )


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    return Tokens(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), 8)


def images() -> Tensor:
    return torch.randn(6, 1, 8, 8)


def words() -> Tensor:
    return torch.randint(12, (6, 5))


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "convolution and BatchNorm": (convolutions, images),
    "convolution without bias": (lambda: convolutions(False), images),
    "Transformer encoder": (encoder, words),
    "LSTM": (lambda: Tokens(nn.LSTM(8, 16, batch_first=True)), words),
    "LSTM, two directions, projected": (lambda: Tokens(nn.LSTM(8, 16, 2, bidirectional=True, proj_size=8)), words),
    "GRU": (lambda: Tokens(nn.GRU(8, 8, 2, bias=False, bidirectional=True)), words),
    "RNN": (lambda: Tokens(nn.RNN(8, 16, nonlinearity="relu")), words),
    "tied embedding": (Tied, words),
    "buffers and frozen parameters": (Replaces, lambda: torch.randn(5, 6)),
}
OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [("sgd", {"momentum": 0.9}), ("adam", {}), ("adamw", {})]
VALUES: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {"momentum": [0.5, 0.9, 0.0], "weight_decay": 0.01, "dampening": [0.1, 0.0, 0.3]}),
    ("sgd", {"momentum": 0.9, "nesterov": [1, 0, 1], "weight_decay": [0.0, 0.1, 0.01]}),
    ("sgd", {"momentum": 0.8, "nesterov": True}),
    ("adam", {"weight_decay": [0.0, 0.1, 0.01], "beta1": [0.9, 0.8, 0.5], "beta2": 0.99, "eps": [1e-8, 1e-6, 1e-4]}),
    ("adamw", {"weight_decay": [0.0, 0.1, 0.01], "beta2": [0.9, 0.99, 0.999]}),
]
MAIN = ("convolution and BatchNorm", "Transformer encoder", "LSTM", "tied embedding")


def loss_of(model: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), y)


def batches(x_of: Callable[[], Tensor], classes: int = 12) -> list[tuple[Tensor, Tensor]]:
    found = []
    for _ in range(STEPS):
        x = x_of()
        shape = x.shape if x.dtype == torch.int64 else x.shape[:1]
        found.append((x, torch.randint(classes, shape)))
    return found


def alone(model: nn.Module, optimizer: str, values: dict[str, float], data: list[tuple[Tensor, Tensor]]) -> None:
    made = torch_optimizer(optimizer, model, values)
    for x, y in data:
        made.zero_grad()
        loss_of(model, x, y).backward()
        made.step()


def train_both(
    models: list[nn.Module],
    optimizer: str,
    values: dict[str, Any],
    data: list[tuple[Tensor, Tensor]],
    rates: list[float] = RATES,
    traced: bool = False,
) -> Fused:
    """Trains copies of the models as one, and the models themselves one after another."""
    fused = Fused(models, optimizer, traced=traced, lr=rates, **values)
    for x, y in data:
        if traced:
            fused.gradients(loss_of, x, y)
        else:
            fused.backward(fused.forward(loss_of, x, y))
        fused.step()
    for number, model in enumerate(models):
        own = {name: value[number] if isinstance(value, list) else value for name, value in values.items()}
        alone(model, optimizer, {"lr": rates[number], **own}, data)
    return fused


def differences(models: list[nn.Module], fused: Fused) -> dict[str, float]:
    """The largest difference of each parameter and buffer."""
    found: dict[str, float] = {}
    for model, other in zip(models, fused.models(), strict=True):
        state = other.state_dict()
        for name, tensor in model.state_dict().items():
            found[name] = max(found.get(name, 0.0), float((tensor.double() - state[name].double()).abs().max()))
    return found


@pytest.fixture
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("net", "optimizer", "values"),
    [(net, *each) for number, each in enumerate(OPTIMIZERS) for net in (NETS if number == 0 else MAIN[number - 1 :: 2])]
    + [("buffers and frozen parameters", *each) for each in OPTIMIZERS[1:]],
)
def test_the_parameters_are_those_of_separate_trainings(net: str, optimizer: str, values: dict[str, Any]) -> None:
    torch.manual_seed(0)
    make, x_of = NETS[net]
    models = [make() for _ in RATES]
    data = batches(x_of, 3 if net == "buffers and frozen parameters" else 12)
    fused = train_both(models, optimizer, values, data, traced=True)
    assert max(differences(models, fused).values()) < 1e-8


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("optimizer", "values"), VALUES, ids=[f"{name} {sorted(each)}" for name, each in VALUES])
def test_every_model_has_values_of_its_own(optimizer: str, values: dict[str, Any]) -> None:
    torch.manual_seed(0)
    models: list[nn.Module] = [nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)) for _ in RATES]
    fused = train_both(models, optimizer, values, batches(lambda: torch.randn(4, 6), 3))
    assert max(differences(models, fused).values()) < 1e-12


@pytest.mark.usefixtures("float64")
def test_gradients_are_clipped_for_each_model_by_itself() -> None:
    torch.manual_seed(0)
    models: list[nn.Module] = [Tokens(nn.Linear(8, 16)) for _ in RATES]
    with torch.no_grad():
        models[1].out.weight.mul_(30)  # type: ignore[union-attr,operator]
    fused = Fused(models, "sgd", lr=RATES)
    clipped = set()
    for x, y in batches(words):
        fused.gradients(loss_of, x, y)
        fused.step(clip_norm=0.5)
        for number, model in enumerate(models):
            model.zero_grad()
            loss_of(model, x, y).backward()
            clipped.add((number, bool(nn.utils.clip_grad_norm_(model.parameters(), 0.5) > 0.5)))
            torch.optim.SGD(model.parameters(), RATES[number]).step()
    assert {(0, False), (1, True)} < clipped
    assert max(differences(models, fused).values()) < 1e-8


def test_means_that_shrink_to_nothing_take_no_longer_and_end_as_in_separate_trainings() -> None:
    """A gradient that is zero from the second step on, a thousand steps long."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    data = [(torch.randn(4, 3), torch.randint(2, (4,)))] + [(torch.zeros(4, 3), torch.randint(2, (4,)))] * 1000
    fused = Fused([model, model], "adam", traced=True, lr=[0.01, 0.02])
    for x, y in data:
        fused.gradients(loss_of, x, y)
        fused.step()
    ((_, optimizer),) = fused._optimizers
    mean = optimizer._states[0][:, :6].abs()
    least = torch.finfo(mean.dtype).tiny
    assert not ((mean > 0) & (mean < least)).any()  # those take long
    assert mean.max() < 16 * least  # zero where a processor multiplies and adds at once, else the smallest that stays
    assert (torch.full((1,), 1e-39) * torch.ones(1)).item()  # denormal numbers of others are what they were
    alone(model, "adam", {"lr": 0.01}, data)
    state = fused.state_dict(0)
    assert all(torch.allclose(each, state[name], atol=1e-5) for name, each in model.state_dict().items())


def test_a_model_that_diverges_leaves_the_others_alone() -> None:
    torch.manual_seed(0)
    models: list[nn.Module] = [nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)) for _ in RATES]
    data = batches(lambda: torch.randn(4, 6), 3)
    wild = Fused([models[0], *models], "sgd", lr=[3e38, *RATES])
    calm = Fused(models, "sgd", lr=RATES)
    for x, y in data:
        for fused in (wild, calm):
            fused.backward(fused.forward(loss_of, x, y))
            fused.step()
    assert not all(bool(each.isfinite().all()) for each in wild.state_dict(0).values())
    for number in range(len(RATES)):
        for one, other in zip(wild.state_dict(number + 1).values(), calm.state_dict(number).values(), strict=True):
            assert torch.allclose(one, other, atol=1e-6)


def test_dropout_differs_between_models_and_keeps_the_share_that_it_should() -> None:
    torch.manual_seed(0)
    fused = Fused([nn.Sequential(nn.Dropout(0.3), Times())] * 8, "sgd")
    kept = fused.forward(lambda model, x: model(x), torch.ones(100, 100)) != 0
    assert kept.shape == (8, 100, 100)
    shares = kept.float().mean((1, 2))
    assert float((shares - 0.7).abs().max()) < 0.03  # six standard errors
    assert not any(bool((kept[0] == kept[other]).all()) for other in range(1, 8))
    fused.eval()
    assert bool((fused.forward(lambda model, x: model(x), torch.ones(3, 3)) == 1).all())


def test_the_loss_under_dropout_is_that_of_separate_trainings_on_average() -> None:
    """Means over 60 models each, within four standard errors of their difference."""
    torch.manual_seed(0)
    x = torch.randn(32, 6)
    data = [(x, (x.sum(1) > 0).long())] * STEPS
    means = []
    for together in (True, False):
        torch.manual_seed(1)
        models: list[nn.Module] = [
            nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2)) for _ in range(60)
        ]
        if together:
            fused = Fused(models, "adam", lr=0.03)
            for batch in data:
                fused.backward(fused.forward(loss_of, *batch))
                fused.step()
            models = fused.models()
        else:
            for model in models:
                alone(model, "adam", {"lr": 0.03}, data)
        with torch.no_grad():
            means.append(torch.stack([loss_of(model.eval(), *data[0]) for model in models]))
    error = float((means[0].var() / 60 + means[1].var() / 60).sqrt())
    assert abs(float(means[0].mean() - means[1].mean())) < 4 * error
    assert float(means[0].mean()) < 0.5  # it learned


def test_schedules_and_what_cannot_be_set() -> None:
    fused = Fused([nn.Linear(2, 2), nn.Linear(2, 2)], "sgd", lr=[0.1, 0.2])
    before = fused.state_dict(0)
    fused.set(lr=0.0)
    fused.backward(fused.forward(lambda model, x: model(x).sum(), torch.ones(1, 2)))
    fused.step()
    assert torch.equal(before["weight"], fused.state_dict(0)["weight"])
    with pytest.raises(UserError, match="the optimizer has no rate; it has lr"):
        fused.set(rate=1)
    with pytest.raises(UserError, match="lr: 3 values for 2 models"):
        fused.set(lr=[1, 2, 3])


@pytest.mark.parametrize(
    ("sizes", "optimizer", "values", "message"),
    [
        ((), "sgd", {}, "no models to fuse"),
        ((0, 0), "sgd", {}, "the model has nothing to train"),
        ((2, 3), "sgd", {}, "models of different shapes cannot be fused: model 1 differs in bias"),
        ((2, 2), "lion", {}, "unknown optimizer 'lion'; known: sgd, adam, adamw"),
        ((2, 2), "adam", {"momentum": 0.9}, "adam has no momentum; it has lr, beta1"),
        ((2, 2), "sgd", {"momentun": 0.9}, "sgd has no momentun; did you mean momentum"),
        ((2, 2), "sgd", {"lr": [1, 2, 3]}, "lr: 3 values for 2 models"),
        ((2, 2), "sgd", {"lr": -1}, "lr=-1: must not be negative"),
        ((2, 2), "sgd", {"lr": float("nan")}, "lr=nan: not a number"),
        ((2, 2), "adam", {"beta1": 1}, "beta1=1: must be less than 1"),
        ((2, 2), "sgd", {"nesterov": [1, 0]}, "nesterov needs momentum"),
    ],
)
def test_bad_input(sizes: tuple[int, ...], optimizer: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Fused([nn.Linear(size, size) if size else nn.Flatten() for size in sizes], optimizer, **values)
