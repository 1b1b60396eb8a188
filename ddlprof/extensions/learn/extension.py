"""What this room adds to ddlprof: `ddlprof learn`."""

from __future__ import annotations

from ddlprof.registry import Command, Extension

EXTENSION = Extension(
    group="Choose",
    commands={
        "learn": Command(
            "Learn from all your runs how fast your machines are.",
            ["learn ddlprof-runs -o mine.json", "learn s3://bucket/runs -o mine.json -o -"],
            "ddlprof.extensions.learn.cli.learn",
        )
    },
    names={
        "ddlprof.planning.learning": "ddlprof.extensions.learn.planning",
        "ddlprof.recommender.learning": "ddlprof.extensions.learn",
    },
)
