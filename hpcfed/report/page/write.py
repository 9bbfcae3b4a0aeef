"""The page as text: template, style, scripts and data in one file that asks no other host for
anything.

Its content security policy lets the browser load nothing, and run no script but those whose hashes
it names; so a name in a job that looks like a script stays a name.
"""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import Any

from hpcfed.core.extras import import_extra

SCRIPTS = ("data.js", "tables.js", "curves.js", "csv.js", "page.js")
FILES = files("hpcfed.report.page") / "files"


def page(data: dict[str, Any], **words: Any) -> str:
    """The whole page. data: what its scripts read, JSON-able.  words: what the template shows, as
    text.
    """
    from bokeh.resources import Resources
    from jinja2 import Environment
    from markupsafe import Markup

    bokeh = "".join(Resources(mode="inline", components=["bokeh"], log_level="error").js_raw)
    scripts = [bokeh, "".join(map(part, SCRIPTS))]
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        part("page.html")
    )
    own = {
        "style": part("page.css"),
        "scripts": scripts,
        "hashes": " ".join(map(digest, scripts)),
        "data": plain(data),
    }
    trusted = {
        name: [*map(Markup, text)] if isinstance(text, list) else Markup(text)
        for name, text in own.items()
    }
    return template.render(**words, **trusted)


def part(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")


def digest(script: str) -> str:
    """A script as the policy names it."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


def plain(data: Any) -> str:
    """JSON that cannot end the element that it stands in, whatever a user has called a run."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", r"\u003c")


def check() -> None:
    """ConfigError where a library that only this needs is missing."""
    for name in ("bokeh", "jinja2"):
        import_extra(name, "report", "report")
