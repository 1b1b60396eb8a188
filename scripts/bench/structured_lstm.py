"""How fast the LSTM with structured dropout is, beside the same code with random dropout and torch.nn.LSTM.

`python -m scripts.bench.structured_lstm`. One layer, 35 steps, dropout of inputs and hidden states, one thread, medians
of processor time in alternating blocks. "Cell by cell" is random dropout without products over all steps, as a loop
over torch.nn.LSTMCell makes them. `--train` trains a small model of characters with both kinds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ddlprof.extensions.sparsity.nn import StructuredDropoutLSTM, dropped
from ddlprof.extensions.sparsity.nn.dropped import Masked

STEPS = 35
CASES = ((650, 128, 0.5), (1500, 20, 0.65), (650, 20, 0.5), (256, 20, 0.5), (256, 128, 0.5), (64, 32, 0.5))
"""Hidden size, batch, share that is dropped; the first two are those with a bar."""
INPUTS_BAR = 0.95
"""How fast the LSTM that drops inputs only has to be, beside torch.nn.LSTM, which then drops them with nn.Dropout."""
BARS = {CASES[0]: 1.25, CASES[1]: 1.25}
BLOCKS = 7
SEEDS = (0, 1, 2)
TEXTS = ("docs/architecture.md", "docs/measurement.md", "docs/diagnosis.md")


class CellByCell(Masked):
    """Every product in each step on its own."""

    def add_all(self, gates: Any, values: Any) -> None:
        for step in range(len(values)):
            self.add(gates[step], values[step], step)

    def input_gradients(self, gradients: Any) -> Any:
        return torch.stack([self.input_gradient(each, step) for step, each in enumerate(gradients)])

    def weight_gradient(self, values: Any, gradients: Any) -> Any:
        found = torch.zeros_like(self._weight)
        for step in range(len(values)):
            found.addmm_(self._masked(values[step], step).t(), gradients[step])
        return found


class CellByCellLSTM(StructuredDropoutLSTM):
    def _drop(self, x: Any, p: float, size: int) -> Any:
        made: Any = super()._drop(x, p, size)
        return lambda weight: CellByCell(weight, made.keywords["mask"])


def one(module: nn.Module, x: Any) -> float:
    begin = time.process_time()
    y, _ = module(x)
    y.sum().backward()
    taken = time.process_time() - begin
    module.zero_grad(set_to_none=True)
    return taken


def measure(hidden: int, batch: int, p: float) -> dict[str, float]:
    share: dict[str, Any] = {"recurrent_dropout": p, "input_dropout": p}
    modules = {
        "structured": StructuredDropoutLSTM(hidden, hidden, **share),
        "random": StructuredDropoutLSTM(hidden, hidden, structured=False, **share),
        "cell by cell": CellByCellLSTM(hidden, hidden, structured=False, **share),
        "inputs only, structured": StructuredDropoutLSTM(hidden, hidden, input_dropout=p),
        "torch.nn.LSTM": nn.LSTM(hidden, hidden),
        "torch.nn.Dropout and LSTM": nn.Sequential(nn.Dropout(p), nn.LSTM(hidden, hidden)),
    }
    x = torch.randn(STEPS, batch, hidden, requires_grad=True)
    found: dict[str, list[float]] = {name: [] for name in modules}
    for block in range(BLOCKS + 1):
        for name, module in modules.items():
            taken = one(module, x)
            if block:
                found[name].append(taken)
    return {name: statistics.median(times) for name, times in found.items()}


class Characters(nn.Module):
    """Embedding, LSTM, linear layer: the next character."""

    def __init__(self, characters: int, is_structured: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, 64)
        self.lstm = StructuredDropoutLSTM(
            64, 128, 2, dropout=0.3, recurrent_dropout=0.3, input_dropout=0.1, structured=is_structured
        )
        self.out = nn.Linear(128, characters)

    def forward(self, x: Any) -> Any:
        return self.out(self.lstm(self.embedding(x))[0])


def train(text: str, is_structured: bool, seed: int, steps: int) -> float:
    """The loss on text that was not trained on."""
    torch.manual_seed(seed)
    known = sorted(set(text))
    codes = torch.tensor([known.index(each) for each in text])
    learned, held = codes[: int(0.9 * len(codes))], codes[int(0.9 * len(codes)) :]
    model = Characters(len(known), is_structured)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(steps):
        begins = torch.randint(0, len(learned) - 51, (32,))
        batch = torch.stack([learned[begin : begin + 51] for begin in begins.tolist()], 1)
        loss = nn.functional.cross_entropy(model(batch[:-1]).flatten(0, 1), batch[1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(held[:-1, None]).flatten(0, 1), held[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=int, metavar="STEPS", help="train the model of characters for so many steps")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.train:
        text = "".join(Path(name).read_text(encoding="utf-8") for name in TEXTS)
        for is_structured in (True, False):
            losses = [train(text, is_structured, seed, asked.train) for seed in SEEDS]
            spread = statistics.stdev(losses)
            kind = "structured" if is_structured else "random"
            print(f"{kind:10} loss {statistics.mean(losses):.3f}, spread of {len(SEEDS)} seeds {spread:.3f}: {losses}")
        return
    print(f"fetching {dropped.GATHER_SAMPLES} samples, {STEPS} steps, {BLOCKS} blocks, one thread, processor time")
    for case in CASES:
        times = measure(*case)
        hidden, batch, p = case
        print(f"hidden {hidden}, batch {batch}, dropped {p}")
        for name, taken in times.items():
            print(f"  {name:24} {1e3 * taken:8.1f} ms")
        ours = times["structured"]
        bar = f" (required {BARS[case]})" if case in BARS else ""
        print(f"  against random {times['random'] / ours:.2f}{bar}, cell by cell {times['cell by cell'] / ours:.2f},")
        inputs = times["inputs only, structured"]
        print(
            f"  against torch.nn.LSTM {times['torch.nn.LSTM'] / ours:.2f}; inputs only, against torch.nn.LSTM", end=" "
        )
        print(f"{times['torch.nn.LSTM'] / inputs:.2f}, with nn.Dropout", end=" ")
        print(f"{times['torch.nn.Dropout and LSTM'] / inputs:.2f} (required {INPUTS_BAR})")


if __name__ == "__main__":
    main()
