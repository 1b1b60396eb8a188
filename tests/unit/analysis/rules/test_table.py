"""The table of rules, and the page that explains it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlprof.analysis.rules.rule import Rule
from ddlprof.analysis.rules.table import GROUPS, RULES
from scripts.lists.rules import table

PAGE = Path(__file__).parents[4] / "docs" / "diagnosis.md"


@pytest.mark.parametrize("group", GROUPS)
def test_the_page_has_the_rules_as_they_are(group: str) -> None:
    """`python -m scripts.lists.rules` prints what the page must have."""
    assert f"### {group}\n\n{table(GROUPS[group])}" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_says_all_about_itself(rule: Rule) -> None:
    assert rule.finds
    assert rule.threshold
    assert rule.reason
    assert rule.abstains
    assert rule.samples > 0
    assert not any("|" in text for text in (rule.finds, rule.threshold, rule.reason, rule.abstains))


def test_names_are_unique() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
