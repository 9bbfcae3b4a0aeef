"""A headless Chromium for tests, driven by Selenium."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import limits

PROGRAMS = ("chromium", "chromedriver")
PACKAGES = ("chromium", "chromium-driver")  # of Debian
LOCAL = ("file:", "data:", "blob:", "chrome:", "about:")
LIMIT = limits.COMMAND  # seconds for whatever is waited for


class Browser:
    """One window. Downloads land in a folder of its own."""

    def __init__(self, folder: Path):
        from selenium.webdriver import Chrome, ChromeOptions
        from selenium.webdriver.chrome.service import Service

        self.folder = folder
        options = ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for word in (
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            f"--user-data-dir={folder}/user",
        ):
            options.add_argument(word)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = Chrome(options, Service(shutil.which("chromedriver")))
        self.driver.set_page_load_timeout(LIMIT)
        self.driver.execute_cdp_cmd(
            "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)}
        )

    def open(self, page: Path | str) -> None:
        """Open a page, by its file or its address, and wait until it has drawn itself."""
        self.requests(), self.complaints()
        self.driver.get(page if isinstance(page, str) else page.resolve().as_uri())
        self.until(
            lambda: self.do("return document.documentElement.dataset.ready") == "yes",
            "the page is not drawn",
        )

    def do(self, script: str, *values: Any) -> Any:
        """What a piece of JavaScript returns; a promise is waited for."""
        return self.driver.execute_script(script, *values)

    def click(self, selector: str) -> None:
        self.driver.find_element("css selector", selector).click()

    def texts(self, selector: str) -> list[str]:
        return [element.text for element in self.driver.find_elements("css selector", selector)]

    def texts_now(self, selector: str) -> list[str]:
        """The same in one step, of a page whose elements may be replaced meanwhile."""
        return self.do(
            "return [...document.querySelectorAll(arguments[0])].map(one => one.innerText.trim())",
            selector,
        )

    def until(self, true: Callable[[], Any], complaint: str) -> Any:
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, LIMIT, poll_frequency=0.05).until(
            lambda _: true(), complaint
        )

    def downloaded(self, name: str) -> str:
        """The text of a file that a click makes. It is taken away, so that the next one of its name
        is not mistaken for it.
        """
        path = self.folder / name
        self.until(path.exists, f"no file {name}")
        text = path.read_text()
        path.unlink()
        return text

    def complaints(self) -> list[str]:
        """What the console got since the last call, but for what is only told."""
        return [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] in ("SEVERE", "WARNING")
        ]

    def requests(self) -> list[str]:
        """Addresses outside of the page that the browser asked for since the last call."""
        events = (
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        )
        asked = [
            e["params"]["request"]["url"]
            for e in events
            if e["method"] == "Network.requestWillBeSent"
        ]
        return [address for address in asked if not address.startswith(LOCAL)]

    def close(self) -> None:
        self.driver.quit()
