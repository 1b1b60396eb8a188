"""The last lines of `make demo`: what bounds the example and what to do, the cheapest machine, and the page.

`python -m scripts.demo_answer FOLDER`, where the folder has `run.json` of `ddlprof report`, `plans.json` of `ddlprof
recommend`, and `page.html`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ddlprof.base.units import duration, significant


def answer(folder: Path) -> list[str]:
    """Three lines."""
    run, plans = (json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in ("run", "plans"))
    verdict, best = run["verdict"], plans["plans"][0]
    times = " to ".join(duration(3600 * best[f"time_{end}_h"]) for end in ("low", "high"))
    machine = f"{best['nodes']} x {best['instance_type']} of {best['cloud']} ({best['gpus']} x {best['gpu_model']})"
    return [
        f"Step     {verdict['headline'] or verdict['name']}; next: {verdict['next']}",
        f"Machine  {machine} trains GPT-2 large cheapest: {times}, about {significant(best['cost_usd'], 2)} USD",
        f"Page     open {folder / 'page.html'} in a browser",
    ]


if __name__ == "__main__":
    print("\n".join(answer(Path(sys.argv[1]))))
