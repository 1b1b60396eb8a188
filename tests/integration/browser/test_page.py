"""Pages in a real browser: everything is drawn, nothing is asked for, and whoever has no mouse gets everywhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddlprof.cli.app import main
from ddlprof.model.records import LossValue
from ddlprof.report.html.shell import SCRIPTS
from tests.golden.runs import header, manifest, simple_run, step, write_golden_run, write_rank
from tests.unit.cli.hostile import write_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]

LARGEST_PAGE_BYTES = 2_000_000


def page_of(run: Path, *words: str) -> Path:
    path = run.parent / f"{run.name}.html"
    sys.argv = ["ddlprof", "report", str(run), "--format", "html", "-o", str(path), *words]
    assert main() == 0
    return path


@pytest.fixture
def golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "argv", [])
    write_golden_run(tmp_path / "run")
    return page_of(tmp_path / "run", "--instance", "g5.xlarge")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_every_chart_is_drawn_and_nothing_is_wider_than_the_page(
    look: Callable[..., Any], golden: Path, width: int, scheme: str
) -> None:
    opened = look(golden, width, scheme)
    marks = opened.draw_all()
    assert {name for name, _ in marks} >= {"mean", "steps", "late", "boxes", "timeline", "bandwidth", "lines", "money"}
    for name, number in marks:
        assert number >= 4, name
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    outside = """
        [...document.querySelectorAll("main *")].filter(e => !e.closest(".scroll, svg"))
            .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))
    """
    assert opened.evaluate(outside) == []


def test_the_loss_is_drawn_below_0_too(
    look: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    noted = [LossValue(update, 1 / (0.01 * update + 0.3) - 2) for update in range(600)]
    write_rank(tmp_path / "run", header(), [step(number) for number in range(30)], records=noted)
    manifest().write(tmp_path / "run")
    opened = look(page_of(tmp_path / "run"))
    assert dict(opened.draw_all())["loss"] >= 4
    drawn = opened.page.locator("[data-source=data-loss] svg").text_content()
    assert "updates" in drawn
    assert "-2" in drawn


def test_the_theme_follows_the_system_and_the_button(look: Callable[..., Any], golden: Path) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    shade = "getComputedStyle(document.querySelector('[data-source=data-mean] svg path[fill^=\"#\"]')).fill"
    light, dark = look(golden, scheme="light"), look(golden, scheme="dark")
    light.draw_all()
    dark.draw_all()
    assert light.evaluate(background) != dark.evaluate(background)
    before = light.evaluate(shade)
    light.page.get_by_role("button", name="Switch between light and dark").click()
    assert light.evaluate(background) == dark.evaluate(background)
    assert light.evaluate(shade) == dark.evaluate(shade) != before
    light.page.get_by_role("button", name="Switch between light and dark").press("Enter")
    assert light.evaluate(shade) == before


def test_a_keyboard_reaches_and_works_everything(look: Callable[..., Any], golden: Path) -> None:
    opened = look(golden)
    everything = """
        [...document.querySelectorAll("a, button, select, input, summary, [tabindex]")]
            .filter(e => e.checkVisibility() && e.tabIndex >= 0).length
    """
    reached: set[str] = set()
    name = "(e => { if (!e.dataset.mark) e.dataset.mark = String(Math.random()); return e.dataset.mark })"
    expected = opened.evaluate(everything)
    for _ in range(expected + 5):
        opened.page.keyboard.press("Tab")
        reached.add(opened.evaluate(f"{name}(document.activeElement)"))
        outline = opened.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none" or opened.evaluate("document.activeElement === document.body")
    assert len(reached) >= expected
    details = opened.page.locator("#chart-mean details")
    details.locator("summary").press("Enter")
    assert details.locator("table").is_visible()


def test_steps_are_zoomed_by_their_numbers(look: Callable[..., Any], golden: Path) -> None:
    opened = look(golden)
    opened.draw_all()
    plot = opened.page.locator("[data-source=data-steps]")
    whole = plot.locator("svg path").count()
    opened.page.get_by_label("first step").fill("10")
    opened.page.get_by_label("last step").fill("14")
    opened.page.get_by_label("last step").press("Tab")
    assert plot.locator("svg path").count() < whole
    assert opened.page.get_by_label("first step").input_value() == "10"
    opened.page.get_by_role("button", name="All steps").press("Enter")
    assert plot.locator("svg path").count() == whole


def test_what_a_chart_shows_can_be_chosen(look: Callable[..., Any], golden: Path) -> None:
    opened = look(golden)
    opened.draw_all()
    for name in ("late", "boxes", "timeline", "steps"):
        plot, choice = opened.page.locator(f"[data-source=data-{name}]"), opened.page.locator(f"#choice-{name}")
        before = plot.inner_html()
        choice.select_option("1")
        assert plot.inner_html() != before, name


@pytest.mark.parametrize(
    "name",
    [
        "<script>document.title='owned';alert(1)</script>",
        "\"'><img src=x onerror=alert(1)>",
        "{a|b}{{x}}</script><script>alert(1)//",
        "x" * 10_000,
    ],
    ids=["script", "quotes", "braces", "long"],
)
@pytest.mark.parametrize("width", [390])
def test_names_run_nothing_and_break_nothing(
    look: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, width: int
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    opened = look(page_of(write_run(tmp_path / "run", name)), width)
    assert all(number >= 2 for _, number in opened.draw_all())
    for number in range(opened.page.locator("details").count()):
        opened.page.locator("details").nth(number).evaluate("e => e.open = true")
    assert opened.page.title() != "owned"
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.page.locator("script:not([type])").count() == len(SCRIPTS)
    assert opened.page.locator("img").count() == 0
    for number in range(opened.page.locator("[data-chart]").count()):
        opened.page.locator("[data-chart]").nth(number).hover()


def test_many_steps_and_ranks_stay_a_small_page(
    look: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    run = tmp_path / "run"
    for rank in range(24):
        write_rank(run, header(rank, 24), [step(number, compute_ms=8 + rank % 3) for number in range(2000)])
    manifest(24).write(run)
    path = page_of(run)
    assert path.stat().st_size < LARGEST_PAGE_BYTES
    assert all(number >= 2 for _, number in look(path).draw_all())


def test_a_run_of_few_steps(look: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [])
    for steps in (1, 4):
        marks = dict(look(page_of(simple_run(tmp_path / f"run-{steps}", steps=steps)), 390).draw_all())
        assert marks["steps"] >= 2 * min(steps, 2)


def test_it_can_be_printed(look: Callable[..., Any], golden: Path) -> None:
    """On paper the charts are light, whole and as wide as the text; on the screen they are as before."""
    pdfium = pytest.importorskip("pypdfium2", reason="pypdfium2 is not installed")
    opened = look(golden, 1280, "dark")
    opened.draw_all()
    widths = "[...document.querySelectorAll('.plot svg')].map(s => s.clientWidth)"
    dark, wide = opened.evaluate("getComputedStyle(document.body).color"), opened.evaluate(widths)
    pages = [page.render().to_numpy()[:, :, :3].astype(int) for page in pdfium.PdfDocument(opened.page.pdf())]
    assert len(pages) > 2
    assert all((page[0] == 255).all() for page in pages)
    coloured = [(page.max(axis=2) - page.min(axis=2) > 60).mean(axis=0) for page in pages]
    bar = pages[0].max(axis=2) - pages[0].min(axis=2) > 60
    row = bar[bar.mean(axis=1).argmax()].nonzero()[0]  # that of the mean step, whose classes add up to all of it
    assert row[-1] > 0.85 * bar.shape[1]
    assert sum(page[-len(page) // 6 :].any() for page in coloured) > len(pages) / 2
    assert opened.evaluate("getComputedStyle(document.body).color") == dark
    opened.page.wait_for_function(f"String({widths}) === '{','.join(map(str, wide))}'")


def test_the_page_of_a_recommendation(
    look: Callable[..., Any], golden: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = golden.with_name("plans.html")
    command = ["ddlprof", "recommend", str(golden.parent / "run"), "--budget", "12h", "--samples", "100000000"]
    monkeypatch.setattr(sys, "argv", [*command, "-o", str(path)])
    assert main() == 0
    for width, scheme in ((1200, "light"), (390, "dark")):
        opened = look(path, width, scheme)
        marks = dict(opened.draw_all())
        assert marks["pareto"] > 50
        assert marks["classes"] > 8
        assert opened.evaluate("document.documentElement.scrollWidth") <= width
