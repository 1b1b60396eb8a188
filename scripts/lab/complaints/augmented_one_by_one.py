# huggingface/lerobot#4627 MIC-DKFZ/nnUNet#3063: the loop augments the images of a batch one by one; cure: all at once
from __future__ import annotations

import numpy as np
import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def augment_one(image: np.ndarray) -> torch.Tensor:
    if np.random.rand() < 0.5:
        image = image[:, :, ::-1]
    image = np.roll(image, tuple(np.random.randint(-4, 5, 2)), (1, 2))
    image = image * np.random.uniform(0.8, 1.2) + np.random.normal(0, 0.05, image.shape)
    return torch.from_numpy(np.ascontiguousarray(image, dtype=np.float32))


def augment(images: torch.Tensor) -> torch.Tensor:
    if FAULT:
        return torch.stack([augment_one(image.numpy()) for image in images])
    images = torch.where(torch.rand(len(images), 1, 1, 1) < 0.5, images.flip(3), images)
    images = images.roll(tuple(np.random.randint(-4, 5, 2).tolist()), (2, 3))
    return images * torch.empty(len(images), 1, 1, 1).uniform_(0.8, 1.2) + 0.05 * torch.randn_like(images)


if __name__ == "__main__":
    torch.set_num_threads(1)
    layers = nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
    model = nn.Sequential(*layers, nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = TensorDataset(torch.randn(2048, 3, 32, 32), torch.randint(0, 10, (2048,)))
    clock = OwnClock()
    for _ in range(5):
        clock.epoch()
        clock.train(model, optimizer, ([augment(x), y] for x, y in DataLoader(data, batch_size=64)))
    clock.done()
