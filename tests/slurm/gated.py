"""A method that stands in the middle of its second round until a test lets it go on."""

from pathlib import Path
from time import sleep

from hpcfed.algorithms.base import RoundBased

WAITING, OPEN = Path("waiting"), Path("open")  # where the run was started


class Gated(RoundBased):
    """FedAvg, but in round 2 clients wait for the file `open`, or for a signal that asks to
    stop.
    """

    def local(self, fed, client, state, t):
        real = fed.K > 2  # the trial before a run has two clients
        while real and t == 1 and not OPEN.exists() and not fed.clock.heartbeat.stop_requested:
            WAITING.touch()
            sleep(0.02)
        return super().local(fed, client, state, t)
