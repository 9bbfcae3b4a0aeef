"""`hpcfed predict RUN DATA`: predictions of a trained model for new examples, as CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcfed.core.errors import ConfigError
from hpcfed.core.paths import output
from hpcfed.core.wording import count_noun
from hpcfed.models import files
from hpcfed.models.predictions import Ensemble, examples_for, predict
from hpcfed.models.trained import GLOBAL
from hpcfed.results.export import cells
from hpcfed.results.trained.load import load_model
from hpcfed.storage.atomic import instead

if TYPE_CHECKING:
    from hpcfed.models.trained import Trained

FILL = "fill"


def command(
    run: Path,
    data: Path,
    out: Path,
    model: str = "",
    client: str | None = None,
    id: str = "",
    missing: str | None = None,
    own: Sequence[str] | None = None,
    own_changed: bool = False,
) -> str:
    """Write predictions for new examples, and return a message that says by which model.

    run: folder of a run, or a file of a trained model.  data: as `Examples.source`.
    model: common, ensemble, or "": common if the run has a global model, else ensemble.
    client: number or name of the client whose model predicts.
    own, own_changed: as for `hpcfed.load_model`.
    id: a column that passes through.  missing: fill or refuse; None: as in training.
    """
    if out.exists() and out.resolve() == data.expanduser().resolve():
        raise ConfigError(f"{out}: holds the examples; choose another place with -o")
    chosen = load_model(run, client, own or (), model, own_changed)
    models = [*chosen.models] if isinstance(chosen, Ensemble) else [chosen]
    fill = None if missing is None else missing == FILL
    examples = examples_for(models[0].about, data, id, fill)
    n = 0
    with (
        output(out, "the predictions"),
        instead(out) as new,
        open(new, "w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        for part in predict(models, examples):
            if not n:
                writer.writerow(part)
            rows = list(zip(*map(cells, part.values()), strict=True))
            writer.writerows(rows)
            n += len(rows)
    message = f"{out}: predictions for {count_noun(n, 'example')} by {describe(run, chosen)}"
    return "\n".join([message, *(f"warning: {note}" for note in examples.notes)])


def describe(run: Path, model: Trained | Ensemble) -> str:
    """Return which model this is, and how to choose another one."""
    about = model.about
    if isinstance(model, Ensemble):
        who, others = f"the ensemble of all {len(model.models)} clients' models", "--client NAME"
    elif about.client == GLOBAL:
        who, others = "the global model", "--client NAME or --model ensemble"
    else:
        who = f"the model of client {about.client}" + (f" ({about.name})" if about.name else "")
        who += ", as it would receive it," if about.counted.endswith("_received") else ""
        others = "--model ensemble"
    choice = "" if run.suffix == files.ENDING else f"; {others} takes another one"
    return f"{who} of {run} {about.moment}{choice}"
