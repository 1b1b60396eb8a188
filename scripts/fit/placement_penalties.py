"""Writes `ddlprof/extensions/cluster/penalties.json` from the steps per second that Gavel published for two placements.

python -m scripts.fit.placement_penalties placement_penalties.csv

The file has the columns gpu_type, model, batch, gpus, ratio (consolidated / unconsolidated steps per second) and table:
only the simulation's table counts, as in the physical one only the consolidated rate was measured again.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ddlprof.extensions.cluster.penalties import SHIPPED

HEAD = {
    "about": "Slowdowns of jobs spread over machines against jobs packed in as few as can be; below 1 is noise.",
    "sources": [
        "Gavel (Narayanan et al., OSDI 2020), github.com/stanford-futuredata/gavel, commit c4fa400:"
        " steps/s consolidated over unconsolidated, simulation table"
    ],
    "licence": "MIT",
    "written_by": "scripts/fit/placement_penalties.py",
}


def rows_of(lines: Iterable[dict[str, str]]) -> list[dict[str, Any]]:
    """One row for each GPU, model and batch, with its numbers of GPUs ascending; what was not measured is left out."""
    found: dict[tuple[str, str, int | None], dict[int, float]] = {}
    for line in lines:
        if line["table"] == "simulation" and int(line["gpus"]) > 1 and line["ratio"]:
            batch = int(line["batch"]) if line["batch"] else None
            found.setdefault((line["gpu_type"], line["model"], batch), {})[int(line["gpus"])] = float(line["ratio"])
    return [
        {
            "gpu_model": gpu_model,
            "model": model,
            "batch_per_gpu": batch,
            "gpus": sorted(ratios),
            "slowdown": [ratios[gpus] for gpus in sorted(ratios)],
        }
        for (gpu_model, model, batch), ratios in sorted(found.items(), key=lambda item: tuple(map(str, item[0])))
    ]


def main() -> None:
    with Path(sys.argv[1]).open(encoding="utf-8", newline="") as file:
        rows = rows_of(csv.DictReader(file))
    head = json.dumps(HEAD, indent=1)[:-2]
    body = ",\n".join("  " + json.dumps(row) for row in rows)
    SHIPPED.write_text(f'{head},\n "penalties": [\n{body}\n ]\n}}\n', encoding="utf-8")
    print(f"{len(rows)} rows: {SHIPPED}")


if __name__ == "__main__":
    main()
