"""`hpcfed adapt RUN --data NEW_SITE`: a client that the run did not have gets a model of its own.

It receives what a client would receive next, and personalises it as the job says: by its `[adapt]`,
or else by a client's local work in a round of the method. A share of its examples is held out, and
scores the model before and after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hpcfed.algorithms.base import RoundBased, is_plain
from hpcfed.clients.client import Client, Shard
from hpcfed.core.errors import ConfigError, DataError
from hpcfed.core.shapes import Shapes
from hpcfed.core.wording import count_noun, join_few
from hpcfed.data.datasets import TABLES
from hpcfed.data.new_examples import FILE, Examples
from hpcfed.data.table import flags, is_number, kind_name, to_column
from hpcfed.data.tables import held_out as hold_out
from hpcfed.models import files
from hpcfed.results.columns import format_metric, title_metric
from hpcfed.results.trained.from_checkpoint import Saved, from_newest
from hpcfed.results.trained.scoring import pieces
from hpcfed.storage import names
from hpcfed.storage.atomic import put
from hpcfed.tasks import Task
from hpcfed.training import adapt as training
from hpcfed.training.evaluate import answer, draws

if TYPE_CHECKING:
    from hpcfed.models.trained import Trained
    from hpcfed.storage.checkpoint import Reader

BATCH = 4096  # examples that are read at a time
FEW = 8  # classes in a message


def command(
    run: Path,
    data: Path,
    out: Path | None = None,
    name: str = "",
    how: str = "",
    epochs: int | None = None,
    lr: float | None = None,
    held_out: float = 0.2,
    missing: str | None = None,
    own: Sequence[str] | None = None,
    own_changed: bool = False,
) -> str:
    """Write the adapted model of a new client, and return its scores on its held-out examples.

    data: examples with labels, in the form of the run's data.  name: of the client; default: that
    of the data.  out: the file; default: NAME.safetensors.  how, epochs, lr: instead of the job's.
    held_out: share of the examples that is not trained on.  missing: as for `hpcfed predict`.
    own, own_changed: as for `hpcfed.load_model`.
    """
    if run.is_file() and run.suffix != names.results_file(run).suffix:
        raise ConfigError(
            f"{run}: is no run; give a run's folder, because a new client's model is made from the "
            f"run's method, job and server"
        )
    if out is not None and out.is_dir():
        raise ConfigError(f"{out}: is a folder; name the file of the adapted model as -o")
    if not 0 < held_out < 1:
        raise ConfigError(f"--held-out {held_out:g}: give a share between 0 and 1")
    folder, name = names.folder_of(run), name or data.stem
    fill = None if missing is None else missing == "fill"

    def change(job: Mapping[str, Any]) -> dict[str, Any]:
        adapts = bool(how) or job["adapt"]["how"] != "none"
        wanted = {"how": how, "lr": lr, "epochs": epochs}
        changes = {field: value for field, value in wanted.items() if value not in (None, "")}
        if adapts:
            return {**job, "adapt": {**job["adapt"], **changes}}
        local = {**job["local"], **changes}
        if epochs is not None:
            local["steps"] = None
        if lr is not None:  # that of the adaptation, and not of a schedule's first round
            local["schedule"] = "constant"
        return {**job, "local": local}

    def adapted(source: Reader) -> str:
        saved = Saved(folder, source, (), own or (), change, own_changed)
        x, y, notes = read(saved, data, fill)
        said = adapt(saved, x, y, held_out, name, out or Path(f"{name}{files.ENDING}"))
        return "\n".join([said, *(f"warning: {note}" for note in notes)])

    return from_newest(folder, adapted)


def adapt(saved: Saved, x: Any, y: np.ndarray, share: float, name: str, out: Path) -> str:
    """Adapt a model to these examples, write it, and return its scores before and after."""
    fed, task, client = saved.fed, saved.fed.task, new_client(saved, x, y, share, name)
    before = trained(saved, client, name)
    training_words = personalise(saved, client)
    after = trained(saved, client, name)
    # a threshold is chosen on validation examples, which a new client has not
    metrics = [name for name in fed.data.metrics if not task.needs([name], "threshold")]
    scores = [
        task.compute(metrics, answer(fed, model.scores, client.test, metrics)[0])
        for model in (before, after)
    ]
    put(out, files.encode(after))
    lines = [
        f"{name}: {count_noun(len(client.train), 'example')} to train on, "
        f"{len(client.test):,} held out; {client.architecture}, {training_words}",
        f"{'held-out examples':<24}{'before':>10}{'after':>10}",
    ]
    for metric, *values in zip(metrics, *scores, strict=True):
        shown = "".join(f"{format_metric(metric, value):>10}" for value in values)
        lines.append(f"{title_metric(metric):<24}{shown}")
    return "\n".join([*lines, f"{out}: the adapted model; hpcfed predict {out} NEW predicts by it"])


def new_client(saved: Saved, x: Any, y: np.ndarray, share: float, name: str) -> Client:
    """Return a client with these examples, as client K of the federation, with what it receives."""
    fed, k, cpu = saved.fed, saved.job.clients, torch.device("cpu")
    train, test = hold_out(name, fed.task.strata(y), None, share)
    architecture, counts = fed.architectures[0], fed.task.counts(y[train], fed.classes)
    fed.architectures = (*fed.architectures, architecture)
    fed.sizes = [*fed.sizes, len(train)]
    if isinstance(fed.label_counts, np.ndarray):
        fed.label_counts = np.vstack([fed.label_counts, counts])
    shape = saved.about["shape"]
    fed.modalities = (*fed.modalities, shape.names if isinstance(shape, Shapes) else ())
    client = Client(k, architecture, Shard(x, y, train, cpu), Shard(x, y, test, cpu), fed.store)
    try:
        saved.method.receive(client, saved.method.offer(fed, client, saved.state))
    except LookupError as error:
        raise ConfigError(
            f"{saved.method.name} has a model for each client, or for the clients of each cluster, "
            f"at the server, and a new client has none; hpcfed predict takes one of a client"
        ) from error
    return client


def personalise(saved: Saved, client: Client) -> str:
    """Adapt the client's model, in place, and return how, in words."""
    fed, method, job = saved.fed, saved.method, saved.job
    t = min(saved.t + 1, job.rounds - 1)  # schedules of learning rates end with the last round
    if job.adapt.how == "ewc":
        raise ConfigError("how = 'ewc' needs the run's public examples; give all, head or distil")
    plain_rounds = isinstance(method, RoundBased) and is_plain(method, "round")
    if job.adapt.how == "none" and plain_rounds:
        method.local(fed, client, saved.state, t)
        steps, epochs = job.local.steps, job.local.epochs
        amount = count_noun(steps, "step") if steps else count_noun(epochs, "epoch")
        return f"trained as a client of {method.name} in a round, {amount}"
    if job.adapt.how == "none":
        epochs = job.adapt.epochs if job.local.steps else job.local.epochs
        how = job.adapt.model_copy(update={"how": "all", "epochs": epochs})
        fed.job = job.model_copy(update={"adapt": how})
    training.adapt(fed, client, t)
    return f"adapted (how = {fed.job.adapt.how}, epochs = {fed.job.adapt.epochs})"


def trained(saved: Saved, client: Client, name: str) -> Trained:
    """Return the client's present model, as it would be evaluated."""
    client.model.eval()
    with client.borrowed(), draws(saved.fed, client):
        parts = pieces(saved.fed, client, saved.method, saved.state)
    return saved.assemble(parts, client.id, f"final/{saved.main_metric}", name)


def read(saved: Saved, data: Path, fill: bool | None) -> tuple[Any, np.ndarray, list[str]]:
    """Return inputs and labels of a new site's examples, as the run's training had them.

    Also returns what is to be said about them: `Examples.notes`.
    Labels are in the columns that the run's labels were in, in an array y, or the names of folders.
    """
    about, folder = saved.about, data.is_dir()
    encoder, classes = about["encoder"], about["classes"]
    copies = () if folder else (encoder.labels or ("y",) if data.suffix in TABLES else ("y",))
    examples = Examples(data, encoder, about["shape"], about["vocabulary"], copies, fill)
    batches = list(examples.batches(BATCH))
    parts: list[dict[str, Any]] = [dict(modality_arrays(batch.x)) for batch in batches]
    x = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    ids = {name: np.concatenate([b.ids[name] for b in batches]) for name in batches[0].ids}
    if folder:
        ids["folder"] = np.array([Path(file).parts[0] for file in ids[FILE]], object)
    columns = [ids[name] for name in copies or ["folder"]]
    where = f"{data}: {', '.join(copies) or 'folders'}"
    in_arrays = not folder and data.suffix not in TABLES
    y = to_classes(columns[0], classes, where, in_arrays) if saved.fed.task.has_classes else None
    if y is None:
        y = to_numbers(columns, saved.fed.task, where)
    return x.get("", x), y, examples.notes


def modality_arrays(x: Any) -> Mapping[str, np.ndarray]:
    """Return inputs by modality; those of one kind have the name ""."""
    return x if isinstance(x, dict) else {"": x}


def to_classes(
    values: np.ndarray, classes: Sequence[str], where: str, numbered: bool = False
) -> np.ndarray:
    """Return labels as class numbers, [n]; raises DataError for a label that is no class.

    numbered: numbers are class numbers from 0, as in arrays, whatever the classes are called.
    """
    numbered = numbered and values.dtype.kind in "biuf"
    at = {str(i) if numbered else name: i for i, name in enumerate(classes)}
    words = [
        str(v) if str(v) in at or not is_number(str(v)) else kind_name(float(v)) for v in values
    ]
    for row, word in enumerate(words):
        if word not in at:
            raise DataError(
                f"{where}: {word!r:.40} in row {row + 1} is no class of the run; these are "
                f"{join_few(list(at), FEW)}"
            )
    return np.array([at[word] for word in words], np.int64)


def to_numbers(columns: Sequence[np.ndarray], task: Task, where: str) -> np.ndarray:
    """Return labels that are numbers, as the task has them for training; raises DataError."""
    numbers = []
    for values in columns:
        words = [str(value) for value in values.ravel()] if values.ndim == 1 else None
        column = values if words is None else flags(to_column(words, ("",))[0])
        if column.dtype == object or np.isnan(column).any():
            raise DataError(f"{where}: a label is no number, as {task.labels} need")
        numbers.append(column if column.ndim > 1 else column[:, None])
    y = np.concatenate(numbers, 1)
    return task.prepare(task.check(y, len(y), where))
