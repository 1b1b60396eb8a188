"""What this room adds to ddlprof: `ddlprof share`."""

from __future__ import annotations

from ddlprof.registry import Command, Extension

EXTENSION = Extension(
    group="Profile",
    commands={
        "share": Command(
            "Write a run as one file without names.",
            ["share RUN -o run.zip", "share --inspect run.zip"],
            "ddlprof.extensions.sharing.cli.share",
        )
    },
)
