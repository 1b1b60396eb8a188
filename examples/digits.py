"""Trains a small convolutional net on scikit-learn's bundled handwritten digits.

An ordinary training script. It runs on its own or, with one rank a process, under torchrun:

    python examples/digits.py --epochs 8
    torchrun --nproc-per-node 2 examples/digits.py --epochs 8
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

TEST_IMAGES = 360


class Digits(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """8x8 grey images of digits, enlarged to 32x32; training images are shifted by up to two pixels."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, augment: bool) -> None:
        self.images, self.labels, self.augment = images, labels, augment

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = F.interpolate(self.images[index][None, None], size=32, mode="bilinear")[0]
        if self.augment:
            shift_y, shift_x = torch.randint(-2, 3, (2,)).tolist()
            image = torch.roll(image, (shift_y, shift_x), dims=(1, 2))
        return image, self.labels[index]


def load_data() -> tuple[Digits, Digits]:
    """The training and the test set, split the same way every time."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(digits.images, dtype=torch.float32)[order] / 16
    labels = torch.tensor(digits.target)[order]
    train = Digits(images[TEST_IMAGES:], labels[TEST_IMAGES:], augment=True)
    return train, Digits(images[:TEST_IMAGES], labels[:TEST_IMAGES], augment=False)


def make_model() -> nn.Module:
    """Two convolutions and two fully connected layers."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.GroupNorm(8, 32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.GroupNorm(8, 64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 8 * 8, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


Batches = DataLoader[tuple[torch.Tensor, torch.Tensor]]


def train_epoch(model: nn.Module, loader: Batches, optimizer: torch.optim.Optimizer) -> float:
    """One pass over the training data; the mean loss."""
    model.train()
    total = 0.0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def accuracy(model: nn.Module, loader: Batches) -> float:
    """The share of images that are recognised."""
    model.eval()
    right = images_seen = 0
    for images, labels in loader:
        right += int((model(images).argmax(1) == labels).sum())
        images_seen += len(labels)
    return right / images_seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2, help="loader worker processes of each rank")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--batch", type=int, default=32, help="images in a batch of each rank")
    args = parser.parse_args()

    distributed = "RANK" in os.environ  # set by torchrun
    if distributed:
        dist.init_process_group("gloo")
    first = not distributed or dist.get_rank() == 0

    torch.manual_seed(0)
    train_set, test_set = load_data()
    sampler: DistributedSampler[int] | None = DistributedSampler(train_set) if distributed else None
    loader = DataLoader(train_set, args.batch, shuffle=sampler is None, sampler=sampler, num_workers=args.workers)
    test_loader = DataLoader(test_set, batch_size=256)
    model = make_model()
    wrapped = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        loss = train_epoch(wrapped, loader, optimizer)
        if first:
            print(f"epoch {epoch + 1}/{args.epochs}: loss {loss:.3f}, accuracy {accuracy(model, test_loader):.3f}")

    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
