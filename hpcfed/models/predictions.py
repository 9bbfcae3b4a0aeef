"""Predictions of trained models for new examples, in the batches in which runs evaluate."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from hpcfed.core import rng
from hpcfed.core.errors import DataError
from hpcfed.core.shapes import each
from hpcfed.data.new_examples import Examples
from hpcfed.data.table import is_frame
from hpcfed.models.trained import GLOBAL

if TYPE_CHECKING:
    from hpcfed.models.trained import About, Trained

BATCH = 64  # examples, for a model whose job is unknown
Table = dict[str, np.ndarray]


def examples_for(about: About, source: Any, id: str = "", fill: bool | None = None) -> Examples:
    """Return new examples as a model takes them; see `hpcfed.data.new_examples.Examples`.

    id: name of a column that passes through.
    """
    copies = (id,) if id else ()
    return Examples(source, about.encoder, about.shape, about.vocabulary, copies, fill)


def predict(models: Sequence[Trained], examples: Examples) -> Iterator[Table]:
    """Yield predictions of a batch of examples after the other, as columns.

    Those of several models are the mean of their probabilities, or of the numbers that they
    predict. Raises DataError if a column that passes through has the name of one of these.
    """
    about, task = models[0].about, models[0].task
    job = about.job
    for i, batch in enumerate(examples.batches(job.get("evaluate", {}).get("batch", BATCH))):
        x = each(batch.x, torch.from_numpy)
        with (
            torch.no_grad(),
            threads(job.get("run", {}).get("threads", 1)),
            rng.scoped(job.get("seed", 0), "predict", i, everywhere=True),  # for models that draw
        ):
            soft = mean_soft(models, x).numpy()
        columns = task.report(soft, about.labels)
        for name in batch.ids.keys() & columns.keys():
            raise DataError(
                f"the column {name!r} of the examples passes through, but predictions have a "
                f"column of this name; rename it in the examples, or name another one as --id"
            )
        yield batch.ids | columns


def mean_soft(models: Sequence[Trained], x: Any) -> Tensor:
    """Return what several models predict in the mean, [n, C], float64."""
    outputs = [model.task.soft(model.scores(model.prepare(x))) for model in models]
    return outputs[0] if len(outputs) == 1 else torch.stack(outputs).mean(0)


def predict_all(models: Sequence[Trained], source: Any, id: str, fill: bool | None) -> Any:
    """Return all predictions as columns, or for a DataFrame as one with the same index.

    Values that were filled in, and images of another scale, are warned of.
    """
    examples = examples_for(models[0].about, source, id, fill)
    parts = list(predict(models, examples))
    for note in examples.notes:
        warnings.warn(note, stacklevel=3)  # where the user calls `predict` of a model
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if not is_frame(source):
        return columns
    return type(source)({n: v for n, v in columns.items() if n != "row"}, index=source.index)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Compute with this number of threads, on which bits may depend."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Ensemble(nn.Module):
    """Several clients' trained models, of which the mean of the predictions is taken.

    forward: inputs as `Trained` takes them -> probabilities, or the numbers that are predicted.
    about: that of the first model, without client.
    """

    def __init__(self, models: Sequence[Trained]):
        super().__init__()
        self.models = nn.ModuleList(models)
        self.about = replace(models[0].about, client=GLOBAL, name="")

    def forward(self, x: Any) -> Tensor:
        return mean_soft(list(self.models), x)  # type: ignore[arg-type]

    def predict(self, source: Any, id: str = "", fill: bool | None = None) -> Any:
        """Return predictions of new examples; see `Trained.predict`."""
        return predict_all(list(self.models), source, id, fill)  # type: ignore[arg-type]
