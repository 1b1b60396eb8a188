"""What charts show in a real browser: whole labels, plans that can be told apart, single steps of long runs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddlprof.cli.app import main
from ddlprof.model.records import Flag
from ddlprof.report.plans import html as plans_page
from tests.golden.runs import header, manifest, step, write_golden_run, write_rank
from tests.integration.browser.conftest import BROWSERS
from tests.unit.report.plans.test_text import HOUR, answer

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CUT_OFF = """
    () => [...document.querySelectorAll("[data-chart] svg")].flatMap(svg => {
        const place = svg.getBoundingClientRect(), chart = svg.closest("[data-chart]").dataset.source;
        return [...svg.querySelectorAll("text")].filter(text => {
            const box = text.getBoundingClientRect();
            return box.width && (box.left < place.left - 1 || box.right > place.right + 1 || box.top < place.top - 1
                || box.bottom > place.bottom + 1 || /(\\.\\.\\.|…)$/.test(text.textContent));
        }).map(text => chart + ": " + text.textContent);
    })
"""
PLAN_NAMES = """
    () => [...document.querySelectorAll("[data-source=data-pareto] svg text")]
        .filter(e => /(big|small)/.test(e.textContent))
        .map(e => { const box = e.getBoundingClientRect(); return [box.left, box.right, box.top, box.bottom]; })
"""


def written(path: Path, *words: str) -> Path:
    sys.argv = ["ddlprof", *words, str(path)]
    assert main() == 0
    return path


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """A page of each kind."""
    monkeypatch.setattr(sys, "argv", [])
    run = tmp_path / "run"
    write_golden_run(run)
    asked = ("recommend", str(run), "--samples", "100000000", "--budget")
    return {
        "run": written(tmp_path / "run.html", "report", str(run), "--format", "html", "--instance", "g5.xlarge", "-o"),
        "plans": written(tmp_path / "plans.html", *asked, "12h", "-o"),
        "plans of a long budget": written(tmp_path / "more.html", *asked, "30d", "-o"),
        "comparison": written(tmp_path / "compared.html", "compare", str(run), str(run), "-o"),
    }


@pytest.mark.parametrize("width", [1280, 400])
def test_no_label_is_cut_off(look: Callable[..., Any], pages: dict[str, Path], width: int) -> None:
    for name, path in pages.items():
        opened = look(path, width)
        opened.draw_all()
        assert opened.evaluate(CUT_OFF) == [], name


def plans_of(path: Path, **changed: Any) -> Path:
    """A page of plans, the fields of each plan changed, and as many of the question's as it has."""
    asked = answer(max_nodes=40)
    plans = {id(plan): replace(plan, **changed) for plan in asked.plans}
    ours = replace(asked, plans=list(plans.values()), front=[plans[id(plan)] for plan in asked.front])
    path.write_text("".join(plans_page.render(ours, 5)), encoding="utf-8")
    return path


def test_a_table_of_plans_is_wholly_in_sight(look: Callable[..., Any], tmp_path: Path) -> None:
    long = {"gpu_model": "RTX-PRO-6000-Blackwell-SE", "instance_type": "p6-b300.48xlarge", "pricing": "spot"}
    cost = {"cost_usd": 12345.6, "cost_low_usd": 10234.5, "cost_high_usd": 123456.7, "global_batch": 131_072}
    opened = look(plans_of(tmp_path / "plans.html", **long, **cost), 1280)
    wide = "[...document.querySelectorAll('#plans .scroll')].map(e => e.scrollWidth - e.clientWidth)"
    assert opened.evaluate(wide) == [0]
    opened = look(tmp_path / "plans.html", 390)
    tall = "[...document.querySelectorAll('#plans .scroll')].map(e => e.scrollHeight - e.clientHeight)"
    assert opened.evaluate(tall) == [0]
    heads = "[...document.querySelectorAll('#plans thead th')].slice(0, 4).map(e => e.textContent)"
    assert opened.evaluate(heads) == ["#", "Machines", "Time [80 %]", "Cost USD [80 %]"]


@pytest.mark.parametrize("width", [1280, 400])
def test_plans_on_the_front_have_names_that_do_not_touch(look: Callable[..., Any], tmp_path: Path, width: int) -> None:
    opened = look(plans_of(tmp_path / "plans.html"), width)
    opened.draw_all()
    boxes = opened.evaluate(PLAN_NAMES)
    assert len(boxes) >= 3
    for at, (left, right, top, bottom) in enumerate(boxes):
        for other_left, other_right, other_top, other_bottom in boxes[:at]:
            assert right <= other_left or other_right <= left or bottom <= other_top or other_bottom <= top


def test_the_axes_of_plans_fit_them(look: Callable[..., Any], tmp_path: Path) -> None:
    """They have round figures, none far from the plans, and more of them than powers of ten."""
    opened = look(plans_of(tmp_path / "plans.html"), 1280)
    opened.draw_all()
    chart = "[data-source=data-pareto] svg"
    texts = opened.evaluate(f"[...document.querySelectorAll('{chart} text')].map(e => e.textContent)")
    figures = [float(text.replace(",", "")) for text in texts if re.fullmatch(r"[\d,.]+", text)]
    assert len(figures) >= 6
    assert all(figure == float(f"{figure:.2g}") for figure in figures)
    assert max(figures) <= 1.2 * max(plan.cost_usd or 0.0 for plan in answer(max_nodes=40).plans)
    assert "hours" in texts
    assert "budget 24 h" in " ".join(texts)


def test_intervals_of_plans_are_drawn_when_asked_for(look: Callable[..., Any], tmp_path: Path) -> None:
    opened = look(plans_of(tmp_path / "plans.html"), 1280)
    opened.draw_all()
    count = "document.querySelectorAll('[data-source=data-pareto] svg path').length"
    before = opened.evaluate(count)
    opened.page.locator("#choice-pareto").select_option("1")
    assert opened.evaluate(count) >= before + 2 * len(answer(max_nodes=40).front)


def test_single_steps_of_a_long_run_are_drawn_where_few_are_in_sight(
    look: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    run = tmp_path / "run"
    rows = [step(n, compute_ms=80 if n == 4321 else 8, flags=int(Flag.CHECKPOINT) * (n == 4322)) for n in range(6000)]
    write_rank(run, header(), rows)
    manifest().write(run)
    opened = look(written(tmp_path / "page.html", "report", str(run), "--format", "html", "-o"))
    opened.draw_all()
    plot = opened.page.locator("[data-source=data-steps]")
    first, last = opened.page.get_by_label("first step"), opened.page.get_by_label("last step")
    assert plot.get_attribute("data-view") == "bins"
    first.fill("4315")
    last.fill("4325")
    last.press("Tab")
    assert plot.get_attribute("data-view") == "steps, bars"
    assert (first.input_value(), last.input_value()) == ("4315", "4325")
    assert "4321" in plot.locator("svg").text_content()
    box = plot.bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 200)
    opened.page.keyboard.down("Control")
    for _ in range(60):  # the wheel zooms out, until bins are drawn again
        opened.page.mouse.wheel(0, 300)
    opened.page.keyboard.up("Control")
    opened.page.locator("[data-source=data-steps][data-view^=bins]").wait_for()
    assert int(last.input_value()) - int(first.input_value()) > 400
    opened.page.get_by_role("button", name="All steps").press("Enter")
    assert (first.input_value(), last.input_value()) == ("0", "5999")
    assert plot.get_attribute("data-view") == "bins"


def test_single_steps_of_a_run_of_200_000_are_drawn(
    look: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    run = tmp_path / "run"
    write_rank(run, header(), [step(n, compute_ms=80 if n == 123_456 else 8 + n % 3) for n in range(200_000)])
    manifest().write(run)
    page = written(tmp_path / "page.html", "report", str(run), "--format", "html", "-o")
    assert page.stat().st_size < 4_000_000
    opened = look(page)
    opened.draw_all()
    plot = opened.page.locator("[data-source=data-steps]")
    opened.page.locator("[data-source=data-steps][data-unpacked]").wait_for()
    first, last = opened.page.get_by_label("first step"), opened.page.get_by_label("last step")
    last.fill("123460")
    last.press("Tab")
    first.fill("123450")
    first.press("Tab")
    assert plot.get_attribute("data-view") == "steps, bars"
    assert "123456" in plot.locator("svg").text_content()
    box = plot.bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] * 0.62, box["y"] + 200)
    opened.page.get_by_label("first step").press("Tab")
    last.fill("124999")  # the next block of steps
    last.press("Tab")
    first.fill("124990")
    first.press("Tab")
    assert "124995" in plot.locator("svg").text_content()
    opened.page.get_by_role("button", name="All steps").press("Enter")
    assert plot.get_attribute("data-view") == "bins"


def test_a_field_takes_no_step_that_does_not_exist(look: Callable[..., Any], pages: dict[str, Path]) -> None:
    opened = look(pages["run"])
    opened.draw_all()
    first, last = opened.page.get_by_label("first step"), opened.page.get_by_label("last step")
    ends = int(first.input_value()), int(last.input_value())
    for field, typed, expected in (
        (last, "999999", ends[1]), (first, "-5", ends[0]), (last, "5.4", 5), (first, "9", 5), (last, "2", 5),
        (last, "", ends[1]),
    ):  # fmt: skip
        field.fill(typed)
        field.press("Tab")
        assert field.input_value() == str(expected)


def test_links_are_folded_on_a_phone_alone(look: Callable[..., Any], pages: dict[str, Path]) -> None:
    wide, phone = look(pages["run"], 1280), look(pages["run"], 390)
    link = "#late"
    assert wide.page.locator(f"nav a[href='{link}']").is_visible()
    assert not wide.page.locator("nav summary").is_visible()
    assert not phone.page.locator(f"nav a[href='{link}']").is_visible()
    phone.page.locator("nav summary").press("Enter")
    assert phone.page.locator(f"nav a[href='{link}']").is_visible()


def test_charts_that_nobody_scrolls_to_are_drawn_too(look: Callable[..., Any], pages: dict[str, Path]) -> None:
    """So that a picture of the whole page has no empty frames."""
    opened = look(pages["run"])
    charts = opened.page.locator("[data-chart]").count()
    assert charts > 8
    for number in range(charts):
        opened.page.locator("[data-chart]").nth(number).locator("xpath=self::*[@data-drawn]").wait_for(state="attached")
    assert opened.evaluate("scrollY") == 0


def test_the_budget_is_named_where_it_is_out_of_sight(look: Callable[..., Any], tmp_path: Path) -> None:
    asked = replace(answer(max_nodes=2), budget_s=2400 * HOUR)
    path = tmp_path / "plans.html"
    path.write_text("".join(plans_page.render(asked, 5)), encoding="utf-8")
    opened = look(path)
    opened.draw_all()
    assert "budget 100 d, further right" in opened.page.locator("[data-source=data-pareto] svg").text_content()


def test_a_picture_without_a_frame_has_charts(pages: dict[str, Path], tmp_path: Path) -> None:
    """On virtual time, as `chromium --headless --virtual-time-budget=MS --screenshot` takes pictures, no frame is drawn
    before the last."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no browser on this machine")
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"]
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    for page in pages.values():
        done = subprocess.run([browser, *words, profile, page.as_uri()], capture_output=True, text=True, check=True)
        assert done.stdout.count('data-drawn="yes"') == done.stdout.count("data-chart=") > 0
        assert done.stdout.count("<path") > done.stdout.count("data-chart=")
