"""What compression does with what it loses, and with what clients have received before."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hpcfed.algorithms.trial import measure
from hpcfed.comm import Serial
from hpcfed.config.load import load
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Mean, Params
from hpcfed.federation.transforms.compression.codec import Codec
from hpcfed.federation.transforms.compression.float16 import Float16
from hpcfed.federation.transforms.compression.powersgd import PowerSGD
from hpcfed.federation.transforms.compression.randomk import RandomK
from hpcfed.federation.transforms.compression.sign import Sign
from hpcfed.federation.transforms.compression.stc import STC
from hpcfed.federation.transforms.compression.topk import TopK
from hpcfed.federation.transforms.compression.transform import Compression
from hpcfed.federation.upload import Upload
from hpcfed.machine.clock import Clock
from tests.contract import toy


class World:
    """A client and what a transform reads of its federation."""

    def __init__(self, up: Codec | None = None, down: Codec | None = None, feedback: Any = "none"):
        self.transform = Compression(up, down, feedback)
        self.client: Any = SimpleNamespace(id=3, memory={})
        algorithm = SimpleNamespace(in_virtual_time=False)
        self.fed: Any = SimpleNamespace(
            seed=0,
            t=0,
            moment=0,
            trial=False,
            clock=Clock(),
            job=SimpleNamespace(algorithm=algorithm),
            replay=SimpleNamespace(requests={3: 1}),
        )

    def next_round(self) -> None:
        self.fed.t = self.fed.moment = self.fed.t + 1
        self.fed.replay.requests[3] = 1

    def send(self, upload: Upload) -> Upload:
        return self.transform.upload(self.fed, self.client, upload)

    def receive(self, value: Any) -> tuple[Any, int | None]:
        return self.transform.download(self.fed, self.client, value)


def top(k: int, n: int) -> TopK:
    return TopK(k / n, together=True)


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def part(*values: float, **how: Any) -> Mean:
    return Mean.of(Params(w=vector(*values)), 2.0, **how)


def sent(upload: Upload) -> list[float]:
    return upload.value.terms[0].value["w"].tolist()


def test_ef14_adds_what_was_lost_to_the_next_upload():
    world, arrived = World(top(1, 3), feedback="ef14"), []
    for _ in range(4):
        arrived.append(sent(world.send(Upload(part(3, -1, 0.5)))))
        world.next_round()
    assert arrived == [[3, 0, 0], [3, 0, 0], [3, 0, 0], [0, -4, 0]]
    error = world.client.memory["compression"]["ef14"]["1 "]["/0/w"]
    assert (np.sum(arrived, 0) + error).tolist() == [12, -4, 2]


def test_ef14_of_signs_and_of_stc():
    for codec, update, arrives, error in (
        (Sign(), (3.0, -1.0), [2, -2], [1, 1]),
        (STC(0.5), (5.0, -3.0, 1.0, 0.125), [4, -4, 0, 0], [1, 1, 1, 0.125]),
    ):
        world = World(codec, feedback="ef14")
        codec.most_bytes_of = lambda shape: 0  # type: ignore[method-assign]
        codec.encode = forced(codec)  # type: ignore[method-assign]
        codec.decode = forced_back(codec)  # type: ignore[method-assign]
        assert sent(world.send(Upload(part(*update)))) == arrives
        assert world.client.memory["compression"]["ef14"]["1 "]["/0/w"].tolist() == error


def forced(codec: Codec) -> Any:
    """Encode a tensor that would be shorter as it is."""
    return lambda tensors, generator, memory=None: codec.pack(tensors[0], generator, {})


def forced_back(codec: Codec) -> Any:
    from hpcfed.federation.transforms.compression.bits import Reader

    return lambda message, shapes, generator: [codec.unpack(Reader(message), shapes[0], generator)]


def test_ef21_approaches_a_constant_update():
    world, arrived = World(top(1, 3), feedback="ef21"), []
    for _ in range(4):
        arrived.append(sent(world.send(Upload(part(3, -1, 0.5)))))
        world.next_round()
    assert arrived == [[3, 0, 0], [3, -1, 0], [3, -1, 0.5], [3, -1, 0.5]]


def test_errors_of_models_are_added_and_values_approached():
    reference, sums = Params(w=vector(0, 0, 0)), {}
    for name, how in (("model", {"relative_to": reference}), ("values", {})):
        world = World(top(1, 3), feedback="auto")
        arrived = []
        for _ in range(3):
            arrived.append(sent(world.send(Upload(part(3, -1, 0.5), **how))))
            world.next_round()
        sums[name] = arrived[-1]
    assert sums == {"model": [3, 0, 0], "values": [3, -1, 0.5]}


def test_the_difference_to_the_reference_is_encoded_and_weights_are_not():
    reference = Params(w=vector(10, 10, 10))
    upload = World(top(1, 3)).send(Upload(part(13, 9, 10.5), relative_to=reference))
    assert sent(upload) == [13, 10, 10]
    assert upload.value.terms[0].weight == 2.0
    assert upload.nbytes == 1 + 4 + 2  # flags, the value, and its position with its encoding


def test_a_lossless_message_is_the_value_itself():
    """0.1 - 0.3 + 0.3 is not 0.1 in float32."""
    value, reference = Params(w=vector(0.1, 7)), Params(w=vector(0.3, 0.7))
    world = World(TopK(1.0), feedback="ef14")
    upload = world.send(Upload(Mean.of(value), relative_to=reference))
    assert upload.value.terms[0].value["w"] is value["w"]
    assert world.client.memory == {}


def test_whole_numbers_doubles_and_tensors_of_weight_travel_as_they_are():
    mean = Mean.of(Params(w=vector(1, 2, 3)), Params(w=vector(1, 0, 1)))
    others = {"n": torch.arange(3), "d": torch.ones(2, dtype=torch.float64)}
    upload = World(top(1, 3)).send(Upload(model=mean, others=others))
    assert upload["model"].terms[0].value["w"].tolist() == [0, 0, 3]
    assert upload["model"].terms[0].weight["w"].tolist() == [1, 0, 1]
    assert upload["others"] is others
    assert upload.nbytes == (1 + 4 + 2) + 12 + 24 + 16


def test_a_variance_never_becomes_negative():
    sent = Params({"bn.running_var": vector(0.1, 3, 0.2)})
    upload = World(Sign()).send(Upload(Mean.of(sent), relative_to=sent * 2))
    assert upload.value.terms[0].value["bn.running_var"] is sent["bn.running_var"]


def test_two_turns_of_a_round_have_errors_of_their_own():
    world = World(top(1, 2), feedback="ef14")
    for _ in range(2):
        arrived = []
        for turn, values in ((1, (4, 1)), (2, (5, 3))):
            world.fed.replay.requests[3] = turn
            arrived.append(sent(world.send(Upload(part(*values)))))
        world.next_round()
    assert arrived == [[4, 0], [0, 6]]


def test_errors_belong_to_positions_of_the_whole_tensor():
    world, arrived = World(top(1, 2), feedback="ef14"), []
    for rows, values in (((0, 2), (4, 1)), ((2, 5), (1.5, 2)), ((0, 2), (0, 0))):
        at = {"w": (torch.tensor(rows),)}
        arrived.append(sent(world.send(Upload(part(*values, at=at)))))
        world.next_round()
    # row 2 lost 1, so that 2.5 are sent; then 2 of row 5 are lost, which nobody asks for again
    assert arrived == [[4, 0], [2.5, 0], [0, 0]]
    errors = world.client.memory["compression"]["ef14"]["1 "]["/0/w"]
    assert errors.tolist() == [0, 0, 0, 0, 0, 2]


def test_another_shape_starts_without_error():
    world = World(top(1, 2), feedback="ef14")
    world.send(Upload(part(4, 1)))
    world.next_round()
    assert sent(world.send(Upload(part(1, 2, 3, 4)))) == [0, 0, 3, 4]


def test_predictions_of_other_examples_keep_no_error():
    world = World(top(1, 2), feedback="ef14")
    world.send(Upload(part(4, 1), lasting=False))
    assert world.client.memory == {}


def test_a_failed_turn_leaves_the_error_as_it_was():
    world = World(top(1, 2), feedback="ef14")
    world.send(Upload(part(4, 1)))
    before = dict(world.client.memory)  # as the undo log has it
    error = before["compression"]["ef14"]["1 "]["/0/w"].copy()
    world.next_round()
    world.send(Upload(part(4, 1)))
    assert before["compression"]["ef14"]["1 "]["/0/w"].tolist() == error.tolist() == [0, 1]


def test_downloads_are_differences_to_what_the_client_has():
    world = World(down=top(1, 3))
    value, size = world.receive(Params(w=vector(8, 9, 10)))
    assert (value["w"].tolist(), size) == ([8, 9, 10], 12)
    arrived = []
    for _ in range(3):
        world.next_round()
        value, size = world.receive(Params(w=vector(11, 10, 12)))
        arrived.append(value["w"].tolist())
        assert size == 1 + 1 + 4 + 2
    assert arrived == [[11, 9, 10], [11, 9, 12], [11, 10, 12]]


def test_a_download_that_resembles_the_last_one_less_than_zeros_is_sent_itself():
    world = World(down=top(1, 2))
    world.receive(Params(w=vector(1, 8)))
    world.next_round()
    assert world.receive(Params(w=vector(-4, 1)))[0]["w"].tolist() == [-4, 0]


def test_several_downloads_of_a_round_belong_to_those_of_the_last_round():
    world = World(down=top(1, 2))
    for _ in range(2):
        model, control = (
            world.receive(Params(w=vector(*v)))[0]["w"].tolist() for v in ((8, 9), (1, 2))
        )
        world.next_round()
    assert (model, control) == ([8, 9], [1, 2])


def test_a_row_of_nan_travels_as_it_is():
    world = World(down=top(1, 2))
    for _ in range(2):
        value, _ = world.receive({"proto": vector(1, torch.nan)})
        assert value["proto"].isnan().tolist() == [False, True]
        world.next_round()


def test_powersgd_continues_from_its_last_factor():
    world = World(PowerSGD(1))
    matrix = torch.outer(torch.arange(1.0, 9), torch.arange(1.0, 9)) + torch.eye(8)
    errors = []
    for _ in range(3):
        (arrived,) = world.send(Upload(Params(w=matrix))).value.values()
        errors.append((arrived - matrix).norm().item())
        world.next_round()
    assert errors[0] > errors[1] >= errors[2]


def test_random_positions_differ_between_rounds_and_turns():
    world, arrived = World(RandomK(0.1)), set()
    for turn in (1, 2, 3, 1, 2, 3):
        world.fed.replay.requests[3] = turn
        world.fed.t = world.fed.moment = world.fed.t + (turn == 1)
        arrived.add(tuple(sent(world.send(Upload(part(*range(1, 41)))))))
    assert len(arrived) == 6


def test_floats_of_half_precision_are_half_the_bytes_each_way():
    flags = ("--models.mix", "mlp", "--rounds", "2", "--compression.min_size", "0")
    half = toy.run(
        Serial(),
        toy.job("fedavg", *flags, "--compression.by", "float16", "--compression.down", "float16"),
    )
    plain = toy.run(Serial(), toy.job("fedavg", "--models.mix", "mlp", "--rounds", "2"))
    member = plain.column("cohort").astype(bool)
    up, full = half.column("up")[member], plain.column("up")[member]
    assert (up == full // 2 + 1).all()
    for name, value in plain.state.items():
        torch.testing.assert_close(half.state[name], value, rtol=1e-2, atol=1e-3)


def test_traffic_is_known_before_the_round():
    for codec in ("qsgd", "terngrad", "sign", "eden", "powersgd", "int8", "random-k"):
        flags = ("--models.mix", "mlp", "--compression.by", codec)
        toy.check_traffic(toy.job("fedavg", *flags, "--compression.min_size", "0"))


def test_bytes_between_ranks_are_those_without_a_codec():
    encoded, plain = (
        toy.start(Serial(), toy.job("fedavg", "--models.mix", "mlp", *flags)).fed
        for flags in (("--compression.by", "int8", "--compression.down", "int8"), ())
    )
    assert measure(encoded).traffic(1) < measure(plain).traffic(1)
    assert measure(encoded, encoded=False).traffic(1) == measure(plain).traffic(1)


@pytest.mark.parametrize("codec", ["top-k", "stc", "sz3", "zfp"])
def test_codecs_whose_lengths_depend_on_values_announce_the_most(codec: str):
    flags = ("--models.mix", "mlp", "--compression.by", codec, "--compression.min_size", "0")
    rounds = toy.start(Serial(), toy.job("fedavg", *flags))
    announced = rounds.algorithm.traffic(rounds.fed, 1)[1]
    sizes = toy.outcome(rounds, [rounds.step()[0]]).column("up")[0]
    assert 0 < sizes[sizes > 0].min() <= sizes.max() <= announced


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--compression.share", "0.2"), "compression.share"),
        (("--compression.by", "topk"), "compression.by"),
        (("--compression.by", "top-k", "--compression.share", "0"), "compression.share"),
        (("--compression.by", "eden", "--compression.bits", "9"), "eden takes 1 to 8 bits"),
        (("--compression.by", "qsgd", "--compression.bits", "1"), "qsgd takes 2 to 16 bits"),
        (("--compression.down", "qsgd", "--compression.feedback", "ef14"), "feedback"),
        (("--compression.by", "int8", "--edges.number", "2"), "edge servers send sums"),
        (
            ("--compression.by", "int8", "--privacy.by", "local", "--privacy.clip", "1"),
            "add noise to what is encoded",
        ),
        (
            ("--compression.by", "int8", "--secure.by", "secagg", "--secure.bound", "10"),
            "masked whole numbers",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(flags: tuple[str, ...], message: str):
    with pytest.raises(ConfigError, match=message):
        load(["--algorithm.name", "fedavg", "--models.mix", "mlp", *flags], environ={})


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch):
    import sys

    from hpcfed.federation.transforms.compression.zfp import ZFP

    monkeypatch.setitem(sys.modules, "zfpy", None)
    with pytest.raises(ConfigError, match=r'pip install "hpcfed\[compression\]"'):
        ZFP(0.1)


def test_half_precision_bounds_values():
    x = np.array([7e4, -7e4, 1.0], np.float32)
    assert Float16().pack(x, None, {}) == np.array([65504, -65504, 1], np.float16).tobytes()


@pytest.mark.parametrize(("size", "warned"), [("100000", True), ("16", False)])
def test_a_codec_that_encodes_nothing_is_named(size: str, warned: bool, capsys):
    flags = ("--compression.by", "int8", "--compression.min_size", size)
    toy.run(Serial(), toy.job("fedavg", "--models.mix", "mlp", *flags), rounds=2)
    assert ("compression.by = 'int8' changes nothing" in capsys.readouterr().err) == warned
