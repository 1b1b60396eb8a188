"""What `ddlprof fuse` gains on small nets of the kinds that HFTA trains, and on one that it had better not fuse.

    OMP_NUM_THREADS=1 python -m scripts.bench.fuse

Eight learning rates each, on the processor. Prints one row for each net: what was predicted and measured, against one
after another and against as many processes side by side as there are processors, and how equal the first steps were.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ddlprof.extensions.fusion.job import run
from ddlprof.extensions.fusion.loop import SweepLength
from ddlprof.extensions.fusion.planner import FuseOptions
from ddlprof.extensions.fusion.task import TaskSpec

RATES = [0.001 * 1.5**number for number in range(8)]
STEPS = 400


class Points(nn.Module):
    """PointNet in small: the same layers for each point, then the largest of each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 1))
        self.out = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Classes of clouds of shape (samples, 3, points)."""
        return self.out(self.each(x).amax(2))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """A Transformer encoder of one layer over 16 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(32, 16), nn.Linear(16, 10)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Classes of sequences of shape (samples, tokens)."""
        return self.out(self.layer(self.embedding(x)).mean(1))  # type: ignore[no-any-return]


def perceptron() -> nn.Module:
    """64-32-32-10."""
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))


def convolutions() -> nn.Module:
    """The discriminator of DCGAN in small."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def wide() -> nn.Module:
    """784-512-512-10, whose steps are computing."""
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def _batches(shape: tuple[int, ...], samples: int) -> Iterator[tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(0)
    for _ in range(20):
        yield torch.randn(samples, *shape, generator=source), torch.randint(10, (samples,), generator=source)


def rows() -> Iterator[tuple[Tensor, Tensor]]:
    """For the perceptron."""
    return _batches((64,), 32)


def images() -> Iterator[tuple[Tensor, Tensor]]:
    """For convolutions."""
    return _batches((1, 8, 8), 32)


def clouds() -> Iterator[tuple[Tensor, Tensor]]:
    """For Points."""
    return _batches((3, 32), 16)


def tokens() -> Iterator[tuple[Tensor, Tensor]]:
    """For Encoder."""
    return (((x.abs() * 10).long() % 32, y) for x, y in _batches((16,), 16))


def large_rows() -> Iterator[tuple[Tensor, Tensor]]:
    """For the wide one."""
    return _batches((784,), 128)


NETS = {"perceptron": "rows", "convolutions": "images", "Points": "clouds", "Encoder": "tokens", "wide": "large_rows"}


def main() -> None:
    """Prints the table."""
    print("net           verdict       predicted   measured     beside  losses within")
    for net, data in NETS.items():
        here = "scripts.bench.fuse"
        names = TaskSpec(f"{here}:{net}", f"{here}:{data}")
        steps = STEPS if net != "wide" else 5
        (part,) = run(names, {"lr": RATES}, FuseOptions(SweepLength(steps, 1), beside=2)).parts
        shown = [
            part.prediction and part.prediction.gain,
            part.measured and part.measured.gain,
            part.measured and part.measured.gain_beside,
        ]
        cells = "".join(f"{'-' if each is None else f'{each:.2f}':>11}" for each in shown)
        equal = "-" if part.equality is None else f"{part.equality.largest_difference:.1e}"
        print(f"{net:13} {'fuse' if part.fuse else 'do not fuse':11} {cells} {equal:>14}", flush=True)


if __name__ == "__main__":
    main()
