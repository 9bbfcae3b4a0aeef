"""What hpcfed adds to the loop that a researcher writes: the same steps on the same data, one rank,
one thread.

`python benchmarks/overhead.py [--passes 5] [--only cnn logistic]`

First group: a round of training alone. Second group: a round with everything on, that is evaluation
of all clients, a checkpoint and the record of the round; the raw loop evaluates, saves its state
with torch.save and writes a line of CSV. Each side runs in its own process; they take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

import torch
from apart import Apart
from cases import CNN, LOGISTIC, NEVER, RESNET18, Case, engine, folder
from paired import Row, interleaved, ratio, save
from rawloop import RawLoop

from hpcfed.comm.serial import Serial
from hpcfed.engine.decide import world
from hpcfed.engine.fault_tolerance.recover import Course
from hpcfed.engine.folder import claim
from hpcfed.engine.folder import of as folder_of
from hpcfed.engine.rounds import Rounds
from hpcfed.engine.run import Loop, open_results
from hpcfed.engine.setup import federation
from hpcfed.report.progress import Progress

CASES = {case.model: case for case in (CNN, RESNET18, LOGISTIC)}
MOST = {"cnn": 1.02, "resnet18": 1.02, "logistic": 1.10}
MOST_ALL = 1.10
EVERYTHING = (
    "--evaluate.every",
    "1",
    "--evaluate.before",
    "false",
    "--checkpoint.every",
    "1",
    "--rounds",
    NEVER,
    "--data.test_share",
    "0.3",
    "--quiet",
    "true",
    "--overwrite",
    "true",
)


def main() -> None:
    options = arguments()
    rows = [training(CASES[name], options.passes) for name in options.only]
    rows += [everything(CASES[name], options.passes) for name in options.only]
    save("overhead", rows, whole=set(options.only) == set(CASES))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    return parser.parse_args()


def training(case: Case, passes: int) -> Row:
    return compared(
        f"round of {case.model}: hpcfed over the raw loop",
        case,
        passes,
        MOST[case.model],
        steps,
        raw,
    )


def everything(case: Case, passes: int) -> Row:
    what = f"round of {case.model} with evaluation, checkpoint, record: hpcfed over the raw loop"
    return compared(what, case, passes, MOST_ALL, whole, whole_raw)


def compared(
    what: str, case: Case, passes: int, most: float, ours: Callable, theirs: Callable
) -> Row:
    with Apart(ours, case) as hpcfed, Apart(theirs, case) as by_hand:
        seconds = interleaved({"hpcfed": hpcfed, "raw": by_hand}, passes)
    medians = {name: sorted(values)[passes // 2] for name, values in seconds.items()}
    details = {"clients": case.clients, "examples": case.n, "batch": case.batch, "seconds": medians}
    return Row(what, ratio(seconds["hpcfed"], seconds["raw"]), most=most, details=details)


def steps(case: Case, name: str = "eager") -> Callable[[], object]:
    """A round through hpcfed, training alone."""
    return case.rounds(*engine(name)).step


def raw(case: Case) -> Callable[[], object]:
    return RawLoop(case).round


def whole(case: Case) -> Callable[[], object]:
    """A round of `hpcfed.main`'s loop."""
    out = Path(mkdtemp(dir=folder().name))
    job, comm = case.job(*EVERYTHING, *engine("eager"), "--out", str(out)), Serial()
    facts = world(job, comm)
    rounds = Rounds(federation(job, comm, facts))
    place = folder_of(job)
    claim(job, place)
    loop = Loop(
        rounds,
        place,
        open_results(job, place, facts, rounds),
        Progress(job, place, facts.architectures, facts.metrics[0], active=False),
        Course(job),
    )
    return lambda: one_round(loop)


def one_round(loop: Loop) -> None:
    """What `Loop.run` does in each round."""
    row, _ = loop.rounds.step(loop.flags)
    loop.write(row)
    loop.checkpoints.save()


def whole_raw(case: Case) -> Callable[[], object]:
    return EvaluatedLoop(case).whole_round


class EvaluatedLoop(RawLoop):
    """The raw loop with what a researcher adds in the end."""

    def __init__(self, case: Case):
        super().__init__(case)
        held_out = round(0.3 * case.n)
        self.tests = [(x[:held_out], y[:held_out]) for x, y in case.tensors("test")]
        self.out = Path(mkdtemp(dir=folder().name))

    def whole_round(self) -> None:
        self.round()
        self.model.load_state_dict(self.state)
        scores = [self.evaluate(x, y) for x, y in self.tests]
        torch.save(self.state, self.out / "state.pt")
        with (self.out / "log.csv").open("a") as log:
            log.write(",".join(map(str, [*self.losses.values(), *scores])) + "\n")

    @torch.no_grad()
    def evaluate(self, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
        """Accuracy and loss."""
        self.model.eval()
        logits = self.model(x)
        return (logits.argmax(1) == y).float().mean().item(), torch.nn.functional.cross_entropy(
            logits, y
        ).item()


if __name__ == "__main__":
    main()
