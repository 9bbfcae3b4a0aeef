"""What a checkpoint in the background costs the training, held against a round of a minute.

`python benchmarks/checkpoint.py [--seconds 20] [--passes 9] [--check]`

20 ResNet-18 clients that keep Adam's moments, 2.7 GB, on two ranks of one thread; rounds of so many
seconds with a checkpoint under way and without take turns in one run. The round with a checkpoint
is timed from before its snapshot is taken until after its index is there; what it takes longer is a
minute's cost, for the file is written well within the round. The first checkpoint, which takes
memory that the later ones have, is told apart. Second row, which other work on
the machine blurs less: the processor's seconds that snapshot, writer and index take on a rank.
--check: a small model, rounds of a moment, and nothing is written to results/.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, thread_time
from typing import Any

import cases
from launch import on_ranks
from paired import Ratio, Row, ratio, save, table

from hpcfed.comm import Comm, connect
from hpcfed.engine.decide import world
from hpcfed.engine.fault_tolerance.background_save import KEEP, BackgroundSave
from hpcfed.engine.round_record import peak_bytes
from hpcfed.engine.rounds import Rounds
from hpcfed.engine.setup import federation
from hpcfed.storage import names

RANKS, LIMIT = 2, 3600  # seconds that the run may take
MINUTE = 60.0
KEEPING = ("--algorithm.name", "local", "--local.keep_optimiser", "true")
LARGE = cases.Case("resnet18", cases.resnet18, cases.COLOUR, 20, 64, 64, "adam", 1e-3, KEEPING)
SMALL = cases.Case("mlp", cases.mlp, cases.GREY, 4, 20, 20, "adam", 1e-3, KEEPING)


def main() -> None:
    options = arguments()
    if options.inside:
        return inside(options)
    with TemporaryDirectory(prefix="hpcfed-benchmark-") as folder:
        flags = ("--seconds", options.seconds, "--passes", options.passes, "--inside", folder)
        argv = [
            str(Path(__file__).resolve()),
            *map(str, flags),
            *(["--check"] if options.check else []),
        ]
        on_ranks(RANKS, *argv, timeout=LIMIT)
        seconds = json.loads((Path(folder) / "found.json").read_text())
    rows = [paired(seconds), processor(seconds)]
    if options.check:
        print(table(rows), seconds)
    else:
        save("checkpoint", rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--passes", type=int, default=9)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)  # what each rank does
    return parser.parse_args()


def paired(seconds: dict[str, Any]) -> Row:
    added = [
        with_saves - without
        for with_saves, without in zip(seconds["with"], seconds["without"], strict=True)
    ]
    what = (
        f"round of a minute with a checkpoint of {seconds['bytes'] / 1e9:.2g} GB in the "
        f"background over one without"
    )
    return Row(
        what,
        over_a_minute([MINUTE + s for s in later(added)]),
        most=1.05,
        details=seconds | {"added": added},
    )


def processor(seconds: dict[str, Any]) -> Row:
    cost = [max(map(sum, parts["processor"])) for parts in seconds["parts"]]
    what = "processor's seconds of a checkpoint on a rank over a round of a minute"
    return Row(what, over_a_minute(later(cost)), most=0.05, details={"seconds": cost})


def later(seconds: list[float]) -> list[float]:
    """Without the first checkpoint."""
    return seconds[1:] or seconds


def over_a_minute(seconds: list[float]) -> Ratio:
    return ratio(seconds, [MINUTE] * len(seconds))


def inside(options: argparse.Namespace) -> None:
    """All passes, on each of the ranks; rank 0 writes what was found."""
    comm, case, run = connect(), SMALL if options.check else LARGE, options.inside
    one = started(case, comm, 1)
    timed(one)
    steps = 1 if options.check else max(1, round(options.seconds / comm.bcast(timed(one))))
    del one
    rounds = started(case, comm, steps)
    timed(rounds)
    seconds: dict[str, Any] = {
        "steps": steps,
        "peak_without": peaks(comm),
        "with": [],
        "without": [],
        "parts": [],
    }
    with BackgroundSave(rounds, run) as saver:
        for _ in range(options.passes):
            seconds["without"].append(timed(rounds))
            took, parts = with_checkpoint(rounds, saver)
            seconds["with"].append(took)
            seconds["parts"].append(parts)
    seconds |= {
        "peak_with": peaks(comm),
        "bytes": written(run) // (rounds.fed.job.checkpoint.keep or KEEP),
    }
    if comm.rank == 0:
        (run / "found.json").write_text(json.dumps(seconds))
    comm.close()


def started(case: cases.Case, comm: Comm, steps: int) -> Rounds:
    job = case.job(*cases.QUIET, "--local.steps", str(steps), "--run.resident", "100")
    return Rounds(federation(job, comm, world(job, comm)))


def timed(rounds: Rounds) -> float:
    """Seconds of a round, on the slowest rank."""
    start = perf_counter()
    rounds.step()
    rounds.fed.comm.barrier()
    return perf_counter() - start


def with_checkpoint(rounds: Rounds, saver: BackgroundSave) -> tuple[float, dict[str, list[Any]]]:
    """Seconds of a round with a checkpoint, and of its parts on each rank: snapshot, write (beside
    the round), end.

    processor: the processor's seconds of the three.
    """
    comm, ended = rounds.fed.comm, []
    before = saver.thread.submit(thread_time).result()
    begin, cpu = perf_counter(), thread_time()
    saver.start()
    taken, snapshot = perf_counter(), thread_time() - cpu
    assert saver.part is not None
    saver.part.add_done_callback(lambda _: ended.append(perf_counter()))
    rounds.step()
    trained, cpu = perf_counter(), thread_time()
    if error := saver.finish():
        raise RuntimeError(error)
    last, end = thread_time() - cpu, perf_counter()
    comm.barrier()
    took = perf_counter() - begin
    mine = {"snapshot": taken - begin, "write": ended[0] - taken, "end": end - trained}
    mine["processor"] = [snapshot, saver.thread.submit(thread_time).result() - before, last]
    every = comm.gather({comm.rank: mine}).values()
    return took, {what: [ranks[what] for ranks in every] for what in mine}


def peaks(comm: Comm) -> list[int]:
    """Peak bytes of each rank so far."""
    return list(comm.gather({comm.rank: peak_bytes()}).values())


def written(run: Path) -> int:
    """Bytes of all checkpoints that are kept."""
    return sum(path.stat().st_size for path in names.checkpoint_folder(run).rglob("*.h5"))


if __name__ == "__main__":
    main()
