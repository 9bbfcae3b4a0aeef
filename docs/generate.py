"""MkDocs asks here for the pages that are made of hpcfed itself: nothing of them is written down
twice.

A page of the navigation that is not in docs/pages is a file of the repository (jobs/README.md), or
one of PAGES.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import api
import choosing
import commands
import fields
import figures
import methods
import notebooks
import registries
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from hpcfed.algorithms import ALGORITHMS
from hpcfed.config.methods import by_kind

ROOT = Path(__file__).parents[1]
PAGES = {
    "reference/job.md": fields.page,
    "reference/commands.md": commands.page,
    "reference/datasets.md": registries.datasets,
    "reference/partitions.md": registries.partitions,
    "reference/tasks.md": registries.tasks,
    "reference/models.md": registries.models,
    "choosing.md": choosing.page,
    "figures.md": figures.page,
    "extend/hooks.md": api.page,
    "algorithms/index.md": methods.index,
    "notebooks/first.md": partial(notebooks.page, "first"),
    "notebooks/own.md": partial(notebooks.page, "own"),
}
EVIDENCE = [
    f"benchmarks/results/evidence/{name}/curves.png" for name in ("cifar10", "fashion-mnist")
]
PICTURES = {"pictures/demo.png": "benchmarks/results/demo/curves.png"} | {p: p for p in EVIDENCE}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the methods' pages into the navigation."""
    pages = [
        {"All methods": "algorithms/index.md"},
        *(
            {title: [{methods.title(n): f"algorithms/{n}.md"} for n in entries]}
            for title, entries in by_kind().items()
        ),
    ]
    config.nav = [
        {t: pages if part == "ALGORITHMS" else part for t, part in entry.items()}
        for entry in config.nav
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add all pages, pictures and job files that are not in docs/pages."""
    for uri, make in PAGES.items():
        files.append(File.generated(config, uri, content=make()))
    for name in ALGORITHMS:
        files.append(File.generated(config, f"algorithms/{name}.md", content=methods.page(name)))
    jobs = {path.relative_to(ROOT).as_posix() for path in (ROOT / "jobs").rglob("*.toml")}
    known = {file.src_uri for file in files}
    own = {uri for uri in named(config.nav) if uri not in known} | jobs
    for uri, path in ({uri: uri for uri in sorted(own)} | PICTURES).items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return files


def named(nav: Any) -> Iterator[str]:
    """The pages that a navigation names."""
    if isinstance(nav, str):
        yield nav
    for part in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from named(part)
