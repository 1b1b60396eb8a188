"""The models of the published trainings: configs as transformers has them, and ViT-5, which no library has.

`ddlprof features` takes the former as `transformers:FILE.json`, or with the loss of the training's own code as
`scripts.fit.trained_models:outside_llama-2-7b`, and the latter as `scripts.fit.trained_models:vit5`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional


def _llama(hidden: int, ffn: int, layers: int, heads: int, kv_heads: int, vocab: int, **more: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": ffn,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "vocab_size": vocab, "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
        **more,
    }  # fmt: skip


def _like(family: str, *sizes: int, **more: Any) -> dict[str, Any]:
    """The config of a family that has the fields of Llama."""
    return _llama(*sizes, architectures=[f"{family}ForCausalLM"], model_type=family.lower(), **more)


def _gpt2(hidden: int, layers: int, heads: int, vocab: int = 50304, tokens: int = 1024) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": hidden, "n_layer": layers,
        "n_head": heads, "vocab_size": vocab, "n_positions": tokens, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
        "attn_pdrop": 0.0, "tie_word_embeddings": True,
    }  # fmt: skip


_GEMMA = {"head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama-2-7b": _llama(4096, 11008, 32, 32, 32, 32000),
    "llama-2-13b": _llama(5120, 13824, 40, 40, 40, 32000),
    "llama-3.1-8b": _llama(4096, 14336, 32, 32, 8, 128256),
    "llama-3.1-70b": _llama(8192, 28672, 80, 64, 8, 128256),
    "llama-3.2-3b": _llama(3072, 8192, 28, 24, 8, 128256, tie_word_embeddings=True),
    "gemma-7b": _like("Gemma", 3072, 24576, 28, 16, 16, 256000, **_GEMMA),
    "gemma-2-9b": _like("Gemma2", 3584, 14336, 42, 16, 8, 256000, **_GEMMA),
    "phi-3-mini": _like("Phi3", 3072, 8192, 32, 32, 32, 32064, pad_token_id=32000),
    "qwen3-8b": _like("Qwen3", 4096, 12288, 36, 32, 8, 151936, head_dim=128),
    "qwen1-1.8b": _llama(2048, 5504, 24, 16, 16, 151936),
    "qwen1-7b": _llama(4096, 11008, 32, 32, 32, 151936),
    "qwen1-14b": _llama(5120, 13696, 40, 40, 40, 152064),
    "qwen1-72b": _llama(8192, 24576, 80, 64, 64, 152064),
    "gpt2": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 24, 16),
    "gpt2-large": _gpt2(1280, 36, 20),
    "gpt2-xl": _gpt2(1600, 48, 25),
    "gpt3-125m": _gpt2(768, 12, 12, tokens=2048),
}
"""By the names of the published rows. Llama 2 to Gemma are those of their config.json."""


def gpt2_like(layers: int, hidden: int, heads: int, vocab: int) -> dict[str, Any]:
    """The config of a GPT-2 of other sizes."""
    return _gpt2(hidden, layers, heads, vocab)


class _WithLoss(nn.Module):
    """A language model of transformers whose loss the training's code computes, on logits in their own type.

    `parts`: the loss is computed in fp32 for so many parts of a sequence, each with its own logits (torchtune); 0: for
    all at once and in the type of the logits, which are gone in backward (`del_logits_after_forward` of
    universal-llm-trainer).
    """

    def __init__(self, config: dict[str, Any], parts: int) -> None:
        import transformers

        super().__init__()
        kind = getattr(transformers, config["architectures"][0])
        self.model, self.parts = kind(kind.config_class.from_dict(config)), parts

    def gradient_checkpointing_enable(self) -> None:
        self.model.gradient_checkpointing_enable()

    def forward(self, labels: torch.Tensor, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        if not self.parts:
            logits = self.model(**inputs, use_cache=False).logits
            shifted = logits[:, :-1].reshape(-1, logits.shape[-1])
            return {"loss": functional.cross_entropy(shifted, labels[:, 1:].reshape(-1))}
        hidden = self.model.base_model(**inputs, use_cache=False).last_hidden_state
        made = [self.model.lm_head(part) for part in hidden.chunk(self.parts, 1)]
        pairs = zip(made, labels.chunk(self.parts, 1), strict=True)
        losses = [functional.cross_entropy(x.flatten(0, 1).float(), y.flatten()) for x, y in pairs]
        return {"loss": torch.stack(losses).mean()}


class _Qwen(nn.Module):
    """Qwen 1 as its own code computes it on CUDA (`modeling_qwen.py`), with the kernels of flash-attention that its
    `docker/Dockerfile` builds: fused norms, and a rotation in one kernel in fp32.

    Queries, keys and values are one product. `wide`: the loss is in fp32, as under autocast; else in the type of the
    logits.
    """

    def __init__(self, config: dict[str, Any], wide: bool) -> None:
        super().__init__()
        width, layers = config["hidden_size"], config["num_hidden_layers"]
        self.wide = wide
        self.wte = nn.Embedding(config["vocab_size"], width)
        heads = config["num_attention_heads"]
        self.h = nn.ModuleList(_QwenBlock(width, config["intermediate_size"], heads) for _ in range(layers))
        self.ln_f, self.lm_head = nn.RMSNorm(width), nn.Linear(width, config["vocab_size"], bias=False)
        turned = torch.ones(config["max_position_embeddings"], 1, width // heads // 2, dtype=torch.complex64)
        self.turned: torch.Tensor
        self.register_buffer("turned", turned, persistent=False)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        x, turned = self.wte(input_ids), self.turned[: input_ids.shape[1]]
        for block in self.h:
            x = block(x, turned)
        logits = self.lm_head(self.ln_f(x))
        shifted = logits[:, :-1].reshape(-1, logits.shape[-1])
        loss = functional.cross_entropy(shifted.float() if self.wide else shifted, labels[:, 1:].reshape(-1))
        return {"loss": loss, "logits": logits}


class _QwenAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, turned: torch.Tensor) -> torch.Tensor:
        parts = self.c_attn(x).split(x.shape[-1], -1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)) for part in parts)
        query, key, value = (part.transpose(1, 2) for part in (_rotated(query, turned), _rotated(key, turned), value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: torch.Tensor = self.c_proj(mixed.transpose(1, 2).flatten(-2))
        return result


class _QwenMlp(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.c_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.c_proj(self.w1(x) * functional.silu(self.w2(x)))
        return result


class _QwenBlock(nn.Module):
    def __init__(self, width: int, inner: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attn, self.mlp = _QwenAttention(width, heads), _QwenMlp(width, inner)

    def forward(self, x: torch.Tensor, turned: torch.Tensor) -> torch.Tensor:
        x = self.attn(self.ln_1(x), turned) + x
        result: torch.Tensor = x + self.mlp(self.ln_2(x))
        return result


def _rotated(x: torch.Tensor, turned: torch.Tensor) -> torch.Tensor:
    """Rotary positions in fp32, by one kernel."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turned).flatten(-2).type_as(x)


def __getattr__(name: str) -> Callable[[], nn.Module]:
    """`KIND_MODEL`: a model of `CONFIGS`, a dot in its name written as `_`, with its loss in fp32 (fp32, of Qwen 1), in
    the type of the logits (outside), or in eight parts (parts)."""
    kind, _, model = name.partition("_")
    if kind not in ("fp32", "outside", "parts"):
        raise AttributeError(name)
    config = CONFIGS[model.replace("_", ".")]
    if model.startswith("qwen1-"):
        return lambda: _Qwen(config, kind == "fp32")
    return lambda: _WithLoss(config, 8 if kind == "parts" else 0)


class _PlainNorm(nn.Module):
    """RMS norm of single operators."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, norm: type[nn.Module]) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList((norm(width), norm(width)))
        self.of_heads = nn.ModuleList((norm(width // heads), norm(width // heads)))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scales = nn.ParameterList((nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))))

    def forward(self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        samples, tokens, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(samples, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        query, key = (_turned(norm(each), angles) for norm, each in zip(self.of_heads, (query, key), strict=True))
        mixed = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(x.shape)
        x = x + self.scales[0] * self.out(mixed)
        result: torch.Tensor = x + self.scales[1] * self.down(functional.gelu(self.up(self.norms[1](x))))
        return result


def _turned(x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary positions."""
    cosine, sine = (each.to(x.dtype) for each in angles)
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


class _Vit5(nn.Module):
    """ViT-5 Small: RMS norms, rotary positions, norms of queries and keys, scaled branches, four registers."""

    def __init__(self, norm: type[nn.Module], layers: int = 12, width: int = 384, heads: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.first = nn.Parameter(torch.zeros(1, 5, width))
        self.blocks = nn.ModuleList(_Block(width, heads, norm) for _ in range(layers))
        self.norm, self.head = norm(width), nn.Linear(width, 1000)
        self.register_buffer("cosine", torch.ones(201, width // heads))
        self.register_buffer("sine", torch.zeros(201, width // heads))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(x.shape[0], -1, -1).to(x.dtype), x), 1)
        for block in self.blocks:
            x = block(x, (self.cosine, self.sine))
        logits: torch.Tensor = self.head(self.norm(x)[:, 0])
        return logits


def vit5() -> nn.Module:
    """ViT-5 Small with fused norms."""
    return _Vit5(nn.RMSNorm)


def vit5_plain() -> nn.Module:
    """ViT-5 Small with norms of single operators."""
    return _Vit5(_PlainNorm)
