"""Nothing leaves a client but as an Upload, and the server uses what came through.

Each method runs a round of the toy world, with transforms of all uploads that make what the server
receives something else than what the client has.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest

from hpcfed.algorithms import ALGORITHMS
from hpcfed.comm import Serial
from hpcfed.core.params import Mean, Params
from hpcfed.core.payload import map_tensors, nbytes, tensors
from hpcfed.federation.upload import Upload
from tests.contract import toy

# in which no client sends anything: they train alone, or the server does it all
SILENT = ("local", "central")
ROUNDS = 1


@dataclass
class Scale:
    """Multiplies the values of all uploads, and notes them."""

    factor: float
    name: str | None = None  # of the only part that is changed; None: all
    seen: list[tuple[int, str, int]] = field(default_factory=list)  # client, part, bytes

    def upload(self, fed, client, name: str, part: Any, reference: Any) -> tuple[Any, None]:
        self.seen.append((client.id, name, nbytes(part)))
        if reference is not None:
            check_reference(part, reference)
        same = self.factor == 1 or self.name not in (None, name)
        return (part if same else scaled(part, self.factor)), None

    def received(self, fed, name: str, parts: list) -> list:
        return parts


class Power(Scale):
    """Multiplies by a power of two, which the inverse undoes exactly; not whole numbers."""

    def upload(self, fed, client, name: str, part: Any, reference: Any) -> tuple[Any, None]:
        whole = {id(v) for _, v in tensors(part) if not v.is_floating_point()}
        return (part if whole else scaled(part, self.factor)), None


def scaled(part: Any, factor: float) -> Any:
    """The part with other values; weights and positions stay, and whole numbers become 0."""
    if isinstance(part, Mean):
        return Mean(tuple(t._replace(value=scaled(t.value, factor)) for t in part.terms))
    return map_tensors(part, lambda v: v * (factor if v.is_floating_point() else 0))


def check_reference(part: Any, reference: Any) -> None:
    """A reference has the names and shapes of the part that is a change of it."""
    values = [t.value for t in part.terms] if isinstance(part, Mean) else [part]
    for value in values:
        assert isinstance(value, Params) and value.keys() <= reference.keys()
        assert all(v.shape == reference[name].shape for name, v in value.items())


def run(method: str, *transforms: Any) -> toy.Outcome:
    job = toy.job(method, "--rounds", str(ROUNDS), *toy.different(method))
    rounds = toy.start(Serial(), job)
    rounds.fed.transforms.extend(transforms)
    return toy.outcome(rounds, [rounds.step()[0] for _ in range(ROUNDS)])


each_method = pytest.mark.parametrize("method", ALGORITHMS)


@cache
def plain(method: str) -> tuple[toy.Outcome, Scale, Counter[str], list[int]]:
    """A run whose uploads are noted, the transform that noted them, and what turns made: the parts,
    and the bytes of each upload to all its receivers.
    """
    made: Counter[str] = Counter()
    sizes = []
    init = Upload.__init__

    def note(self: Upload, *args: Any, **named: Any) -> None:
        init(self, *args, **named)
        made.update([*self.parts])
        sizes.append(self.receivers * sum(map(nbytes, self.parts.values())))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Upload, "__init__", note)
        transform = Scale(1.0)
        return run(method, transform), transform, made, sizes


@each_method
def test_each_part_of_an_upload_passes_once_and_its_bytes_are_those_counted(method: str):
    outcome, transform, made, sizes = plain(method)
    assert Counter(name for _, name, _ in transform.seen) == made
    assert bool(made) == (method not in SILENT)
    assert sum(sizes) == outcome.column("up").sum()


@each_method
def test_a_change_of_all_uploads_and_its_inverse_change_no_bit(method: str):
    assert toy.differences(run(method, Power(2.0), Power(0.5)), plain(method)[0]) == []


@each_method
def test_the_server_uses_each_part_of_what_it_received(method: str):
    want, transform, *_ = plain(method)
    for name in sorted({name for _, name, _ in transform.seen}):
        got = run(method, Scale(1.5, name))
        assert toy.differences(results(got), results(want)) != [], name


def results(outcome: toy.Outcome) -> list[Any]:
    return [outcome.state, outcome.weights, outcome.memory]
