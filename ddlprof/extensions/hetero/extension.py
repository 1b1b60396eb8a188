"""What this room adds to ddlprof: `ddlprof plan`."""

from __future__ import annotations

from ddlprof.registry import Command, Extension

EXTENSION = Extension(
    group="Plan",
    commands={
        "plan": Command(
            "Plan a job on unequal GPUs.",
            ["plan RUN --machines machines.yaml", "plan RUN --machines machines.yaml -o best.plan.json"],
            "ddlprof.extensions.hetero.cli.plan",
        )
    },
    names={"ddlprof.hetero": "ddlprof.extensions.hetero"},
)
