"""Data sets in memory: two splits as arrays, and facts for models and augmentation."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcfed.config.sections import Columns
from hpcfed.core.encoder import Encoder, parse
from hpcfed.core.errors import ConfigError, DataError, unknown
from hpcfed.core.shapes import Modality, Shapes, each, read_numbers
from hpcfed.data.moments import moments
from hpcfed.tasks import Task, from_facts
from hpcfed.tasks.classification import Classification

Arrays = dict[str, np.ndarray]


class Text(NamedTuple):
    """Settings for the conversion of texts to rows of numbers.

    vocabulary: maximum number of different tokens.
    tokens: length of a row.
    """

    vocabulary: int = 10_000
    tokens: int = 32


TEXT = Text()
HELD_OUT = 0.2  # share of the examples for the test split of own data that have none


@dataclass(frozen=True)
class Reading:
    """Settings for reading a user's own data, from the fields of the job.

    columns: the roles of a table's columns.
    test_file: the table of the test examples.
    held_out: share of the examples that becomes the test split if there is none.
    task: name of the task; "": as the data say.
    image_size: pixels, in height and width, to which images of a folder are scaled; 0: all have the
    same size.
    channels: which axis of arrays of images has the channels: first, last, or auto.
    groups: the column of a table by which test examples are grouped; "": they are not.
    domains: natural clients whose examples are used, by name; none: all.
    """

    text: Text = TEXT
    columns: Columns = field(default_factory=Columns)
    test_file: Path | None = None
    held_out: float = HELD_OUT
    image_size: int = 0
    channels: str = "auto"
    task: str = ""
    groups: str = ""
    domains: tuple[str, ...] = ()

    @property
    def missing_words(self) -> frozenset[str]:
        """Words that stand for a missing value, in lower case; "" is one."""
        return frozenset(("", *(word.strip().lower() for word in self.columns.missing_words)))

    def refuse_others(self, where: str, what: str, taken: Collection[str]) -> None:
        """Raise DataError for a field that is set but has no effect on such data.

        taken: the fields that have an effect, such as "data.held_out" and "columns.label".
        """
        usual = Reading()
        names = [f"data.{name}" for name in ("test_file", "held_out", "image_size", "channels")]
        names += [f"columns.{name}" for name in type(self.columns).model_fields]
        for name in names:
            table, _, last = name.partition(".")
            mine, other = (r.columns if table == "columns" else r for r in (self, usual))
            if name not in taken and getattr(mine, last) != getattr(other, last):
                raise DataError(f"{where}: {name} has no effect on {what}; remove it")


READING = Reading()
COLUMNS = tuple(  # fields that have an effect on tables of any format
    f"columns.{name}" for name in Columns.model_fields if name not in ("image", "encoding")
)


@dataclass(frozen=True)
class Split:
    """One split of a data set.

    x: images [n, channels, height, width], uint8 (0..255) or float32 (0..1); tokens [n, L], int32,
    with 0 for padding; sequences [n, channels, L] or rows of numbers [n, features], float32. With
    several modalities, a dict of such arrays by modality.
    y: labels, in the form that the task of the data set gives them; of classes [n], int64, 0..C-1.
    users: [n], int64, the natural client of each example, or None if the data name none.
    present: by modality, [n], bool, which examples have it. All examples have a modality that is
    not named. Where an example lacks one, x holds the mean (`fill_absent`), which is 0 once
    normalised.
    """

    x: Any
    y: np.ndarray
    users: np.ndarray | None = None
    present: Mapping[str, np.ndarray] = field(default_factory=dict)

    def take(self, rows: np.ndarray | slice) -> Split:
        """Return the examples of these rows."""
        users = None if self.users is None else self.users[rows]
        present = {name: v[rows] for name, v in self.present.items()}
        return Split(each(self.x, lambda v: v[rows]), self.y[rows], users, present)


@dataclass(frozen=True)
class DataSet:
    """Training and test split of one data set.

    classes: C names of what a model's outputs are: of classes, labels, or targets.
    mean, std: one number per channel, of the training split, on the 0..1 scale if x is uint8, else
    on the scale of x; empty for tokens. With several modalities, dicts by modality.
    vocabulary: number of different tokens, including padding; 0 for images and for several
    modalities.
    vocabularies: the vocabulary of each modality.
    task: what the labels are, and how they are learned and scored.
    own_tests: test examples belong to the users that they name. In the natural partition a client
    is then tested on the test examples of its own users, otherwise on examples that mirror its
    labels.
    notes: changes that were made to the data while reading, such as filled gaps; one line each.
    columns: what each column of a table is, in the table's order; one line each.
    user_names: names of the natural clients by their numbers in `users`; empty if they have none.
    groups: [n], int64, the group of each test example; None: they are not grouped.
    group_names: names of the groups by their numbers.
    encoder: what new examples become.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    mean: Any
    std: Any
    vocabulary: int = 0
    vocabularies: Mapping[str, int] = field(default_factory=dict)
    task: Task = field(default_factory=Classification)
    own_tests: bool = False
    notes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    user_names: tuple[str, ...] = ()
    groups: np.ndarray | None = None
    group_names: tuple[str, ...] = ()
    encoder: Encoder = Encoder()  # noqa: RUF009, it is frozen

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example: whole numbers, or `Shapes` for several modalities."""
        x = self.train.x
        if not isinstance(x, Mapping):
            return x.shape[1:]
        return Shapes(  # type: ignore[return-value]
            Modality(name, v.shape[1:], self.vocabularies[name]) for name, v in x.items()
        )

    @property
    def modalities(self) -> tuple[str, ...]:
        """Names of the modalities; empty for inputs of one kind."""
        return tuple(self.train.x) if isinstance(self.train.x, Mapping) else ()

    @property
    def strata(self) -> np.ndarray:
        """Groups of the training examples for proportional sampling, [n], int64; all 0: none."""
        return self.task.strata(self.train.y)

    def fitted(self) -> DataSet:
        """Return the data set with labels as its task prepares them for training."""
        task, train, test = self.task.fit(self.train.y, self.test.y)
        if task is self.task:
            return self
        return replace(
            self, task=task, train=replace(self.train, y=train), test=replace(self.test, y=test)
        )

    def of_domains(self, names: Collection[str], own: bool) -> DataSet:
        """Return the examples of these natural clients alone.

        own: they are a user's own, whose mean and deviation are those of the examples in use.
        Raises ConfigError for a name that the data do not have.
        """
        users = {self.domain(name, "data.domains") for name in names}
        if len(users) == len(self.user_names):  # the source has read no others
            return self
        train, test = (
            np.flatnonzero(np.isin(np.asarray(split.users), [*users]))
            for split in (self.train, self.test)
        )
        changes: dict[str, Any] = {"train": self.train.take(train), "test": self.test.take(test)}
        if self.groups is not None:
            changes["groups"] = self.groups[test]
        if own and len(train) and not (self.text or self.modalities):
            changes["mean"], changes["std"] = moments(changes["train"].x)
        return replace(self, **changes)

    def domain(self, name: str, field: str) -> int:
        """Return the number of the natural client of this name.

        field: of the job, which names it.  Raises ConfigError if the data have no such client.
        """
        if self.train.users is None or self.test.users is None or not self.user_names:
            raise ConfigError(
                f"{field} = {name!r}: {self.name} does not name the natural clients of its "
                f"training and test examples; set columns.client, or remove it"
            )
        if name not in self.user_names:
            raise ConfigError(f"{field}: {unknown('natural client', name, self.user_names)}")
        return self.user_names.index(name)

    @property
    def text(self) -> bool:
        """Whether the inputs, or those of some modality, are tokens."""
        return bool(self.vocabulary) or any(self.vocabularies.values())

    def only(self, names: Collection[str]) -> DataSet:
        """Return the same examples with these modalities alone, in the data set's order.

        Raises ConfigError for a modality that the data do not have.
        """
        for name in names:
            if name not in self.modalities:
                available = ", ".join(self.modalities) or "one kind of input, without a name"
                raise ConfigError(
                    f"modality {name!r}: {self.name} has {available}; name one of those"
                )
        wanted = [name for name in self.modalities if name in names]
        pick = lambda d: {name: d[name] for name in wanted if name in d}  # noqa: E731
        return replace(
            self,
            train=replace(self.train, x=pick(self.train.x), present=pick(self.train.present)),
            test=replace(self.test, x=pick(self.test.x), present=pick(self.test.present)),
            mean=pick(self.mean),
            std=pick(self.std),
            vocabularies=pick(self.vocabularies),
        )


def several(
    name: str,
    train: Split,
    test: Split,
    classes: Sequence[str],
    vocabulary: Mapping[str, int] | None = None,
    **facts: Any,
) -> DataSet:
    """Make a data set with several modalities.

    Each modality is normalised by the training examples that have it.
    vocabulary: of the modalities that are tokens.
    facts: further fields of `DataSet`.
    """
    tokens = dict.fromkeys(train.x, 0) | dict(vocabulary or {})
    mean, std = {}, {}
    for part, x in train.x.items():
        present = train.present.get(part)
        values = x if present is None or not present.any() else x[present]
        mean[part], std[part] = ((), ()) if tokens[part] else moments(values)
    train, test = fill_absent(train, mean), fill_absent(test, mean)
    return DataSet(name, train, test, tuple(classes), mean, std, 0, tokens, **facts)


def fill_absent(split: Split, mean: Mapping[str, Sequence[float]]) -> Split:
    """Fill in the mean of each channel where an example lacks a modality.

    Tokens are filled with padding, uint8 with 0.
    """
    filled = dict(split.x)
    for name, present in split.present.items():
        x = filled[name].copy()
        x[~present] = 0
        if mean[name] and x.dtype != np.uint8:
            x[~present] = np.array(mean[name], x.dtype).reshape(-1, *[1] * (x.ndim - 2))
        filled[name] = x
    return replace(split, x=filled)


FACTS = (
    *("name", "classes", "mean", "std", "vocabulary", "vocabularies", "own_tests"),
    "notes",
    "columns",
    "user_names",
    "group_names",
)
TUPLES = "classes", "notes", "columns", "user_names", "group_names"


def to_arrays(data: DataSet) -> Arrays:
    """Return the data set as arrays alone, to be shared between the ranks of a node.

    The facts become JSON bytes.
    """
    facts = {name: getattr(data, name) for name in FACTS}
    facts |= {"modalities": data.modalities, "task": data.task.facts()}
    facts["encoder"] = data.encoder.plain()
    arrays = {"facts": np.frombuffer(json.dumps(facts).encode(), np.uint8)}
    for part, split in (("train", data.train), ("test", data.test)):
        fields = {"y": split.y, "users": split.users}
        if isinstance(split.x, Mapping):
            fields |= {f"x/{name}": v for name, v in split.x.items()}
        else:
            fields["x"] = split.x
        fields |= {f"present/{name}": v for name, v in split.present.items()}
        arrays |= {f"{part}_{key}": value for key, value in fields.items() if value is not None}
    return arrays if data.groups is None else arrays | {"groups": data.groups}


def from_arrays(arrays: Arrays) -> DataSet:
    """Return the data set from `to_arrays`; its splits are views of the given arrays."""
    facts = json.loads(arrays["facts"].tobytes())
    names, task = facts.pop("modalities"), from_facts(facts.pop("task"))

    def split(part: str) -> Split:
        x = {name: arrays[f"{part}_x/{name}"] for name in names} if names else arrays[f"{part}_x"]
        flags = {name: arrays.get(f"{part}_present/{name}") for name in names}
        present = {name: v for name, v in flags.items() if v is not None}
        return Split(x, arrays[f"{part}_y"], arrays.get(f"{part}_users"), present)

    facts |= {key: read_numbers(facts[key]) for key in ("mean", "std")}
    facts |= {key: tuple(facts[key]) for key in TUPLES}
    stored = facts.pop("encoder")
    train, test = split("train"), split("test")
    data = DataSet(train=train, test=test, task=task, groups=arrays.get("groups"), **facts)
    return replace(data, encoder=parse(stored, data.shape, data.vocabulary, data.classes))
