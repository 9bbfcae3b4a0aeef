"""The same page while runs go on: it shows what has changed, and keeps what is chosen."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from hpcfed.report.watch.web import Server
from hpcfed.results.run import find, name_runs
from hpcfed.storage.record import FINISHED
from tests import records
from tests.browser.chromium import Browser
from tests.browser.test_page_in_browser import lines

pytestmark = pytest.mark.timeout(300)  # the first of these tests may have to install the browser


@contextmanager
def serving(*paths: Path) -> Iterator[Server]:
    runs = find(paths, required=False)
    name_runs(runs)
    with Server(runs, 0) as server:
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        try:
            yield server
        finally:
            server.shutdown()


def until_line(page: Browser, i: int, text: str) -> None:
    """Wait until the page says this of run i."""
    page.until(lambda: text in page.texts_now("#live-runs .card")[i], f"run {i} never had: {text}")


def go_on(writer: object, t: int) -> None:
    writer.append(records.row(t, 4, 2))
    writer.finish()


def test_choices_stay_when_new_numbers_arrive(browser, tmp_path):
    writers = [records.run(tmp_path / name, 3, total=9) for name in ("a", "b")]
    with serving(tmp_path / "a", tmp_path / "b") as server:
        browser.open(server.url)
        browser.do("window.same = true; document.querySelector('#job details').open = true")
        browser.click("#runs tbody tr:nth-child(1) input")
        browser.click("#runs th[data-name=run] button")
        browser.click("#runs th[data-name=run] button")  # b comes first
        browser.click("#run option:nth-child(2)")
        browser.click("#architecture option[value=mlp]")
        browser.click("#clients tbody tr:nth-child(2) input")
        browser.until(lambda: lines(browser, "clients-accuracy")["ys"], "no client is drawn")
        field = browser.driver.find_element("id", "to")
        field.clear()
        field.send_keys("2\t")
        browser.do("document.getElementById('one-run').scrollIntoView()")
        top = "return document.getElementById('one-run').getBoundingClientRect().top"
        before = browser.do(top)
        go_on(writers[1], 4)
        until_line(
            browser, 1, "b, round 4/9, accuracy 0.6000, 2 ranks, 2.10 s a round, 10.5 s left"
        )
        assert browser.do("return window.same")  # it was not loaded anew
        curves = lines(browser, "lines-accuracy")
        assert curves["name"] == ["b"] and curves["xs"] == [[1, 2, 3, 4]]
        clients = lines(browser, "clients-accuracy")
        assert clients["name"] == ["b, client 3"] and len(clients["xs"][0]) == 4
        names = browser.texts_now("#runs tbody td:nth-child(2)")
        assert names == ["b", "a"] and browser.texts_now("#runs tbody td:nth-child(6)") == [
            "4",
            "3",
        ]
        assert browser.texts_now("#clients tbody td:nth-child(2)") == ["1", "3"]
        assert browser.do("return model('x').end") == 2 and browser.do(
            "return document.querySelector('#job details').open"
        )
        assert abs(browser.do(top) - before) < 2
        browser.click("#all")
        go_on(writers[1], 5)
        until_line(browser, 1, "b, round 5/9")
        assert browser.do("return model('x').end") == 1.02 * 5  # all that there is stays in view
        assert browser.complaints() == []
        assert {address.rpartition("/")[0] for address in browser.requests()} <= {
            server.url.rstrip("/"),
            f"{server.url}changes",
        }


def test_a_run_that_begins_later_and_the_end_of_all_are_shown(browser, tmp_path):
    (tmp_path / "run").mkdir()
    with serving(tmp_path / "run") as server:
        browser.open(server.url)
        assert browser.texts_now("#live-runs .card") == ["run, round 0/?, accuracy -, not started"]
        writer = records.run(tmp_path / "run", 1, total=2)
        browser.until(lambda: browser.texts_now("#runs tbody tr"), "the run never came")
        assert lines(browser, "lines-accuracy")["xs"] == [[1]]
        writer.append(records.row(2, 4, 2, clients__fault=np.array([0, 1, 0, 0])))
        writer.header["ended"] = FINISHED
        writer.finish()
        until_line(browser, 0, "round 2/2")
        assert "left out: client 1 (diverged)" in browser.texts_now("#live-runs .warning")[0]
        assert browser.texts_now("#asked") == ["finished; hpcfed watch has ended"]
        assert "diverged" in browser.texts_now("#warnings")[0] and server.notified.is_set()
        assert browser.complaints() == []


def test_names_stay_names_when_they_come_later(browser, tmp_path):
    nasty = "<img src=x onerror='window.harmed=1'>"
    writer = records.run(tmp_path / nasty, 1, total=3, history=[{"rounds": 1, "commit": nasty}])
    with serving(tmp_path / nasty) as server:
        browser.open(server.url)
        go_on(writer, 2)
        until_line(browser, 0, "round 2/3")
        assert nasty in browser.texts_now("#live-runs .card")[0] and browser.texts_now("h1") == [
            nasty
        ]
        assert browser.do("return document.querySelectorAll('img').length") == 0
        assert browser.do("return window.harmed") is None and browser.complaints() == []


def test_without_an_answer_the_page_says_so_and_keeps_its_data(browser, tmp_path):
    records.run(tmp_path, 2, total=3)
    with serving(tmp_path) as server:
        browser.open(server.url)
    browser.until(lambda: "no answer" in browser.texts_now("#asked")[0], "it never said so")
    assert len(browser.texts_now("#runs tbody tr")) == 1
    browser.complaints()  # of the question that nobody answered
