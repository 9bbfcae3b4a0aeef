"""`hpcfed leakage RUN` or `hpcfed leakage JOB.toml [fields]`: attacks on what a server receives.

A run's uploads are not stored. A client's next one follows from a checkpoint, and its first one
from a job, with the same bits that a run has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Group
from rich.text import Text
from torch import Tensor, nn
from torch.func import functional_call

from hpcfed.comm import Serial
from hpcfed.core import rng
from hpcfed.core.errors import CheckpointError, ConfigError
from hpcfed.core.inputs import restore
from hpcfed.core.progress import track
from hpcfed.core.shapes import Shapes
from hpcfed.core.tables import table
from hpcfed.core.wording import count_noun
from hpcfed.launch.leakage import inversion, membership, uploads
from hpcfed.results.trained.export import numbers
from hpcfed.results.trained.from_checkpoint import select_clients
from hpcfed.storage import checkpoint, names

if TYPE_CHECKING:
    from hpcfed.clients.client import Client, Shard
    from hpcfed.config.job import Job
    from hpcfed.core.params import Params
    from hpcfed.engine.rounds import Rounds
    from hpcfed.federation.federation import Federation

INVERSIONS = ("dlg", "idlg", "invert")
ATTACKS = (*INVERSIONS, "membership")
MOST = 10  # clients whose members are inferred by default
PICTURE = "leakage-{}.png"
ROUNDED = 1e-3  # of pixels


@dataclass(frozen=True)
class Settings:
    """What is attacked, and how long.

    images: number of each client's examples.  batch: of them in one upload.
    steps: local steps of that upload.
    iterations: of the attack; None: its usual number.  tv: weight of the total variation.
    """

    attack: str
    images: int = 4
    batch: int = 1
    steps: int = 1
    iterations: int | None = None
    tv: float = inversion.TV

    def check(self) -> None:
        """Raise ConfigError for a number that no attack can have."""
        values = {
            "--images": self.images,
            "--batch": self.batch,
            "--local-steps": self.steps,
            "--iterations": self.iterations,
        }
        for flag, value in values.items():
            if value is not None and value < 1:
                raise ConfigError(f"leakage: {flag} {value}: give at least 1")
        if self.images % self.batch:
            raise ConfigError(
                f"leakage: --images {self.images} is no multiple of --batch {self.batch}, the "
                f"number of images in each upload"
            )
        if self.tv < 0:
            raise ConfigError(f"leakage: --tv {self.tv:g}: give at least 0")
        if self.attack == "membership" and self != Settings(self.attack):
            raise ConfigError(
                "leakage: --attack membership takes the complete turn of the job; remove --images, "
                "--batch, --local-steps, --iterations and --tv"
            )
        if self.attack != "invert" and self.tv != inversion.TV:
            raise ConfigError(f"leakage: --tv is of --attack invert, not of {self.attack}")


@dataclass(frozen=True)
class Image:
    """One reconstruction: the client's image and the attack's, [channels, height, width] in 0..1.

    label, inferred: names of classes.
    """

    client: int
    row: int
    label: str
    inferred: str
    mse: float
    original: Tensor
    result: Tensor

    @property
    def psnr(self) -> float:
        return inversion.psnr(self.mse)

    @property
    def numbers(self) -> dict[str, Any]:
        """The reconstruction without its pixels."""
        columns = ("client", "row", "label", "inferred", "mse")
        finite = self.psnr if self.mse else None
        return {**{name: getattr(self, name) for name in columns}, "psnr": finite}


def command(
    words: Sequence[str],
    attack: str,
    clients: str | None,
    round: int | None,
    images: int,
    batch: int,
    local_steps: int,
    iterations: int | None,
    tv: float,
    out: Path | None,
    json: bool = False,
) -> dict[str, Any] | Group:
    """Return the results of an attack for people, or with `json` as numbers.

    words: the run or the job.  round: of the run's checkpoint; None: the newest.
    Raises ConfigError for a job whose uploads cannot be attacked, CheckpointError without one.
    """
    settings = Settings(attack, images, batch, local_steps, iterations, tv)
    settings.check()
    run = run_in(words)
    rounds, classes = start(words, run, round)
    fed = rounds.fed
    uploads.check_visible(fed)
    default = range(min(MOST, fed.K)) if attack == "membership" else (0,)
    ks = select_clients(numbers(clients) or default, fed.K)
    about = describe(rounds, settings)
    if attack == "membership":
        if out:
            raise ConfigError(f"leakage: -o {out}: --attack membership draws no picture")
        members = {k: infer_members(rounds, k) for k in track(ks, "inferring members")}
        return as_numbers(about, members) if json else page_of_members(about, members)
    check_images(fed, settings)
    from hpcfed.launch.leakage.picture import draw  # which imports matplotlib
    from hpcfed.report.figures import plotting

    path = plotting.check_format(out or (run or Path()) / PICTURE.format(attack))
    results = [image for k in ks for image in reconstruct(rounds, k, settings, classes)]
    picture = plotting.save(draw(results), path)
    if json:
        rows = [image.numbers for image in results]
        return {"about": about, "images": rows, "picture": str(picture)}
    return page_of_images(about, results, settings.batch, picture)


def run_in(words: Sequence[str]) -> Path | None:
    """Return the folder of the run that a command names in the place of a job, or None."""
    if words and not words[0].startswith("-") and not words[0].endswith(".toml"):
        return names.folder_of(Path(words[0]))
    return None


def start(
    words: Sequence[str], run: Path | None, round: int | None
) -> tuple[Rounds, Sequence[str]]:
    """Return the state between rounds of a run, or of a job before its first one.

    Also returns the names of the classes.
    round: number of rounds done.
    """
    from hpcfed.config.load import load
    from hpcfed.engine.fault_tolerance import resume
    from hpcfed.engine.folder import read_job

    if run is None and round is not None:
        raise ConfigError(
            f"leakage: --round {round} is that of a checkpoint; name a run in the place of the job"
        )
    if run is not None:
        index = run if round is None else checkpoint_of(run, round)
        words = ["--resume", str(index), *words[1:]]
    rounds, classes = open_rounds(load(words, read_job))
    if run is not None:
        resume.restore(rounds, index)
    return rounds, classes


def open_rounds(job: Job) -> tuple[Rounds, Sequence[str]]:
    """Return the rounds of a job on this process alone, before the first one, and its classes."""
    from hpcfed.algorithms.trial import check_privacy
    from hpcfed.engine.decide import world
    from hpcfed.engine.rounds import Rounds
    from hpcfed.engine.setup import federation

    decided = world(job, Serial())
    fed = federation(job, Serial(), decided)
    check_privacy(fed)
    rounds = Rounds(fed)
    rounds.run_id = decided.run_id
    return rounds, decided.data.classes


def checkpoint_of(run: Path, round: int) -> Path:
    """Return the checkpoint of a run after this number of rounds."""
    by_round = {checkpoint.rounds_of(path): path for path in checkpoint.saved(run)}
    if round not in by_round:
        saved = ", ".join(map(str, sorted(by_round))) or "none"
        raise CheckpointError(
            f"leakage: --round {round}: {run} has checkpoints after rounds {saved}; "
            f"checkpoint.keep keeps more"
        )
    return by_round[round]


def describe(rounds: Rounds, settings: Settings) -> list[str]:
    """Return lines that say what is attacked, and what protects it."""
    fed, job = rounds.fed, rounds.fed.job
    local, when = job.local, f"after {count_noun(rounds.t, 'round')}" if rounds.t else "in round 1"
    amount = count_noun(local.steps, "step") if local.steps else count_noun(local.epochs, "epoch")
    size = f"{amount} on batches of {local.batch}"
    if settings.attack == "membership":
        turn = f"a turn of {size}"
    else:
        each = count_noun(settings.batch, "image")
        turn = (
            f"{count_noun(settings.steps, 'step')} on {each}, from which a server learns most; a "
            f"turn of the job is {size}"
        )
    lines = [
        f"{job.algorithm.name}, uploads {when}: {turn}",
        "protection: " + ("; ".join(protections(fed)) or "none"),
    ]
    if job.privacy.by in ("central", "correlated"):
        lines.append(
            "the server adds its noise to the sum, and sees uploads that are clipped and no more"
        )
    return lines


def protections(fed: Federation) -> list[str]:
    """Return what changes uploads on their way."""
    job, parts = fed.job, []
    if job.compression.by != "none":
        parts.append(f"compression {job.compression.by}")
    if job.privacy.by != "none":
        text = f"privacy {job.privacy.by}, clip {job.privacy.clip}"
        if fed.noise_multiplier:
            text += f", noise multiplier {fed.noise_multiplier:.4g}"
        if job.privacy.epsilon:
            text += f", epsilon {job.privacy.epsilon:g} for all rounds"
        parts.append(text)
    return parts


def check_images(fed: Federation, settings: Settings) -> None:
    """Raise ConfigError for examples or optimisers that gradient inversion cannot take."""
    job, shape = fed.job, fed.store.form[0]
    images = not isinstance(shape, Shapes) and len(shape) == 3 and min(shape[1:]) > 1
    if not (fed.task.has_classes and images):
        raise ConfigError(
            f"leakage: --attack {settings.attack} reconstructs images with one class each, and "
            f"{job.data.name} has other examples; take --attack membership"
        )
    if job.local.optimiser != "sgd":
        raise ConfigError(
            f"leakage: --attack {settings.attack} needs local.optimiser = 'sgd'; a first step of "
            f"{job.local.optimiser} keeps little but the signs of the gradient"
        )


def reconstruct(rounds: Rounds, k: int, settings: Settings, classes: Sequence[str]) -> list[Image]:
    """Return the reconstructions of examples of client k, drawn from the job's seed.

    classes: their names.
    """
    fed, client = rounds.fed, rounds.fed.clients[k]
    if settings.images > client.n:
        raise ConfigError(
            f"leakage: --images {settings.images}: client {k} has "
            f"{count_noun(client.n, 'training example')}"
        )
    check_batch(fed, client, settings)
    draw = rng.stream(fed.seed, "leakage", k)
    rows = draw.choice(client.n, settings.images, replace=False)
    groups = rows.reshape(-1, settings.batch)
    images = []
    for group in track(groups, f"client {k}: {count_noun(len(groups), 'upload')}"):
        batch = client.train.pick(group)
        received = uploads.receive(rounds, k, batch, settings.steps)
        turn = uploads.turn_of(rounds, client, received.received, settings.steps)
        originals = pixels(fed, fed.prepare(batch.batch(np.arange(len(batch)))[0]))
        if originals.min() < -ROUNDED or originals.max() > 1 + ROUNDED:
            raise ConfigError(
                f"leakage: {fed.job.data.name} has pixels from {originals.min():.3g} to "
                f"{originals.max():.3g}, and PSNR is defined here for 0 to 1; scale the images"
            )
        g = rng.torch_stream(fed.seed, "leakage", "start", k, int(group[0]))
        with explain_refusals(client.architecture):
            results, inferred = search(fed, turn, received.change, originals.shape, settings, g)
        which, errors = inversion.match(originals, results)
        images += [
            Image(
                k,
                int(row),
                classes[int(batch.labels[i])],
                classes[int(inferred[which[i]])],
                float(errors[i]),
                originals[i],
                results[which[i]],
            )
            for i, row in enumerate(group)
        ]
    return images


def check_batch(fed: Federation, client: Client, settings: Settings) -> None:
    """Raise ConfigError for a model that does not train on so few examples."""
    modules = fed.module(client.architecture).model.modules()
    if settings.batch == 1 and any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in modules):
        raise ConfigError(
            f"leakage: {client.architecture} has batch normalisation, which needs several examples "
            f"in a batch; give --batch 2 or more, or set models.norm = 'group'"
        )


@contextmanager
def explain_refusals(architecture: str) -> Iterator[None]:
    """Raise ConfigError, in the block, for layers of which torch has no second derivative."""
    try:
        yield
    except RuntimeError as error:
        if "derivative for" not in str(error):
            raise
        raise ConfigError(
            f"leakage: {architecture} has a layer whose gradient torch cannot differentiate, and "
            f"gradient inversion needs that: {error}"
        ) from error


def search(
    fed: Federation,
    turn: inversion.Turn,
    change: Params,
    shape: torch.Size,
    settings: Settings,
    g: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Return the images [n, channels, height, width], in 0..1, and labels [n] of an upload.

    change: as the server has it.  shape: of the images.  g: draws where the search starts.
    """
    sent = inversion.flatten([change[name] for name in turn.trained])
    iterations = settings.iterations or inversion.ITERATIONS[settings.attack]
    x = torch.randn(shape, generator=g).to(fed.device)
    if settings.attack == "dlg":
        y = torch.randn((shape[0], fed.classes), generator=g, dtype=torch.float64)
    elif inversion.HEAD_BIAS in change:
        y = inversion.infer_labels(-change[inversion.HEAD_BIAS], shape[0])
    else:
        raise ConfigError(
            "leakage: this model has no head whose bias tells the labels; take --attack dlg"
        )
    y = y.to(fed.device)
    if settings.attack == "invert":
        ends = (torch.full((1, shape[1], 1, 1), end, device=fed.device) for end in (0.0, 1.0))
        low, high = map(fed.prepare, ends)
        x = inversion.invert(turn, sent, x, y, iterations, (low, high), settings.tv)
    else:
        x, y = inversion.dlg(turn, sent, x.double(), y, iterations)
    return pixels(fed, x.float()).nan_to_num().clamp(0, 1), y


def pixels(fed: Federation, x: Tensor) -> Tensor:
    """Return pixels of prepared images on the CPU, in 0..1 if they are the client's."""
    return restore(x.cpu(), fed.data.mean, fed.data.std, torch.float32)


def infer_members(rounds: Rounds, k: int) -> tuple[int, int, membership.Membership]:
    """Return the numbers of members and of others of client k, and the attack's success.

    Members are its training examples, others its test examples. The model is the one that the
    server receives of it.
    """
    fed, client = rounds.fed, rounds.fed.clients[k]
    if not len(client.test):
        raise ConfigError(f"leakage: client {k} has no test examples to compare its members with")
    received = uploads.receive(rounds, k)
    module = fed.module(client.architecture).model.eval()
    weights = {**received.received, **(received.change + received.received)}
    losses = [losses_of(fed, module, weights, data) for data in (client.train, client.test)]
    return len(client.train), len(client.test), membership.measure(*losses)


@torch.no_grad()
def losses_of(
    fed: Federation, module: nn.Module, weights: dict[str, Tensor], data: Shard
) -> np.ndarray:
    """Return the loss of each example, [n], float64."""
    losses: list[float] = []
    for rows in np.array_split(np.arange(len(data)), -(-len(data) // fed.job.evaluate.batch)):
        x, y = data.batch(rows)
        outputs = functional_call(module, weights, (fed.prepare(x),))
        losses += [float(fed.task.loss(outputs[i : i + 1], y[i : i + 1])) for i in range(len(rows))]
    return np.array(losses)


Members = dict[int, tuple[int, int, membership.Membership]]


def as_numbers(about: list[str], members: Members) -> dict[str, Any]:
    """Return the results of membership inference as numbers."""
    clients = [
        {"client": k, "members": n, "others": m, **result._asdict()}
        for k, (n, m, result) in members.items()
    ]
    return {"about": about, "clients": clients}


def page_of_members(about: list[str], members: Members) -> Group:
    """Return the results of membership inference for people."""
    rows: list[tuple[object, ...]] = [
        (k, n, m, *(f"{value:.3f}" for value in result)) for k, (n, m, result) in members.items()
    ]
    means = np.mean([result for _, _, result in members.values()], 0)
    rows.append(("mean", "", "", *(f"{value:.3f}" for value in means)))
    heads = ">client,>members,>others,>AUC,>advantage,>TPR at 1 % FPR"
    guess = "0.5, 0 and 0.01 are those of guessing"
    return Group(*map(Text, about), table(heads, rows), Text(guess))


def count_labels(images: Sequence[Image], batch: int) -> int:
    """Return the number of labels that are right, of each upload in any order."""
    right = 0
    for i in range(0, len(images), batch):
        labels = Counter(image.label for image in images[i : i + batch])
        inferred = Counter(image.inferred for image in images[i : i + batch])
        right += (labels & inferred).total()
    return right


def page_of_images(about: list[str], results: Sequence[Image], batch: int, picture: Path) -> Group:
    """Return the results of gradient inversion for people.  batch: images of an upload."""
    rows: list[tuple[object, ...]] = [
        (i.client, i.row, i.label, i.inferred, f"{i.mse:.2g}", f"{i.psnr:.1f}") for i in results
    ]
    right = count_labels(results, batch)
    mean = np.mean([i.psnr for i in results])
    return Group(
        *map(Text, about),
        table(">client,>example,label,inferred,>MSE,>PSNR (dB)", rows),
        Text(f"mean PSNR {mean:.1f} dB; {right} of {len(results)} labels right\n{picture}"),
    )
