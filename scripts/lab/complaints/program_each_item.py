# lhotse-speech/lhotse#666 sigsep/open-unmix-pytorch#3: a program is started to decode each file; cure: a library
from __future__ import annotations

import gzip
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch
from own_clock import FAULT, OwnClock
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):  # type: ignore[type-arg]
    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return 8 * len(self.files)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        file = self.files[i % len(self.files)]
        if FAULT:
            data = subprocess.run(["gzip", "-dc", str(file)], check=True, capture_output=True).stdout
        else:
            data = gzip.decompress(file.read_bytes())
        return torch.from_numpy(np.frombuffer(data, np.int16).astype(np.float32) / 32768), i % 10


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        files = [Path(name) / f"{i}.gz" for i in range(128)]
        for file in files:
            file.write_bytes(gzip.compress(np.random.randint(-99, 99, 4000).astype(np.int16).tobytes()))
        model = nn.Sequential(nn.Linear(4000, 256), nn.ReLU(), nn.Linear(256, 10))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        clock = OwnClock()
        clock.train(model, optimizer, DataLoader(Clips(files), batch_size=16, shuffle=True))
        clock.done()
