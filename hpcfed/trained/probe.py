"""`hpcfed probe RUN`: what all clients' trained models make of the same test examples, written
beside the run.

For figures 8 and 9 of Jang et al. (FedClassAvg), ICPP 2022, section 5.2 and 5.3, and for what
compares clients.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hpcfed import rng
from hpcfed.errors import CheckpointError, ConfigError
from hpcfed.few import counted, evenly
from hpcfed.models.trained import Trained
from hpcfed.storage import checkpoint, names, probe
from hpcfed.storage.probe import Probe
from hpcfed.storage.reader import Reader
from hpcfed.storage.seal import identity
from hpcfed.trained.conductance import NOTHING, conductance, shared_image
from hpcfed.trained.export import numbers
from hpcfed.trained.saved import Saved, from_newest, saved_in
from hpcfed.training.similarity import pairwise_cka

EXAMPLES = 1000  # of the test split, as in the paper
MOST = 100  # clients, of more so many are drawn
PANELS = 4  # checkpoints whose clients are compared
BATCH = 256


def command(
    run: Path,
    examples: int = EXAMPLES,
    clients: str | None = None,
    own: Sequence[str] | None = None,
) -> str:
    """The command; returns what was written. Raises CheckpointError where the run has no checkpoint
    that is whole.
    """
    folder = names.folder_of(run)
    made = make(folder, examples, numbers(clients), own or ())
    path = probe.write(folder, made)
    n, about = (
        len(made.clients),
        f"after round {made.rounds[-1]}, {len(made.labels):,} test examples",
    )
    return f"{path}: {counted(n, 'client')} {about}"


def anew(run: Path) -> Probe:
    """The probe of a run, made and written."""
    made = make(run)
    probe.write(run, made)
    return made


def make(
    run: Path,
    examples: int = EXAMPLES,
    clients: Sequence[int] | None = None,
    own: Collection[str] = (),
) -> Probe:
    """What the models of the newest checkpoint answer. clients: None: all, of very many some.  own:
    method and models outside hpcfed that may be imported.
    """
    if examples < 1:
        raise ConfigError(f"--examples {examples}: take at least 1")
    return from_newest(run, lambda source: Probing(run, source, examples, clients, own).probe())


class Probing:
    """One checkpoint's models before the same examples."""

    def __init__(
        self,
        run: Path,
        source: Reader,
        examples: int,
        clients: Sequence[int] | None,
        own: Collection[str],
    ):
        self.run, self.source, self.own = run, source, own
        self.saved = Saved(run, source, clients, own)
        self.ks = some(self.saved) if clients is None else self.saved.clients
        test = self.saved.sources.test
        draw = rng.stream(self.saved.job.seed, "probe")
        self.rows = np.sort(draw.choice(len(test.y), min(examples, len(test.y)), replace=False))
        self.x, self.labels = torch.from_numpy(test.x[self.rows]), test.y[self.rows]

    def probe(self) -> Probe:
        seen = [answers(self.saved.model(k), self.x) for k in self.ks]
        representations, predictions = [z for z, _ in seen], np.stack([p for _, p in seen])
        image = shared_image(predictions, self.labels, text=bool(self.saved.about["vocabulary"]))
        rounds, tables = self.alike(representations)
        return Probe(
            header=self.header(),
            clients=np.array(self.ks),
            rows=self.rows,
            labels=self.labels,
            predictions=predictions,
            representations=[z.numpy() for z in representations],
            image=image,
            conductance=self.conductances(predictions, image),
            rounds=rounds,
            cka=tables,
        )

    def header(self) -> dict[str, object]:
        kinds = self.saved.fed.architectures
        about = {
            "architectures": [kinds[k] for k in self.ks],
            "classes": list(self.saved.about["classes"]),
        }
        return {"rounds": self.source.rounds, "checkpoint": identity(self.source.path), **about}

    def conductances(self, predictions: np.ndarray, image: int) -> list[np.ndarray]:
        """Of each client that is right about the image."""
        found = []
        for k, predicted in zip(self.ks, predictions, strict=True):
            right = image >= 0 and predicted[image] == self.labels[image]
            found.append(
                conductance(self.saved.model(k), self.x[image], int(self.labels[image]))
                if right
                else NOTHING
            )
        return found

    def alike(self, last: list[Tensor]) -> tuple[np.ndarray, np.ndarray]:
        """Rounds [P] and the CKA of each two clients then, [P, K, K], as far back as there are
        checkpoints.
        """
        tables = {self.source.rounds: pairwise_cka(last)}
        older = [
            path for path in saved_in(self.run) if checkpoint.rounds_of(path) < self.source.rounds
        ]
        for path in (older[i] for i in evenly(len(older), PANELS - 1)):
            try:
                with Reader(path) as source:
                    before = Saved(self.run, source, self.ks, self.own)
                    tables[source.rounds] = pairwise_cka(
                        [answers(before.model(k), self.x)[0] for k in self.ks]
                    )
            except CheckpointError:  # damaged, or deleted meanwhile by the run that goes on
                continue
        rounds = sorted(tables)
        return np.array(rounds), np.stack([tables[t].numpy() for t in rounds])


def some(saved: Saved) -> list[int]:
    """All clients of the run, or of more than MOST so many, drawn."""
    K = saved.job.clients
    if K <= MOST:
        return list(range(K))
    return np.sort(
        rng.stream(saved.job.seed, "probe", "clients").choice(K, MOST, replace=False)
    ).tolist()


@torch.no_grad()
def answers(model: Trained, x: Tensor) -> tuple[Tensor, np.ndarray]:
    """Representations [N, d] of inputs, and the classes that are predicted, [N]."""
    z = torch.cat([model.represent(part) for part in x.split(BATCH)])
    return z, model.classify(z).argmax(1).numpy()
