"""Nothing leaves a client but as an Upload, and the server uses what came through.

Each method runs rounds of the toy world, with transforms of all uploads that make what the server
receives something else than what the client has. What clients receive is looked at in the same
runs (`test_downloads.py`).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from inspect import cleandoc
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch

from hpcfed.algorithms import ALGORITHMS
from hpcfed.comm import Comm, Serial
from hpcfed.core.params import Mean, Params
from hpcfed.core.payload import map_tensors, nbytes, tensors
from hpcfed.core.shapes import each
from hpcfed.engine.rounds import Rounds
from hpcfed.federation.upload import Transform, Upload
from tests.contract import toy
from tests.threads import spmd

# in which no client sends anything: they train alone, or the server does it all
SILENT = ("local", "central")
ROUNDS = 2  # the first uploads of peers are their common start
# not the last one of the job; scores are not looked at
WORDS = ("--rounds", "3", "--evaluate.every", "1000", "--evaluate.before", "false")


@dataclass
class Scale(Transform):
    """Multiplies the values of all uploads, and notes them."""

    factor: float
    name: str | None = None  # of the only part that is changed; None: all
    sent: list[tuple[int, str, int]] = field(default_factory=list)  # client, part, bytes

    def upload(self, fed, client, upload: Upload) -> Upload:
        self.sent += [(client.id, name, nbytes(part)) for name, part in upload.parts.items()]
        for name, reference in upload.relative_to.items():
            if reference is not None:
                check_reference(upload.parts[name], reference)
        if self.factor == 1:
            return upload
        return upload.changed({n: self.change(upload.parts[n]) for n in self.names(upload)})

    def names(self, upload: Upload) -> list[str]:
        return [name for name in upload.parts if self.name in (None, name)]

    def change(self, part: Any) -> Any:
        return scaled(part, self.factor)


class Power(Scale):
    """Multiplies by a power of two, which the inverse undoes exactly; not whole numbers."""

    def change(self, part: Any) -> Any:
        integers = {id(v) for _, v in tensors(part) if not v.is_floating_point()}
        return part if integers else scaled(part, self.factor)


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
class Messages(Transform):
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

    def upload(self, fed, client, upload: Upload) -> Upload:
        log, replay = self.uploads, self.replay_uploads
        return upload.changed(
            {n: self._pass("up", client.id, n, v, log, replay) for n, v in upload.parts.items()}
        )

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


def plain_value(part: Any) -> Any:
    """The values of a part, without their positions."""
    return [t[:2] for t in part.terms] if isinstance(part, Mean) else part


@dataclass
class Downlink(Transform):
    """Multiplies what clients receive, and notes what they receive and send.

    number: of the only download of each client that is changed, unevenly, from 0; None: none.
    """

    factor: float = 1.0
    number: int | None = None
    sizes: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # by client
    telling: dict[int, list[bool]] = field(default_factory=lambda: defaultdict(list))  # has values
    uploads: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))

    def upload(self, fed, client, upload: Upload) -> Upload:
        self.uploads[client.id] += map(deepcopy, upload.parts.values())
        return upload

    def download(self, fed, client, value: Any) -> tuple[Any, None]:
        number = len(self.sizes[client.id])
        self.sizes[client.id].append(nbytes(value))
        self.telling[client.id].append(any(map(has_values, (v for _, v in tensors(value)))))
        value = uneven(value) if number == self.number else value
        return (value if self.factor == 1 else multiplied(value, self.factor)), None


def has_values(tensor: Any) -> bool:
    value = np.asarray(tensor)
    return value.dtype.kind == "f" and bool((np.isfinite(value) & (value != 0)).any())


def uneven(value: Any) -> Any:
    """The value four times as large, its even entries with the other sign."""

    def change(v: torch.Tensor) -> torch.Tensor:
        factors = torch.where(torch.arange(v.numel(), device=v.device) % 2 == 0, -4.0, 4.0)
        return v * factors.view(v.shape).to(v.dtype) if v.is_floating_point() else v

    return map_tensors(value, change)


def multiplied(value: Any, factor: float) -> Any:
    return map_tensors(value, lambda v: v * factor if v.is_floating_point() else v)


def rounds_of(
    method: str, *transforms: Any, before: Callable[[Rounds], None] = lambda rounds: None
) -> Iterator[toy.Outcome]:
    """Run the toy job of a method, and yield what it has computed after each round.

    before: is called when the run has been set up.
    """
    going = toy.start(Serial(), toy.job(method, *WORDS, *toy.different(method)))
    going.fed.transforms.extend(transforms)
    before(going)
    rows = []
    for _ in range(ROUNDS):
        rows.append(going.step()[0])
        yield deepcopy(toy.outcome(going, rows))


def run(
    method: str, *transforms: Any, before: Callable[[Rounds], None] = lambda rounds: None
) -> toy.Outcome:
    """Run all rounds of `rounds_of`."""
    *_, last = rounds_of(method, *transforms, before=before)
    return last


each_method = pytest.mark.parametrize("method", ALGORITHMS)


@dataclass
class Plain:
    """A run whose messages are noted and not changed."""

    outcomes: list[toy.Outcome] = field(default_factory=list)  # after each round
    scale: Scale = field(default_factory=lambda: Scale(1.0))
    downlink: Downlink = field(default_factory=Downlink)
    messages: Messages = field(default_factory=Messages)
    round_1_uploads: dict[tuple[int, int, str], Any] = field(default_factory=dict)
    # what turns made: the parts of uploads, and the bytes of each to all its receivers
    parts: Counter[str] = field(default_factory=Counter)
    sizes: list[int] = field(default_factory=list)


@cache
def plain(method: str) -> Plain:
    noted, init = Plain(), Upload.__init__

    def note(self: Upload, *args: Any, **named: Any) -> None:
        init(self, *args, **named)
        noted.parts.update([*self.parts])
        noted.sizes.append(self.receivers * sum(map(nbytes, self.parts.values())))

    with pytest.MonkeyPatch.context() as patch:
        # not in the set-up, where bytes may be measured on a trial
        start = lambda rounds: patch.setattr(Upload, "__init__", note)  # noqa: E731
        transforms = noted.scale, noted.downlink, noted.messages
        for outcome in rounds_of(method, *transforms, before=start):
            if not noted.outcomes:
                noted.round_1_uploads = dict(noted.messages.uploads)
            noted.outcomes.append(outcome)
    return noted


@each_method
def test_each_part_of_an_upload_passes_once_and_its_bytes_are_those_counted(method: str):
    noted = plain(method)
    assert Counter(name for _, name, _ in noted.scale.sent) == noted.parts
    assert bool(noted.parts) == (method not in SILENT)
    assert sum(noted.sizes) == noted.outcomes[-1].column("up").sum()


@each_method
def test_a_change_of_all_messages_and_its_inverse_change_no_bit(method: str):
    """Of uploads, and of downloads."""
    there_and_back = Power(2.0), Power(0.5), Downlink(2.0), Downlink(0.5)
    assert toy.differences(run(method, *there_and_back), plain(method).outcomes[-1]) == []


@each_method
def test_the_server_uses_each_part_of_what_it_received(method: str):
    want = plain(method)
    for name in sorted({name for _, name, _ in want.scale.sent}):
        try:
            differ = (
                toy.differences(results(ours), results(theirs))
                for ours, theirs in zip(
                    rounds_of(method, Scale(1.5, name)), want.outcomes, strict=True
                )
            )
            assert any(differ), name  # the rounds after one that differs are not run
        except IndexError:
            continue  # no channel is left in a mask of zeros: the server does use it


@each_method
def test_the_server_learns_about_clients_only_from_uploads(method: str):
    assert learnt_in_another_way(method) == []


def test_a_server_that_reads_the_clients_models_fails():
    assert learnt_in_another_way("tests.contract.cheats:Peeks")


def learnt_in_another_way(method: str) -> list[str]:
    """Differences in what the server has and sends, between clients with different data and the
    same uploads.
    """
    want = plain(method)
    second = Messages(replay_uploads=True, uploads=want.messages.uploads)
    got = run(method, second, before=invert_inputs)
    assert second.replaced or method in SILENT  # the clients did send something else
    return toy.differences(
        [got.state, second.downloads], [want.outcomes[-1].state, want.messages.downloads]
    )


def invert_inputs(rounds: Rounds) -> None:
    """Give all clients other training inputs with the same labels."""
    for client in rounds.fed.clients.values():
        client.train.x = each(client.train.x, lambda x: 255 - x)


def results(outcome: toy.Outcome) -> list[Any]:
    return [outcome.state, outcome.weights, outcome.memory]


def test_the_noise_in_the_docstring_is_a_transform_with_the_same_bits_on_any_ranks():
    example = cleandoc(Transform.__doc__ or "").partition(":\n\n    ")[2]
    names: dict[str, Any] = {"Transform": Transform, "torch": torch}
    exec(dedent("    " + example), names)

    def state(comm: Comm, std: float) -> Any:
        going = toy.start(comm, toy.job("fedavg", *WORDS))
        going.fed.transforms.append(names["Noise"](std))
        for _ in range(ROUNDS):
            going.step()
        return deepcopy(going.state)

    want = state(Serial(), 0.1)
    assert toy.differences(state(Serial(), 0.0), plain("fedavg").outcomes[-1].state) == []
    assert toy.differences(want, plain("fedavg").outcomes[-1].state) != []
    for got in spmd(3, lambda comm: state(comm, 0.1)):
        assert toy.differences(got, want) == []


@pytest.mark.parametrize("by", ["power-of-choice", "oort"])
def test_the_losses_that_a_choice_asks_for_pass_the_transforms_too(by: str):
    flags = ("--rounds", "4", "--models.mix", "mlp", "--selection.by", by)

    def cohorts(transform: Scale) -> list[list[bool]]:
        going = toy.start(Serial(), toy.job("fedavg", *flags))
        going.fed.transforms.append(transform)
        return [going.step()[0]["clients/cohort"].tolist() for _ in range(4)]

    same, opposite = Scale(1.0), Scale(-1.0, "training_loss")
    chosen = cohorts(same)
    assert [size for _, name, size in same.sent if name == "training_loss"] == [4] * sum(
        map(sum, chosen)
    )
    assert cohorts(opposite) != chosen
