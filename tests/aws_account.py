"""The environment of somebody who is signed in to AWS, and of nobody else: for tests against moto's servers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def sign_in(monkeypatch: pytest.MonkeyPatch, folder: Path, **settings: str) -> None:
    """Replaces all `AWS_` variables; no configuration of this machine is read. `settings` are set, too."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    settings = {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_CONFIG_FILE": str(folder / "aws-config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "aws-credentials"),
        "AWS_EC2_METADATA_DISABLED": "true",
        **settings,
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
