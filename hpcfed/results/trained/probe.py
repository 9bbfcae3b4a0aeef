"""`hpcfed probe RUN`: predictions of all clients' trained models for the same test examples.

They are written beside the run. For figures 8 and 9 of Jang et al. (FedClassAvg), ICPP 2022,
sections 5.2 and 5.3, and for comparisons of clients.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpcfed.core import rng
from hpcfed.core.errors import CheckpointError, ConfigError
from hpcfed.core.inputs import pieces
from hpcfed.core.optional_imports import import_extra
from hpcfed.core.progress import say, track
from hpcfed.core.shapes import Shapes, each
from hpcfed.core.wording import count_noun, evenly
from hpcfed.data.dataset import Split
from hpcfed.models.trained import Trained
from hpcfed.results.trained.export import numbers
from hpcfed.results.trained.from_checkpoint import Saved, from_newest
from hpcfed.storage import checkpoint, names, probe
from hpcfed.storage.checkpoint import Reader
from hpcfed.storage.checksum import identity
from hpcfed.storage.probe import Probe
from hpcfed.training.similarity import pairwise_cka

STEPS = 50  # steps of the path from the baseline to the image, for conductance
IMAGES = 4  # images for conductance, each of another class
EXAMPLES = 1000  # examples of the test split, as in the paper
MOST = 100  # clients at most; of more a random sample
FIGURES = 20  # the same for figures, which should not take long
PANELS = 4  # checkpoints whose clients are compared
BATCH = 256


def command(
    run: Path,
    examples: int = EXAMPLES,
    clients: str | None = None,
    own: Sequence[str] | None = None,
    own_changed: bool = False,
) -> str:
    """Write the probe of a run, and return a message about it.

    own, own_changed: as for `hpcfed.load_model`.
    Raises CheckpointError if the run has no undamaged checkpoint.
    """
    folder = names.folder_of(run)
    result = make(folder, examples, numbers(clients), allowed=own or (), own_changed=own_changed)
    path = probe.write(folder, result)
    n, about = (
        len(result.clients),
        f"{result.header['moment']}, {len(result.rows):,} test examples",
    )
    return f"{path}: {count_noun(n, 'client')} {about}"


def anew(run: Path) -> Probe:
    """Make, write and return the probe of a run for its figures.

    With many clients it takes a random sample of them, and prints that.
    """
    result = make(run, most=FIGURES)
    n, K = len(result.clients), result.header["of"]
    if n < K:
        say(
            f"{run}: {n} of {count_noun(K, 'client')} were drawn for figures of models; "
            f"`hpcfed probe {run}` takes up to {MOST}, `--clients 0,3,...` those named"
        )
    probe.write(run, result)
    return result


def make(
    run: Path,
    examples: int = EXAMPLES,
    clients: Sequence[int] | None = None,
    most: int = MOST,
    allowed: Collection[str] = (),
    own_changed: bool = False,
) -> Probe:
    """Return the predictions of the run's newest models.

    clients: None for all, or for a random sample of `most` if there are more.
    allowed: method and models outside hpcfed that may be imported.
    own_changed: whether their code may differ from that of the run.
    """
    if examples < 1:
        raise ConfigError(f"--examples {examples}: take at least 1")
    return from_newest(
        run,
        lambda source: Probing(run, source, examples, clients, most, allowed, own_changed).probe(),
    )


class Probing:
    """Evaluation of one checkpoint's models on the same examples."""

    def __init__(
        self,
        run: Path,
        source: Reader,
        examples: int,
        clients: Sequence[int] | None,
        most: int = MOST,
        allowed: Collection[str] = (),
        own_changed: bool = False,
    ):
        self.run, self.source = run, source
        self.allowed, self.own_changed = allowed, own_changed
        self.saved = Saved(run, source, clients, allowed, own_changed=own_changed)
        self.ks = some(self.saved, most) if clients is None else self.saved.clients
        test = self.saved.sources.test
        draw = rng.stream(self.saved.job.seed, "probe")
        self.rows = np.sort(draw.choice(len(test.y), min(examples, len(test.y)), replace=False))
        shape, self.classes = self.saved.about["shape"], self.saved.fed.task.has_classes
        none = np.zeros(0, np.int64)
        self.x, self.labels = tensors(test, self.rows), test.y[self.rows] if self.classes else none
        tokens, several = self.saved.about["vocabulary"], isinstance(shape, Shapes)
        images = self.classes and not tokens and not several and len(shape) == 3
        self.images = choose_images(test.y) if images else none
        self.image_x = tensors(test, self.images)
        self.image_labels = test.y[self.images] if images else none

    def probe(self) -> Probe:
        """Return the results of all clients."""
        models = track(self.ks, f"probing {count_noun(len(self.ks), 'model')}")
        results = [self.of_client(self.saved.model(k)) for k in models]
        representations, predictions, image_predictions, conductances = zip(*results, strict=True)
        rounds, tables = self.alike(list(representations))
        return Probe(
            header=self.header(),
            clients=np.array(self.ks),
            rows=self.rows,
            labels=self.labels,
            predictions=np.stack(predictions),
            representations=[z.numpy() for z in representations],
            images=self.images,
            image_labels=self.image_labels,
            image_predictions=np.stack(image_predictions),
            conductance=list(conductances),
            rounds=rounds,
            cka=tables,
        )

    def answers(self, saved: Saved, what: str) -> list[tuple[Tensor, np.ndarray]]:
        """Return representations and predictions of each client's model in one checkpoint."""
        return [answers(saved.model(k), self.x) for k in track(self.ks, what)]

    def header(self) -> dict[str, object]:
        kinds = self.saved.fed.architectures
        about = {
            "architectures": [kinds[k] for k in self.ks],
            "classes": list(self.saved.about["classes"]),
            "client_names": [self.saved.names[k] for k in self.ks] if self.saved.names else [],
            "of": self.saved.job.clients,
        }
        about |= {"rounds": self.source.rounds, "moment": self.saved.moment}
        return about | {"checkpoint": identity(self.source.path)}

    def of_client(self, model: Trained) -> tuple[Tensor, np.ndarray, np.ndarray, np.ndarray]:
        """Return one client's representations [N, d] and predictions [N].

        Also returns predictions [M] and conductances [M, d] for the images that all runs share;
        conductances are nan for a model that does not predict by its body as a whole.
        """
        z, predictions = answers(model, self.x)
        predictions = predictions if self.classes else predictions[:0]
        if not len(self.images):
            return z, predictions, predictions[:0], np.zeros((0, z.shape[1]), np.float32)
        _, image_predictions = answers(model, self.image_x)
        conductances = np.full((len(self.images), z.shape[1]), np.nan, np.float32)
        if calls_body(model, self.image_x):
            conductances = conductance(model, self.image_x, self.image_labels)
        return z, predictions, image_predictions, conductances

    def alike(self, last: list[Tensor]) -> tuple[np.ndarray, np.ndarray]:
        """Return the rounds [P] of checkpoints and the CKA of each pair of clients, [P, K, K]."""
        tables = {self.source.rounds: pairwise_cka(last)}
        older = [
            path
            for path in checkpoint.saved(self.run)
            if checkpoint.rounds_of(path) < self.source.rounds
        ]
        for path in (older[i] for i in evenly(len(older), PANELS - 1)):
            try:
                with Reader(path) as source:
                    before = Saved(
                        self.run, source, self.ks, self.allowed, own_changed=self.own_changed
                    )
                    what = f"probing {count_noun(len(self.ks), 'model')} of round {source.rounds}"
                    results = self.answers(before, what)
                    tables[source.rounds] = pairwise_cka([z for z, _ in results])
            except CheckpointError:  # damaged, or deleted meanwhile by the run
                continue
        rounds = sorted(tables)
        return np.array(rounds), np.stack([tables[t].numpy() for t in rounds])


def some(saved: Saved, most: int) -> list[int]:
    """Return all clients of the run, or a random sample of `most` if there are more."""
    K = saved.job.clients
    if K <= most:
        return list(range(K))
    return np.sort(
        rng.stream(saved.job.seed, "probe", "clients").choice(K, most, replace=False)
    ).tolist()


def tensors(split: Split, rows: np.ndarray) -> Any:
    """Return the inputs of these examples, by modality if there are several."""
    return each(split.x, lambda x: torch.from_numpy(x[rows]))


@torch.no_grad()
def answers(model: Trained, x: Any) -> tuple[Tensor, np.ndarray]:
    """Return the representations [N, d] of inputs, and the predicted classes, [N]."""
    prepared = [model.prepare(part) for part in pieces(x, BATCH)]
    z = torch.cat([model.features(part) for part in prepared])
    scores = torch.cat([model.scores(part) for part in prepared])
    return z, scores.argmax(1).numpy()


def choose_images(labels: np.ndarray) -> np.ndarray:
    """Return the position of the first example of IMAGES evenly spaced classes, [M].

    They are in ascending order of class, and depend only on the labels [N], so that all runs on the
    same data use the same images.
    """
    _, positions = np.unique(labels, return_index=True)
    return positions[evenly(len(positions), IMAGES)]


@torch.no_grad()
def calls_body(model: Trained, x: Tensor) -> bool:
    """Return whether the model calls its body, a module, for its scores. x: as stored."""
    if not isinstance(model.body, nn.Module):
        return False
    calls: list[int] = []
    hook = model.body.register_forward_hook(lambda *_: calls.append(1))
    try:
        model.scores(model.prepare(x))
    finally:
        hook.remove()
    return bool(calls)


def conductance(model: Trained, x: Tensor, labels: np.ndarray) -> np.ndarray:
    """Return the conductance of each unit of the representation, [M, d], for the scores of labels.

    It measures how much of a prediction depends on the unit.
    x: M inputs, as stored.
    Layer conductance at the classifier: Dhamdhere et al., ICLR 2019, arXiv:1805.12233; figure 9 of
    Jang et al. (FedClassAvg), ICPP 2022. Open there, and chosen here: the baseline is the mean
    image (0 after normalisation), the score is that of the image's label.
    """
    library = import_extra("captum.attr", "models", "layer conductance")
    method = library.LayerConductance(model.scores, model.body)
    target = torch.as_tensor(labels, dtype=torch.int64)
    return method.attribute(model.prepare(x), target=target, n_steps=STEPS).detach().numpy()
