"""The page of figures: each with what it shows, the command that draws it, and a picture where the
gallery has one.
"""

from collections.abc import Iterator
from pathlib import Path

from text import table

from hpcfed.report.figures.registry import FIGURES, PAPERS

GALLERY = Path(__file__).parent / "pages" / "gallery"
HEAD = """# Figures

Each is drawn from result files alone, during a run or later, for one run or a hundred; those
of trained models ask the models in the newest checkpoint. Sweeps may stand for their runs. In
`curves`, `learning`, `bytes`, `time`, `accuracies` and `halved` runs that differ in the seed alone
are one line, and in all of these but `curves` those whose data differ make panels; `labels` has a
panel for each way in which data were shared out; in the others each run has a
line or a panel of its own. Beside finished runs of one line, an unfinished one is a curve of its
own, named so; `accuracies` and `halved`, which draw last rounds, leave it out, and the command
names it. What runs cannot give is one message, and `all` leaves it out.

```sh
hpcfed plot runs/first runs/alone --figure learning,accuracies -o figures.png
hpcfed plot runs/first --figure all --format pdf
```

For a paper: `--size 3.4x2.3` (inches), `--title`, `--fonts serif` or a font's name, and
`--names fedavg=FedAvg,mine:Mine=Ours`; fonts are embedded in PDF as TrueType. `--band seeds` or
`--band clients` says over what a band's standard deviation is; by default over seeds, if a line has
several. A method has one colour in every figure and page, and one place in the order; the variants
of a method differ in dashes and tint, and if all lines are of one method, in colour.

## Which figure answers which question
"""
PICTURES = """
The pictures here come from jobs of this project on Fashion-MNIST: `make gallery` makes the runs and
draws them anew.
"""

QUESTIONS = (  # the question, the figures, of which runs; {name}: a link to a figure
    (
        "whether a run has converged, and how long it took",
        "{curves}",
        "one or several",
    ),
    (
        "which method is better, over seeds and data sets",
        "{learning}; with intervals: `hpcfed compare` and `hpcfed report`",
        "all seeds of all methods",
    ),
    (
        "which methods are better over many data sets, and which cannot be told apart",
        "{ranks}",
        "the same, on at least two data sets",
    ),
    (
        "which method needs less traffic, or less time on the clients' own devices",
        "{bytes}, {time}",
        "the same",
    ),
    (
        "who gains and who loses, and which architecture does",
        "{accuracies}",
        "the same",
    ),
    (
        "how skewed the clients' data are",
        "{labels}",
        "one for each partition",
    ),
    (
        "which classes are confused",
        "{confusion}",
        "one or several, with a checkpoint",
    ),
    (
        "whether clients come to represent inputs alike",
        "{cka} over rounds, {tsne} of single inputs",
        "the same; for rounds keep checkpoints (`checkpoint.keep`)",
    ),
    (
        "whether clients rest their predictions on the same units",
        "{conductance}",
        "the same",
    ),
    (
        "what poor clients gain, as in FedHeNN",
        "{halved}",
        "runs with several `data.halve`",
    ),
    (
        "where the wall time goes, and who waits for whom",
        "{phases}; the page of `hpcfed report` has the time of each round",
        "one or several",
    ),
    (
        "how much faster more ranks are",
        "{scaling}; with a table: `hpcfed scaling`",
        "one job on several numbers of ranks",
    ),
    (
        "how many ranks a node has memory for",
        "{memory}",
        "one or several",
    ),
    (
        "how stale updates are without rounds",
        "{staleness}",
        "of FedAsync or SWIFT",
    ),
    (
        "how far clients without a server are apart",
        "{topology}",
        "of D-SGD or SWIFT",
    ),
)
READ = {  # how to read it, where the picture alone does not say
    "labels": "The area of a dot is the number of training examples; three sizes are explained "
    "above each panel.",
    "ranks": "Methods are ranked on each data set by their mean over clients and seeds, 1 is the "
    "best. Methods that a bar joins differ by less than Nemenyi's critical difference at 5 % "
    "(Demšar, 2006). Data sets are those that have a panel of their own in `learning`; methods "
    "that are not on all of them are left out, and so are unfinished runs; `hpcfed plot` names "
    "both.",
    "phases": "All panels have one scale. *Other* is what no phase counts.",
    "memory": "Left the highest peak of each rank; right the peak so far, a line for the rank with "
    "the highest and a band down to the one with the lowest.",
    "conductance": "Of all runs all clients are asked about the same images, those of an "
    "architecture side by side. Above, one image: a column for each client, a row for each unit, "
    "or for several that are neighbours in the order of their mean rank; the colour is the rank of "
    "a unit's conductance among those of its client. Where clients agree, columns get lighter "
    "downwards; where they do not, they are even. Below, the correlation of these ranks for each "
    "two clients, mean over four images of different classes; the mean over pairs of the same and "
    "of different architectures stands above.",
}


def page() -> str:
    """The whole page."""
    links = {name: f"[`{name}`](#{name})" for name in FIGURES}
    rows = [[cell.format(**links) for cell in row] for row in QUESTIONS]
    asked = table(("you want to know", "figure", "runs to give"), rows)
    return "\n".join([HEAD, asked, PICTURES, *(line for name in FIGURES for line in part(name))])


def part(name: str) -> Iterator[str]:
    """One figure."""
    line = FIGURES[name].line
    numbers = [f"`{paper}`" for paper, figure in PAPERS.items() if figure == name]
    yield f"## {name}\n"
    yield (
        f"{line[0].upper()}{line[1:]}."
        + (f" Also by the name {', '.join(numbers)}." if numbers else "")
        + "\n"
    )
    if name in READ:
        yield f"{READ[name]}\n"
    if (GALLERY / f"{name}.png").exists():
        yield f"![{line}](gallery/{name}.png)\n"
