"""Schema of the header of a result file: types and bounds of all fields that readers rely on.

Fields may be absent, but a field that is present must have its type. Other fields are not checked.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, InstanceOf, ValidationError

from hpcfed.core.errors import ConfigError, DamagedError
from hpcfed.core.safe_read import parse_json
from hpcfed.storage.columns import ID, PADDED, PADDING, ROWS, SPARSE, check_columns, stored
from hpcfed.storage.fields import Fields, nested

if TYPE_CHECKING:
    from hpcfed.storage.record import Record

PART = r"^(round|final)-\d{6,}(-\d+)?/rank-\d{4,}\.h5$"  # path of a checkpoint's part
Text = Annotated[str, Field(max_length=100_000)]
# names of files: on Linux any bytes, which Python represents as lone surrogates
FileText = Annotated[InstanceOf[str], Field(max_length=100_000)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Table(BaseModel):
    """A table whose fields are optional, and which may have others."""

    model_config = ConfigDict(strict=True, extra="allow")


class Method(Table):
    """The algorithm."""

    name: Text = ""


class Data(Table):
    """The clients' examples."""

    name: Text = ""
    label: Text = ""
    partition: Text = ""
    alpha: Finite | None = None
    halve: Finite = 0.0


class Mix(Table):
    """The clients' models."""

    mix: list[Text] = []


class Process(Table):
    """The execution of the run."""

    threads: Count = 1
    device: Text = ""
    speeds: list[Finite] = []


class Job(Table):
    """The fields of a job that readers of results and of sweeps use.

    `config.load.again` checks all of them.
    """

    algorithm: Method = Method()
    data: Data = Data()
    clients: Annotated[int, Field(ge=1, le=10**8)] = 1
    rounds: Count = 0
    seed: int = 0
    run: Process = Process()
    models: Mix = Mix()


class Past(Table):
    """The run's state before it was resumed."""

    rounds: Count = 0
    ranks: Count | None = None
    versions: dict[str, Text] = {}
    commit: Text = ""
    own: dict[str, Text] = {}  # digests of the code of users' methods and models
    data_digests: dict[str, Text] = {}
    file_digests: dict[str, Text] = {}
    hardware: dict[str, Any] | Text = {}
    slurm_job: Text = ""


class Modality(Table):
    """One of several modalities."""

    name: Text
    shape: list[Count]
    vocabulary: Count = 0


class Inputs(Table):
    """The inputs of the models.

    With several modalities, shape lists those of each, mean and std are by modality, and modalities
    gives those of each client.
    """

    shape: list[Count] | list[Modality] = []
    mean: list[Finite] | dict[Text, list[Finite]] = []
    std: list[Finite] | dict[Text, list[Finite]] = []
    vocabulary: Count = 0
    modalities: list[list[Text]] = []
    encoder: dict[str, Any] = {}  # `core.encoder.parse` checks it


class Header(Past):
    """The whole header."""

    job: Job = Job()
    algorithm: Text = ""
    data: Text = ""
    classes: list[Text] = []
    client_names: list[Text] = []
    engine: Text = ""
    task: Text = "classification"
    task_facts: dict[str, Any] = {}
    metrics: list[Text] = []
    groups: list[Text] = []
    inputs: Inputs = Inputs()
    architectures: list[Text] = []
    faults: list[Text] = []
    placement: list[int] = []
    history: list[Past] = []
    ended: Text | None = None
    early: Text = ""
    settings: Job = Job()  # of a checkpoint: the whole job


class Index(BaseModel):
    """The index of a checkpoint.

    names: of its items.
    parts: the identity of each part by its path, relative to the index.
    """

    model_config = ConfigDict(strict=True)
    header: dict[str, Any]
    names: list[Text]
    parts: dict[Annotated[str, Field(pattern=PART)], Text]


class Answers(BaseModel):
    """The header of a probe."""

    model_config = ConfigDict(strict=True, extra="allow")
    rounds: Count
    checkpoint: Text
    architectures: list[Text]
    classes: list[Text]
    client_names: list[Text] = []
    of: Count


def check_header(header: Any) -> None:
    """Raise DamagedError, with the first wrong field, unless this can be the header of a run."""
    try:
        Header.model_validate(header)
    except ValidationError as error:
        raise DamagedError(f"header: {first_mistake(error)}") from error


def first_mistake(error: ValidationError) -> str:
    """Return the place and the text of pydantic's first error."""
    mistake = error.errors(include_url=False)[0]
    place = ".".join(map(str, mistake["loc"])) or "all of it"
    if mistake["type"] == "string_unicode":
        return f"{place}: {mistake['input']!r:.200} is not Unicode text"
    return f"{place}: {mistake['msg'].lower()}"


def check_own_header(header: dict[str, Any]) -> None:
    """Raise ConfigError for a header that no reader would accept once it is written."""
    try:
        check_header(parse_json(json.dumps(header), "header"))
    except DamagedError as error:
        raise ConfigError(
            f"the results of this run could not be read: {error}; change it in the job, or in the "
            "data that it is from"
        ) from error


def check_fields(fields: Fields) -> None:
    """Raise DamagedError if a field of a job that readers use has another type.

    fields: the job by dotted names.
    """
    try:
        Job.model_validate(nested({name: fields[name] for name in FIELDS if name in fields}))
    except ValidationError as error:
        raise DamagedError(first_mistake(error)) from error


def leaves(part: type[BaseModel], above: str = "") -> list[str]:
    """Return the dotted names of a table's fields."""
    names: list[str] = []
    for name, field in part.model_fields.items():
        kind = field.annotation
        below = isinstance(kind, type) and issubclass(kind, BaseModel)
        names += leaves(kind, f"{above}{name}.") if below else [above + name]  # type: ignore[arg-type]
    return names


FIELDS = tuple(leaves(Job))


def check_record(record: Record) -> None:
    """Raise DamagedError unless a header, itself in order, and columns fit together.

    All columns must have equally many clients, and the numbers of clients, architectures and
    failures in them must exist.
    """
    header, columns = record.header, stored(record.columns)
    check_columns(columns, record.rounds)
    sparse = ROWS in columns
    for prefix, most in (("rounds/", 1), ("clients/", 1 if sparse else 2), ("ranks/", 2)):
        shapes = {
            name: c.shape[1:]
            for name, c in columns.items()
            if name.startswith(prefix) and name != ROWS
        }
        if any(len(shape) != most - 1 for shape in shapes.values()) or len({*shapes.values()}) > 1:
            raise DamagedError(f"the columns {prefix}... have the shapes {list(shapes.values())}")
    kinds, K = header.get("architectures"), header.get("job", {}).get("clients")
    widths = (
        set()
        if ID in columns
        else {c.shape[1] for name, c in columns.items() if name.startswith("clients/")}
    )
    if kinds is not None and widths - {len(kinds)}:
        raise DamagedError(f"{len(kinds)} architectures, but columns of {widths.pop()} clients")
    if K and kinds is not None and ID not in columns and len(kinds) != K:
        raise DamagedError(f"{len(kinds)} architectures of {K} clients")
    nbytes = sum(c.nbytes for c in columns.values())  # readers fill missing columns with nan
    many = len(kinds or ())
    if record.rounds * many * 8 > max(PADDED, (SPARSE if sparse else PADDING) * nbytes):
        raise DamagedError(f"{record.rounds} rounds of {many} clients in {nbytes} bytes")
    for name, limit in (
        ("clients/id", K),
        ("clients/architecture", None if kinds is None else len(kinds)),
        ("clients/fault", len(header["faults"]) if "faults" in header else None),
    ):
        values = columns.get(name)
        if values is not None and limit is not None:
            numbers = values[np.isfinite(values)]
            if ((numbers < 0) | (numbers >= limit)).any():
                raise DamagedError(f"column {name!r} has numbers outside 0..{limit - 1}")
    check_arrays(record.arrays, header)


def check_arrays(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    """Raise DamagedError for arrays of other shapes than their names require."""
    K, C = (len(header[name]) if name in header else None for name in ("architectures", "classes"))
    for name, array in arrays.items():
        tables = ("label_counts", "links", "reliability", "confusion")
        dimensions = 2 if name.removesuffix("_received").removesuffix("_final") in tables else 1
        if array.ndim != dimensions:
            raise DamagedError(f"array {name!r} has the shape {list(array.shape)}")
    counts, links = arrays.get("label_counts"), arrays.get("links")
    if counts is not None and (K, C) not in ((None, None), counts.shape) and None not in (K, C):
        raise DamagedError(f"label_counts has the shape {list(counts.shape)}, not {[K, C]}")
    if links is not None and (links.shape[1] != 2 or (K and ((links < 0) | (links >= K)).any())):
        raise DamagedError("links are not pairs of clients")
