"""Rounds of each method with messages as they are, which are noted, and with messages that
transforms change.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from hpcfed.comm import Serial
from hpcfed.engine.rounds import Rounds
from hpcfed.federation.upload import Transform
from tests.contract import toy
from tests.contract.examination import LONG, NOTED, NOTED_ROUNDS, UNSCORED, Examination
from tests.contract.messages import Noted

WORDS = (*LONG, *UNSCORED)  # not the last round of the job; scores are not looked at


def noted(method: str) -> Noted:
    """The rounds of a method whose messages are noted: those of the run `whole` of the contract."""
    if method not in NOTED:
        with TemporaryDirectory() as folder:
            assert Examination(method, Path(folder)).whole
    return NOTED[method]


def rounds_of(
    method: str, *transforms: Transform, before: Callable[[Rounds], None] = lambda rounds: None
) -> Iterator[toy.Outcome]:
    """Run the same rounds with these transforms, and yield what is computed after each round.

    before: is called when the run has been set up.
    """
    going = toy.start(Serial(), toy.job(method, *WORDS, *toy.different(method)))
    going.fed.transforms.extend(transforms)
    before(going)
    for _ in range(NOTED_ROUNDS):
        yield toy.outcome(going, [going.step()[0]])
