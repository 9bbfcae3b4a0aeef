"""Files of the models that clients adapted after the last round, for `hpcfed.load_model`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcfed.core.optional_imports import import_extra
from hpcfed.engine import describe
from hpcfed.engine.changed_code import names_of
from hpcfed.models import files
from hpcfed.models.own_code import digests
from hpcfed.models.trained import About, assemble_model
from hpcfed.results.trained.scoring import alone
from hpcfed.storage import names
from hpcfed.storage.atomic import put

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.config.job import Job
    from hpcfed.engine.rounds import Rounds
    from hpcfed.engine.world import World


def saves(job: Job) -> bool:
    """Return whether the job asks for these files."""
    return job.adapt.how != "none" and job.adapt.save


def check(job: Job) -> None:
    """Raise ConfigError if the job asks for these files, and safetensors is not installed."""
    if saves(job):
        import_extra("safetensors.torch", "models", "adapt.save = true")


def keep_adapted(rounds: Rounds, facts: World, folder: Path) -> None:
    """Write each adapted model on the rank that has its client, when the client has been evaluated.

    Does nothing unless the job has adapt.save.
    """
    job = rounds.fed.job
    if not saves(job):
        return
    data, client_names = facts.data, describe.client_names(job, facts)
    about = About(
        architecture="",
        shape=facts.shape,
        classes=tuple(data.classes),
        d=job.models.d,
        relu_head=job.models.relu_head,
        vocabulary=data.vocabulary,
        mean=data.mean,
        std=data.std,
        client=0,
        rounds=0,
        counted=f"final/{data.task.main}",
        task=data.task.facts(),
        job=job.plain(),
        encoder=data.encoder,
        own=digests(names_of(job)),
    )

    def save(client: Client) -> None:
        model, k = alone(client), client.id
        header = replace(about, architecture=model.architecture, client=k, rounds=rounds.t)
        header = replace(header, name=client_names[k] if client_names else "")
        tensors = {name: value.cpu() for name, value in model.tensors.items()}
        path = names.model_file(names.adapted_folder(folder), client.id)
        put(path, files.encode(assemble_model(header, tensors)))

    rounds.evaluation.save = save
