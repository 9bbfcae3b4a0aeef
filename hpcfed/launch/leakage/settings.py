"""What an attack on uploads is asked for, and what no attack can be."""

from __future__ import annotations

from dataclasses import dataclass

from hpcfed.core.errors import ConfigError
from hpcfed.launch.leakage import inversion


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
