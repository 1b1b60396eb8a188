"""How findings are graded, ordered and dropped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.analysis.findings import SEVERITIES
from ddlprof.analysis.rules.apply import GROUPS, RULES, apply_rules
from ddlprof.analysis.rules.rule import Issue, Rule
from ddlprof.analysis.sources import Sources, SourceShare
from ddlprof.model.source_locations import DERIVES, SourceLocation
from scripts.lists.rules import table
from tests.unit.analysis.rules.made_up import facts, summary


def saying(found: Issue, samples: int = 10, name: str = "a_rule") -> Rule:
    return Rule(name, "finds", "threshold", "reason", samples, "abstains", lambda facts: found)


def found(share: float | None = 0.3, samples: int = 100, about: str | None = None, **more: object) -> Issue:
    return Issue("title", "evidence", "next", samples, share, about=about, **more)  # type: ignore[arg-type]


def test_too_few_samples_say_nothing() -> None:
    assert apply_rules(facts(), [saying(found(samples=9))]) == []


def test_what_looking_may_have_caused_is_not_said() -> None:
    assert apply_rules(facts(overhead_s=0.02), [saying(found(0.3))])
    assert apply_rules(facts(overhead_s=0.04), [saying(found(0.3))]) == []
    assert apply_rules(facts(overhead_s=0.04), [saying(found(0.3, of="job"))])


def test_what_may_be_chance_is_not_said() -> None:
    for error_ms, said in ((14, True), (16, False)):
        noisy = summary({"compute": 70, "data": 30}, error_ms)
        assert bool(apply_rules(facts(summary=noisy), [saying(found(0.3, about="data"))])) == said


def test_the_most_worthwhile_comes_first() -> None:
    rules = [
        saying(found(0.15), name="warning"),
        saying(found(0.25), name="share"),
        saying(found(None, severity="critical"), name="everything"),
        saying(found(0.21, gain_s=0.05), name="gain"),
        saying(found(0.03), name="info"),
    ]
    assert [f.rule for f in apply_rules(facts(), rules)] == ["everything", "gain", "share", "warning", "info"]


def test_of_one_severity_what_changes_the_training_or_is_a_guess_is_last() -> None:
    batch = replace(saying(found(0.19), name="batch"), comes_last=True)
    rules = [batch, saying(found(0.11), name="line"), saying(found(0.05), name="info")]
    assert [f.rule for f in apply_rules(facts(), rules)] == ["line", "batch", "info"]


def test_a_measured_line_is_told_before_a_second_thread() -> None:
    line = Sources(40, [SourceShare(SourceLocation("train.py:9 penalty", DERIVES), 0.7, True)])
    known = facts(
        {"compute": 97.0, "compute_forward": 30.0, "compute_backward": 60.0, "other": 3.0},
        device="cpu", cpu_threads=1, cores_per_rank=2, busy_cores_per_rank=1.0, cpu_percent=50.0, graph_nodes=100,
        computing=line,
    )  # fmt: skip
    assert [f.rule for f in apply_rules(known, RULES)][:2] == ["costly_line", "few_threads"]


means = st.floats(0, 100, allow_nan=False)


@given(
    means,
    means,
    means,
    means,
    means,
    st.floats(0, 1),
    st.sampled_from([None, 0, 1, 4, 64]),
    st.sampled_from([None, 1, 8]),
)
def test_no_gain_is_more_than_the_step(
    compute: float,
    data: float,
    h2d: float,
    other: float,
    fetch: float,
    error: float,
    workers: int | None,
    cores: int | None,
) -> None:
    times: dict[str, float | None] = {"compute": compute, "data": data, "h2d": h2d, "other": other}
    times |= {"data_fetch": min(fetch, data), "data_prep": data - min(fetch, data)}
    given_facts = facts(summary=summary(times, error), loader_workers=workers, cores_per_rank=cores)
    found_all = apply_rules(given_facts, RULES)
    step_s = given_facts.mean_s("step") or 0.0
    assert [SEVERITIES.index(f.severity) for f in found_all] == sorted(SEVERITIES.index(f.severity) for f in found_all)
    for finding in found_all:
        assert finding.gain_s is None or 0 <= finding.gain_s <= step_s * (1 + 1e-9)
        assert finding.share is None or 0 <= finding.share <= 1 + 1e-9


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


def test_every_rule_has_a_paragraph_on_its_cause_and_cure() -> None:
    text = PAGE.with_name("causes.md").read_text(encoding="utf-8")
    assert [rule.name for rule in RULES if text.count(f"`{rule.name}`: ") != 1] == []
