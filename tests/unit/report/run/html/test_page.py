"""The page of a run: what is on it is what the run says, and what does not apply is named and not drawn."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddlprof.analysis.findings import Finding
from ddlprof.analysis.hang_facts import BUSY
from ddlprof.analysis.hang_words import headline
from ddlprof.analysis.job_time import JOB_PARTS, JobTime
from ddlprof.analysis.loss_curve import Curve
from ddlprof.analysis.run import analyse
from ddlprof.base.errors import UserError
from ddlprof.model.records import ContextRow, End, LossValue
from ddlprof.report.run.data import build_report
from ddlprof.report.run.html import steps as steps_of_page
from ddlprof.report.run.html.page import render, subtitle
from ddlprof.report.run.html.subject import Subject
from ddlprof.store import load_run
from tests.golden.runs import MS, NOW_UNIX_NS, header, manifest, simple_run, step, write_golden_run, write_rank
from tests.unit.report.hang.test_words import FOUND
from tests.unit.report.html.test_chart import unpacked
from tests.unit.report.html.test_element import Read

GOLDEN = Path(__file__).resolve().parents[4] / "golden"
SECTIONS = (
    "findings", "steps", "ceilings", "money", "late", "ranks", "timeline", "bandwidth", "lines", "context", "job",
    "notes", "environment", "reading",
)  # fmt: skip


def subject(run: Path, **asked: Any) -> Subject:
    data = load_run(run)
    attempts = analyse(data)
    return Subject(data, attempts, build_report(data, attempts, NOW_UNIX_NS), **asked)


class Page:
    """A page taken apart: its sections and the data of its charts."""

    def __init__(self, of: Subject) -> None:
        self.text = "".join(render(of))
        body = re.sub(r"<script>.*?</script>", "", self.text, flags=re.DOTALL)
        self.read = Read(body)
        self.ids = {attributes.get("id") for _, attributes in self.read.tags}
        found = re.findall(r'<script type="application/json" id="data-([\w-]+)">(.*?)</script>', self.text, re.DOTALL)
        self.data: dict[str, Any] = {name: json.loads(text) for name, text in found}

    @property
    def sections(self) -> list[str]:
        return [name for name in SECTIONS if name in self.ids]


def test_a_shared_machine_is_named_beside_the_verdict(tmp_path: Path) -> None:
    counters = [
        ContextRow(at * MS, 99.0, 0, 0, None, None, None, process_queued_ns=at * MS // 2) for at in (0, 200, 400)
    ]
    write_rank(tmp_path, header(), [step(n, 9.8, 0.1, 0.1) for n in range(40)], records=counters)
    text = Page(subject(tmp_path)).read.text
    assert "COMPUTE-BOUND 98 % of the step, on a shared machine, warning" in text
    assert "for 50 % of the time the training is ready to run and waits for a processor" in text
    assert "waited for a processor 50 %" in text


def test_threads_held_up_on_a_shared_machine_are_told_once(tmp_path: Path) -> None:
    counters = [
        ContextRow(at * MS, 99.0, 0, 0, None, None, None, process_queued_ns=at * MS // 2) for at in (0, 200, 400)
    ]
    write_rank(tmp_path, header(), [step(n, 9.8, 0.1, 0.1) for n in range(40)], records=counters)
    described = manifest()
    replace(described, training=replace(described.training, cpu_threads=16)).write(tmp_path)
    verdict = subject(tmp_path).report.verdict
    assert verdict is not None
    why = verdict.why
    assert "; of the steps, " in why
    assert why.count("the training is ready to run and waits for a processor") == 1


def test_counters_have_names_of_their_own_and_workers_that_took_nothing_no_chart(tmp_path: Path) -> None:
    def drawn(copied: int) -> str:
        folder = tmp_path / str(copied)
        counters = [
            ContextRow(
                at * MS, 99.0, 1, 1, 9.0, 1, 9.0, process_private_bytes=1, gpu_clock_mhz=9.0, gpu_temperature_c=9.0,
                gpu_power_limit_w=9.0, workers_copied_bytes=copied, workers_new_bytes=copied,
            )
            for at in (0, 200, 400)
        ]  # fmt: skip
        write_rank(folder, header(), [step(n, 9.8, 0.1, 0.1) for n in range(40)], records=counters)
        manifest().write(folder)
        return Page(subject(folder)).read.text

    assert "Resident memory that a rank shares with nobody, in GiB." in drawn(0)
    assert "GPU power limit, in W." in drawn(0)
    assert "that loader workers" not in drawn(0)
    assert "Memory that loader workers copied from their rank, in GiB." in drawn(1)
    assert "Memory that loader workers have taken since they started, in GiB." in drawn(1)


def test_what_stopped_a_training_comes_before_what_bounds_its_steps(tmp_path: Path) -> None:
    write_rank(tmp_path, header(), [step(n, 9.8, 0.1, 0.1) for n in range(40)])
    of = subject(tmp_path)

    def top(kind: str) -> str:
        return Page(replace(of, report=replace(of.report, hang=replace(FOUND, kind=kind)))).read.text

    said = headline(FOUND)
    assert 0 < top("missing").index(said) < top("missing").index("COMPUTE-BOUND")
    assert top("missing").count(said) == 1
    assert top(BUSY).index("COMPUTE-BOUND") < top(BUSY).index("is at work")


def test_a_finding_gains_what_at_best_says(tmp_path: Path) -> None:
    """Without its waits for data rank 1 is done before rank 0, so the step is not shorter by the mean wait of 30 ms."""
    for rank, (compute_ms, data_ms, comm_ms) in enumerate(((80, 10, 10), (50, 50, 0))):
        rows = [step(n, compute_ms, data_ms, 0, comm_ms, split=(0, data_ms)) for n in range(40)]
        write_rank(tmp_path, header(rank, 2), rows)
    manifest(2).write(tmp_path)
    page = Page(subject(tmp_path))
    (found,) = [each for each in subject(tmp_path).report.findings if each.about == "data"]
    (bar,) = [each for each in page.data["ceilings"]["bars"] if each["name"] == "data"]
    assert found.gain_s == pytest.approx(0.02)
    assert found.gain_s == pytest.approx(bar["gain"] / 1000)


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    write_golden_run(tmp_path / "run")
    return tmp_path / "run"


def test_all_that_a_run_with_everything_has(golden: Path) -> None:
    page = Page(subject(golden, instance="g5.xlarge"))
    assert page.sections == list(SECTIONS)
    assert set(page.data) >= {"mean", "ceilings", "money", "steps", "late", "boxes", "timeline", "bandwidth", "lines"}
    assert "the largest avoidable stall is data, 16 %" in page.read.text


def test_the_ranks_begin_with_their_own_work(golden: Path) -> None:
    """The step is the same for all of them where each waits for the others."""
    labels = [measure["label"] for measure in Page(subject(golden)).data["boxes"]["measures"]]
    assert labels[:2] == ["own work (the step less communication)", "the step"]


def test_parts_of_a_class_are_indented(golden: Path) -> None:
    text = Page(subject(golden)).text
    parts = re.findall(r'<th scope="row"><span class="part">(?:<span [^>]*></span>)?([^<]*)', text)
    assert {"data_fetch", "interconnect", "straggler"} <= {part.replace("data: ", "data_") for part in parts}
    assert not {"step", "compute", "comm"} & set(parts)


def test_where_a_price_was_read_is_for_the_file(golden: Path) -> None:
    text = Page(subject(golden, instance="g5.xlarge")).read.text
    assert "1.006 USD an hour" in text
    assert (
        "source" not in text[text.index("What it costs", text.index("Findings") + 400) :].partition("Who was late")[0]
    )


def test_a_verdict_that_is_none_says_so_once(tmp_path: Path) -> None:
    page = Page(subject(simple_run(tmp_path / "run", steps=4)))
    assert "UNDECIDED" in page.read.text
    assert 'class="badge unknown"' not in page.text


def test_the_mean_step_is_the_one_of_the_report(golden: Path) -> None:
    of = subject(golden)
    mean = Page(of).data["mean"]
    assert mean["step"] == pytest.approx(of.report.times["step"].mean_s * 1e3)  # type: ignore[operator]
    assert sum(part["value"] for part in mean["parts"]) == pytest.approx(mean["step"], rel=1e-3)


def test_classes_add_up_in_every_bin_and_no_outlier_is_lost(golden: Path) -> None:
    of = subject(golden)
    steps = Page(of).data["steps"]
    assert steps["first"] == list(range(30))
    for at, longest in enumerate(steps["longest"]):
        total = sum(each["values"][at] or 0 for each in steps["series"])
        assert total <= longest * 1.001
    assert max(steps["longest"]) > 900  # the first step
    assert steps["top"] < 200
    assert {flag["label"] for flag in steps["flags"]} == {"warmup", "epoch start", "checkpoint"}


def test_the_loss_is_drawn_with_its_curve(tmp_path: Path) -> None:
    curve = Curve(b0=0.002, b1=0.25, b2=0.5)
    noted = [LossValue(update, curve.at(update)) for update in range(0, 1200, 4)]
    write_rank(tmp_path, header(), [step(number) for number in range(30)], records=noted)
    manifest().write(tmp_path)
    page = Page(subject(tmp_path))
    assert "loss" in page.ids
    drawn, fitted = page.data["loss"]["lines"]
    assert drawn["points"][0][1] == pytest.approx(curve.at(drawn["points"][0][0]), rel=0.1)
    assert [update for update, _ in drawn["points"]] == [update for update, _ in fitted["points"]]
    assert fitted["points"][-1][1] == pytest.approx(curve.at(1197), rel=0.02)
    assert "will level off at 0.5" in page.read.text


@pytest.mark.parametrize(
    ("noted", "why"),
    [
        ([], "none was noted"),
        ([LossValue(0, 1.0)], "losses noted: 1, and it takes"),
        ([LossValue(0, 1.0), LossValue(1, None)], "the loss became infinite"),
    ],
)
def test_a_loss_that_cannot_be_drawn_is_named(tmp_path: Path, noted: list[LossValue], why: str) -> None:
    write_rank(tmp_path, header(), [step(number) for number in range(30)], records=noted)
    manifest().write(tmp_path)
    page = Page(subject(tmp_path))
    assert "loss" not in page.ids
    assert why in page.read.text


def test_only_the_steps_that_were_asked_for_are_drawn(golden: Path) -> None:
    page = Page(subject(golden, window=(10, 14)))
    assert page.data["steps"]["first"] == [10, 11, 12, 13]
    assert page.data["late"]["first"] == [10, 11, 12, 13]
    assert "Step 1" in page.text
    assert "steps" not in Page(subject(golden, window=(1000, None))).sections


def test_what_was_not_measured_is_absent_and_not_0(tmp_path: Path) -> None:
    page = Page(subject(simple_run(tmp_path / "run", data_ms=None)))
    assert "data" not in {each["name"] for each in page.data["steps"]["series"]}
    assert "Not measured, and so in the other classes: data" in page.read.text


def test_the_late_rank_stands_out(golden: Path) -> None:
    late = Page(subject(golden)).data["late"]
    rows = late["measures"][0]["rows"]
    assert late["ranks"] == [0, 1]
    assert rows[1][10] == pytest.approx(10)  # 20 ms more than the other, so 10 more than the median
    assert rows[0][10] == pytest.approx(-10)
    assert rows[1][29] is None  # it was killed before


def test_the_collectives_of_the_typical_step(golden: Path) -> None:
    timeline = Page(subject(golden)).data["timeline"]
    first = timeline["ranks"][0]["spans"][0]
    assert first["label"] == "allreduce"
    assert first["moves"] - first["start"] == pytest.approx(20)
    assert first["end"] - first["moves"] == pytest.approx(6)
    assert first["exposed"] == pytest.approx(6)


def test_lost_time_in_dollars(golden: Path) -> None:
    of = subject(golden, instance="p4d.24xlarge")
    page = Page(of)
    spent = {bar["name"]: bar["value"] for bar in page.data["money"]["bars"]}
    price = re.search(r"at ([\d.]+) USD an hour", page.read.text)
    assert price is not None
    step_s = of.report.times["step"].mean_s or 0.0
    assert sum(spent.values()) == pytest.approx(float(price[1]) * step_s * 1000 / 3600, rel=1e-3)


def test_an_unknown_instance_is_one_line(golden: Path) -> None:
    with pytest.raises(UserError, match=r"^--instance: unknown instance type 'p4d.24xlrge'; closest: p4d.24xlarge"):
        render(subject(golden, instance="p4d.24xlrge"))


def test_the_run_may_know_its_instance_itself(golden: Path) -> None:
    manifest(2).write(golden)
    replace(manifest(2), host={"instance_type": "g5.xlarge"}).write(golden)
    assert "money" in Page(subject(golden)).sections
    replace(manifest(2), host={"instance_type": "mine"}).write(golden)
    page = Page(subject(golden))
    assert "money" not in page.sections
    assert "the machines are mine, which the catalogue does not have: --instance TYPE" in page.read.text


def one_rank(folder: Path) -> Path:
    return simple_run(folder)


def no_step(folder: Path) -> Path:
    write_rank(folder, header(), [], records=[End("exception", 1, MS)])
    manifest().write(folder)
    return folder


def one_step(folder: Path) -> Path:
    return simple_run(folder, steps=1)


def without_manifest(folder: Path) -> Path:
    write_rank(folder, header(), [step(number) for number in range(30)])
    return folder


def nobody_measured_communication(folder: Path) -> Path:
    for rank in (0, 1):
        write_rank(folder, header(rank, 2), [step(number, comm_ms=None) for number in range(40)])
    manifest(2).write(folder)
    return folder


@pytest.mark.parametrize(
    ("made", "absent"),
    [
        (one_rank, {"late", "timeline", "bandwidth"}),
        (no_step, {"ceilings", "steps", "late", "timeline", "bandwidth", "lines", "context"}),
        (one_step, {"late", "timeline", "bandwidth"}),
        (without_manifest, {"late", "timeline", "bandwidth", "environment"}),
        (nobody_measured_communication, {"ceilings", "timeline", "bandwidth"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_sections_that_do_not_apply_are_named_and_not_drawn(
    made: Callable[[Path], Path], absent: set[str], tmp_path: Path
) -> None:
    page = Page(subject(made(tmp_path / "run")))
    assert not absent & set(page.sections)
    for name, values in page.data.items():
        assert _has_something(values), name
    assert "the run does not tell what its machines are" in page.read.text.partition("Not on this page")[2]


def _has_something(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_something, value.values()))
    return any(map(_has_something, value)) if isinstance(value, list) else isinstance(value, (int, float))


@pytest.mark.parametrize("run", sorted((GOLDEN / "recorded").iterdir()), ids=lambda path: path.name)
def test_recorded_runs_have_a_page(run: Path) -> None:
    page = Page(subject(run))
    assert {"steps", "ranks", "environment", "reading"} <= set(page.sections)
    for values in page.data.values():
        assert _has_something(values)


def test_findings_and_the_whole_job(golden: Path) -> None:
    of = subject(golden)
    found = Finding("loader_workers", "critical", "Too <few> workers", "20 of 95 ms", "two more", 27, 0.2, gain_s=0.01)
    job = JobTime(100.0, dict.fromkeys(JOB_PARTS, 10.0) | {"profiling": None}, epochs=3)
    page = Page(replace(of, report=replace(of.report, findings=[found], job=job)))
    assert {"findings", "job"} <= set(page.sections)
    assert "Too <few> workers" in page.read.text
    assert "up to 10.0 ms of each step" in page.read.text
    assert "critical" in page.read.text
    assert sum(part["value"] for part in page.data["job"]["parts"]) == pytest.approx(90)
    assert "3 epochs" in page.read.text


def test_every_chart_is_told_in_words_and_as_a_table(golden: Path) -> None:
    page = Page(subject(golden, instance="g5.xlarge"))
    plots = [attributes for _, attributes in page.read.tags if "data-chart" in attributes]
    assert len(plots) == len(page.data)
    for attributes in plots:
        assert len(attributes["aria-label"] or "") > 30
        assert attributes["role"] == "img"
    figures = re.findall(r"<figure.*?</figure>", page.text, re.DOTALL)
    assert all("<table>" in figure and "<figcaption>" in figure for figure in figures)


@pytest.fixture
def burst(tmp_path: Path) -> Path:
    """3,000 steps, one of which took 50 times as long."""
    rows = [step(number, compute_ms=500 if number == 1234 else 8) for number in range(3000)]
    write_rank(tmp_path / "run", header(), rows)
    manifest().write(tmp_path / "run")
    return tmp_path / "run"


def test_bursts_of_many_steps_are_aggregated(burst: Path) -> None:
    """Bins of three; the one step is still seen."""
    data = Page(subject(burst)).data["steps"]
    assert len(data["first"]) == 1000
    at = 1234 // 3
    assert (data["first"][at], data["last"][at]) == (1233, 1235)
    assert data["longest"][at] == pytest.approx(502)
    assert sum(each["values"][at] or 0 for each in data["series"]) == pytest.approx((502 + 20) / 3, rel=1e-3)


def test_every_step_of_a_long_run_is_on_the_page_for_whoever_zooms_in(burst: Path) -> None:
    page = Page(subject(burst))
    single = page.data["steps"]["packed"]
    assert single["steps"] == [[0, 2999]]
    assert sum(unpacked(each["values"])[1234] or 0 for each in single["series"]) == pytest.approx(502, rel=2e-3)
    assert "Where 400 steps or fewer are in sight, each is drawn." in page.read.text


def test_a_run_too_long_for_that_says_how_to_see_single_steps(burst: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_of_page, "MOST_NUMBERS", 14_000)
    page = Page(subject(burst))
    assert "packed" not in page.data["steps"]
    assert "Single steps are on pages of up to 2,000 steps: --step-range A:B makes one." in page.read.text
    assert "packed" in Page(subject(burst, window=(0, 2000))).data["steps"]


YEAR_2000_UNIX_NS = 946_684_800_000_000_000


def subtitle_of(run: Path) -> str:
    data = load_run(run)
    attempts = analyse(data)
    return " · ".join(subtitle(Subject(data, attempts, build_report(data, attempts, NOW_UNIX_NS))))


def test_where_when_and_for_how_long(tmp_path: Path) -> None:
    write_golden_run(tmp_path)
    assert " · host host-a · DDP · " in subtitle_of(tmp_path)
    assert subtitle_of(tmp_path).endswith(" · 30 steps · 2026-01-01 09:59 UTC · took 4.8 s")


def test_many_hosts_are_counted_and_the_time_is_that_of_the_attempt(tmp_path: Path) -> None:
    end = [End("ok", 0, 100_000 * MS)]
    for attempt in (0, 1):
        for rank, node in enumerate("abc"):
            head = header(rank, 3, attempt, node)
            write_rank(tmp_path, head, [step(number) for number in range(30)], records=end)
    manifest(3).write(tmp_path)
    text = subtitle_of(tmp_path)
    assert " · 3 hosts · " in text
    assert "host-a" not in text
    assert text.endswith(" · attempt 1 of 0-1 · 2026-01-01 10:00 UTC · took 1 min 40 s")


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    """An import whose traces name no host and no date, and a shared run, which begins in 2000 whenever it was."""
    for name, began in (("imported", 5_000), ("shared", YEAR_2000_UNIX_NS)):
        head = replace(header(), host="unknown", origin_unix_ns=began)
        write_rank(tmp_path / name, head, [step(number) for number in range(30)])
        text = subtitle_of(tmp_path / name)
        assert text == "1 node, 1 rank on cpu · 30 steps · took 0.3 s"
