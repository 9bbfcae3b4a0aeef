"""The page as text: template, style, scripts and data in one file that asks no other host for
anything.

Its content security policy lets the browser load nothing, and run no script but those whose hashes
it names; so a name in a job that looks like a script stays a name.
"""

from __future__ import annotations

import json
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from hpcfed.core.optional_imports import import_extra

SCRIPTS = ("data.js", "tables.js", "curves.js", "csv.js", "live.js", "page.js")
FILES = files("hpcfed.report.page") / "files"


def page(data: dict[str, Any], above: str, below: str, live: bool, **words: Any) -> str:
    """The whole page.

    data: what its scripts read, JSON-able.  above, below: sections that were rendered before.
    words: what the template shows, as text.
    """
    from markupsafe import Markup

    own = {
        "style": part("page.css"),
        "scripts": scripts(),
        "policy": policy(live),
        "data": plain(data),
        "above": above,
        "below": below,
    }
    trusted = {
        name: [*map(Markup, text)] if isinstance(text, tuple) else Markup(text)
        for name, text in own.items()
    }
    return template("page.html").render(**words, live=live, **trusted)


def section(name: str, **words: Any) -> str:
    """A part of the page that the script replaces when its numbers change."""
    return template(name).render(**words)


@cache
def template(name: str) -> Any:
    """A template that takes what it shows for text, never for HTML."""
    from jinja2 import Environment

    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        part(name)
    )


@cache
def scripts() -> tuple[str, str]:
    """Bokeh's script, and the page's own."""
    from bokeh.resources import Resources

    bokeh = "".join(Resources(mode="inline", components=["bokeh"], log_level="error").js_raw)
    return bokeh, "".join(map(part, SCRIPTS))


@cache
def policy(live: bool) -> str:
    """The content security policy. live: the page may ask the server that it came from."""
    hashes = " ".join(map(digest, scripts()))
    asks = "; connect-src 'self'" if live else ""
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        f"img-src data: blob:; base-uri 'none'; form-action 'none'{asks}"
    )


def part(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")


def digest(script: str) -> str:
    """A script as the policy names it."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


def plain(data: Any) -> str:
    """JSON that cannot end the element that it stands in, whatever a user has called a run."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", r"\u003c")


def check(command: str = "report") -> None:
    """ConfigError where a library that only this needs is missing."""
    for name in ("bokeh", "jinja2"):
        import_extra(name, "report", command)
