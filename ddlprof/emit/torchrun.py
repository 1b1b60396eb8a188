"""A plan as a script that is run on each machine, where nothing else starts jobs."""

from __future__ import annotations

from ddlprof.base.text import text_of
from ddlprof.emit.start import Start

ENDING = "torchrun.sh"


def how(start: Start) -> str:
    """How the file is used; `{path}` stands for it."""
    if start.nodes == 1:
        return "bash {path}"
    return f"NODE_RANK=K MASTER_ADDR=ADDRESS bash {{path}}, on each machine, K from 0 to {start.nodes - 1}"


def render(start: Start) -> str:
    """The script; on several machines it reads the number of its machine and the address of machine 0."""
    command = start.torchrun(start.run_directory(), '"${NODE_RANK:?}"', '"${MASTER_ADDR:?}"')
    comments = start.comments(how(start).format(path="THIS_FILE"), {})
    return text_of(["#!/bin/bash", *(f"# {line}" for line in comments), "set -eu", *command])
