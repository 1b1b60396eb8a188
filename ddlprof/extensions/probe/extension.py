"""What this room adds to ddlprof: `ddlprof probe`."""

from __future__ import annotations

from ddlprof.registry import Command, Extension

EXTENSION = Extension(
    group="Choose",
    commands={
        "probe": Command(
            "Measure what operators and links reach on this machine.",
            ["probe", "probe --dry-run -o machine.json"],
            "ddlprof.extensions.probe.cli.probe",
        )
    },
)
