"""Devices and network: virtual seconds by hand, profiles drawn and read, files that are refused
with one message.
"""

from pathlib import Path

import numpy as np
import pytest

from hpcfed.clients import traces
from hpcfed.clients.profiles import Profiles, draw, factors, read, read_measured
from hpcfed.comm import Serial
from hpcfed.config.system import System
from hpcfed.core.errors import ConfigError, DataError, HpcfedError
from hpcfed.engine.decide import world
from hpcfed.models.cost import work
from tests.contract import toy
from tests.threads import spmd

HEADER = "client,speed,bandwidth,latency,availability\n"
GOOD = HEADER + "1,2e9,5e5,0.2,0.5\n0,1e9,1e6,0.1,1\n"


def by_hand() -> Profiles:
    """Client 0: 10 multiply-adds an example, 100 a second; client 1 is ten times as fast on a slow
    line.
    """
    columns = ([100.0, 1000.0], [50.0, 5.0], [0.5, 1.0], [1.0, 1.0], [10.0, 10.0])
    return Profiles(*map(np.array, columns))


def test_an_exchange_is_latency_download_work_and_upload_one_after_the_other():
    p = by_hand()
    assert (
        p.seconds(0, examples=20, down=100, up=50)
        == 0.5 + 100 / 50 + 20 * 10 / 100 + 50 / 50
        == 5.5
    )
    assert p.seconds(1, examples=20, down=100, up=50) == 1.0 + 20.0 + 0.2 + 10.0
    assert p.fit(0, 5.5, 100, 50) == 20.0 and p.fit(0, 1.0, 100, 50) == 0.0


@pytest.mark.filterwarnings("error")
def test_times_beyond_all_numbers_are_infinite_and_numpy_does_not_warn():
    tiny, huge = np.array([5e-324, 0.0]), np.full(2, 1.7e308)
    slow = Profiles(speed=tiny, bandwidth=tiny, latency=tiny, availability=tiny, example=huge)
    for k in range(2):
        assert slow.compute(k, 1) == slow.transfer(k, 1) == slow.seconds(k, 1, 1, 1) == np.inf
    assert Profiles(huge, huge, tiny, tiny, example=tiny + 5e-324).fit(0, 1.0, 0, 0) == np.inf
    fast = System(distribution="uniform", spread=0.9, speed=1.7e308)
    assert np.isinf(draw(fast, 50, 0)["speed"]).any()


def test_equal_profiles_are_the_settings():
    profiles = draw(System(speed=3.0, bandwidth=2.0, latency=1.0, availability=0.5), 3, seed=0)
    assert {name: values.tolist() for name, values in profiles.items()} == {
        "speed": [3.0] * 3,
        "bandwidth": [2.0] * 3,
        "latency": [1.0] * 3,
        "availability": [0.5] * 3,
    }


def test_drawn_factors_have_the_spread_and_median_that_the_settings_say():
    flat = factors(System(distribution="uniform", spread=0.5), 4000, 0, "speed")
    assert flat.min() > 0.5 and flat.max() < 1.5 and abs(np.median(flat) - 1) < 0.05
    heavy = np.log(factors(System(distribution="lognormal", spread=0.8), 4000, 0, "speed"))
    assert abs(np.median(heavy)) < 0.05 and abs(heavy.std() - 0.8) < 0.03


def test_profiles_depend_on_the_seed_and_speed_is_independent_of_bandwidth():
    system = System(distribution="lognormal")
    a, b, again = draw(system, 5, 0), draw(system, 5, 1), draw(system, 5, 0)
    assert toy.differences(a, again) == [] and not np.array_equal(a["speed"], b["speed"])
    assert not np.allclose(a["speed"] / system.speed, a["bandwidth"] / system.bandwidth)


def test_the_lines_of_a_file_may_come_in_any_order(tmp_path: Path):
    (tmp_path / "p.csv").write_text(GOOD)
    profiles = read(tmp_path / "p.csv", 2)
    assert profiles["speed"].tolist() == [1e9, 2e9] and profiles["availability"].tolist() == [
        1.0,
        0.5,
    ]


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "begins with ''; the first line must be client,speed"),
        ("speed,client\n", "begins with 'speed,client'"),
        (
            HEADER + "0,1,1,1,1\n",
            "has 1 lines for 2 clients; give one line for each of the clients 0..1",
        ),
        (GOOD + "1,1,1,1,1\n", "has 3 lines for 2 clients"),
        (HEADER + "0,1,1,1,1\n0,1,1,1,1\n", "has 2 lines for 2 clients"),
        (
            HEADER + "0,1,1,1\n",
            r"'0,1,1,1': write client,speed,bandwidth,latency,availability as numbers",
        ),
        (HEADER + "0,fast,1,1,1\n", "'0,fast,1,1,1': write client"),
        (
            HEADER + "0,0,1,1,1\n1,1,1,1,1\n",
            "client 0: speed and bandwidth must be > 0, .* but they are 0, 1, 1, 1",
        ),
        (HEADER + "0,1,1,1,1.5\n1,1,1,1,1\n", "client 0: .*availability > 0 and <= 1"),
        (HEADER + "0,nan,1,1,1\n1,1,1,1,1\n", "client 0: speed"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_what_to_write(
    text: str, message: str, tmp_path: Path
):
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(DataError, match=f"system.file: .*p.csv: {message}"):
        read(tmp_path / "p.csv", 2)


def test_a_missing_file_is_named_on_all_ranks(tmp_path: Path):
    flags = (
        "--system.distribution",
        "file",
        "--system.file",
        str(tmp_path / "none.csv"),
        "--models.mix",
        "mlp",
    )
    with pytest.raises(HpcfedError, match=r"none.csv: cannot be read: No such file") as refusal:
        spmd(2, lambda comm: world(toy.job("local", *flags), comm))
    assert refusal.value.everywhere


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--system.distribution", "file"), "go together"),
        (("--system.file", "p.csv"), "go together"),
        (
            ("--system.distribution", "uniform", "--system.spread", "1"),
            "needs spread < 1, but it is 1",
        ),
        (("--system.availability", "0"), "availability"),
        (("--system.dropout", "1"), "dropout"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(flags: tuple[str, ...], message: str):
    with pytest.raises(ConfigError, match=message):
        toy.job("local", *flags)


def test_an_example_costs_three_times_its_forward_pass_in_the_clients_own_architecture():
    profiles = world(toy.job("local", "--models.mix", "mlp,cnn"), Serial()).profiles
    each = [
        3.0 * work(name, toy.SHAPE, toy.CLASSES, toy.D).multiply_adds for name in ("mlp", "cnn")
    ]
    assert profiles.example.tolist() == each * 3


TRACE = "client,time,available,speed\n"
# client 0 is away from 5 to 9 and then half as fast; client 1 comes at 3
STEPS = TRACE + "0,0,1,4e6\n0,5,0,4e6\n0,9,1,2e6\n1,0,0,1e6\n1,3,1,1e6\n"


def test_a_trace_sets_availability_and_speed_from_a_time_on(tmp_path: Path):
    (tmp_path / "t.csv").write_text(STEPS)
    trace = traces.read(tmp_path / "t.csv", 3)
    times = (0.0, 4.9, 5.0, 8.0, 9.0, 100.0)
    assert [trace.available_from(0, now) for now in times] == [0.0, 4.9, 9.0, 9.0, 9.0, 100.0]
    assert [trace.speed[trace.line(0, now)] for now in times] == [4e6] * 4 + [2e6] * 2
    assert trace.available_from(1, 1.0) == 3.0 and trace.line(2, 1.0) is None
    assert trace.available_from(2, 1.0) == 1.0


@pytest.mark.parametrize(
    "text, message",
    [
        ("client,time\n0,0\n", "the first line must be client,time,available,speed"),
        (TRACE + "0,0,1\n", "as numbers"),
        (TRACE + "3,0,1,1\n", "client must be 0..2"),
        (TRACE + "0,1,1,1\n", "each of its times once, the first one 0"),
        (TRACE + "0,0,1,1\n0,0,1,2\n", "each of its times once, the first one 0"),
        (TRACE + "0,0,1,1\n0,7,0,1\n", "its last line holds for ever"),
    ],
)
def test_a_wrong_trace_is_refused_with_its_client_or_line(text: str, message: str, tmp_path: Path):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        traces.read(tmp_path / "t.csv", 3)


@pytest.mark.parametrize("method", ["fedavg", "fedasync"])
def test_with_a_trace_bits_are_the_same_on_any_ranks_and_after_resume(method: str, tmp_path: Path):
    lines = [f"{k},0,{k % 2},1e5\n{k},0.5,{(k + 1) % 2},3e5\n{k},1,1,2e5" for k in range(6)]
    (tmp_path / "t.csv").write_text(TRACE + "\n".join(lines))
    job = toy.job(method, "--models.mix", "mlp", "--system.trace", str(tmp_path / "t.csv"))
    want = toy.run(Serial(), job)
    for got in spmd(3, lambda comm: toy.run(comm, job)):
        assert toy.differences(got, want) == []
    toy.run(Serial(), job, rounds=1, save=tmp_path / "run")
    again = toy.run(Serial(), job, resume=tmp_path / "run")
    assert toy.differences(again.state, want.state) == []
    assert toy.differences(again.rows, want.rows[1:]) == []
    without = toy.run(Serial(), toy.job(method, "--models.mix", "mlp"))
    assert toy.differences(without.rows, want.rows) != []
    if method == "fedavg":  # the first round begins at time 0, where the odd ones are there
        assert not want.column("cohort")[0, ::2].any()


MEASURED = "client,seconds,examples\n0,2,100\n2,1,50\n0,4,100\n"


def test_measured_seconds_are_those_that_virtual_work_takes(tmp_path: Path):
    (tmp_path / "m.csv").write_text(MEASURED)
    system = System(distribution="measured", measured=tmp_path / "m.csv", speed=40.0)
    example = np.array([10.0, 20.0, 30.0])  # multiply-adds, of unlike models
    profiles = draw(system, 3, 0, example)
    p = Profiles(**profiles, example=example)
    assert p.compute(0, 100) == pytest.approx(3.0)  # 2 and 4 seconds for 100 each
    assert p.compute(1, 100) == 50.0  # nothing is known: the median device, 100 * 20 / 40
    assert p.compute(2, 100) == pytest.approx(2.0)
    assert set(profiles["bandwidth"]) == {system.bandwidth}


@pytest.mark.parametrize(
    "line, message",
    [("0,1", "as numbers"), ("0,x,1", "as numbers"), ("3,1,1", "0..2"), ("0,0,1", "> 0")],
)
def test_a_wrong_line_of_measurements_is_refused(line: str, message: str, tmp_path: Path):
    (tmp_path / "m.csv").write_text(MEASURED + line)
    with pytest.raises(DataError, match=f"system.measured: .*{message}"):
        read_measured(tmp_path / "m.csv", 3)


def test_measured_profiles_change_virtual_time_and_no_weight(tmp_path: Path):
    (tmp_path / "m.csv").write_text(MEASURED)
    flags = ("--system.distribution", "measured", "--system.measured", str(tmp_path / "m.csv"))
    mlp = ("--models.mix", "mlp")
    without, measured = (toy.run(Serial(), toy.job("fedavg", *mlp, *f)) for f in ((), flags))
    assert toy.differences(without.state, measured.state) == []
    assert toy.differences(without.rows, measured.rows) != []
    with pytest.raises(ConfigError, match="go together"):
        toy.job("fedavg", *mlp, *flags[:2])
