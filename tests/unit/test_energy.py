"""Energy: counters that begin again, one reader for each, phases, and the factor of carbon."""

import threading
from pathlib import Path
from weakref import ref

import numpy as np
import pytest
import torch

from hpcfed.comm import Comm, Serial
from hpcfed.engine.run import run_here
from hpcfed.machine import energy
from hpcfed.machine.clock import Clock
from hpcfed.machine.energy import Counter, Meter, carbon, keep_reading, meter_of_rank, packages
from hpcfed.report import measures
from hpcfed.results import summary
from hpcfed.storage import results
from hpcfed.storage.record import Record
from tests.contract import toy
from tests.threads import spmd

CPU = torch.device("cpu")


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Two packages, one with parts, and the platform that includes them."""
    for name, words, joules in (
        ("intel-rapl:0", "package-0", 5.0),
        ("intel-rapl:0:0", "core", 3.0),
        ("intel-rapl:1", "package-1", 7.0),
        ("intel-rapl:2", "psys", 20.0),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "name").write_text(f"{words}\n")
        (folder / "energy_uj").write_text(f"{joules * 1e6:.0f}\n")
        (folder / "max_energy_range_uj").write_text("10000000\n")
    return tmp_path


def use(folder: Path, name: str, joules: float) -> None:
    """Let a counter count, and begin again after 10 J."""
    file = folder / name / "energy_uj"
    file.write_text(f"{(int(file.read_text()) + joules * 1e6) % 10e6:.0f}\n")


def test_packages_are_counted_and_not_their_parts_or_the_platform(powercap: Path):
    assert [counter.name for counter in packages(powercap)] == ["package-0", "package-1"]


def test_a_counter_may_begin_again(powercap: Path):
    meter = Meter(packages(powercap))
    use(powercap, "intel-rapl:0", 2.0)
    use(powercap, "intel-rapl:1", 6.0)  # from 7 to 3
    meter.charge("train")
    assert meter.reset() == {"train": pytest.approx(8.0)}
    meter.charge("train")
    assert meter.reset() == {"train": 0.0}


def test_a_counter_that_begins_again_twice_in_a_phase_is_read_in_between(powercap: Path):
    meter = Meter(packages(powercap))

    class Phase:
        """A phase of three intervals, in each of which the counter counts 8 J."""

        intervals = 0

        def wait(self, seconds: float) -> bool:
            use(powercap, "intel-rapl:0", 8.0)
            self.intervals += 1
            return self.intervals == 3

    keep_reading(ref(meter), Phase(), 1.0)  # type: ignore[arg-type]  # in the place of an Event
    meter.charge("train")
    assert meter.reset() == {"train": pytest.approx(24.0)}


def test_the_thread_that_reads_ends_with_its_meter(powercap: Path):
    before = set(threading.enumerate())
    meter = Meter(packages(powercap))
    [reader] = set(threading.enumerate()) - before
    del meter
    reader.join(60)
    assert not reader.is_alive()


def test_phases_inside_others_are_charged_with_their_own_energy():
    now = 0.0

    def read() -> float:
        nonlocal now
        now += 1.0
        return now

    clock = Clock()
    clock.meter = Meter([Counter("all", read)])
    with clock.rest("server"), clock("communicate"):
        pass
    with clock("train"):
        pass
    used = clock.joules()
    assert used == {"other": 3.0, "server": 2.0, "communicate": 1.0, "train": 1.0}
    assert clock.joules() == {"other": 1.0}


def test_a_machine_without_counters_says_so(tmp_path: Path):
    with pytest.raises(OSError, match="no RAPL counters"):
        packages(tmp_path)


def test_one_rank_of_a_node_reads_its_packages(powercap: Path, monkeypatch):
    monkeypatch.setattr(energy, "packages", lambda: packages(powercap))
    read = spmd(3, lambda comm: len(meter_of_rank(comm, CPU).counters))
    assert read == [2, 0, 0]


def test_one_of_the_ranks_that_share_a_gpu_reads_its_counter(powercap: Path, monkeypatch):
    monkeypatch.setattr(energy, "packages", lambda: packages(powercap))
    monkeypatch.setattr(energy, "uuid_of", lambda device: f"GPU-{device.index}")
    monkeypatch.setattr(energy, "nvml_counter", lambda uuid: Counter(uuid, lambda: 0.0))

    def names(comm: Comm) -> list[str]:
        meter = meter_of_rank(comm, torch.device("cuda", comm.rank // 2))
        return [counter.name for counter in meter.counters]

    expected = [["package-0", "package-1", "GPU-0"], [], ["GPU-1"], []]
    assert spmd(4, names) == expected


def test_carbon_follows_from_the_sites_factors():
    assert carbon(3.6e6, 400, 1.2) == pytest.approx(0.48)


def test_a_run_records_its_energy_and_the_summary_says_it(
    powercap: Path, tmp_path: Path, monkeypatch
):
    def growing() -> list[Counter]:
        values = iter(np.arange(0.0, 1e6))
        return [Counter("package-0", lambda: float(next(values)))]

    monkeypatch.setattr(energy, "packages", growing)
    flags = ("--log.energy", "true", "--log.carbon", "400", "--rounds", "2", "--quiet")
    job = toy.job("fedavg", "--models.mix", "mlp", *flags, "--out", str(tmp_path / "run"))
    assert run_here(job, Serial()) == (0, None)
    record = results.load(tmp_path / "run")
    about = summary.facts(record)["energy"]
    assert about["train"] > 0
    phases = (*summary.PHASES, "other")
    assert about["joules"] == pytest.approx(sum(about[phase] for phase in phases))
    assert about["kg_co2e"] == pytest.approx(about["joules"] / 3.6e6 * 0.4)
    assert "of CO2 equivalents" in summary.brief(record)
    assert measures.FLOWS["joules"].of(record) == (about["joules"], None)


def test_the_energy_of_some_rounds_is_not_that_of_the_run():
    """A run was resumed where a counter can be read, or without log.energy."""
    log = {"carbon": 400.0, "pue": 1.0}
    header = {"job": {"log": log}, "architectures": ["mlp"] * 2}
    one_of_three = np.array([[np.nan], [5.0], [np.nan]])
    columns = {f"ranks/joules_{phase}": one_of_three for phase in (*summary.PHASES, "other")}
    about = summary.energy(Record(header, {}, columns, 3))
    assert (about["joules"], about["kg_co2e"], about["rounds"], about["train"]) == (
        None,
        None,
        1,
        5,
    )
    words = summary.describe_energy(about, 3)
    assert words == f"energy of 1 of 3 rounds: {5 * len(columns)} J, 14% of it in training"
    every = {name: np.full((3, 1), 5.0) for name in columns}
    assert summary.energy(Record(header, {}, every, 3))["joules"] == 15 * len(columns)


def test_a_run_without_counters_says_so_and_goes_its_way(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(energy, "POWERCAP", tmp_path / "none")
    monkeypatch.setattr(energy, "packages", lambda: packages(tmp_path / "none"))
    flags = ("--log.energy", "true", "--rounds", "1", "--quiet")
    job = toy.job("fedavg", "--models.mix", "mlp", *flags, "--out", str(tmp_path / "run"))
    assert run_here(job, Serial()) == (0, None)
    assert "no RAPL counters" in capsys.readouterr().err
    record = results.load(tmp_path / "run")
    assert summary.facts(record)["energy"]["joules"] is None
    assert "no counter could be read" in summary.brief(record)
    assert measures.FLOWS["joules"].of(record) == (None, None)
