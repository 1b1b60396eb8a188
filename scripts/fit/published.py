"""The operators of the networks whose step times were published, from `published_operators.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ddlprof.model.operators import Operator, StepOperators

FILE = Path(__file__).with_name("published_operators.json")
_SAME = {"resnet50_v1.5": "resnet50"}
_LENGTHS = {("Pollux OSDI21", "bert_base"): 384, ("Sia SOSP23", "bert_base"): 384}
"""Sequence lengths that the tables do not have: both fine-tune on SQuAD."""


@lru_cache(maxsize=1)
def steps() -> dict[str, StepOperators]:
    """Every network by name."""
    data = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: _step(data["columns"], of) for name, of in data["steps"].items()}


def name_of(source: str, job: str, model: str) -> str | None:
    """The network of a job of `throughput`; None where nobody counted it."""
    if source == "PROFET":
        name = f"{model}|{job.split()[1]}px"
    else:
        length = int(float(job.split("|")[2])) or _LENGTHS.get((source, model), 0)
        name = _SAME.get(model, model)
        name = name if name in steps() else f"{name}|{length}"
    return name if name in steps() else None


def flops_per_sample(step: StepOperators) -> float:
    """Of forward and backward."""
    return sum(operator.flops * operator.count for operator in step.operators) / step.batch


def _step(columns: list[str], of: Mapping[str, Any]) -> StepOperators:
    rows = [dict(zip(columns, row, strict=True)) for row in of["rows"]]
    operators = tuple(Operator(**{**row, "shape": tuple(row["shape"])}) for row in rows)
    return StepOperators(of["batch"], "fp32", operators, of["optimizer"])
