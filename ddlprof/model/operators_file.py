"""The file `operators.json` of a run directory: the operators of one step, beside the manifest.

Written by rank 0, once. Each operator has a line.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ddlprof.base.files import replace_whole
from ddlprof.model.manifest import OPERATORS_NAME
from ddlprof.model.operators import StepOperators

OPERATORS_SCHEMA = 1


@dataclass(frozen=True)
class OperatorsFile:
    """What the file holds."""

    job_id: str
    """As in the manifest."""
    step: StepOperators
    schema: int = OPERATORS_SCHEMA

    def write(self, directory: Path) -> None:
        """Replaces the file of `directory` atomically. Raises OSError where it cannot be written."""
        known = (
            {name: value for name, value in asdict(each).items() if value is not None} for each in self.step.operators
        )
        lines = [json.dumps(each, allow_nan=False) for each in known]
        rest = asdict(replace(self, step=replace(self.step, operators=())))
        rest["step"].pop("operators")
        text = json.dumps(rest, allow_nan=False)
        operators = ",\n".join(lines)
        replace_whole(directory / OPERATORS_NAME, f'{text[:-1]}, "operators": [\n{operators}\n]}}\n')
