"""The page of simulations in a Chromium, as `tests/integration/browser` looks at the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddlprof.extensions.cluster.report import html as cluster_page
from tests.extensions.cluster.golden.simulations import simulated
from tests.integration.browser.conftest import browser, look
from tests.integration.browser.test_charts import CUT_OFF

__all__ = ["browser", "look"]
pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.mark.parametrize(("width", "scheme"), [(1200, "dark"), (390, "light")])
def test_the_page_of_simulations(look: Callable[..., Any], tmp_path: Path, width: int, scheme: str) -> None:
    path = tmp_path / "page.html"
    path.write_text("".join(cluster_page.render(simulated())), encoding="utf-8")
    opened = look(path, width, scheme)
    assert {name: number > 3 for name, number in opened.draw_all()} == {
        "sweep": True, "used": True, "waiting": True, "completion": True,
    }  # fmt: skip
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    before = opened.evaluate("document.querySelector('[data-source=data-completion] svg').innerHTML")
    opened.page.locator("#choice-completion").select_option("1")
    assert opened.evaluate("document.querySelector('[data-source=data-completion] svg').innerHTML") != before


@pytest.mark.parametrize("width", [1280, 400])
def test_no_label_is_cut_off(look: Callable[..., Any], tmp_path: Path, width: int) -> None:
    path = tmp_path / "page.html"
    path.write_text("".join(cluster_page.render(simulated())), encoding="utf-8")
    opened = look(path, width)
    opened.draw_all()
    assert opened.evaluate(CUT_OFF) == []
