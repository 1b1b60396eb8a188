"""The manifest as it is before the script runs. What is learned of a training needs more: `facts.manifest`."""

from __future__ import annotations

import os
import time

from ddlprof.collect.facts.machine import host_facts, versions
from ddlprof.collect.facts.redact import redact
from ddlprof.model.manifest import Manifest

PACKAGES = ("torch", "ddlprof")
"""The distributions whose versions it has."""


def new_manifest(name: str, argv: list[str], job_id: str, world_size: int, origin_unix_ns: int) -> Manifest:
    """What is known before the script runs."""
    return Manifest(
        name=name,
        argv=redact(argv),
        job_id=job_id,
        created_unix_ns=time.time_ns(),
        world_size=world_size,
        origin_unix_ns=origin_unix_ns,
        working_directory=os.getcwd(),
        versions=versions(PACKAGES),
        host=host_facts(),
    )
