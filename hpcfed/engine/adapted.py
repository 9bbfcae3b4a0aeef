"""Files of the models that clients adapted after the last round, for `hpcfed.load_model`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfed.core.optional_imports import import_extra
from hpcfed.engine.describe import inputs
from hpcfed.models import files
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
    about: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in inputs(facts).items()
    }
    about |= {"classes": tuple(facts.data.classes), "d": job.models.d}
    about |= {
        "relu_head": job.models.relu_head,
        "job": job.plain(),
        "task": facts.data.task.facts(),
    }
    about["counted"] = f"final/{facts.data.task.main}"

    def save(client: Client) -> None:
        model = alone(client)
        header = About(**about, architecture=model.architecture, client=client.id, rounds=rounds.t)
        tensors = {name: value.cpu() for name, value in model.tensors.items()}
        path = names.model_file(names.adapted_folder(folder), client.id)
        put(path, files.encode(assemble_model(header, tensors)))

    rounds.evaluation.save = save
