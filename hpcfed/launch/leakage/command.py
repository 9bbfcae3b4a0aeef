"""`hpcfed leakage RUN` or `hpcfed leakage JOB.toml [fields]`: attacks on what a server receives.

A run's uploads are not stored. A client's next one follows from a checkpoint, and its first one
from a job, with the same bits that a run has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group
from rich.text import Text

from hpcfed.core.errors import ConfigError
from hpcfed.core.progress import track
from hpcfed.core.tables import table
from hpcfed.federation.transforms.attack.attackers import attackers
from hpcfed.launch.leakage import uploads
from hpcfed.launch.leakage.membership import Membership, infer_members
from hpcfed.launch.leakage.reconstruction import Image, check_images, reconstruct
from hpcfed.launch.leakage.settings import Settings
from hpcfed.launch.leakage.target import describe, run_in, start
from hpcfed.results.trained.export import numbers
from hpcfed.results.trained.from_checkpoint import select_clients

MOST = 10  # clients whose members are inferred by default
PICTURE = "leakage-{}.png"


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
    attacking = attackers(fed.job)
    honest = (k for k in range(fed.K) if k not in attacking)
    default = tuple(islice(honest, MOST if attack == "membership" else 1))
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


Members = dict[int, tuple[int, int, Membership]]


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
