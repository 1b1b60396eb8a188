"""What a framework starts: a model with a layout, a batch and machines, and the words that all files begin with."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ddlprof.base.errors import UserError
from ddlprof.base.text import plain
from ddlprof.recommender.architecture import Transformer
from ddlprof.recommender.layout import Layout


@dataclass(frozen=True)
class DividedTraining:
    """One training over many GPUs, its model divided by a layout."""

    job: str
    model: Transformer
    layout: Layout
    micro_batch: int
    """Sequences of a forward pass."""
    micro_batches: int
    """Forward passes of a step in each data rank."""
    nodes: int
    gpus_per_node: int
    steps: int
    precision: str = "bf16"
    predicted: str = ""
    """What was predicted of it, in a line."""

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return self.nodes * self.gpus_per_node

    @property
    def data(self) -> int:
        """The data ranks."""
        return self.layout.data_ranks(self.gpus)

    @property
    def global_batch(self) -> int:
        """The sequences of an update."""
        return self.data * self.micro_batch * self.micro_batches

    @property
    def data_copies_and_shards(self) -> tuple[int, int]:
        """Groups of data ranks that each hold all that is divided, and the data ranks of such a group."""
        if self.layout.shard == "none":
            return self.data, 1
        shards = self.layout.shard_ranks(self.gpus) // self.layout.context or 1
        return self.data // shards, shards

    @property
    def stage_layers(self) -> list[int]:
        """The layers of each part of the model, in order: a stage holds every `pipeline`-th of them."""
        parts = self.layout.pipeline * self.layout.virtual
        each, more = divmod(self.model.layers, parts)
        return [each + (1 if part < more else 0) for part in range(parts)]

    def comments(self, start: str) -> list[str]:
        """The comments that a file begins with; `start` says how it is started."""
        return [
            f"Written by ddlprof recommend for {self.job}; start it with: {start}",
            f"Layout {self.layout.text()} on {self.nodes} x {self.gpus_per_node} GPUs: {self.data} data ranks,"
            f" {self.micro_batches} micro-batches of {self.micro_batch}, {self.global_batch} sequences an update.",
            *([self.predicted] if self.predicted else []),
            "Data, tokenizer, learning rate and checkpoints are yours to add.",
        ]

    def require(self, engine: str, **lacking: bool) -> None:
        """Raises UserError for the first of these parts of the layout or model that the engine has no word for, or for
        heads of keys that tensor ranks would have to copy, which no engine does."""
        copied = not self.model.kv_lora and self.model.kv_heads % self.layout.tensor > 0
        for what, is_used in {"tensor ranks with the same heads of keys": copied, **lacking}.items():
            if is_used:
                raise UserError(
                    f"{engine} has no word for {what.replace('_', ' ')} of layout {self.layout.text()}:"
                    " choose another --emit"
                )


def one_line(value: object) -> str:
    """A text, number or truth as in JSON, which is TOML, too."""
    return plain(json.dumps(value, ensure_ascii=False))
