"""Loaders that are not torch's; `other_loaders.py torchdata|webdataset|datasets`."""

from __future__ import annotations

import io
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from written import write

STEPS, BATCH, WIDTH = 40, 16, 256


def torchdata() -> Iterator[Any]:
    from torch.utils.data import TensorDataset
    from torchdata.stateful_dataloader import StatefulDataLoader

    for (x,) in StatefulDataLoader(TensorDataset(torch.randn(STEPS * BATCH, WIDTH)), batch_size=BATCH, num_workers=1):
        yield x


def webdataset() -> Iterator[Any]:
    """Small batches of a loader are put together anew, as its documentation advises."""
    import webdataset as wds

    with tempfile.TemporaryDirectory() as folder:
        shard = Path(folder, "0.tar")
        with tarfile.open(shard, "w") as archive:
            for number in range(STEPS * BATCH):
                content = io.BytesIO()
                torch.save(torch.full((WIDTH,), float(number % 7)), content)
                entry = tarfile.TarInfo(f"{number:06}.pth")
                entry.size = len(content.getvalue())
                archive.addfile(entry, io.BytesIO(content.getvalue()))
        samples = wds.WebDataset(str(shard), shardshuffle=False).decode().to_tuple("pth").batched(4)
        yield from (x for (x,) in wds.WebLoader(samples, batch_size=None).unbatched().batched(BATCH))


def datasets() -> Iterator[Any]:
    """Arrow tables that are iterated directly."""
    import datasets as hugging_face

    table = hugging_face.Dataset.from_dict({"x": torch.randn(STEPS * BATCH, WIDTH).numpy()}).with_format("torch")
    yield from (batch["x"] for batch in table.iter(batch_size=BATCH))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, WIDTH))
    optimizer = torch.optim.Adam(model.parameters())
    steps = 0
    for x in {"torchdata": torchdata, "webdataset": webdataset, "datasets": datasets}[sys.argv[1]]():
        nn.functional.mse_loss(model(x), x).backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    write(steps, model.state_dict())


if __name__ == "__main__":
    main()
