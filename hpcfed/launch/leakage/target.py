"""The run or the job whose uploads are attacked, and what protects them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcfed.comm import Serial
from hpcfed.core.errors import CheckpointError, ConfigError
from hpcfed.core.wording import count_noun
from hpcfed.storage import checkpoint, names

if TYPE_CHECKING:
    from hpcfed.config.job import Job
    from hpcfed.engine.rounds import Rounds
    from hpcfed.federation.federation import Federation
    from hpcfed.launch.leakage.settings import Settings


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
