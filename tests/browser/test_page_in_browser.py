"""The page in a real browser: it draws itself, asks nobody for anything, and does what clicks and
keys say.
"""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hpcfed.report.page.command import report
from hpcfed.storage.results import Results
from tests import records
from tests.browser.chromium import Browser

NASTY = '<script>window.harmed = 1</script><img src=x onerror="window.harmed=1">'
T, K, C = 6, 4, 3


def run(folder: Path, level: float, seed: int = 0, f1: bool = False) -> Path:
    """A run whose client k has accuracy level + k / 100 + t / 1000 after round t, from 1.

    f1: whether it has measured F1 too, which is half of that.
    """
    folder.mkdir()
    job = {
        "algorithm": {"name": "fedavg"},
        "data": {"name": NASTY, "partition": "dirichlet", "alpha": 0.5},
        "clients": K,
        "rounds": T,
        "seed": seed,
    }
    header = {
        "job": job,
        "ranks": 2,
        "classes": [NASTY, "b", "c"],
        "architectures": ["mlp", NASTY] * 2,
        "placement": [0, 1] * 2,
        "hardware": {"cpu": NASTY},
        "commit": "abc+",
        "ended": "finished",
    } | ({"metrics": ["accuracy", "f1"]} if f1 else {})
    results = Results(folder, header, {"label_counts": np.arange(K * C).reshape(K, C)})
    for t in range(1, T + 1):
        accuracy = level + np.arange(K) / 100 + t / 1000
        results.append(
            ({"clients/f1": accuracy / 2} if f1 else {})
            | {
                "clients/accuracy": accuracy,
                "clients/train_loss": np.full(K, 1 / t),
                "clients/down": np.full(K, 1000),
                "clients/up": np.full(K, 500),
                "clients/epochs": np.ones(K),
                "clients/examples": np.full(K, 9),
                "clients/seconds": np.ones(K),
                "clients/cohort": np.ones(K, dtype=bool),
                "rounds/seconds": 2.0,
                "ranks/train": np.array([1.5, 1.0]),
                "ranks/wait": np.array([0.0, 0.5]),
            }
        )
    results.finish()
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of three runs."""
    base = tmp_path_factory.mktemp("runs")
    levels = {"fedavg": 0.5, "fedprox": 0.7, "<i onclick=1>": 0.6}
    return Path(
        report([run(base / name, level) for name, level in levels.items()], base / "report.html")
    )


@pytest.fixture
def page(browser: Browser, written: Path) -> Iterator[Browser]:
    """The page, freshly opened; whatever a test does, nothing was complained of or asked for."""
    browser.open(written)
    yield browser
    nothing_happened(browser)


@pytest.fixture
def shown(browser: Browser, written: Path) -> Iterator[Browser]:
    """The page for tests that only look at it, of which one after the other opens it once."""
    if not browser.do("return window.unchanged"):
        browser.open(written)
        browser.do("window.unchanged = true")
    yield browser
    nothing_happened(browser)


def nothing_happened(page: Browser) -> None:
    assert page.complaints() == [] and page.requests() == []
    assert page.do("return window.harmed") is None


def lines(page: Browser, name: str) -> dict[str, list]:
    """What a source of the charts holds."""
    plain = (
        "Object.entries(found).map(([key, rows]) => [key, rows.map(row => Array.isArray(row) "
        "? [...row] : row)])"
    )
    return json.loads(
        page.do(
            f"const found = model('{name}').data;return JSON.stringify(Object.fromEntries({plain}))"
        )
    )


def test_it_draws_runs_and_curves(shown):
    assert shown.texts("h1") == ["3 runs"] and len(shown.texts("#runs tbody tr")) == 3
    curves = lines(shown, "lines-accuracy")
    assert curves["xs"][0] == [1, 2, 3, 4, 5, 6] and curves["ys"][0] == pytest.approx(
        0.515 + np.arange(1, 7) / 1000
    )
    assert len(lines(shown, "bands-accuracy")["xs"]) == 3
    sizes = shown.do(
        "return [...document.querySelectorAll('.charts figure')].map(f => f.clientHeight)"
    )
    assert len(sizes) == 4 and min(sizes) > 250


def test_ticks_are_written_with_few_characters(shown):
    assert shown.do("return model('accuracy').left[0].formatter.doFormat([0, 0.5, 1.5])") == [
        "0",
        "0.5",
        "1.5",
    ]


def test_users_names_are_shown_unchanged(shown):
    assert NASTY in shown.texts("#job")[0] or NASTY in shown.do(
        "return document.getElementById('job').textContent"
    )
    assert shown.texts("#runs tbody tr:nth-child(3) td:nth-child(2)") == ["<i onclick=1>"]
    assert NASTY in shown.texts("#clients tbody tr:nth-child(2)")[0]
    assert (
        shown.do(
            "return document.querySelectorAll('[onclick], [onerror], td i, img[src=x]').length"
        )
        == 0
    )


def test_hovering_shows_the_nearest_values(shown):
    shown.do("document.getElementById('curves').scrollIntoView()")
    x, y = shown.do("""const view = Bokeh.index[model('accuracy').id];
        const box = view.canvas_view.el.getBoundingClientRect();
        return [box.left + view.frame.x_scale.compute(4),
                box.top + view.frame.y_scale.compute(0.619)]""")
    for step in (0, 1):
        shown.driver.execute_cdp_cmd(
            "Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x + step, "y": y}
        )
    script = """const within = e => [e, ...e.shadowRoot ? all(e.shadowRoot) : []];
        const all = root => [...root.querySelectorAll('*')].flatMap(within);
        return all(document).filter(e => e.className === 'bk-tooltip-row-value')
                            .map(e => e.textContent.trim())"""
    shown.until(lambda: shown.do(script), "no tooltip")
    assert shown.do(script) == ["<i onclick=1>", "4", "0.619"]


def test_a_click_on_a_run_takes_its_curve_away_and_brings_it_back(page):
    page.click("#runs tbody tr:nth-child(2) input")
    assert lines(page, "lines-train_loss")["name"] == ["fedavg", "<i onclick=1>"]
    page.click("#runs tbody tr:nth-child(2) input")
    assert len(lines(page, "lines-train_loss")["name"]) == 3


def test_words_filter_runs_and_an_architecture_filters_clients(page):
    page.driver.find_element("id", "filter-runs").send_keys("prox")
    assert len(page.texts("#runs tbody tr")) == 1
    page.click("#architecture option[value=mlp]")
    assert [text.split()[0] for text in page.texts("#clients tbody tr")] == ["0", "2"]


def test_a_column_sorts_by_click_and_by_key(page):
    head = "#runs th[data-name=accuracy]"
    page.click(f"{head} button")
    assert page.texts("#runs tbody td:nth-child(7)") == ["0.7210", "0.6210", "0.5210"]
    page.driver.find_element("css selector", f"{head} button").send_keys("\ue007")
    assert page.texts("#runs tbody td:nth-child(7)") == ["0.5210", "0.6210", "0.7210"]
    assert page.driver.find_element("css selector", head).get_attribute("aria-sort") == "ascending"


def test_chosen_clients_are_drawn_over_the_others(page):
    page.click("#run option:nth-child(2)")
    page.click("#clients tbody tr:nth-child(3) input")
    page.until(lambda: lines(page, "clients-accuracy")["ys"], "no client is drawn")
    curves = lines(page, "clients-accuracy")
    assert curves["name"] == ["fedprox, client 2"]
    assert curves["ys"][0] == pytest.approx(0.72 + np.arange(1, 7) / 1000, abs=1e-5)
    page.click("#x option[value=bytes]")
    assert lines(page, "clients-accuracy")["xs"][0] == [1500 * t for t in range(1, 7)]
    assert page.do("const r = model('x'); return [r.start, r.end]") == [0, 1.02 * 9000]


def test_numbers_and_a_button_zoom_without_a_mouse(page):
    field = page.driver.find_element("id", "to")
    field.clear()
    field.send_keys("3\t")
    assert page.do("const r = model('x'); return [r.start, r.end]") == [0, 3]
    assert field.get_attribute("value") == "3"
    page.driver.find_element("id", "all").send_keys("\ue007")
    assert page.do("return model('x').end") == 1.02 * 6
    assert field.get_attribute("value") == "6"  # the last round, not where the axis ends


def test_seeds_of_a_method_are_one_line_until_they_are_asked_for(browser, tmp_path):
    levels = {"a": 0.5, "b": 0.7, "c": 0.6}
    folders = [run(tmp_path / name, level, i) for i, (name, level) in enumerate(levels.items())]
    browser.open(Path(report(folders, tmp_path / "report.html")))
    curves = lines(browser, "lines-accuracy")
    assert curves["name"] == ["FedAvg, mean of 3 seeds"] == browser.texts("#curves-legend li")
    assert curves["ys"][0] == pytest.approx(0.615 + np.arange(1, 7) / 1000)
    band = np.array(lines(browser, "bands-accuracy")["ys"][0])
    std = np.std([0.5, 0.7, 0.6], ddof=1)  # over seeds
    assert band[:T] - band[T:][::-1] == pytest.approx(np.full(T, 2 * std))
    browser.click("#runs tbody tr:nth-child(2) input")
    assert lines(browser, "lines-accuracy")["ys"][0][0] == pytest.approx(0.566)
    browser.click("#seeds")
    assert lines(browser, "lines-accuracy")["name"] == ["a", "c"]
    assert "0.6210 ± 0.1000 (3 seeds)" in browser.texts("#methods tbody tr")[0]
    assert browser.complaints() == [] and browser.requests() == []


def test_the_metric_of_comparison_and_curves_is_chosen(browser, tmp_path):
    browser.open(Path(report([run(tmp_path / "a", 0.5, f1=True)], tmp_path / "report.html")))
    shown = "return [...document.querySelectorAll('{}')].filter(f => f.clientHeight).map(f => f.id)"
    charts = shown.format(".charts [id^=chart-]")
    assert "chart-accuracy" in browser.do(charts) and "chart-f1" not in browser.do(charts)
    browser.click("#metric option[value=f1]")
    assert "chart-f1" in browser.do(charts) and "chart-accuracy" not in browser.do(charts)
    assert lines(browser, "lines-f1")["ys"][0][0] == pytest.approx(0.258)
    heads = [text for text in browser.texts("#methods h3") if text]
    assert heads == ["F1 by architecture", "Metrics"]
    height = browser.do("return document.querySelector('#chart-f1').clientHeight")
    assert height > 250
    assert browser.complaints() == [] and browser.requests() == []


def test_tables_are_downloaded_as_csv(page):
    for button in ("csvOfRuns", "csvOfRounds", "csvOfClients", "csvOfCurves"):
        page.click(f"#{button}")
    texts = {
        name: list(csv.DictReader(io.StringIO(page.downloaded(f"{name}.csv"))))
        for name in ("runs", "rounds", "clients", "clients-rounds")
    }
    assert [float(row["accuracy"]) for row in texts["runs"]] == pytest.approx(
        [0.521, 0.721, 0.621], rel=1e-12
    )
    name = NASTY.rpartition("/")[2]  # data are called by their file's name
    assert texts["runs"][0]["data"] == f"{name}, dirichlet(0.5)" and len(texts["rounds"]) == 3 * T
    assert texts["clients"][1]["architecture"] == NASTY
    assert float(texts["clients-rounds"][T]["accuracy"]) == pytest.approx(0.511, abs=1e-5)


def test_on_paper_all_parts_are_open_and_charts_are_pictures(page):
    count = (
        "return [document.querySelectorAll('canvas.picture').length, "
        "document.querySelectorAll('[open]').length]"
    )
    page.do("dispatchEvent(new Event('beforeprint'))")
    assert page.do(count) == [4, 2]
    page.do("dispatchEvent(new Event('afterprint'))")
    assert page.do(count) == [0, 0]
    assert page.driver.execute_cdp_cmd("Page.printToPDF", {})["data"]


@pytest.fixture
def survival(tmp_path: Path) -> list[Path]:
    """Runs of survival times, which have no accuracy."""
    for name in "ab":
        writer = records.run(tmp_path / name, 0, total=2, metrics=["c_index"])
        for t in (1, 2):
            index = {"clients__c_index": np.full(4, 0.5 + t / 10)}
            writer.append(records.row(t, 4, 2, clients__accuracy=np.full(4, np.nan), **index))
        writer.finish()
    return [tmp_path / "a", tmp_path / "b"]


def test_runs_without_accuracy_show_their_first_metric(browser, survival):
    browser.open(Path(report(survival, survival[0] / "report.html")))
    assert lines(browser, "lines-c_index")["ys"][0] == [0.6, 0.7]
    heads = browser.texts("#runs thead th")
    assert "C-index" in heads and "accuracy" not in heads
    assert browser.texts("#methods h3") == ["C-index by architecture", "Metrics"]
    assert "accuracy" not in browser.do("return document.body.innerText.toLowerCase()")
    browser.click("#csvOfClients")
    assert "c_index" in browser.downloaded("clients.csv").splitlines()[0]
    assert browser.complaints() == []


def test_light_becomes_dark_and_narrow_windows_scroll_only_tables(page):
    before = page.do("return getComputedStyle(document.body).backgroundColor")
    page.click("#ground")
    assert page.do("return getComputedStyle(document.body).backgroundColor") != before
    for width in (400, 1400):
        page.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        page.until(
            lambda: page.do("return document.documentElement.scrollWidth <= innerWidth"),
            f"wider than {width}",
        )
    page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
