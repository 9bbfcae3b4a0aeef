"""Registry of figures: each is a function of runs, imported when it is drawn.

Each has a pure function beside it that computes its numbers, as a frozen record of arrays.
"""

from hpcfed.core.errors import ConfigError, unknown
from hpcfed.core.registry import Entry


def _figure(target: str, line: str, cite: str = "") -> Entry:
    return Entry(f"hpcfed.report.figures.{target}", line, cite)


FIGURES = {
    "curves": _figure(
        "curves:figure", "accuracy over rounds, local epochs, bytes, virtual time and epsilon"
    ),
    "labels": _figure(
        "labels:figure",
        "how many examples of each class each client has: FedClassAvg, figures 2 and 3",
        "jang2022",
    ),
    "learning": _figure(
        "learning:epochs",
        "methods over local epochs, one panel per data set: FedClassAvg, figures 4 to 7",
        "jang2022",
    ),
    "bytes": _figure("learning:traffic", "methods over traffic, a panel for each data set"),
    "time": _figure("learning:seconds", "methods over virtual time, a panel for each data set"),
    "epsilon": _figure("learning:epsilon", "methods over epsilon, a panel for each data set"),
    "accuracies": _figure(
        "clients:figure", "each client's accuracy by architecture, and the means"
    ),
    "ranks": _figure(
        "ranks:figure",
        "mean ranks of methods over data sets, and which of them cannot be told apart (critical "
        "difference)",
        "demsar2006",
    ),
    "halved": _figure(
        "halved:figure",
        "accuracy over the share of clients with half of their data: FedHeNN, figure 3",
        "makhija2022",
    ),
    "phases": _figure("phases:figure", "seconds of a round by phase and rank: who waits for whom"),
    "scaling": _figure(
        "scaling:figure", "one job on several numbers of ranks: time, efficiency, phases"
    ),
    "memory": _figure("memory:figure", "peaks of the ranks' memory, of host and GPU"),
    "staleness": _figure("virtual:figure", "staleness and reports of clients over virtual time"),
    "topology": _figure(
        "topology:figure", "who talks to whom without a server, and how far they differ"
    ),
    "tsne": _figure(
        "models_tsne:figure",
        "representations of test images in a plane: FedClassAvg, figure 8",
        "jang2022,vandermaaten2008",
    ),
    "conductance": _figure(
        "models_conductance:figure",
        "on which units of the representation clients' predictions rest, and how far clients agree "
        "in that: FedClassAvg, figure 9",
        "jang2022,dhamdhere2019",
    ),
    "confusion": _figure("models:confusion", "which class clients' models confuse with which"),
    "confusion-clients": _figure(
        "models:confusion_by_client",
        "which class each client's model confuses with which, on its own test examples",
    ),
    "reliability": _figure(
        "reliability:figure",
        "accuracy over confidence, where a run has measured ece: how far probabilities can be "
        "trusted",
        "guo2017",
    ),
    "cka": _figure(
        "models:cka", "similarity of clients' representations, over rounds", "kornblith2019"
    ),
}
ALL = "all"
PAPERS = {  # a figure of a paper, by its number
    **dict.fromkeys(("fedclassavg-2", "fedclassavg-3"), "labels"),
    **dict.fromkeys((f"fedclassavg-{number}" for number in (4, 5, 6, 7)), "learning"),
    "fedclassavg-8": "tsne",
    "fedclassavg-9": "conductance",
    "fedhenn-3": "halved",
}


def select_figures(text: str) -> list[str]:
    """Return the names in a list with commas, `all` for each figure.

    Raises ConfigError for an unknown one.
    """
    if text == ALL:
        return list(FIGURES)
    names = [PAPERS.get(name, name) for name in text.split(",")]
    for name in names:
        if name not in FIGURES:
            raise ConfigError(
                unknown("figure", name, [*FIGURES, *PAPERS, ALL], "hpcfed list figures")
            )
    return list(dict.fromkeys(names))
