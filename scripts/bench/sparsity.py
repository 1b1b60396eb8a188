"""The two regimes of sparse backward passes, what counting costs, and where a sparse product begins to pay.

`python -m scripts.bench.sparsity`. The reference networks are four convolutions on the digits of scikit-learn, doubled
in size, without and with batch normalisation (Sarma et al. 2021 report 1.69 to 5.43 times for backward on ImageNet's
networks). Overhead: processor time of the steps that are counted against steps that are not, in alternating blocks.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ddlprof.extensions.sparsity.analysis.potential import potential
from ddlprof.extensions.sparsity.collect.watch import Watch
from ddlprof.extensions.sparsity.model import SparsityRequest

EPOCHS, BATCH, BLOCKS = 3, 64, 20
REQUIRED = {False: "4 and more", True: "1.5 to 2.1"}


def reference(normalised: bool) -> nn.Sequential:
    """Four convolutions, each followed by a ReLU, two of them by max-pooling."""
    layers: list[nn.Module] = []
    for number, (before, after) in enumerate(itertools.pairwise((1, 16, 32, 64, 64))):
        layers += [nn.Conv2d(before, after, 3, padding=1)]
        layers += [nn.BatchNorm2d(after)] if normalised else []
        layers += [nn.ReLU()] + ([nn.MaxPool2d(2)] if number in (1, 2) else [])
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 10))


def digits() -> tuple[Any, Any]:
    """Images (N, 1, 16, 16) and labels."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    return nn.functional.interpolate(images, scale_factor=2), torch.tensor(data.target)


def trained(normalised: bool) -> tuple[float, float, float]:
    """Ideal speed-ups of backward and iteration, and the last loss."""
    torch.manual_seed(0)
    images, labels = digits()
    net = reference(normalised)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(SparsityRequest(str(Path(folder) / "counts"), steps=10, every=8))
        watch.begin()
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(images)).split(BATCH):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(net(images[rows]), labels[rows])
                loss.backward()
                optimizer.step()
        watch.finish()
    total = potential(watch.counts).total
    return total.backward_speedup or 0, total.iteration_speedup or 0, float(loss.detach())


class Overhead(NamedTuple):
    """Seconds of processor time, and shares of a step that counting adds."""

    counted: float
    """The median of the steps that are counted, with putting hooks on and taking them off."""
    other: float
    share: float
    """The median over pairs of neighbouring steps."""
    with_sums: float
    """The mean over all counted steps but the first, with adding up and writing what they all counted, to the end."""
    first: float
    """Seconds that the first counted step adds: it finds the layers, reads the graph and looks at structure."""


def overhead(net: nn.Module, make: Callable[[], tuple[Any, Any]]) -> Overhead:
    """What counting adds to a step. Hooks go on and off in `Watch`, which is called between two looks at the clock."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    steps: list[float] = []
    watching: list[float] = []
    clock: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(SparsityRequest(str(Path(folder) / "counts"), steps=BLOCKS + 1, every=2))
        before = register_optimizer_step_post_hook(lambda *_: clock.append(time.process_time()))
        watch.begin()
        after = register_optimizer_step_post_hook(lambda *_: clock.append(time.process_time()))
        clock.append(time.process_time())
        for _ in range(2 * BLOCKS + 2):
            x, y = make()
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
            begin, ended, watched = clock
            steps.append(ended - begin)
            watching.append(watched - ended)
            del clock[:2]
        begin = time.process_time()
        watch.finish()
        at_end = time.process_time() - begin
    before.remove()
    after.remove()
    counted = [steps[k] + watching[k - 1] + watching[k] for k in range(1, len(steps), 2)]
    others, added = steps[::2], [one - other for one, other in zip(counted, steps[::2], strict=True)]
    return Overhead(
        statistics.median(counted[1:]),
        statistics.median(others[1:]),
        statistics.median(a / b - 1 for a, b in zip(counted[1:], others[1:], strict=True)),
        (sum(added[1:]) + at_end) / sum(others[1:]),
        added[0],
    )


def _classes(shape: tuple[int, ...]) -> Callable[[], tuple[Any, Any]]:
    x, y = torch.randn(shape), torch.randint(0, 10, shape[:1])
    return lambda: (x, y)


def multilayer(size: int) -> nn.Module:
    """Three linear layers with ReLUs."""
    return nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 10))


def sparse_product(zeros: float, size: int = 1024) -> float:
    """How many times as fast a product is with the left side in rows of nonzeros (CSR) as dense."""
    x = torch.randn(size, size) * (torch.rand(size, size) >= zeros)
    other, rows = torch.randn(size, size), x.to_sparse_csr()
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(BLOCKS):
        for is_sparse, left in ((True, rows), (False, x)):
            begin = time.process_time()
            left @ other
            times[is_sparse].append(time.process_time() - begin)
    return statistics.median(times[False]) / statistics.median(times[True])


def main() -> None:
    torch.set_num_threads(1)
    for normalised in (False, True):
        backward, iteration, loss = trained(normalised)
        kind = "with BatchNorm" if normalised else "without BatchNorm"
        print(
            f"{kind:18} backward {backward:.2f} (required {REQUIRED[normalised]}), iteration {iteration:.2f}", end=" "
        )
        print(f"after {EPOCHS} epochs at loss {loss:.3f}")
    cases = {
        "reference network": (reference(False), _classes((BATCH, 1, 16, 16))),
        "with BatchNorm": (reference(True), _classes((BATCH, 1, 16, 16))),
        "linear, 1024 wide, batch 256": (multilayer(1024), _classes((256, 1024))),
        "linear, 256 wide, batch 128": (multilayer(256), _classes((128, 256))),
        "linear, 64 wide, batch 32": (multilayer(64), _classes((32, 64))),
    }
    for name, (net, make) in cases.items():
        found = overhead(net, make)
        print(
            f"{name:30} counted {1e3 * found.counted:.2f} ms, not {1e3 * found.other:.2f} ms:"
            f" {100 * found.share:+.1f} % (required < 10), {100 * found.with_sums:+.1f} % on average with adding up;"
            f" the first counted step {1e3 * found.first:+.0f} ms"
        )
    for zeros in (0.5, 0.8, 0.9, 0.95, 0.98, 0.99):
        print(f"CSR product at {100 * zeros:.0f} % zeros: {sparse_product(zeros):.2f} times as fast as dense")


if __name__ == "__main__":
    main()
