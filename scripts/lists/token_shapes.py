"""Writes `ddlprof/collect/facts/token_shapes.json`: shapes of tokens that a maintained list, detect-secrets, knows.

The training process has no room for the package itself, so its patterns are taken over as data. To renew them:
`python -m venv E; E/bin/pip install detect-secrets; E/bin/python scripts/lists/token_shapes.py`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
from pathlib import Path

OUTPUT = Path(__file__).resolve().parents[2] / "ddlprof" / "collect" / "facts" / "token_shapes.json"
TAKEN = {
    "aws": "AWSKeyDetector",
    "azure_storage_key": "AzureStorageKeyDetector",
    "discord": "DiscordBotTokenDetector",
    "github_token": "GitHubTokenDetector",
    "gitlab_token": "GitLabTokenDetector",
    "jwt": "JwtTokenDetector",
    "mailchimp": "MailchimpDetector",
    "openai": "OpenAIDetector",
    "pypi_token": "PypiTokenDetector",
    "sendgrid": "SendGridDetector",
    "slack": "SlackDetector",
    "square_oauth": "SquareOAuthDetector",
    "stripe": "StripeDetector",
    "telegram_token": "TelegramBotTokenDetector",
    "twilio": "TwilioKeyDetector",
}
"""Plugins whose patterns know a token by its own form. Those that go by the name before it are `redact`'s business."""


def shapes() -> dict[str, list[str]]:
    """Patterns by plugin, with their flags written into them."""
    found = {}
    for module, name in TAKEN.items():
        detector = getattr(importlib.import_module(f"detect_secrets.plugins.{module}"), name)
        patterns = [pattern for pattern in detector.denylist if not pattern.pattern.startswith(("aws.", "AccountKey"))]
        found[module] = [f"(?i:{p.pattern})" if p.flags & re.IGNORECASE else p.pattern for p in patterns]
    return {module: patterns for module, patterns in found.items() if patterns}


def main() -> None:
    """Writes the file."""
    value = {
        "source": f"detect-secrets {importlib.metadata.version('detect-secrets')} (github.com/Yelp/detect-secrets)",
        "licence": "Apache-2.0",
        "shapes": shapes(),
    }
    OUTPUT.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
