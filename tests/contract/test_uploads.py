"""Nothing leaves a client but as an Upload, and the server uses what came through.

Each method runs a round of the toy world, with transforms of all uploads that make what the server
receives something else than what the client has.
"""

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest

from hpcfed.algorithms import ALGORITHMS
from hpcfed.comm import Serial
from hpcfed.core.params import Mean, Params
from hpcfed.core.payload import map_tensors, nbytes, tensors
from hpcfed.core.shapes import each
from hpcfed.engine.rounds import Rounds
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

    def download(self, fed, client, value: Any) -> tuple[Any, None]:
        return value, None

    def received(self, fed, name: str, parts: list) -> list:
        return parts


class Power(Scale):
    """Multiplies by a power of two, which the inverse undoes exactly; not whole numbers."""

    def upload(self, fed, client, name: str, part: Any, reference: Any) -> tuple[Any, None]:
        integers = {id(v) for _, v in tensors(part) if not v.is_floating_point()}
        return (part if integers else scaled(part, self.factor)), None


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


@dataclass
class Messages:
    """Notes what clients send and receive, or replaces it by what they did in another run.

    uploads, downloads: values by client, number of the message, and part.
    replaced: number of values that were others.
    """

    replay_uploads: bool = False
    replay_downloads: bool = False
    uploads: dict[tuple[int, int, str], Any] = field(default_factory=dict)
    downloads: dict[tuple[int, int, str], Any] = field(default_factory=dict)
    replaced: int = 0
    counts: Counter[tuple[str, int, str]] = field(default_factory=Counter)

    def upload(self, fed, client, name: str, part: Any, reference: Any) -> tuple[Any, None]:
        return self._pass("up", client.id, name, part, self.uploads, self.replay_uploads), None

    def download(self, fed, client, value: Any) -> tuple[Any, None]:
        return self._pass("down", client.id, "", value, self.downloads, self.replay_downloads), None

    def _pass(self, way: str, k: int, name: str, value: Any, log: dict, replay: bool) -> Any:
        number = self.counts[way, k, name]
        self.counts[way, k, name] += 1
        if replay:
            other = log[k, number, name]
            self.replaced += bool(toy.differences(plain_value(value), plain_value(other)))
            return deepcopy(other)
        log[k, number, name] = deepcopy(value)
        return value

    def received(self, fed, name: str, parts: list) -> list:
        return parts


def plain_value(part: Any) -> Any:
    """The values of a part, without their positions."""
    return [t[:2] for t in part.terms] if isinstance(part, Mean) else part


def run(
    method: str,
    *transforms: Any,
    rounds: int = ROUNDS,
    before: Callable[[Rounds], None] = lambda rounds: None,
) -> toy.Outcome:
    """Run the toy job of a method; before: is called when it has been set up."""
    job = toy.job(method, "--rounds", str(rounds), *toy.different(method))
    going = toy.start(Serial(), job)
    going.fed.transforms.extend(transforms)
    before(going)
    return toy.outcome(going, [going.step()[0] for _ in range(rounds)])


each_method = pytest.mark.parametrize("method", ALGORITHMS)


@cache
def plain(method: str) -> tuple[toy.Outcome, Scale, Counter[str], list[int]]:
    """A run whose uploads are noted, the transform that noted them, and what turns made: the parts,
    and the bytes of each upload to all its receivers.
    """
    counts: Counter[str] = Counter()
    sizes = []
    init = Upload.__init__

    def note(self: Upload, *args: Any, **named: Any) -> None:
        init(self, *args, **named)
        counts.update([*self.parts])
        sizes.append(self.receivers * sum(map(nbytes, self.parts.values())))

    with pytest.MonkeyPatch.context() as patch:
        transform = Scale(1.0)
        # not in the set-up, where bytes may be measured on a trial
        start = lambda rounds: patch.setattr(Upload, "__init__", note)  # noqa: E731
        return run(method, transform, before=start), transform, counts, sizes


@each_method
def test_each_part_of_an_upload_passes_once_and_its_bytes_are_those_counted(method: str):
    outcome, transform, counts, sizes = plain(method)
    assert Counter(name for _, name, _ in transform.seen) == counts
    assert bool(counts) == (method not in SILENT)
    assert sum(sizes) == outcome.column("up").sum()


@each_method
def test_a_change_of_all_uploads_and_its_inverse_change_no_bit(method: str):
    assert toy.differences(run(method, Power(2.0), Power(0.5)), plain(method)[0]) == []


@each_method
def test_the_server_uses_each_part_of_what_it_received(method: str):
    want, transform, *_ = plain(method)
    for name in sorted({name for _, name, _ in transform.seen}):
        try:
            got = run(method, Scale(1.5, name))
        except IndexError:
            continue  # no channel is left in a mask of zeros: the server does use it
        assert toy.differences(results(got), results(want)) != [], name


@each_method
def test_the_server_learns_about_clients_only_from_uploads(method: str):
    assert learnt_in_another_way(method) == []


def test_a_server_that_reads_the_clients_models_fails():
    assert learnt_in_another_way("tests.contract.cheats:Peeks")


def learnt_in_another_way(method: str) -> list[str]:
    """Differences in what the server has and sends, between clients with different data and the
    same uploads.
    """
    rounds = 2  # the first uploads of peers are their common start
    first, second = Messages(), Messages(replay_uploads=True)
    want = run(method, first, rounds=rounds)
    second.uploads = first.uploads
    got = run(method, second, rounds=rounds, before=invert_inputs)
    assert second.replaced or method in SILENT  # the clients did send something else
    return toy.differences([got.state, second.downloads], [want.state, first.downloads])


def invert_inputs(rounds: Rounds) -> None:
    """Give all clients other training inputs with the same labels."""
    for client in rounds.fed.clients.values():
        client.train.x = each(client.train.x, lambda x: 255 - x)


def results(outcome: toy.Outcome) -> list[Any]:
    return [outcome.state, outcome.weights, outcome.memory]


def test_the_losses_that_power_of_choice_asks_for_pass_the_transforms_too():
    flags = ("--rounds", "4", "--models.mix", "mlp", "--selection.by", "power-of-choice")

    def cohorts(transform: Scale) -> list[list[bool]]:
        going = toy.start(Serial(), toy.job("fedavg", *flags))
        going.fed.transforms.append(transform)
        return [going.step()[0]["clients/cohort"].tolist() for _ in range(4)]

    same, opposite = Scale(1.0), Scale(-1.0, "training_loss")
    chosen = cohorts(same)
    assert [size for _, name, size in same.seen if name == "training_loss"] == [4] * sum(
        map(sum, chosen)
    )
    assert cohorts(opposite) != chosen
