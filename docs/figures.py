"""The page of figures: each with what it shows, the command that draws it, and a picture where the
gallery has one.
"""

from collections.abc import Iterator
from pathlib import Path

from hpcfed.figures.registry import FIGURES, PAPERS

GALLERY = Path(__file__).parent / "pages" / "gallery"
HEAD = """# Figures

Each is drawn from result files alone, while a run goes on or later, for one run or a hundred; those
of trained models ask the models in the newest checkpoint. Sweeps may stand for their runs. In
`learning`, `bytes`, `time`, `accuracies` and `halved` runs that differ in the seed alone are one
line, and those whose data differ make panels; `labels` has a panel for each way in which data were
shared out; in the others each run has a line or a panel of its own. What runs cannot give is one
message, and `all` leaves it out.

```sh
hpcfed plot runs/first runs/alone --figure learning,accuracies -o figures.png
hpcfed plot runs/first --figure all --format pdf
```

The pictures here come from jobs of this project on Fashion-MNIST: `make gallery` makes the runs and
draws them anew.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(line for name in FIGURES for line in part(name))])


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
    if (GALLERY / f"{name}.png").exists():
        yield f"![{line}](gallery/{name}.png)\n"
