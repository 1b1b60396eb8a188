"""The names of this room that users' scripts depend on."""

from __future__ import annotations

from tests.unit.test_interface import options_of_room

OPTIONS = {
    "learn": "--format --help --out -o",
}


def test_commands_and_options() -> None:
    assert options_of_room("learn") == OPTIONS
