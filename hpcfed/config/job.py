"""The job: its sections, the fields outside of sections, and one class per method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Gt, Le
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PrivateAttr,
    ValidationError,
    create_model,
)

from hpcfed.config import methods
from hpcfed.config.adapt import Adapt
from hpcfed.config.attack import Attack
from hpcfed.config.compression import Compression
from hpcfed.config.conditions import check_conditions
from hpcfed.config.defence import ALIKE, Defence
from hpcfed.config.edges import Edges
from hpcfed.config.evaluate import Evaluate
from hpcfed.config.fields import section, table_names
from hpcfed.config.files import read_preset
from hpcfed.config.layers import Layer, origin
from hpcfed.config.limits import FileName, Limited, Names, PositiveInt
from hpcfed.config.privacy import Privacy
from hpcfed.config.sections import (
    Checkpoint,
    Columns,
    Data,
    Local,
    Log,
    Modalities,
    Models,
    Run,
    Section,
    Shift,
    Training,
)
from hpcfed.config.secure import Secure
from hpcfed.config.selection import Selection
from hpcfed.config.system import System
from hpcfed.core import user_code
from hpcfed.core.registry import Entry
from hpcfed.storage.fields import flat

# Fields that say how a run is carried out, not what it computes: a resumed run may change them.
FREE = (
    "out",
    "resume",
    "overwrite",
    "force",
    "own_changed",
    "dry_run",
    "quiet",
    "verbose",
    "on_round",
    "tag",
    "note",
    "rounds",
    "evaluate.patience",
    "adapt",
    "checkpoint",
    "data.label",
    "data.root",
    "data.download",
    "run.device",
    "run.ranks_per_gpu",
    "run.speeds",
    "run.rebalance",
    "run.resident",
    "run.device_resident",
    "run.on_client_fault",
    "secure.on_failure",
    "run.grace",
    "run.watchdog",
    "run.on_fault",
    "run.max_restarts",
    "log",
    "training",
)

# those of them on which numbers depend: a run may last longer, or do other final steps
CHANGE_RESULTS = ("rounds", "evaluate.patience", "adapt")

PROGRAM = "python -m hpcfed.main [JOB.toml ...]"
# stands in a job's identity for engines with equal results
EXACT = {"engine": "eager, traced or graphed"}

# Fields that decide which examples are read (those in FREE do not).
READING = ("data", "columns", "modalities", "evaluate.groups")


def cleared(value: object) -> object:
    """Return the name of a function, "" for none."""
    return "" if value in (None, "none") else value


class Job(Limited):
    """Everything that determines a run. One TOML file, the environment and flags fill it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    # the sources of the values, of which the first wins
    _layers: Sequence[Layer] = PrivateAttr(())

    rounds: PositiveInt = 100
    """Total number of rounds."""
    clients: Annotated[int, Gt(0), Le(10**8)] = 20
    """Number of clients."""
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Cohort size over the number of clients."""
    seed: NonNegativeInt = 0
    """Seed of all random streams of the run."""
    out: FileName | None = None
    """Output folder; default runs/ALGORITHM-DATA-PARTITION-seedSEED."""
    resume: FileName | None = None
    """Continue this run folder, or from one checkpoint file of it, on any number of ranks."""
    overwrite: bool = False
    """Replace the run in the output folder, its checkpoints, exported models and probe too."""
    force: bool = False
    """Take the output folder from a run on another machine that gives no sign of life."""
    own_changed: bool = False
    """Resume although the data, a file of [system] or [edges], or the code of your own method or
    model have changed since the run started.
    """
    dry_run: bool = False
    """Check the job and print it with placement, memory and traffic, without running it."""
    quiet: bool = False
    """Print only warnings and the final table."""
    verbose: bool = False
    """Print a line for every client and round."""
    tag: Names = ()
    """Words by which `hpcfed status --tag` finds the run again, separated by commas."""
    note: str = ""
    """A remark, which `hpcfed status` shows."""
    on_round: Annotated[str, BeforeValidator(cleared)] = ""
    """Your own function (`mine:function`), which rank 0 calls with the run and the round's numbers
    at the end of each round; none: no function.
    """
    preset: Literal["paper", "authors"] = "paper"
    """The papers' formulas, or those of the authors' public code if they differ."""
    algorithm: Any
    """The method and its own parameters (`hpcfed show NAME`)."""
    models: Models = Models()
    data: Data = Data()
    columns: Columns = Columns()
    modalities: Modalities = Modalities()
    local: Local = Local()
    training: Training = Training()
    selection: Selection = Selection()
    system: System = System()
    edges: Edges = Edges()
    compression: Compression = Compression()
    privacy: Privacy = Privacy()
    secure: Secure = Secure()
    attack: Attack = Attack()
    defence: Defence = Defence()
    evaluate: Evaluate = Evaluate()
    adapt: Adapt = Adapt()
    checkpoint: Checkpoint = Checkpoint()
    run: Run = Run()
    log: Log = Log()

    @property
    def cohort_size(self) -> int:
        """Number of clients in a cohort: max(1, ceil(participation * clients))."""
        return max(1, math.ceil(self.participation * self.clients - 1e-9))

    @property
    def unseen_degrees(self) -> float | None:
        """The angle of the images on which no client trains; None: another domain, or none."""
        angles = self.data.shift.degrees
        return float(self.evaluate.unseen) if angles and self.evaluate.unseen else None

    @property
    def unseen_client(self) -> str:
        """The natural client whose examples nobody gets; "": another domain is unseen, or none."""
        return "" if self.data.shift.degrees else self.evaluate.unseen

    @property
    def shift(self) -> Shift:
        """How the images of clients differ: as the job says, without the unseen angle."""
        shift, unseen = self.data.shift, self.unseen_degrees
        if unseen is None:
            return shift
        rest = tuple(angle for angle in shift.degrees if angle != unseen)
        return shift.model_copy(update={"degrees": rest})

    @property
    def folder(self) -> Path:
        """The folder of the run's files."""
        method = self.algorithm.name.replace(":", ".")
        data = Path(self.data.name.removeprefix("hf:")).stem.replace(":", ".")
        return self.out or Path("runs") / f"{method}-{data}-{self.data.partition}-seed{self.seed}"

    @property
    def implied(self) -> dict[str, dict[str, Any]]:
        """Defaults that other settings imply, for fields that the job does not set.

        By source: those of [local] that the method has, what an account of privacy needs, and what
        a defence needs. Each by the field's name.
        """
        method, privacy = self.algorithm, self.privacy
        local = {f"local.{name}": value for name, value in method.local_defaults.items()}
        needed: dict[str, Any] = {}
        samples = privacy.sampling and method.samples_cohorts
        if samples and (self.cohort_size < self.clients or privacy.sampling == "cyclic"):
            needed["selection.by"] = privacy.sampling
        if privacy.bounds and not privacy.cap and "weighting" in type(method).model_fields:
            needed["algorithm.weighting"] = "uniform"
        alike = self.defence.by in ALIKE and "weighting" in type(method).model_fields
        return {
            f"default of {method.name}": local,
            f"privacy.by = {privacy.by}": needed,
            f"defence.by = {self.defence.by}": {"algorithm.weighting": "uniform"} if alike else {},
        }

    def sources(self) -> dict[str, str]:
        """Return the fields whose values come from the preset or are implied by other settings.

        The keys are the fields' names, the values name the source.
        """
        plain = flat(self.plain())
        origin_by_field: dict[str, str] = {}
        preset = flat(read_preset(self.preset, self.algorithm.name, self.data.name))
        for source, values in (*self.implied.items(), (f"preset {self.preset}", preset)):
            origin_by_field |= {
                name: source for name, value in values.items() if plain.get(name) == value
            }
        return origin_by_field

    def origins(self) -> dict[str, str]:
        """Return where fields have their values from.

        That is a flag, a variable of the environment, a file, the preset or the method. Fields at
        the job's own defaults have no entry.
        """
        origin_by_field = self.sources()
        for name in flat(self.plain()):
            place = origin(name.split("."), self._layers)
            if place != name:
                origin_by_field[name] = place.removesuffix(f": {name}")
        return origin_by_field

    def plain(self) -> dict[str, Any]:
        """Return the job as nested dicts of JSON types."""
        return self.model_dump(mode="json")

    def identity(self) -> dict[str, Any]:
        """Return the fields that the results depend on: all but those in FREE.

        rounds is included if rounds depend on how many there are. With a given noise the budget of
        privacy is free. Of the engines only `stacked` has bits of its own, which depend on the size
        of a group.
        """
        plain, privacy = self.plain(), self.privacy
        calculated = privacy.has_noise and privacy.noise is None
        by_rounds = (
            self.local.schedule == "cosine"
            or self.algorithm.uses_rounds
            or (self.selection.by == "e3cs" and self.selection.quota_after > 0)
            or calculated
            or (privacy.by == "correlated" and privacy.kind == "banded")  # whose matrix they give
        )
        free = [name for name in FREE if name != "rounds" or not by_rounds]
        free += [] if calculated else ["privacy.epsilon"]
        for path in free:
            *parts, last = path.split(".")
            table = plain
            for part in parts:
                table = table[part]
            table.pop(last)
        stacked = self.training.engine == "stacked"
        return plain | {"training": self.training.model_dump() if stacked else EXACT}


for table in table_names(Job):
    if part := section(Job, table.split(".")):
        check_conditions(part, Job)


def algorithm_model(name: str) -> type[Section]:
    """Return the class of this algorithm as a part of a job, with its `name` as a field.

    Raises ConfigError if there is none, or if a user's own class cannot be one.
    """
    return named_model(name, methods.load(name))


@cache
def named_model(name: str, cls: type[Section]) -> type[Section]:
    """Return the result of `algorithm_model` for this class.

    Several classes may have one name, one after the other: a notebook's cell is run again, or a
    module is reloaded.
    """
    doc = "Name of the method (`hpcfed list algorithms`)."
    field: Any = (Literal[name], Field(name, description=doc))

    def make() -> type[Section]:
        return create_model(
            cls.__name__,
            __base__=cls,
            __doc__=cls.__doc__,
            name=field,
        )

    if ":" not in name:
        return make()
    where = f"algorithm.name = {name!r}"
    # loaded by name, as methods are, because they are defined with the methods' base class
    refuse, guard = (
        Entry(f"hpcfed.algorithms.hook_check:{fn}", "").load() for fn in ("refuse", "guard")
    )
    with user_code.making(where, cls):
        refuse(cls, where)
        model = make()
        model.model_rebuild()  # reports a type that is named but not imported
    guard(model, cls)
    return model


def job_model(name: str) -> type[Job]:
    """Return the class of the jobs of this algorithm; raises what `algorithm_model` does."""
    return model_with(algorithm_model(name))


@cache
def model_with(algorithm: type[Section]) -> type[Job]:
    """Return the class of jobs with this algorithm."""
    try:
        default: Any = algorithm()
    except ValidationError:  # parameters that must be given: one, or at least one of several
        default = ...
    return create_model("Job", __base__=Job, algorithm=(algorithm, default))
