"""`ddlprof features` of models that people train, by the names that their libraries have for them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddlprof.cli.app import main
from ddlprof.recommender.workload import read_workload

Features = Callable[..., tuple[int, str, str]]


@pytest.fixture
def features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Features:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ddlprof", "features", *arguments])
        code = main()
        return code, *capsys.readouterr()

    return run


def test_gpt2_large(features: Features, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    arguments = ("--precision", "amp-bf16", "--batch", "4", "-o", "-", "-o", "gpt2.json")
    code, out, _ = features("transformers:gpt2-large", *arguments)
    assert code == 0
    assert "parameters         774,030,080" in out
    assert "one step at batch 4 (amp-bf16, optimizer adamw)" in out
    assert (tmp_path / "gpt2.json").stat().st_size < 200_000
    step = read_workload(tmp_path / "gpt2.json").step
    assert step is not None
    attention = [each for each in step.operators if each.kind == "attention"]
    assert {(each.phase, each.shape, each.count) for each in attention} == {
        ("forward", (4 * 20, 1024, 1024, 64), 36), ("backward", (4 * 20, 1024, 1024, 64), 36),
    }  # fmt: skip
    products = {each.shape for each in step.operators if (each.kind, each.phase) == ("product", "forward")}
    assert (1, 4 * 1024, 50257, 1280) in products
    assert step.unseen == ()


def test_a_config_of_transformers(features: Features, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    config = {"architectures": ["BertForSequenceClassification"], "num_hidden_layers": 2, "hidden_size": 64,
              "num_attention_heads": 4, "intermediate_size": 128}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, out, _ = features("transformers:config.json", "--seq-len", "32", "--optimizer", "none")
    assert code == 0
    assert "layers             17" in out


def test_a_mixture_of_experts_with_encoder_and_decoder(features: Features, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    (tmp_path / "made_up_switch.py").write_text(
        "import transformers\n"
        "def small():\n"
        "    config = transformers.SwitchTransformersConfig(d_model=64, d_kv=16, d_ff=128, num_heads=4, num_layers=2,\n"
        "        num_decoder_layers=2, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, num_experts=4,\n"
        "        expert_capacity=64, vocab_size=100)\n"
        "    return transformers.SwitchTransformersForConditionalGeneration(config)\n"
    )
    code, _, err = features("made_up_switch:small", "--input", "int64:32", "--batch", "2", "-o", "switch.json")
    assert (code, err) == (0, ""), transformers.__version__
    step = read_workload(tmp_path / "switch.json").step
    assert step is not None
    rows = 2 * 32
    experts = {each.shape: each.count for each in step.operators if each.kind == "product" and each.shape[2] == 128
               and each.phase == "forward"}  # fmt: skip
    assert experts == {(1, rows, 128, 64): 2, (1, rows // 4, 128, 64): 2 * 4}  # an even share for each of four


def test_each_token_goes_to_two_of_eight_experts(features: Features, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "vocab_size": 1000, "num_local_experts": 8,
             "num_experts_per_tok": 2}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["MixtralForCausalLM"], **sizes}))
    code, _, _ = features("transformers:config.json", "--seq-len", "64", "--inference", "--batch", "2", "-o", "m.json")
    assert code == 0
    step = read_workload(tmp_path / "m.json").step
    assert step is not None
    tokens, h, i = 2 * 64, 256, 512
    layer = 2 * h * h + 2 * h * h // 2 + h * 8 + 2 * 3 * h * i  # weights that a token meets
    expected = 2 * tokens * (2 * layer + h * 1000)
    assert sum(each.flops * each.count for each in step.operators if each.kind == "product" and
               each.name != "bmm") == pytest.approx(expected, rel=0.01)  # fmt: skip


def test_names_that_are_not_known(features: Features) -> None:
    pytest.importorskip("transformers")
    code, _, err = features("transformers:gpt2-larg")
    assert code == 2
    (line,) = err.splitlines()
    assert "transformers:gpt2-larg: not known; did you mean gpt2-large?; known without a download: gpt2," in line
    assert "MODULE:FACTORY works for any other" in line


def test_a_library_that_is_not_installed(features: Features, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    code, _, err = features("timm:resnet50")
    assert (code, err) == (2, "ddlprof: timm is not installed: pip install timm\n")
