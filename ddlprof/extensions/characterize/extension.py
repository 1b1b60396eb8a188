"""What this room adds to ddlprof: `ddlprof characterize`."""

from __future__ import annotations

from ddlprof.registry import Command, Extension

EXTENSION = Extension(
    group="Profile",
    commands={
        "characterize": Command(
            "Run a script several times, without one thing after another.",
            ["characterize train.py", "characterize --max-steps 200 --format json train.py"],
            "ddlprof.extensions.characterize.cli.characterize",
            takes_all=True,
        )
    },
)
