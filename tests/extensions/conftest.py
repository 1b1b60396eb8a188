"""What the tests of rooms share with those of the core: commands in this process, and in processes of their own."""

from __future__ import annotations

from tests.integration.cli.conftest import ddlprof, execute, write_training
from tests.unit.cli.conftest import alone, bert, commands_are_built_once

__all__ = ["alone", "bert", "commands_are_built_once", "ddlprof", "execute", "write_training"]
