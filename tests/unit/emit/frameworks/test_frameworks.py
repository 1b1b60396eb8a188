"""The files that start a layout: what they say, and that the frameworks' own parsers read it back."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddlprof.base.errors import UserError
from ddlprof.emit.frameworks.table import FRAMEWORKS, training_of
from ddlprof.emit.frameworks.training import DividedTraining
from ddlprof.recommender import Target, transformer
from ddlprof.recommender.layout import parse_layout
from ddlprof.recommender.model_config import sizes_of_config
from ddlprof.recommender.plans.layouts import recommend_layouts
from tests.unit.recommender.made_up_layouts import MadeUpLayouts, gib_of
from tests.unit.recommender.test_model_config import DEEPSEEK_V3, LLAMA_8B

LLAMA = sizes_of_config(LLAMA_8B, 8192)
EXPERTS = sizes_of_config(DEEPSEEK_V3, 4096)


def divided(text: str, model: Any = LLAMA, gpus: int = 64, **named: Any) -> DividedTraining:
    asked = parse_layout(text)
    return DividedTraining(
        "llama", model, asked.layout, asked.micro_batch or 1, asked.grad_accum or 8, gpus // 8, 8, 1000, **named
    )  # fmt: skip


def arguments(text: str, **named: Any) -> dict[str, str | None]:
    """What Megatron-LM gets, by name."""
    lines = FRAMEWORKS["megatron"].render(divided(text, **named)).splitlines()
    words = [line.split(" ", 1) for line in lines if not line.startswith("#")]
    assert len({word[0] for word in words}) == len(words)
    return {word[0].removeprefix("--"): word[1] if len(word) > 1 else None for word in words}


def config(engine: str, text: str, **named: Any) -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load(FRAMEWORKS[engine].render(divided(text, **named)))
    return made


def test_megatron() -> None:
    found = arguments("tp4,pp4,vp2,zero1,mb2,ga16,selective")
    sizes = {
        "num-layers": "32", "hidden-size": "4096", "ffn-hidden-size": "14336", "num-attention-heads": "32",
        "seq-length": "8192", "max-position-embeddings": "8192", "vocab-size": "128256", "kv-channels": "128",
        "group-query-attention": None, "num-query-groups": "8", "swiglu": None, "normalization": "RMSNorm",
        "disable-bias-linear": None, "position-embedding-type": "rope",
        "hidden-dropout": "0.0", "attention-dropout": "0.0", "untie-embeddings-and-output-weights": None,
    }  # fmt: skip
    assert found == {
        **sizes, "tensor-model-parallel-size": "4", "sequence-parallel": None, "pipeline-model-parallel-size": "4",
        "num-layers-per-virtual-pipeline-stage": "4", "context-parallel-size": "1", "use-distributed-optimizer": None,
        "overlap-grad-reduce": None, "overlap-param-gather": None, "recompute-granularity": "selective",
        "micro-batch-size": "2", "global-batch-size": "128", "train-iters": "1000", "bf16": None,
    }  # fmt: skip


def test_megatron_with_dropout() -> None:
    """Its defaults are dropouts of a tenth; models with a gate are trained, and their memory is counted, without."""
    assert "hidden-dropout" not in arguments("tp2", model=replace(LLAMA, gated=False))


def test_megatron_with_experts_and_latent_attention() -> None:
    found = arguments("tp2,pp16,ep2,zero1,full", model=EXPERTS)
    assert found.keys() >= {"multi-latent-attention", "moe-grouped-gemm"}
    expected = {
        "num-experts": "256", "moe-router-topk": "8", "moe-ffn-hidden-size": "2048",
        "moe-shared-expert-intermediate-size": "2048", "moe-layer-freq": "([0]*3+[1]*58)",
        "expert-model-parallel-size": "2", "expert-tensor-parallel-size": "1", "q-lora-rank": "1536",
        "kv-lora-rank": "512", "qk-head-dim": "128", "qk-pos-emb-head-dim": "64", "v-head-dim": "128",
        "recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": "1",
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected


def test_megatron_with_stages_that_are_not_alike() -> None:
    """61 layers over 16 stages: 13 of them hold four, three hold three."""
    found = arguments("pp16,zero1", model=EXPERTS)
    assert found["pipeline-model-parallel-layout"] == "E(t*4|)*13(t*3|)*2t*3L"
    assert "num-layers-per-virtual-pipeline-stage" not in arguments("pp4,zero1")


def test_megatron_divides_parameters() -> None:
    found = arguments("tp2,hsdp:8")
    assert found["data-parallel-sharding-strategy"] == "optim_grads_params"
    assert found["num-distributed-optimizer-instances"] == "4"
    assert "use-megatron-fsdp" in found
    assert "use-megatron-fsdp" not in arguments("tp2,zero1")
    assert "use-distributed-optimizer" not in arguments("tp2")
    with pytest.raises(UserError, match="Megatron-LM has no word for shard of layout pp2,zero3"):
        arguments("pp2,zero3")


@pytest.mark.parametrize(
    ("engine", "text", "word"),
    [
        ("accelerate", "pp2,zero1", "a pipeline"),
        ("accelerate", "zero3,selective", "selective recomputation"),
        ("accelerate", "tp2", "tensor or context ranks without FSDP"),
        ("torchtitan", "tp2,nosp", "tensor ranks without sequence parallelism"),
    ],
)
def test_what_a_framework_has_no_word_for_is_not_written(engine: str, text: str, word: str) -> None:
    with pytest.raises(UserError, match=f"{engine} has no word for {word} of layout"):
        FRAMEWORKS[engine].render(divided(text))


@pytest.mark.parametrize("engine", FRAMEWORKS)
def test_no_framework_copies_heads_of_keys(engine: str) -> None:
    """All of them ask for a whole number of the 8 heads of keys on each tensor rank."""
    with pytest.raises(UserError, match="no word for tensor ranks with the same heads of keys of layout tp16"):
        FRAMEWORKS[engine].render(divided("tp16,zero3"))
    assert "tp16" in FRAMEWORKS[engine].render(divided("tp16,zero1", model=replace(LLAMA, kv_heads=32)))


def test_accelerate() -> None:
    found = config("accelerate", "hsdp:8,full")
    assert (found["num_machines"], found["num_processes"], found["mixed_precision"]) == (8, 64, "bf16")
    assert found["distributed_type"] == "FSDP"
    assert found["fsdp_config"]["fsdp_reshard_after_forward"] is True
    assert found["fsdp_config"]["fsdp_activation_checkpointing"] is True
    assert found["parallelism_config"] == {
        "parallelism_config_dp_replicate_size": 8, "parallelism_config_dp_shard_size": 8,
        "parallelism_config_tp_size": 1, "parallelism_config_cp_size": 1,
    }  # fmt: skip
    assert config("accelerate", "zero1")["fsdp_config"]["fsdp_reshard_after_forward"] is False
    assert config("accelerate", "tp1")["distributed_type"] == "MULTI_GPU"
    degrees = config("accelerate", "tp2,cp2,zero3")["parallelism_config"].values()
    assert sorted(degrees) == [1, 2, 2, 16]


def test_torchtitan() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    found = tomllib.loads(FRAMEWORKS["torchtitan"].render(divided("tp4,pp2,vp2,zero1,mb2,ga16,selective")))
    assert found["parallelism"] == {
        "data_parallel_replicate_degree": 1, "data_parallel_shard_degree": 8, "fsdp_reshard_after_forward": "never",
        "tensor_parallel_degree": 4, "pipeline_parallel_degree": 2, "context_parallel_degree": 1,
        "expert_parallel_degree": 1, "pipeline_parallel_schedule": "Interleaved1F1B",
        "pipeline_parallel_microbatch_size": 2, "pipeline_parallel_layers_per_stage": 8,
        "pipeline_parallel_first_stage_less_layers": 0, "pipeline_parallel_last_stage_less_layers": 0,
    }  # fmt: skip
    training = found["training"]
    assert (training["local_batch_size"], training["global_batch_size"], training["seq_len"]) == (32, 256, 8192)
    assert found["activation_checkpoint"] == {"mode": "selective", "selective_ac_option": "op"}
    alone = tomllib.loads(FRAMEWORKS["torchtitan"].render(divided("hsdp:8,mb2,ga4")))
    assert (alone["training"]["local_batch_size"], alone["training"]["global_batch_size"]) == (2, 512)
    degrees = alone["parallelism"]
    assert (degrees["data_parallel_replicate_degree"], degrees["data_parallel_shard_degree"]) == (8, 8)
    assert degrees["fsdp_reshard_after_forward"] == "always"


def test_torchtitan_has_a_model_for_the_sizes() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")

    def family(model: Any) -> str:
        name: str = tomllib.loads(FRAMEWORKS["torchtitan"].render(divided("zero3", model=model)))["model"]["name"]
        return name

    mixture = replace(LLAMA, experts=8, experts_per_token=2, expert_ffn=4096)
    assert [family(model) for model in (LLAMA, mixture, EXPERTS)] == ["llama3", "llama4", "deepseek_v3"]
    assert family(replace(LLAMA, tied=True)) == family(replace(LLAMA, head_dim=64)) == "qwen3"
    for model, word in (
        (replace(LLAMA, gated=False), "a network without a gate"),
        (replace(LLAMA, causal=False), "attention to all tokens"),
    ):
        with pytest.raises(UserError, match=f"torchtitan has no word for {word}"):
            family(model)
    with pytest.raises(UserError, match="no word for a tied head in a pipeline"):
        FRAMEWORKS["torchtitan"].render(divided("pp2", model=replace(LLAMA, tied=True)))


def test_torchtitan_makes_the_parts_that_are_asked_for() -> None:
    """It divides layers by a number for each part and rounds up: 126 by 2 are 63 parts, never the 64 of 16 stages."""
    deep = replace(LLAMA, layers=126)
    assert "pipeline_parallel_layers_per_stage = 4" in FRAMEWORKS["torchtitan"].render(divided("pp16,vp2", model=deep))
    with pytest.raises(UserError, match="torchtitan has no word for 64 parts of 126 layers"):
        FRAMEWORKS["torchtitan"].render(divided("pp16,vp4", model=deep))


@pytest.mark.parametrize("text", ["tp4,pp2,zero1", "tp2,cp2,zero3", "zero3", "hsdp:8,full", "tp8"])
def test_ranks_are_all_gpus(text: str) -> None:
    """In every framework, the product of its degrees is the number of GPUs."""
    one = divided(text)
    copies, shards = one.data_copies_and_shards
    layout = one.layout
    assert copies * shards * layout.context * layout.tensor * layout.pipeline == 64


def test_a_plan_is_launched_with_its_layout() -> None:
    job = transformer(layers=16, hidden=1024, heads=16, kv_heads=8, ffn=4096, vocab=32000, seq=4096, name="a job")

    def memory(layout: Any, gpus: int, size: int, count: int) -> tuple[float, float]:
        gib = gib_of(Target(gpu_model="H100", placement=(8,) * (gpus // 8), batch_per_gpu=size, layout=layout))
        return gib, gib

    plan = recommend_layouts(
        job, samples=1e6, budget_s=1e9, global_batch=512, gpus=(64,), instance_types=["p5.48xlarge"],
        predictor=MadeUpLayouts(job), memory=memory,
    ).plans[0]  # fmt: skip
    one = training_of(plan, job)
    assert (one.gpus, one.global_batch, one.steps, one.layout.text()) == (64, 512, plan.steps, plan.layout)
    assert one.predicted.startswith("Predicted on 8 x p5.48xlarge: ")
    assert "MFU" in one.predicted


READERS = {
    "accelerate": "from accelerate.commands.config.config_args import load_config_from_file as load;"
    "found = load(path); print(json.dumps([found.num_processes, found.parallelism_config]))",
    "torchtitan": "from torchtitan.config.manager import ConfigManager;"
    "found = ConfigManager().parse_args(['--job.config-file', path]);"
    "print(json.dumps([found.parallelism.tensor_parallel_degree, found.training.global_batch_size]))",
}
READ = {
    "accelerate": (
        "tp2,zero3",
        [
            64,
            {
                "parallelism_config_dp_replicate_size": 1, "parallelism_config_dp_shard_size": 32,
                "parallelism_config_tp_size": 2, "parallelism_config_cp_size": 1,
            },
        ],
    ),
    "torchtitan": ("tp4,pp2,zero1,mb2,ga16", [4, 256]),
}  # fmt: skip


@pytest.mark.parametrize("engine", READERS)
def test_the_framework_reads_it(engine: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(engine) is None:
        pytest.skip(f"{engine} is not installed")
    if engine == "torchtitan" and importlib.metadata.version(engine) >= "0.3":
        pytest.skip("this version of torchtitan reads no TOML")
    text, expected = READ[engine]
    path = tmp_path / f"file.{FRAMEWORKS[engine].ending}"
    path.write_text(FRAMEWORKS[engine].render(divided(text)), encoding="utf-8")
    program = f"import json, sys; path = sys.argv[1]; {READERS[engine]}"
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == expected
