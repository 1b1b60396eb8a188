"""What this room adds to ddlprof: `ddlprof fuse`."""

from __future__ import annotations

from ddlprof.registry import Command, Extension

EXTENSION = Extension(
    group="Do more",
    commands={
        "fuse": Command(
            "Train models of one shape as one, where that is faster.",
            ["fuse models:net --data data:batches --sweep lr=0.1,0.01,0.001 -o trials.csv"],
            "ddlprof.extensions.fusion.cli.fuse",
        )
    },
    names={"ddlprof.fusion": "ddlprof.extensions.fusion"},
)
