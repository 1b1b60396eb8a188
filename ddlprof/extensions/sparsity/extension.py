"""What this room adds to ddlprof: `ddlprof sparsity`."""

from __future__ import annotations

from ddlprof.registry import Command, Extension

EXTENSION = Extension(
    group="Do more",
    commands={
        "sparsity": Command(
            "Count the multiply-adds that zeros make unnecessary.",
            ["sparsity train.py", "sparsity -o layers.csv train.py"],
            "ddlprof.extensions.sparsity.cli.sparsity",
            takes_all=True,
        )
    },
    names={"ddlprof.nn": "ddlprof.extensions.sparsity.nn"},
)
