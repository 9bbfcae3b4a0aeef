"""The search of the documentation works on pages that lie on a disk, and fetches nothing."""

import shutil
import subprocess
import sys
import tomllib

import tomli_w

from tests import limits
from tests.mpirun import ROOT

TEXTS = """
const texts = root => [...root.querySelectorAll("*")].flatMap(element =>
  element.shadowRoot ? [element.shadowRoot.textContent, ...texts(element.shadowRoot)] : [])
return texts(document).join(" ")
"""


def test_search_on_a_disk_finds_a_page(browser, tmp_path):
    pages = tmp_path / "pages"
    pages.mkdir()
    for name in ("iframe-worker.js", "style.css"):
        shutil.copy(ROOT / "docs/pages" / name, pages)
    (pages / "index.md").write_text("# Home\n\nNothing here.\n")
    (pages / "other.md").write_text("# Other\n\nThe word is staleness.\n")
    config = tomllib.loads((ROOT / "docs/zensical.toml").read_text())
    config["project"]["nav"] = [{"Home": "index.md"}, {"Other": "other.md"}]
    (tmp_path / "zensical.toml").write_text(tomli_w.dumps(config))
    build = [sys.executable, "-m", "zensical", "build", "--strict", "-f", "zensical.toml"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True, timeout=limits.COMMAND)

    browser.requests()
    driver = browser.driver
    driver.get((tmp_path / "docs/index.html").as_uri())
    browser.do("document.querySelector('.md-search__button').click()")
    other = ("body", "button")
    browser.until(lambda: driver.switch_to.active_element.tag_name not in other, "no field opens")
    driver.switch_to.active_element.send_keys("staleness")
    browser.until(
        lambda: "is staleness" in browser.do(TEXTS), "the search does not find the other page"
    )
    assert browser.requests() == []
