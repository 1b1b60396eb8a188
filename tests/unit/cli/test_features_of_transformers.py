"""`ddlprof features transformer` and `ddlprof features config.json` as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from ddlprof.recommender import transformer
from ddlprof.recommender.workload import read_workload
from tests.unit.cli.commands import ddlprof
from tests.unit.recommender.test_model_config import DEEPSEEK_V3, GPT2, LLAMA_8B

SMALL = "--layers 32 --hidden 4096 --heads 32 --kv-heads 8 --ffn 14336 --vocab 128256 --seq-len 4096"


def test_sizes_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "8b.json"
    assert ddlprof(monkeypatch, "features", "transformer", *SMALL.split(), "-o", str(path)) == 0
    asked = transformer(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256, seq=4096)
    assert read_workload(path) == asked
    capsys.readouterr()
    assert ddlprof(monkeypatch, "features", "transformer", *SMALL.split()) == 0
    out = capsys.readouterr().out
    assert "parameters         8,030,261,248 (8.03 G)\n" in out
    assert "active parameters  7,504,920,576 (7.5 G) for a token\n" in out
    assert "FLOPs per token    51.5 G, forward and backward\n" in out


def test_the_software_that_trains_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, paths = tmp_path / "8b.json", [tmp_path / "typed.json", tmp_path / "read.json"]
    config.write_text(json.dumps(LLAMA_8B))
    for path, model in zip(paths, (["transformer", *SMALL.split()], [str(config)]), strict=True):
        assert ddlprof(monkeypatch, "features", *model, "--software", "megatron", "-o", str(path)) == 0
        assert read_workload(path).software == "megatron"


def test_experts_and_latent_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every size of DeepSeek V3 has an option."""
    config, typed, read = tmp_path / "v3.json", tmp_path / "typed.json", tmp_path / "read.json"
    config.write_text(json.dumps(DEEPSEEK_V3))
    sizes = (
        "--layers 61 --hidden 7168 --heads 128 --head-dim 192 --ffn 18432 --vocab 129280 --experts 256"
        " --experts-per-token 8 --expert-ffn 2048 --shared-experts 1 --dense-layers 3 --q-lora 1536 --kv-lora 512"
        " --rope-dim 64 --value-dim 128"
    )
    assert ddlprof(monkeypatch, "features", "transformer", *sizes.split(), "-o", str(typed)) == 0
    assert ddlprof(monkeypatch, "features", str(config), "-o", str(read)) == 0
    assert read_workload(typed).transformer == read_workload(read).transformer
    assert list(read_workload(read).assumed) == ["tokens: none were named, so 4,096 a sample at most (--seq-len)"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["transformer", "--layers", "2"], "features transformer needs --hidden, --heads, --vocab"),
        (["transformer", *SMALL.split(), "--kv-heads", "5"], "heads 32 are not a multiple of kv_heads 5"),
        (["torch.nn:Identity", "--layers", "2"], "--layers: named for `features transformer`, not for torch"),
        (["torch.nn:Identity", "--software", "megatron"], "--software: named for `features transformer`"),
        (["transformer", *SMALL.split(), "--software", "mine"], "software 'mine' is not known; one of: "),
        (["missing.json"], "missing.json: "),
        (["list.json"], "list.json: holds no object"),
        (["vit.json"], "vit.json: config: vit has none of vocab_size"),
    ],
)
def test_what_is_refused(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("list.json").write_text("[]")
    Path("vit.json").write_text(
        json.dumps({"model_type": "vit", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1})
    )
    assert ddlprof(monkeypatch, "features", *arguments) == 2
    assert message in capsys.readouterr().err


class _Config:
    """A config of the library, which tells its fields."""

    is_encoder_decoder = False

    def __init__(self, **sizes: Any) -> None:
        self.fields = {**GPT2, **sizes}

    def to_dict(self) -> dict[str, Any]:
        return self.fields


class _Model(nn.Module):
    """Embedding and head alone: what is counted of it is not what the test is about."""

    def __init__(self, config: _Config) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(100, 8), nn.Linear(8, 100)

    def forward(self, input_ids: Any, labels: Any = None) -> Any:
        return self.head(self.embedding(input_ids))


def test_a_model_of_transformers_has_its_sizes_beside_its_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = SimpleNamespace(GPT2Config=_Config, GPT2LMHeadModel=_Model)
    monkeypatch.setitem(sys.modules, "transformers", library)
    path = tmp_path / "gpt2.json"
    assert ddlprof(monkeypatch, "features", "transformers:gpt2", "--seq-len", "64", "-o", str(path)) == 0
    found = read_workload(path)
    assert found.step is not None
    assert found.transformer is not None
    assert (found.transformer.layers, found.transformer.hidden, found.transformer.seq) == (12, 768, 64)


def test_neither_torch_nor_transformers_is_imported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    ask = [sys.executable, "-X", "importtime", "-m", "ddlprof"]
    for arguments in (
        ["features", "config.json", "-o", "8b.json"],
        ["predict", "8b.json", "--gpu", "H100", "--layout", "tp4,dp2"],
    ):
        done = subprocess.run([*ask, *arguments], capture_output=True, text=True, cwd=tmp_path, check=True)
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
        assert "ddlprof.recommender" in imported
        assert not imported & {"torch", "transformers"}
