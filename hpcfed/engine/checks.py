"""Checks of a job against its data and models; each raises ConfigError."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcfed import models
from hpcfed.algorithms.base import is_plain
from hpcfed.config.architectures import find
from hpcfed.core import rng
from hpcfed.core.architecture import Architecture
from hpcfed.core.errors import ConfigError, everywhere
from hpcfed.core.wording import join_few
from hpcfed.models.finetuning import Finetuning
from hpcfed.models.flat import Layout
from hpcfed.storage.columns import LISTED
from hpcfed.tasks.classification import Classification
from hpcfed.training.batches import policy as augmentation

if TYPE_CHECKING:
    from hpcfed.config.job import Job
    from hpcfed.data.dataset import DataSet
    from hpcfed.federation.federation import Federation

FEW = 8  # clients that a warning names


def check_views(job: Job, data: DataSet) -> None:
    """Raise ConfigError if the job would augment inputs other than images, or colours of numbers
    that are no pixels.
    """
    method, policy = job.algorithm, job.local.augment
    images = not data.vocabulary and not data.modalities and len(data.shape) == 3
    if images:
        check_pixels(job, data)
        return
    if method.views == 1 and policy in ("auto", "none"):
        return
    holds = "several modalities" if data.modalities else "texts" if data.vocabulary else "numbers"
    if method.views > 1:
        off = "set algorithm.contrastive = false, or " if hasattr(method, "contrastive") else ""
        raise ConfigError(
            f"{method.name} trains on {method.views} augmented views of a batch, but {data.name} "
            f"holds {holds}, which are not augmented; {off}take another method, such as lgfedavg "
            f"(algorithm.name), which has no views"
        )
    raise ConfigError(
        f"local.augment = {policy!r}, but {data.name} holds {holds}; set local.augment = 'none'"
    )


def check_pixels(job: Job, data: DataSet) -> None:
    """Raise ConfigError if changes of colour would clamp floating-point pixels to 0..1."""
    x, views = data.train.x, job.algorithm.views
    how, changed = "data.shift.hue_groups", job.data.shift.hue_groups > 1
    if augmentation(job, views) == "simclr":
        how, changed = "local.augment = 'simclr'", True
    if not changed or x.dtype == np.uint8 or not x.size:
        return
    least, most = float(x.min()), float(x.max())
    if least < 0 or most > 1:
        raise ConfigError(
            f"{data.name}: its pixels lie in {least:g}..{most:g}, and {how} changes colours of "
            f"pixels in 0..1; store uint8 (0..255), or scale them to 0..1"
        )


def metrics(job: Job, data: DataSet) -> tuple[str, ...]:
    """Return the names of the run's metrics; raises ConfigError for one that does not fit."""
    if job.evaluate.groups and data.groups is None:
        raise ConfigError(
            f"evaluate.groups = {job.evaluate.groups!r}: {data.name} is no table, whose columns "
            f"could group its examples; remove it"
        )
    names = data.task.choose(job.evaluate.metrics, len(data.classes), data.name)
    chosen = [name for name in names if data.task.metric(name).threshold]
    if chosen and not job.evaluate.validation:
        raise ConfigError(
            f"evaluate.metrics: {chosen[0]} needs a threshold, which each client chooses on "
            f"examples that it holds out of its training examples; set evaluate.validation = 0.2"
        )
    return names


def check_classes(job: Job, data: DataSet) -> None:
    """Raise ConfigError if the job needs data whose examples have classes, and these have none."""
    method, task = job.algorithm, data.task
    weights, from_job = job.local.weights, job.local.class_weights == "given"
    if from_job and task.has_classes and len(weights) != len(data.classes):
        raise ConfigError(
            f"local.class_weights = 'given', and local.weights has {len(weights)} numbers, but "
            f"{data.name} has {len(data.classes)} classes ({join_few(data.classes, 8)}); give one "
            f"for each, in this order"
        )
    weighted = {
        "local.class_weights": job.local.class_weights != "none",
        "local.focal": job.local.focal > 0,
    }
    if task.has_classes:
        if isinstance(task, Classification) and type(task).loss is Classification.loss:
            return
        for field in (name for name, used in weighted.items() if used):
            raise ConfigError(
                f"{field} weighs cross-entropy, but task {task.name!r} has a loss of its own; "
                f"remove it"
            )
        return
    has = f"but {data.name} has {task.describe(len(data.classes))} (task {task.name!r})"
    if method.needs_classes:
        raise ConfigError(
            f"{method.name} needs classes ({method.needs_classes}), {has}; use fedavg, fedprox, "
            f"scaffold or local, or another data set"
        )
    fields = {
        "data.wrong_labels": job.data.wrong_labels > 0,
        "adapt.how = 'distil'": job.adapt.how == "distil",
        **weighted,
        "local.balanced_batches": job.local.balanced_batches,
    }
    for field in (name for name, used in fields.items() if used):
        raise ConfigError(f"{field} needs classes, {has}; remove it")


def check_models(kinds: list[str], data: DataSet) -> None:
    """Raise ConfigError if a model does not take the data's inputs."""
    for kind in kinds:
        models.check(kind, data.shape, data.vocabulary)


def check_trained(job: Job, kinds: list[str], shape: tuple[int, ...], classes: int) -> None:
    """Raise ConfigError if a user's own model has a part that clients would not train."""
    every = [*kinds, *filter(None, [job.models.server])]
    bases = {part.base for kind in every for part in Architecture.parse(kind).parts}
    users = [base for base in sorted(bases) if find(base).own]
    if not users:
        return
    from hpcfed.models.untrained import refuse

    method, finetuning = job.algorithm, Finetuning.of(job)
    by_output = ":" not in method.name or is_plain(method, "loss", "local", "train", "round")
    trained = finetuning.train, finetuning.lora
    for base in users:
        refuse(base, find(base).load(), shape, classes, job.models.d, *trained, by_output)


def check_heads(job: Job, kinds: list[str], shape: tuple[int, ...], classes: int) -> None:
    """Raise ConfigError if a method reads the head of models and a model has none."""
    method, adapts = job.algorithm, job.adapt.how == "head"
    reads = method.reads_head or method.accepts in ("a common head", "widths")
    if not reads and not adapts:
        return
    for kind in kinds:
        for part in Architecture.parse(kind).parts:
            if reason := models.missing_head(str(part), shape, classes, job.models.d):
                who = method.name if reads else "adapt.how = 'head'"
                raise ConfigError(
                    f"{who} needs the head of each model, its last linear layer, or what that "
                    f"layer reads: {reason}; let it end in nn.Linear(width, num_classes), or take "
                    f"a method that reads neither, such as fedavg, fedprox or local"
                )


def check_width(job: Job, kinds: list[str], shape: tuple[int, ...], classes: int) -> None:
    """Raise ConfigError if clients share a head but users' own models give it different widths."""
    if job.algorithm.accepts != "a common head" or not any(":" in kind for kind in kinds):
        return
    d = job.models.d
    bases = sorted({str(Architecture.parse(kind).full) for kind in kinds})
    widths = {base: models.represents(base, shape, classes, d) for base in bases}
    if len(set(widths.values())) > 1:
        described = ", ".join(f"{base} {width}" for base, width in widths.items())
        user_widths = {
            width for base, width in widths.items() if find(Architecture.parse(base).base).own
        }
        advice = f"let the last hidden layers of your own models have {d} units (models.d)"
        if len(user_widths) == 1:
            advice = f"set models.d = {min(user_widths)}, or {advice}"
        raise ConfigError(
            f"{job.algorithm.name} needs a common head, but the last layers of the models read "
            f"different numbers of values: {described}; {advice}, or take a method for any "
            f"models, such as fd (hpcfed list algorithms)"
        )


def check_finetuning(job: Job, kinds: list[str], data: DataSet) -> tuple[dict[str, str], list[str]]:
    """Return the checksums of the files of weights that models start from, and warnings.

    Raises ConfigError if a file does not fit, or if nothing would be trained.
    """
    finetuning, how = Finetuning.of(job), job.models
    if not finetuning.some and not finetuning.weights:
        return {}, []
    if finetuning.files:
        from hpcfed.models.pretrained import check_inputs

        for path in finetuning.files.values():
            check_inputs(path, data.encoder)
    warnings: list[str] = []
    for kind in kinds:
        with rng.scoped(0, "work", everywhere=True):
            model = models.build(
                kind,
                data.shape,
                len(data.classes),
                how.d,
                how.relu_head,
                data.vocabulary,
                data.classes,
            )
        if not finetuning.start(model, kind, data.classes):
            warnings.append(
                f"models.weights: the head of {kind} is drawn anew, because its file has none for "
                f"these classes"
            )
        if finetuning.some:
            method, before = job.algorithm, Layout.of(model).names
            finetuning.check(model, kind)
            finetuning.restrict(model, None)
            if any(map(method.shared, before)) and not any(
                map(method.shared, Layout.of(model).names)
            ):
                raise ConfigError(
                    f"models.train leaves nothing that {method.name} exchanges of {kind}; name "
                    f"more, or remove models.train and models.lora"
                )
    return finetuning.sums(), warnings


def check_deadline(fed: Federation) -> None:
    """Warn if clients can never meet the job's deadline, whatever is drawn.

    With a trace speeds change, and nothing is known. Of more than LISTED clients the first are
    asked. Raises ConfigError, on all ranks, if no client can meet it.
    """
    draws, deadline = fed.participants.draws, fed.job.system.deadline
    if deadline is None or fed.participants.profiles.trace:
        return
    asked = min(fed.K, LISTED)
    keep = fed.job.algorithm.keeps_stragglers
    announced = fed.participants.announced
    seconds = np.array([draws.least_seconds(k, keep, announced(k)) for k in range(asked)])
    late = np.flatnonzero(seconds > deadline)
    if not len(late):
        return
    if len(late) == fed.K:
        error = ConfigError(
            f"no client can meet system.deadline = {deadline:g}: the fastest needs "
            f"{seconds.min():.3g} s for download, work and upload, so that nothing would be "
            f"trained; set a later deadline"
        )
        raise everywhere(error)
    of = f"{asked:,}" if asked == fed.K else f"the first {asked:,}"
    least, most = (f"{value:.3g}" for value in (seconds[late].min(), seconds.max()))
    need = most if least == most else f"{least} to {most}"
    fed.warnings.say(
        f"{len(late):,} of {of} clients can never meet system.deadline = {deadline:g} (client "
        f"{join_few(late.tolist(), FEW)}): they need {need} s for download, work and upload"
    )
