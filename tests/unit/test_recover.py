"""What is done when a rank dies, on ranks that do not really die."""

from pathlib import Path

import pytest

from hpcfed.comm import Serial, ulfm
from hpcfed.config.load import load
from hpcfed.core.errors import DivergedError, RankLost
from hpcfed.engine.fault_tolerance.recover import Course, run_with_recovery
from hpcfed.engine.fault_tolerance.snapshot import Snapshot
from hpcfed.storage import names
from hpcfed.storage.results import Results
from hpcfed.storage.results import load as load_results


class Bereft(Serial):
    """The rank that is left of three, when a death has come up."""

    def shrink(self) -> list[int]:
        self.lost += 1
        return [self.lost]

    def has_lost_rank(self) -> bool:
        return self.lost > 0


def job(*flags: str):
    return load(["--clients", "2", "--models.mix", "mlp", *flags], environ={})


def attempts(*outcomes):
    """An attempt that comes to these outcomes, one after the other: an exit status, or an error
    that is raised.
    """
    left = list(outcomes)

    def attempt(course, comm):
        if isinstance(left[0], BaseException):
            raise left.pop(0)
        return left.pop(0)

    return attempt


def test_an_attempt_is_made_again_after_every_death():
    course = Course(job())
    assert run_with_recovery(course, Bereft(), attempts(RankLost(), RankLost(), 0)) == 0
    assert course.deaths == ["rank 1 of 1 died", "rank 2 of 1 died"]


@pytest.mark.parametrize(("on_fault", "status"), [("restart", 75), ("stop", 1)])
def test_a_job_may_ask_to_end_instead(on_fault, status, capfd):
    course = Course(job("--run.on_fault", on_fault, "--out", "runs/a"))
    assert run_with_recovery(course, Bereft(), attempts(RankLost())) == status
    assert "continue with --resume runs/a" in capfd.readouterr().err


def test_an_error_that_may_come_of_a_death_is_no_error():
    assert (
        run_with_recovery(
            Course(job()),
            Bereft(),
            attempts(RankLost(), DivergedError("nan"), ValueError("damaged"), 0),
        )
        == 0
    )


def test_an_error_without_a_death_is_one():
    with pytest.raises(DivergedError):
        run_with_recovery(Course(job()), Bereft(), attempts(DivergedError("nan")))


def test_a_mirror_that_cannot_serve_is_said(monkeypatch, capfd):
    monkeypatch.delenv(ulfm.SWITCH, raising=False)
    comm = Bereft()
    comm.size = 3
    course = Course(job("--checkpoint.mirror", "true"))
    assert run_with_recovery(course, comm, attempts(0)) == 0
    assert course.buddy_copy is None
    assert (
        "checkpoint.mirror is of no use: the run needs mpirun --with-ft ulfm"
        in capfd.readouterr().err
    )


def results_of(folder: Path, rounds: int) -> Results:
    results = Results(folder, {"job": {}}, {})
    for t in range(rounds):
        results.append({"rounds/seconds": float(t)})
    results.write()
    return results


def test_results_of_rank_0_survive_a_death(tmp_path):
    """So the file, which may be damaged, is not needed."""
    results, course, sources = results_of(tmp_path, 3), Course(job()), []

    def attempt(course, comm):
        sources.append(course.records.record)
        course.records.results = results
        if len(sources) == 1:
            raise RankLost()
        return 0

    assert run_with_recovery(course, Bereft(), attempt) == 0
    names.results_file(tmp_path).write_bytes(b"damaged")
    again = Results.resume(tmp_path, 2, {}, memory=sources[1])
    again.write()
    record = load_results(tmp_path)
    assert (again.lost, record.column("rounds/seconds").tolist()) == ([], [0, 1])
    assert record.header["history"] == [{"rounds": 2}]


def test_copies_in_memory_are_used_only_if_every_round_has_its_record(tmp_path):
    results, course = results_of(tmp_path, 3), Course(job())
    copy = Snapshot({}, 4, {"rows": {"3": {"rounds/seconds": 3.0}}})
    behind = Snapshot({}, 5, {"rows": {"3": {"rounds/seconds": 3.0}}})
    assert course.records.cover(tmp_path, copy)
    assert not course.records.cover(tmp_path, behind)
    names.results_file(tmp_path).write_bytes(b"damaged")
    assert not course.records.cover(tmp_path, copy)
    course.records.results = results
    course.records.detach()
    assert course.records.cover(tmp_path, copy)
