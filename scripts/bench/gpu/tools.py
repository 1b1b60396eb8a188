"""Experiments on a GPU about ddlprof's other tools on CUDA, and about DDP and FSDP2 in a group of one rank."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Any

from scripts.bench.gpu.cost import notes_of, rank_of
from scripts.bench.gpu.experiment import JOBS, Bench, Bound, Failed, call, python

RATES = "0.001,0.002,0.003,0.005,0.01,0.02,0.03,0.05"


def wrapped(kind: str) -> Callable[[Bench], None]:
    """In a group of one rank."""

    def run(bench: Bench) -> None:
        found: dict[bool, list[dict[str, float]]] = {True: [], False: []}
        sizes = {"kind": kind, "steps": bench.pick(150, 60, 10), "warmup": bench.pick(20, 10, 3)}
        hooks_us, notes = 0.0, []
        for pair in range(bench.pick(3, 2, 1)):
            for ours in (bool(pair % 2), not pair % 2):
                ended = bench.job("wrapped", under=() if ours else None, **sizes)
                found[ours].append(ended.truth)
                if ours:
                    run_of_it = ended.run()
                    looking, notes = rank_of(run_of_it).overhead, notes_of(run_of_it)
                    hooks_us = looking.hook_ns / max(1, looking.hook_steps) / 1e3 if looking else 0.0
        middle = {
            ours: {key: statistics.median(each[key] for each in rows) for key in rows[0]}
            for ours, rows in found.items()
        }
        for key, scale, name in (("step_s", 1e3, "step_ms"), ("host_s", 1e3, "host_ms"), ("allocated", 2**-30, "GiB")):
            bench.figure(f"{name} without", scale * middle[False][key])
            bench.figure(f"{name} with", scale * middle[True][key])
        bench.figure("slow_down", middle[True]["step_s"] / middle[False]["step_s"] - 1, Bound(0.01))
        bench.figure("host_us more", 1e6 * (middle[True]["host_s"] - middle[False]["host_s"]))
        bench.figure("hooks_us", hooks_us)
        more = middle[True]["allocated"] - middle[False]["allocated"]
        bench.figure("MiB more", more / 2**20, Bound(1))
        for note in notes[:3]:
            bench.note(f"ddlprof notes {note}"[:200])

    run.__doc__ = f"{kind}: host cost and peak memory of a step, with and without ddlprof"
    return run


def _command(bench: Bench, name: str, words: list[str]) -> str:
    """Runs a command of ddlprof; returns its standard error. Raises Failed if it fails."""
    output = bench.folder / name
    code, said = call([python(), "-m", "ddlprof", *words], bench.environment(), bench.left_s, output)
    if code:
        raise Failed(f"ddlprof {words[0]} ended with {code}: {said[-300:]}")
    return said


def fuse(bench: Bench) -> None:
    """Eight learning rates as one on the device: predicted and measured gain, in fp32 and under autocast."""
    for kind in ("digits", "digits_autocast"):
        kept = bench.folder / f"{kind}.json"
        words = ["fuse", f"scripts.jobs.gpu.fused:{kind}_net", "--data", "scripts.jobs.gpu.fused:batches", "--force"]
        words += ["--sweep", f"lr={RATES}", "--max-steps", str(bench.pick(400, 200, 10)), "--processes", "0"]
        words += ["--device", "cpu" if bench.rehearse else "cuda", "-o", str(kept)]
        _command(bench, kind, words)
        part = json.loads(kept.read_text(encoding="utf-8"))["parts"][0]
        predicted, measured = ((part[name] or {}).get("gain") for name in ("prediction", "measured"))
        bench.figure(f"{kind}: predicted gain", predicted)
        bench.figure(f"{kind}: measured gain", measured, Bound(1.5, at_least=True))
        if predicted and measured:
            bench.figure(f"{kind}: off", abs(predicted / measured - 1), Bound(0.3))
        elif part["reason"]:
            bench.note(f"{kind}: {part['reason']}"[:200])


def sparsity(bench: Bench) -> None:
    """`ddlprof sparsity` on a GPT and a ResNet under autocast: it counts on the device, and the script ends well."""
    for model in ("gpt", "resnet50"):
        kept, truth = bench.folder / f"{model}.json", bench.folder / f"{model}-truth.json"
        steps = bench.pick(60, 40, 12)
        words = ["sparsity", "--max-steps=3", "--every=3", "-o", str(kept), str(JOBS / "speed.py")]
        words += [f"--truth={truth}", f"--model={model}", f"--steps={steps}", "--warmup=5"]
        _command(bench, model, words)
        found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        bench.figure(f"{model}: layers", len(found.get("layers", [])), Bound(1, at_least=True))
        bench.figure(f"{model}: step_ms", 1e3 * json.loads(truth.read_text(encoding="utf-8"))["step_s"])
        for note in found.get("notes", [])[:2]:
            bench.note(f"{model}: {note}"[:200])
