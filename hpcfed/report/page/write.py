"""The page as text: template, style, scripts and data in one file without external resources.

Its content security policy lets the browser load nothing, and run only scripts whose hashes it
names; so a name in a job that looks like a script stays a name.
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
    """Return the complete page.

    data: JSON-able, for its scripts.
    above, below: rendered sections.
    words: texts for the template.
    """
    pieces = {
        "style": part("page.css"),
        "scripts": scripts(),
        "policy": policy(live),
        "data": plain(data),
        "above": above,
        "below": below,
    }
    trusted = {
        name: [*map(markup, text)] if isinstance(text, tuple) else markup(str(text))
        for name, text in pieces.items()
    }
    return template("page.html").render(**words, live=live, **trusted)


def markup(text: str) -> Any:
    """Return a text that a template takes as HTML."""
    from markupsafe import Markup

    return Markup(text)


def section(name: str, **words: Any) -> str:
    """Return a part of the page that the script replaces when its numbers change."""
    return template(name).render(**words)


@cache
def template(name: str) -> Any:
    """Return a template that escapes its values as text, and may include others."""
    from jinja2 import Environment, FunctionLoader

    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, loader=FunctionLoader(part)
    )
    return environment.get_template(name)


@cache
def scripts() -> tuple[str, str]:
    """Return Bokeh's script, and the page's own."""
    from bokeh.resources import Resources

    bokeh = "".join(Resources(mode="inline", components=["bokeh"], log_level="error").js_raw)
    return bokeh, "".join(map(part, SCRIPTS))


@cache
def policy(live: bool) -> str:
    """Return the content security policy. live: whether the page may connect to its server."""
    hashes = " ".join(map(digest, scripts()))
    asks = "; connect-src 'self'" if live else ""
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        f"img-src data: blob:; base-uri 'none'; form-action 'none'{asks}"
    )


def part(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")


def digest(script: str) -> str:
    """Return the hash of a script in the format of the policy."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


def plain(data: Any) -> str:
    """Return JSON that cannot end the element that contains it, for any name of a run."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", r"\u003c")


def check(command: str = "report") -> None:
    """Raise ConfigError if a library that only this command needs is missing."""
    for name in ("bokeh", "jinja2"):
        import_extra(name, "report", command)
