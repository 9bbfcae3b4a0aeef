"""Files as attackers make them: what each command answers to thousands of mutated files of a run.

`python benchmarks/crafted.py [--cases 2200] [--seed 0] [--only KIND --number I]`

Each case changes one file of a small run (`mutations`) and asks everything that reads it. An answer
is right where it is a result, or one message and status 2. It is not where it is a traceback, a
process that dies, 20 seconds without an answer, more memory than twice the file and a small run
take, a module that was imported because the file names it, or text that a terminal would obey.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mutations
import numpy as np
from paired import RESULTS, machine
from rich.console import Console

import hpcfed
from hpcfed import cli, main
from hpcfed.comm import Serial
from hpcfed.config.load import load
from hpcfed.core.errors import HpcfedError
from hpcfed.core.rng import stream
from hpcfed.data.partition_file import Partition
from hpcfed.engine import folder
from hpcfed.engine.decide import world
from hpcfed.engine.fault_tolerance import resume
from hpcfed.engine.rounds import Rounds
from hpcfed.engine.setup import federation
from hpcfed.report.watch.terminal import render
from hpcfed.report.watch.view import look
from hpcfed.results.run import find
from hpcfed.storage import names, probe, results

LIMIT = 60  # seconds of one answer
SPARE = 96 * 2**20  # bytes that reading any small run may take, pictures and models included
SMALL = (
    "--clients 4 --models.d 16 --data.train_limit 120 --rounds 3 --checkpoint.every 1 "
    "--models.mix mlp,fedhenn-1 --local.augment none --algorithm.name fedproto --quiet"
)
EVIL = "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\n"


@dataclass(frozen=True)
class Fault:
    """An answer that is not right: which case, what was asked, and what happened."""

    kind: str
    number: int
    reader: str
    what: str


def command(*words: object) -> Callable[[Path], Any]:
    """A command of hpcfed; RUN stands for the run's folder, OUT for a place for what it writes."""

    def ask(run: Path) -> int:
        places = {"RUN": run, "OUT": run.parent / "out", "SWEEP": run.parent}
        places |= {f"OUT.{end}": run.parent / f"out.{end}" for end in ("png", "html")}
        places["OTHER"] = clean_of(run).parent.parent / "other"
        return cli.main([str(places.get(str(word), word)) for word in words])

    return ask


def loaded(run: Path) -> None:
    """A run as an object, with all that it has."""
    run_read = hpcfed.load(run)
    for name in dir(type(run_read)):
        if isinstance(getattr(type(run_read), name), property):
            getattr(run_read, name)
    run_read.summary()
    print(repr(run_read))
    run_read._repr_html_()


def looked(run: Path) -> None:
    """One look of `hpcfed watch`, printed."""
    from hpcfed.core.tables import console

    views = [look(one) for one in find([run], required=False)]
    where: Console = console()
    where.print(render(views, 100, 50))


def sweep_looked(run: Path) -> None:
    looked(run.parent)


@cache
def facts(run: Path) -> Any:
    job = load(["--resume", str(run)], folder.read_job, environ={})
    return world(job, Serial())


def resumed(run: Path) -> None:
    """What `--resume` reads."""
    job = load(["--resume", str(run)], folder.read_job, environ={})
    rounds = Rounds(federation(job, Serial(), facts(clean_of(run))))
    resume.restore(rounds, run)
    results.Results.resume(run, rounds.t, {"job": job.plain()})


def clean_of(run: Path) -> Path:
    return Path(os.environ["CRAFTED_PLACE"]) / "s" / "run"


def partition(run: Path) -> None:
    Partition.load(names.partition_file(run))


def probed(run: Path) -> None:
    probe.current(run)
    probe.read(run)


def own_model(run: Path) -> None:
    hpcfed.load_model(run, client=1)


def model(run: Path) -> None:
    """A saved model, and what it says of an example."""
    import torch

    loaded = hpcfed.load_model(names.model_file(names.models_folder(run), 0))
    shape = loaded.about.shape
    if np.prod([float(n) for n in shape]) < 1e6:
        loaded(torch.zeros(1, *shape))


OF_RESULTS = {
    "summary": command("summary", "RUN"),
    "summary --json": command("summary", "RUN", "--json"),
    "status": command("status", "RUN"),
    "table": command("table", "RUN", "OTHER"),
    "cite": command("cite", "RUN"),
    "digest": command("digest", "RUN"),
    "export": command("export", "RUN", "-o", "OUT"),
    "report": command("report", "RUN", "-o", "OUT.html"),
    "compare": command("compare", "RUN", "OTHER"),
    "load": loaded,
    "watch": looked,
    "resume": resumed,
    "plot": command("plot", "RUN", "-o", "OUT.png"),
}
OF_CHECKPOINTS = {
    "status": command("status", "RUN"),
    "digest": command("digest", "RUN"),
    "resume": resumed,
    "models": command("models", "RUN", "-o", "OUT"),
    "load_model": own_model,
}
OF_SWEEPS = {
    "status": command("status", "SWEEP"),
    "table": command("table", "SWEEP"),
    "watch": sweep_looked,
    "report": command("report", "SWEEP", "-o", "OUT.html"),
}
OF_PROBES = {
    "read": probed,
    "plot": command("plot", "RUN", "--figure", "confusion", "-o", "OUT.png"),
}
RARE = {
    "plot": 40,
    "report": 20,
    "models": 3,
    "probe": 4,
}  # that take long: one case in this number
MOST = 4  # readers of a case, drawn; over all cases each reads each kind
READERS: dict[str, dict[str, Callable[[Path], Any]]] = {
    "results": OF_RESULTS,
    "index": OF_CHECKPOINTS,
    "part": OF_CHECKPOINTS,
    "owned part": OF_CHECKPOINTS,
    "copy": {"resume": resumed},
    "partition": {"partition": partition, "probe": command("probe", "RUN", "--examples", 5)},
    "probe": OF_PROBES,
    "model": {"load_model": model},
    "sweep": OF_SWEEPS,
    "end": OF_SWEEPS,
}
WAYS = {
    "owned part": mutations.owned_part,
    "model": mutations.model,
} | dict.fromkeys(("sweep", "end"), mutations.json_file)


def files(run: Path) -> dict[str, Path]:
    """The file of each kind."""
    index = names.checkpoint_file(run, 3)
    parts = names.parts_folder(index)
    return {
        "results": names.results_file(run),
        "index": index,
        "part": names.part_file(parts, 0),
        "owned part": names.part_file(parts, 0),
        "copy": names.results_copy(parts),
        "partition": names.partition_file(run),
        "probe": names.probe_file(run),
        "model": names.model_file(names.models_folder(run), 0),
        "sweep": names.sweep_file(run.parent),
        "end": names.end_file(run.parent, run.name),
    }


def made(place: Path) -> Path:
    """A run of a sweep, with all kinds of files."""
    run = place / "s" / "run"
    with redirect_stdout(io.StringIO()):
        assert main.main([*SMALL.split(), "--out", str(run)]) == 0
        assert cli.main(["models", str(run)]) == 0
        assert cli.main(["probe", str(run), "--examples", "20"]) == 0
    fields = {"algorithm.name": "fedproto", "data.name": "digits", "rounds": 3, "seed": 0}
    about = {"words": [], "directory": str(place), "ranks": 1, "launcher": ""}
    member = {"name": run.name, "words": [], "job": {}}
    text = {"format": "hpcfed-sweep", "version": 1, **about, "job": fields, "runs": [member]}
    names.sweep_file(run.parent).write_text(json.dumps(text))
    end = names.end_file(run.parent, run.name)
    end.parent.mkdir()
    end.write_text(json.dumps({"status": 75, "line": "stopped", "when": 1.0e9}))
    (place / "evil.py").write_text(EVIL)
    record = results.load(run)
    job = record.header["job"]
    job = job | {"algorithm": {"name": "local"}}
    other = results.Results(place / "other", record.header | {"job": job}, dict(record.arrays))
    for t in range(record.rounds):
        other.append({name: column[t] for name, column in record.columns.items()})
    other.finish()
    return run


@contextmanager
def limited() -> Iterator[None]:
    """TimeoutError where the answer does not come."""

    def late(*_: object) -> None:
        raise Late

    signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)


class Late(BaseException):
    """No answer within the limit."""


def peak() -> int:
    """Bytes of memory at most since `reset`."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def reset() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def play(kind: str, number: int, seed: int, place: Path) -> tuple[list[Fault], Counter[str]]:
    """One case: the faults, and how often a reader refused and read."""
    g = stream(seed, "crafted", kind, number)
    faults, counts = [], Counter[str]()
    with TemporaryDirectory(prefix="hpcfed-crafted-") as folder_:
        shutil.copytree(place / "s", Path(folder_) / "s")
        run = Path(folder_) / "s" / "run"
        path = files(run)[kind]
        os.mkfifo(path.parent / "pipe")
        shutil.copy(files(place / "s" / "run")["results"], path.parent / "secret.h5")
        before = path.read_bytes()
        WAYS.get(kind, mutations.hdf5)(path, g)
        if path.read_bytes() == before:
            return [], counts
        size = path.stat().st_size
        turns = [name for name in READERS[kind] if not number % RARE.get(name, 1)]
        often = [name for name in turns if name not in RARE]
        generator = drawn_of(often, g)
        turns = [name for name in turns if name in RARE or name in generator]
        for name in turns:
            reader = READERS[kind][name]
            reset()
            begin = peak()
            what = answer(reader, run)
            used = peak() - begin
            counts[what if what in ("read", "refused") else "fault"] += 1
            if what not in ("read", "refused"):
                faults.append(Fault(kind, number, name, what))
            elif used > 2 * size + SPARE:
                faults.append(Fault(kind, number, name, f"{used / 2**20:.0f} MiB of memory"))
            if (place / "evil.ran").exists():
                (place / "evil.ran").unlink()
                faults.append(Fault(kind, number, name, "imported what the file names"))
    return faults, counts


def drawn_of(readers: Sequence[str], g: np.random.Generator) -> list[str]:
    return [readers[i] for i in g.permutation(len(readers))[:MOST]]


def answer(reader: Callable[[Path], Any], run: Path) -> str:
    """`read`, `refused`, or what is wrong with it."""
    out, status = io.StringIO(), 0
    try:
        with limited(), redirect_stdout(out), redirect_stderr(out):
            try:
                status = reader(run) or 0
            except HpcfedError as error:
                status = 2
                assert str(error)
    except Late:
        return f"no answer within {LIMIT} s"
    except SystemExit as error:
        status = error.code
    except BaseException:
        return traceback.format_exc()[-1500:]
    text = out.getvalue()
    if "\x1b" in text or "\u202e" in text or "\x07" in text:
        return f"prints {text[-500:]!r}"
    if status not in (0, 2):
        return f"status {status}: {text[-500:]}"
    return "refused" if status else "read"


def work(cases: Sequence[tuple[str, int]], seed: int, place: Path, answers: Path) -> None:
    """A process's share: a line for each case, before and after it, so that it is known over which
    one a process dies.
    """
    warnings.simplefilter("ignore")
    os.environ["CRAFTED_PLACE"] = str(place)
    sys.path.insert(0, str(place))
    for readers in READERS.values():
        for name, reader in readers.items():  # imports all that it needs
            if (what := answer(reader, place / "s" / "run")) != "read":
                print(f"crafted: {name} of the run as it was made: {what}")
    with open(answers, "a") as file:
        for kind, number in cases:
            print(json.dumps({"begin": [kind, number]}), file=file, flush=True)
            faults, counts = play(kind, number, seed, place)
            line = {"faults": [asdict(fault) for fault in faults], "counts": counts}
            print(json.dumps(line), file=file, flush=True)


def played(
    cases: Sequence[tuple[str, int]], seed: int, place: Path, processes: int
) -> tuple[list[Fault], dict[str, Counter[str]]]:
    """All cases, in this number of processes; one that dies is a fault, and another one
    continues.
    """
    context = get_context("spawn")
    shares = [list(cases[i::processes]) for i in range(processes)]
    files_ = [place / f"told-{i}" for i in range(processes)]
    faults: list[Fault] = []
    running = [
        start(context, share, seed, place, f) for share, f in zip(shares, files_, strict=True)
    ]
    while any(running):
        for i, process in enumerate(running):
            if process is None:
                continue
            process.join(1.0)
            if process.exitcode is None:
                continue
            running[i] = None
            lines = [json.loads(line) for line in files_[i].read_text().splitlines()]
            begun = [line["begin"] for line in lines if "begin" in line]
            if process.exitcode and begun:
                kind, number = begun[-1]
                faults.append(Fault(kind, number, "", f"the process ended: {process.exitcode}"))
                rest = shares[i][len(begun) :]
                running[i] = start(context, rest, seed, place, files_[i]) if rest else None
            elif process.exitcode:
                raise SystemExit("crafted: a process ended before its first case")
    counts: dict[str, Counter[str]] = {}
    for file in files_:
        kind = ""
        for line in map(json.loads, file.read_text().splitlines()):
            if "begin" in line:
                kind = line["begin"][0]
            else:
                faults += [Fault(**fault) for fault in line["faults"]]
                counts.setdefault(kind, Counter()).update(line["counts"])
    return faults, counts


def start(
    context: Any, share: Sequence[tuple[str, int]], seed: int, place: Path, answers: Path
) -> Any:
    process = context.Process(target=work, args=(share, seed, place, answers))
    process.start()
    return process


def drawn(cases: int) -> list[tuple[str, int]]:
    """The cases: kinds take turns."""
    kinds = list(READERS)
    return [(kinds[i % len(kinds)], i // len(kinds)) for i in range(cases)]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=2200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", choices=READERS, metavar="KIND", help="only these; writes no file"
    )
    parser.add_argument("--number", type=int, help="with --only: only this case")
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args()


def run_all() -> None:
    options = arguments()
    cases = drawn(options.cases)
    if options.only:
        cases = [case for case in cases if case[0] == options.only]
        if options.number is not None:
            cases = [(options.only, options.number)]
    with TemporaryDirectory(prefix="hpcfed-crafted-") as scratch:
        place = Path(scratch)
        made(place)
        faults, counts = played(cases, options.seed, place, options.processes)
    for fault in faults:
        print(f"{fault.kind} {fault.number}, {fault.reader}: {fault.what}\n")
    for kind, count in counts.items():
        print(kind, dict(count))
    if not options.only:
        save(cases, faults, counts, options.seed)
    sys.exit(bool(faults))


def save(
    cases: Sequence[tuple[str, int]],
    faults: Sequence[Fault],
    counts: dict[str, Counter[str]],
    seed: int,
) -> None:
    """Write the counts, with the machine, to results/bench/crafted.json."""
    files_ = Counter(kind for kind, _ in cases)
    rows = [
        {"kind": kind, "files": files_[kind], "answers": sum(count.values())}
        | {name: count[name] for name in ("refused", "read")}
        | {"faults": sum(fault.kind == kind for fault in faults)}
        for kind, count in counts.items()
    ]
    text = {
        "benchmark": "crafted",
        "machine": machine(),
        "seed": seed,
        "cases": len(cases),
        "rows": rows,
        "faults": [f"--only {f.kind} --number {f.number}: {f.reader}" for f in faults],
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "crafted.json").write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    run_all()
