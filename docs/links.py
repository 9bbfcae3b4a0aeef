"""Check that each relative link and picture of the built pages leads to a file.

    python docs/links.py FOLDER    # lists those that do not, and exits with status 1

The strict build itself checks links to pages and to their anchors; not pictures, other files and
links in HTML.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Targets(HTMLParser):
    """The values of all href and src attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.urls += [value for name, value in attrs if name in ("href", "src") and value]


def broken(folder: Path) -> list[str]:
    """Return "page: target" of each link whose target does not exist."""
    lines = []
    for page in sorted(folder.rglob("*.html")):
        if page.name == "404.html":  # its links are those of a server's root
            continue
        targets = Targets()
        targets.feed(page.read_text())
        for url in targets.urls:
            parts = urlsplit(url)
            local = parts.path and not parts.scheme and not parts.netloc
            if local and not (page.parent / unquote(parts.path)).exists():
                lines.append(f"{page.relative_to(folder)}: {url}")
    return lines


if __name__ == "__main__":
    problems = broken(Path(sys.argv[1]))
    print(*problems, sep="\n", end="\n" if problems else "")
    sys.exit(bool(problems))
