"""Make the pages of the documentation, before it is built: those of docs/pages, and those that are
made of hpcfed itself, so that nothing of them is written down twice.

    python docs/generate.py FOLDER    # FOLDER/pages and FOLDER/zensical.toml; the site will be
    FOLDER/docs

A page of the navigation that is not in docs/pages is one of PAGES or a file of the repository
(jobs/README.md).
"""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import api
import choosing
import commands
import fields
import figures
import methods
import registries
import tomli_w

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
}
EVIDENCE = [
    f"benchmarks/results/evidence/{name}/curves.png" for name in ("cifar10", "fashion-mnist")
]
ACCURACY = ["benchmarks/results/accuracy/curves.png"]
ATTACKS = ["benchmarks/results/attacks/table.png"]
UPLOADS = [f"benchmarks/results/uploads/{name}.png" for name in ("privacy", "compression")]
# once two cells of the study are complete
STUDY = [path for path in ["benchmarks/results/study/ranks.png"] if (ROOT / path).is_file()]
PICTURES = {"pictures/demo.png": "benchmarks/results/demo/curves.png"} | {
    path: path for path in (*EVIDENCE, *ACCURACY, *ATTACKS, *UPLOADS, *STUDY)
}


def generate(folder: Path) -> None:
    """Write all pages and the configuration of their build.

    ValueError if a page is in no place of the navigation, or if the navigation names a page that
    does not exist.
    """
    config = tomllib.loads((ROOT / "docs/zensical.toml").read_text())
    project = config["project"]
    project["nav"] = [
        {title: category_pages() if part == "ALGORITHMS" else part for title, part in entry.items()}
        for entry in project["nav"]
    ]
    pages = folder / project["docs_dir"]
    for previous in (pages, folder / project["site_dir"]):
        shutil.rmtree(previous, ignore_errors=True)
    shutil.copytree(ROOT / "docs/pages", pages, ignore=shutil.ignore_patterns("__pycache__"))
    for uri, make in PAGES.items():
        write(pages / uri, make().encode())
    run_cases(pages)
    for name in ALGORITHMS:
        write(pages / f"algorithms/{name}.md", methods.page(name).encode())
    copies = {path.relative_to(ROOT).as_posix() for path in (ROOT / "jobs").rglob("*.toml")}
    copies |= {uri for uri in named(project["nav"]) if not (pages / uri).exists()}
    for uri, source in ({uri: uri for uri in sorted(copies)} | PICTURES).items():
        if not (ROOT / source).is_file():
            raise ValueError(f"docs/zensical.toml: nav names {source}, which is no page or file")
        write(pages / uri, (ROOT / source).read_bytes())
    every = {path.relative_to(pages).as_posix() for path in pages.rglob("*.md")}
    if omitted := sorted(every - set(named(project["nav"]))):
        raise ValueError(f"docs/zensical.toml: nav does not have {', '.join(omitted)}")
    write(folder / "zensical.toml", tomli_w.dumps(config).encode())


def run_cases(pages: Path) -> None:
    """Write the pages of the worked cases and notebooks, with what they print and draw."""
    subprocess.run(
        [sys.executable, ROOT / "docs/cases.py", pages],
        env=os.environ | {"MPLBACKEND": "Agg", "COLUMNS": "100"},
        check=True,
    )


def category_pages() -> list[dict[str, Any]]:
    """The methods' pages in the navigation, by category."""
    return [
        {"All methods": "algorithms/index.md"},
        *(
            {title: [{methods.title(n): f"algorithms/{n}.md"} for n in entries]}
            for title, entries in by_kind().items()
        ),
    ]


def write(path: Path, content: bytes) -> None:
    """Write a file, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def named(nav: Any) -> Iterator[str]:
    """The pages that a navigation names."""
    if isinstance(nav, str):
        yield nav
    for part in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from named(part)


if __name__ == "__main__":
    generate(Path(sys.argv[1]))
