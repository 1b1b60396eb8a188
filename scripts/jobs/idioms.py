"""Small training loops, one for each idiom of other people's scripts; they know nothing of ddlprof.

`python idioms.py NAME --truth FILE` trains and writes what the loop's own clock says of each step, and a digest of the
trained parameters. `--list` names the idioms.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from sampling import SAMPLING
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset
from truth import BATCH, PAUSE_S, WIDTH, Truth, awaited, batches, burn, net, sgd
from zeroing import ZEROING

Models = list[nn.Module]


# -- updates ------------------------------------------------------------------------------------------------------


def update_by_hand(truth: Truth, steps: int) -> Models:
    """`p -= lr * p.grad`, as in the first chapters of many books."""
    model = net()
    for number, (x,) in enumerate(awaited(truth, batches(steps))):
        if number:
            truth.step()  # ours ends when the next batch is asked for; what is left to do before that is nothing
        with truth("compute"):
            model(x).square().mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter -= 1e-3 * parameter.grad  # type: ignore[misc]
                    parameter.grad = None
    truth.step()
    return [model]


def two_optimizers_of_one_model(truth: Truth, steps: int) -> Models:
    """Matrices and biases apart, as with Muon beside AdamW."""
    model = net()
    matrices = torch.optim.SGD([p for p in model.parameters() if p.ndim > 1], lr=1e-3)
    others = torch.optim.Adam([p for p in model.parameters() if p.ndim == 1])
    for (x,) in awaited(truth, batches(steps)):
        with truth("compute"):
            loss = model(x).square().mean()
            model.zero_grad()
            loss.backward()
            for optimizer in (others, matrices):
                optimizer.step()
        truth.step()
    return [model]


def update_in_parts(truth: Truth, steps: int) -> Models:
    """An engine that updates one group of parameters after the other, as DeepSpeed's ZeRO does."""
    model = net()
    groups = [{"params": [p for p in model.parameters() if (p.ndim > 1) is matrix]} for matrix in (True, False)]
    optimizer = torch.optim.SGD(groups, lr=1e-3)
    whole = optimizer.param_groups
    for (x,) in awaited(truth, batches(steps)):
        with truth("compute"):
            model(x).square().mean().backward()
            for group in whole:
                optimizer.param_groups = [group]
                optimizer.step()
            optimizer.param_groups = whole
            optimizer.zero_grad()
        truth.step()
    return [model]


def gan(truth: Truth, steps: int) -> Models:
    """A critic that is updated first, by two passes, then a generator."""
    critic, generator = net(outputs=1), net(inputs=64)
    critic_optimizer, generator_optimizer = (
        torch.optim.Adam(critic.parameters()),
        torch.optim.Adam(generator.parameters()),
    )
    for (real,) in awaited(truth, batches(steps)):
        with truth("compute"):
            critic_optimizer.zero_grad()
            functional.softplus(-critic(real)).mean().backward()
            fake = generator(torch.randn(BATCH, 64))
            functional.softplus(critic(fake.detach())).mean().backward()
            critic_optimizer.step()
            generator_optimizer.zero_grad()
            functional.softplus(-critic(fake)).mean().backward()
            generator_optimizer.step()
        truth.step()
    return [critic, generator]


def accumulation_with_pauses(truth: Truth, steps: int) -> Models:
    """Four micro-batches; the loop logs, slowly, between them."""
    model = net()
    optimizer = sgd(model)
    iterator = awaited(truth, batches(4 * steps))
    for _ in range(steps):
        for _ in range(4):
            (x,) = next(iterator)
            with truth("compute"):
                (model(x).square().mean() / 4).backward()
            time.sleep(PAUSE_S / 2)
        with truth("compute"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        truth.step()
        optimizer.zero_grad()
    return [model]


def closure(truth: Truth, steps: int) -> Models:
    """L-BFGS evaluates the loss several times in a step."""
    model = net(outputs=1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, history_size=3)
    for (x,) in awaited(truth, batches(steps)):

        def loss(x: torch.Tensor = x) -> float:
            optimizer.zero_grad()
            value = model(x).square().mean()
            value.backward()
            return float(value.detach())

        with truth("compute"):
            optimizer.step(loss)
        truth.step()
    return [model]


def gradient_scaler(truth: Truth, steps: int) -> Models:
    """Autocast, a scaler, clipping of unscaled gradients."""
    model = net()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for (x,) in awaited(truth, batches(steps)):
        with truth("compute"):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = functional.mse_loss(model(x), x)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        truth.step()
    return [model]


# -- time between forward and update that is no computing ---------------------------------------------------------


def sleep_before_backward(truth: Truth, steps: int) -> Models:
    """A call to somewhere else between forward and backward."""
    model = net()
    optimizer = sgd(model)
    for (x,) in awaited(truth, batches(steps)):
        with truth("compute"):
            loss = functional.mse_loss(model(x), x)
        time.sleep(PAUSE_S)
        with truth("compute"):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        truth.step()
    return [model]


def metrics_before_update(truth: Truth, steps: int) -> Models:
    """The interpreter is busy between backward and update."""
    model = net()
    optimizer = sgd(model)
    for (x,) in awaited(truth, batches(steps)):
        with truth("compute"):
            loss = functional.mse_loss(model(x), x)
            optimizer.zero_grad()
            loss.backward()
        burn()
        with truth("compute"):
            optimizer.step()
        truth.step()
    return [model]


def policy_gradient(truth: Truth, steps: int) -> Models:
    """REINFORCE: an environment's step after each of the episode's forwards, one backward for all."""
    policy = net(outputs=4)
    optimizer = torch.optim.Adam(policy.parameters())
    state = torch.randn(BATCH, WIDTH)
    for _ in range(steps):
        log_probabilities = []
        for _ in range(5):
            with truth("compute"):
                choice = torch.distributions.Categorical(logits=policy(state))
                action = choice.sample()
                log_probabilities.append(choice.log_prob(action))
            burn(PAUSE_S / 4)
        with truth("compute"):
            loss = -torch.stack(log_probabilities).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        truth.step()
    return [policy]


# -- input --------------------------------------------------------------------------------------------------------


def get_batch() -> torch.Tensor:
    """Makes a batch without a loader; `--data-call __main__:get_batch` names it."""
    time.sleep(PAUSE_S / 2)
    burn(PAUSE_S / 4)
    return torch.randn(BATCH, WIDTH)


def batch_after_forward(truth: Truth, steps: int) -> Models:
    """nanoGPT's order: the next batch is made between forward and backward, while an accelerator would compute."""
    model = net()
    optimizer = sgd(model)
    x = get_batch()
    for _ in range(steps):
        for _ in range(2):
            with truth("compute"):
                loss = functional.mse_loss(model(x), x) / 2
            with truth("data"):
                x = get_batch()
            with truth("compute"):
                loss.backward()
        with truth("compute"):
            optimizer.step()
        truth.step()
        optimizer.zero_grad(set_to_none=True)
    return [model]


class Endless(IterableDataset[torch.Tensor]):
    """Rows without an end."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            time.sleep(PAUSE_S / BATCH)
            yield torch.ones(WIDTH)


def endless_stream(truth: Truth, steps: int) -> Models:
    """`next(iterator)` on a stream."""
    model = net()
    optimizer = sgd(model)
    iterator = iter(DataLoader(Endless(), batch_size=BATCH))
    for _ in range(steps):
        with truth("data"):
            x = next(iterator)
        with truth("compute"):
            loss = functional.mse_loss(model(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        truth.step()
    return [model]


def two_loaders(truth: Truth, steps: int) -> Models:
    """Labelled and unlabelled batches side by side, and a teacher that is a moving average."""
    model = net()
    teacher = copy.deepcopy(model)
    optimizer = sgd(model)
    pairs = zip(batches(steps), batches(steps), strict=True)
    for (x,), (unlabelled,) in awaited(truth, pairs):
        with truth("compute"):
            with torch.no_grad():
                target = teacher(unlabelled)
            loss = functional.mse_loss(model(x), x) + functional.mse_loss(model(unlabelled), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        truth.step()
        with torch.no_grad():
            for mine, yours in zip(teacher.parameters(), model.parameters(), strict=True):
                mine.lerp_(yours, 0.01)
    return [model, teacher]


# -- compiled functions -------------------------------------------------------------------------------------------


def compiled_loss(truth: Truth, steps: int) -> Models:
    """The model and its loss in one compiled function."""
    model = net()
    optimizer = sgd(model)
    loss = torch.compile(lambda x: functional.mse_loss(model(x), x), backend="aot_eager")
    for (x,) in awaited(truth, batches(steps)):
        with truth("compute"):
            value = loss(x)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        truth.step()
    return [model]


def compiled_update(truth: Truth, steps: int) -> Models:
    """The optimizer's step, compiled."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-3))
    update = torch.compile(optimizer.step, backend="aot_eager")
    for (x,) in awaited(truth, batches(steps)):
        with truth("compute"):
            loss = functional.mse_loss(model(x), x)
            optimizer.zero_grad()
            loss.backward()
            update()
        truth.step()
    return [model]


def compiled_step(truth: Truth, steps: int) -> Models:
    """Forward, loss, backward and update in one compiled function."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    @torch.compile(backend="aot_eager")
    def train(x: torch.Tensor) -> None:
        functional.mse_loss(model(x), x).backward()
        optimizer.step()
        optimizer.zero_grad()

    for (x,) in awaited(truth, batches(steps)):
        with truth("compute"):
            train(x)
        truth.step()
    return [model]


IDIOMS: dict[str, Callable[[Truth, int], Models]] = {
    function.__name__: function
    for function in (
        update_by_hand, two_optimizers_of_one_model, update_in_parts, gan, accumulation_with_pauses, closure,
        gradient_scaler, sleep_before_backward, metrics_before_update, policy_gradient, batch_after_forward,
        endless_stream, two_loaders, compiled_loss, compiled_update, compiled_step, *ZEROING, *SAMPLING,
    )
}  # fmt: skip
OPTIONS = {"batch_after_forward": ("--data-call", "__main__:get_batch")}
"""What `ddlprof run` must be told."""


def train(name: str, steps: int) -> dict[str, Any]:
    """The truth of one idiom: `rows`, and `digest` of the parameters."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    truth = Truth()
    models = IDIOMS[name](truth, steps)
    digest = hashlib.sha256()
    for model in models:
        for tensor in model.state_dict().values():
            digest.update(tensor.numpy().tobytes())
    return {"rows": truth.rows, "digest": digest.hexdigest()}


def main() -> None:
    """Parses, trains, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("idiom", nargs="?", choices=list(IDIOMS))
    parser.add_argument("--list", action="store_true", help="name the idioms")
    parser.add_argument("--truth", metavar="FILE", help="JSON file with the loop's own timing")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    if args.list or args.idiom is None:
        print("\n".join(f"{name}: {function.__doc__}" for name, function in IDIOMS.items()))
        return
    found = train(args.idiom, args.steps)
    if args.truth:
        Path(args.truth).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
