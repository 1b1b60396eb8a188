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
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

from ddlprof.analysis.sparsity.potential import potential
from ddlprof.collect.sparsity.watch import Watch
from ddlprof.model.sparsity import SparsityRequest

EPOCHS, BATCH, BLOCKS = 3, 64, 15
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


def overhead(
    net: nn.Module, make: Callable[[], tuple[Any, Any]], first_too: bool = False
) -> tuple[float, float, float]:
    """A counted step and another one, in seconds of processor time, and the share that counting adds.

    The first counted step finds the layers and reads the graph: it is left out unless asked for.
    """
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    counted: list[float] = []
    others: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(SparsityRequest(str(Path(folder) / "counts"), steps=BLOCKS + 1, every=2))
        watch.begin()
        begin = time.process_time()
        for step in range(2 * BLOCKS + 2):
            x, y = make()
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()  # its hook ends a counted step, or begins one
            end = time.process_time()
            (counted if step % 2 else others).append(end - begin)
            begin = end
        watch.finish()
    first = 0 if first_too else 1
    pairs = zip(counted[first:], others[first:], strict=True)
    return (
        statistics.median(counted[first:]),
        statistics.median(others[first:]),
        statistics.median(a / b - 1 for a, b in pairs),
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
        counted, other, share = overhead(net, make)
        print(
            f"{name:30} counted {1e3 * counted:.2f} ms, not {1e3 * other:.2f} ms: {100 * share:+.1f} % (required < 10)"
        )
    for zeros in (0.5, 0.8, 0.9, 0.95, 0.98, 0.99):
        print(f"CSR product at {100 * zeros:.0f} % zeros: {sparse_product(zeros):.2f} times as fast as dense")


if __name__ == "__main__":
    main()
