"""The training jobs of `memory_model`: real models of moderate size, each with something that changes its memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from ddlprof.operators.trace_cuda import cuda_autocast
from ddlprof.operators.trace_step import checkpoint

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One job: how its model and a batch are made, and how it trains."""

    name: str
    model: Callable[[], nn.Module]
    inputs: Callable[[int], Batch]
    batch: int
    precision: str = "fp32"
    optimizer: str = "adamw"
    checkpointing: bool = False
    grad_accum: int = 1
    frozen: str = ""
    """Parameters whose names hold this are not trained."""

    def build(self) -> nn.Module:
        """The model, in the types of its precision, with its frozen parts frozen."""
        model = self.model()
        if self.precision in ("bf16", "fp16"):
            model = model.to(torch.bfloat16 if self.precision == "bf16" else torch.float16)
        if self.checkpointing:
            checkpoint(model)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not (self.frozen and self.frozen in name))
        return model.train()

    def batch_of(self, size: int) -> Batch:
        """A batch in the type that the model takes."""
        half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.precision)
        batch = self.inputs(size)
        return {k: v.to(half) if half and v.is_floating_point() else v for k, v in batch.items()}

    def autocast(self) -> Any:
        """The context of forward; what is cast is what CUDA's autocast would cast."""
        return cuda_autocast(torch.bfloat16) if self.precision == "amp-bf16" else contextlib.nullcontext()

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer | None:
        """The optimizer with torch's defaults on the CPU; None for a step without an update."""
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if self.optimizer == "none":
            return None
        if self.optimizer == "sgd-momentum":
            return torch.optim.SGD(trained, lr=1e-4, momentum=0.9)
        made: dict[str, Any] = {
            "adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD,
            "rmsprop": torch.optim.RMSprop, "adagrad": torch.optim.Adagrad, "adafactor": torch.optim.Adafactor,
        }  # fmt: skip
        name, _, how = self.optimizer.partition("-")
        options = {how: True} if how in ("fused", "foreach") else {}
        return made[name](trained, lr=1e-4, **options)  # type: ignore[no-any-return]


def _tokens(vocabulary: int, length: int) -> Callable[[int], Batch]:
    def make(size: int) -> Batch:
        tokens = torch.randint(3, vocabulary, (size, length))
        return {"input_ids": tokens, "labels": tokens.clone()}

    return make


def _images(side: int, classes: int) -> Callable[[int], Batch]:
    def make(size: int) -> Batch:
        return {"pixel_values": torch.randn(size, 3, side, side), "labels": torch.randint(0, classes, (size,))}

    return make


def _transformer(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """A model of transformers by the name of its class, with random weights."""

    def make() -> nn.Module:
        import transformers

        cls = getattr(transformers, name)
        return cls(cls.config_class(**settings))  # type: ignore[no-any-return]

    return make


class Result(NamedTuple):
    """What the models below return, as those of transformers do; scripts hold on to it until the step is over."""

    loss: torch.Tensor
    logits: torch.Tensor


class LanguageLstm(nn.Module):
    """A recurrent language model whose embedding is its output layer too."""

    def __init__(self, vocabulary: int = 20_000, width: int = 400, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)
        self.head.weight = self.embedding.weight

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Result:
        """Logits of the next word and their loss."""
        hidden, _ = self.lstm(self.embedding(input_ids))
        logits = self.head(hidden)
        return Result(nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits)


class Recommender(nn.Module):
    """Tables of embeddings and two towers, after DLRM."""

    def __init__(self, tables: int = 8, rows: int = 40_000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
        self.top = nn.Sequential(
            nn.Linear((tables + 1) * width, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)
        )

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor, labels: torch.Tensor) -> Result:
        """Logits of a click and their loss."""
        looked_up = [table(sparse[:, i]) for i, table in enumerate(self.tables)]
        logits = self.top(torch.cat([self.bottom(dense), *looked_up], dim=1)).squeeze(1)
        return Result(nn.functional.binary_cross_entropy_with_logits(logits, labels), logits)


def _clicks(size: int) -> Batch:
    return {
        "dense": torch.randn(size, 13), "sparse": torch.randint(0, 40_000, (size, 8)),
        "labels": torch.randint(0, 2, (size,)).float(),
    }  # fmt: skip


class Vgg(nn.Module):
    """VGG-11 on small images, with its large linear layers."""

    def __init__(self, classes: int = 100) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)] if width else [nn.MaxPool2d(2)]
            channels = width or channels
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Linear(512 * 9, 4096),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Linear(4096, classes),
        )

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> Result:
        """Logits of the classes and their loss."""
        logits = self.head(self.features(pixel_values).flatten(1))
        return Result(nn.functional.cross_entropy(logits, labels), logits)


# Without dropout: the mask that it keeps has a byte for each element on a GPU, and four on the CPU.
_GPT2: dict[str, Any] = {
    "n_layer": 6, "n_embd": 512, "n_head": 8, "vocab_size": 20_000, "use_cache": False, "resid_pdrop": 0.0,
    "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
_BERT: dict[str, Any] = {
    "num_hidden_layers": 6, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048,
    "vocab_size": 20_000, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
_LLAMA: dict[str, Any] = {
    "num_hidden_layers": 6, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4,
    "intermediate_size": 1408, "vocab_size": 20_000, "use_cache": False,
}  # fmt: skip


def cases() -> Iterator[Case]:
    """All jobs, those in which something changes after the plain ones."""
    gpt2 = _transformer("GPT2LMHeadModel", **_GPT2)
    bert = _transformer("BertForMaskedLM", **_BERT)
    llama = _transformer("LlamaForCausalLM", **_LLAMA)
    resnet = _transformer("ResNetForImageClassification", num_labels=100)
    text, images = _tokens(20_000, 128), _images(112, 100)
    yield Case("gpt2 (tied)", gpt2, text, 8)
    yield Case("gpt2 amp", gpt2, text, 8, "amp-bf16")
    yield Case("gpt2 checkpointed", gpt2, text, 16, checkpointing=True)
    yield Case("gpt2 accumulating", gpt2, text, 8, grad_accum=3)
    yield Case("bert", bert, text, 8, optimizer="adam")
    yield Case("bert frozen", bert, text, 8, frozen="encoder.layer")
    yield Case("bert amp checkpointed", bert, text, 16, "amp-bf16", checkpointing=True)
    yield Case("llama accumulating", llama, text, 8, grad_accum=2)
    yield Case("llama bf16", llama, text, 8, "bf16")
    t5 = _transformer(
        "T5ForConditionalGeneration", num_layers=4, d_model=512, d_ff=1024, num_heads=8, use_cache=False,
        decoder_start_token_id=0, vocab_size=20_000, dropout_rate=0.0,
    )  # fmt: skip
    yield Case("t5", t5, _tokens(20_000, 96), 8, optimizer="adafactor")
    vit = _transformer(
        "ViTForImageClassification", num_hidden_layers=6, hidden_size=512, num_attention_heads=8,
        intermediate_size=2048, image_size=112, num_labels=100,
    )  # fmt: skip
    yield Case("vit amp foreach", vit, images, 4, "amp-bf16", optimizer="adamw-foreach")
    yield Case("resnet50", resnet, images, 16, optimizer="sgd-momentum")
    yield Case("resnet50 amp", resnet, images, 16, "amp-bf16", optimizer="sgd")
    yield Case("convnext", _transformer("ConvNextForImageClassification", num_labels=100), images, 16)
    mobilenet = _transformer("MobileNetV2ForImageClassification", num_labels=100, image_size=112)
    yield Case("mobilenet", mobilenet, images, 32, optimizer="rmsprop")
    yield Case("swin", _transformer("SwinForImageClassification", num_labels=100, image_size=224), _images(224, 100), 4)
    yield Case("vgg", Vgg, _images(96, 100), 16, optimizer="sgd-momentum")
    yield Case("lstm (tied)", LanguageLstm, text, 16, optimizer="sgd")
    yield Case("recommender", Recommender, _clicks, 2048, optimizer="adagrad")
