"""The score board: what counts as named, as cured, as harmful and as promised too much."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddlprof.analysis.rules.apply import RULES
from ddlprof.analysis.rules.line_advice import AT_ANY_LINE, AT_LINE, BETWEEN
from ddlprof.model.source_locations import FINDS
from scripts.bench import complaints
from scripts.bench.complaints import EXPECTED, OWN, Case, Run, cases_of, judge, speaks_of

CASE = Case(Path("script.py"), cause="anomaly", cure=r"detect_anomaly\(False\)", harm="accelerator")


def finding(rule: str, next: str, gain_s: float | None = None) -> dict[str, Any]:
    return {
        "rule": rule, "title": f"about {rule}", "evidence": "10 ms", "next": next, "share": 0.5, "of": "step",
        "gain_s": gain_s,
    }  # fmt: skip


def run(folder: Path, findings: list[dict[str, Any]], advice: str = "", step_ms: float = 10.0, **more: Any) -> Run:
    """A finished run with this report, whose card acts on the first finding. `more`: what its own clock says too."""
    folder.mkdir(parents=True, exist_ok=True)
    own = {"steps": 100, "step_ms": step_ms, "wall_s": step_ms / 5, **more}
    (folder / "log").write_text(f"OWN {json.dumps(own)}\n", encoding="utf-8")
    made = Run(folder)
    verdict = {"rule": findings[0]["rule"] if findings else None, "next": advice}
    vars(made)["report"] = {
        "verdict": verdict, "findings": findings, "times": {"step": {"mean_s": 0.01}}, "job": None,
    }  # fmt: skip
    return made


NAMED = finding("anomaly_mode", "torch.autograd.set_detect_anomaly(False)", gain_s=0.006)


def test_a_cause_and_its_cure_are_named_with_a_gain(tmp_path: Path) -> None:
    judged = judge(CASE, run(tmp_path, [NAMED]), None)
    assert (judged.cause, judged.cure, judged.harmful, judged.said) == (True, True, False, 0.6)


def test_a_cause_counts_without_its_cure(tmp_path: Path) -> None:
    judged = judge(CASE, run(tmp_path, [finding("anomaly_mode", "larger batches")]), None)
    assert (judged.cause, judged.cure) == (True, False)


def test_a_finding_that_no_card_shows_does_not_count(tmp_path: Path) -> None:
    others = [finding(f"rule{n}", "wait") for n in range(4)]
    assert judge(CASE, run(tmp_path, [*others, NAMED]), None).cause is False
    assert judge(CASE, run(tmp_path, [*others[:3], NAMED]), None).cause is True


def test_another_cause_first_or_advice_that_makes_it_worse_is_harmful(tmp_path: Path) -> None:
    assert judge(CASE, run(tmp_path, [finding("loader_workers", "more"), NAMED]), None).harmful is True
    assert judge(CASE, run(tmp_path, [], advice="an accelerator"), None).harmful is True
    assert judge(CASE, run(tmp_path, [finding("shared_machine", "end the other work"), NAMED]), None).harmful is False
    assert judge(CASE, run(tmp_path, [], advice="let it train"), None).harmful is False


@pytest.mark.parametrize(("saves_part", "said"), [(False, 0.5), (True, None)])
def test_a_part_of_the_job_is_promised_unless_a_part_of_it_is_said_to_be_saved(
    tmp_path: Path, saves_part: bool, said: float | None
) -> None:
    of_job = NAMED | {"gain_s": None, "of": "job", "saves_part": saves_part}
    assert judge(replace(CASE, where="job"), run(tmp_path, [of_job]), None).said == said


@pytest.mark.parametrize(("cured_ms", "too_much"), [(4.0, False), (6.9, False), (9.0, True)])
def test_a_gain_of_more_than_twice_what_the_cure_reaches_is_too_much(
    tmp_path: Path, cured_ms: float, too_much: bool
) -> None:
    cured = run(tmp_path / "cured", [], step_ms=cured_ms)
    vars(cured)["report"]["findings"] = [NAMED]
    judged = judge(CASE, run(tmp_path / "fault", [NAMED]), cured)
    assert judged.reached == pytest.approx(1 - cured_ms / 10)
    assert judged.too_much is too_much
    assert judged.quiet is False


@pytest.mark.parametrize(
    ("cured_ms", "alone", "faster"),
    [
        (5.0, [9.0], "cured"),
        (9.0, [9.2, 9.3], "cured"),
        (9.0, [9.2, 9.6], ""),
        (9.0, [11.0], ""),
        (12.0, [13.0], "fault"),
    ],
)
def test_forms_differ_if_all_of_their_clocks_say_so(
    tmp_path: Path, cured_ms: float, alone: list[float], faster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = "B is 50.0 % faster in the step: 5 ms a step instead of 10"
    monkeypatch.setattr(complaints, "_verdict", lambda fault, cured: says)
    fault, cured = run(tmp_path / "fault", [NAMED]), run(tmp_path / "cured", [], step_ms=cured_ms)
    again = [(fault, run(tmp_path / str(n), [], step_ms=ms)) for n, ms in enumerate(alone)]
    judged = judge(CASE, fault, cured, lambda: again)
    assert judged.faster == faster
    assert judged.compared == ({"cured": True, "fault": False, "": None}[faster])


def test_a_script_whose_fault_is_absent_is_not_judged(tmp_path: Path) -> None:
    fault, cured = run(tmp_path / "fault", [NAMED], absent=True), run(tmp_path / "cured", [], step_ms=5.0)
    judged = judge(CASE, fault, cured)
    assert (judged.cause, judged.harmful, judged.faster) == (None, None, None)


def test_nor_is_one_that_lacks_a_package(tmp_path: Path) -> None:
    fault = run(tmp_path / "fault", [])
    log = "Traceback\nModuleNotFoundError: No module named 'tokenizers'\n"
    (fault.folder / "log").write_text(log, encoding="utf-8")
    judged = judge(CASE, fault, fault)
    assert fault.own == {"absent": "tokenizers"}
    assert (judged.cause, judged.harmful, judged.faster) == (None, None, None)


def test_what_no_line_expects_is_left_to_a_human(tmp_path: Path) -> None:
    judged = judge(Case(Path("script.py")), run(tmp_path, [NAMED]), None)
    assert (judged.cause, judged.cure, judged.harmful) == (None, None, None)


def test_each_of_our_scripts_has_a_line_a_thread_and_a_cured_form() -> None:
    cases = list(cases_of(OWN))
    assert len(cases) >= 15
    assert sum(case.ranks > 1 for case in cases) >= 3
    for case in cases:
        text = case.path.read_text(encoding="utf-8")
        assert "#" in text.splitlines()[0].lstrip("# "), f"{case.name}: its first line names no thread"
        assert text.count("\n") < 60, case.name
        assert case.cause, f"{case.name}: no line in {EXPECTED.name}"
        assert case.cured == "", case.name


def own(name: str) -> Case:
    return next(case for case in cases_of(OWN) if case.name == name)


def test_what_is_said_of_a_line_of_which_nothing_is_known_cures_none_that_is_named_by_its_line() -> None:
    at_lines = [case for case in cases_of(OWN) if r"\.py" in case.cause]
    unknown = (AT_ANY_LINE[""][1], BETWEEN[""])
    assert len(at_lines) >= 10
    assert not [case.name for case in at_lines if any(re.search(case.cure, text, re.IGNORECASE) for text in unknown)]


def test_a_dict_is_no_cure_of_a_graph_that_is_normalised_again() -> None:
    assert not re.search(own("graph_normalised").cure, AT_LINE[FINDS])


def test_masks_of_sizes_alone_are_not_those_of_experts() -> None:
    (constants,) = (rule for rule in RULES if rule.name == "constants")
    of_sizes = finding(constants.name, "make it once (register_buffer)") | {
        "title": constants.finds, "evidence": "8 % of forward is at experts_masked.py:26 Mixture.forward",
    }  # fmt: skip
    assert not speaks_of(of_sizes, own("experts_masked").cause)
