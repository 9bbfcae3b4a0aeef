"""The figures that there are: each a function of runs, imported when it is drawn.

Beside each function stands a pure one that computes its numbers, as a frozen record of arrays.
"""

from hpcfed.errors import ConfigError, unknown
from hpcfed.registry import Entry

FIGURES = {
    "curves": Entry("hpcfed.figures.curves:figure", "accuracy over rounds, local epochs, bytes and virtual time"),
    "labels": Entry("hpcfed.figures.labels:figure", "how many examples of each class each client has", "jang2022"),
}
ALL = "all"
PAPERS = {"fedclassavg-2": "labels", "fedclassavg-3": "labels"}  # a figure of a paper, by its number


def chosen(text: str) -> list[str]:
    """The names in a list with commas, `all` for each there is. ConfigError for an unknown one."""
    if text == ALL:
        return list(FIGURES)
    names = [PAPERS.get(name, name) for name in text.split(",")]
    for name in names:
        if name not in FIGURES:
            raise ConfigError(unknown("figure", name, [*FIGURES, *PAPERS, ALL]))
    return list(dict.fromkeys(names))
