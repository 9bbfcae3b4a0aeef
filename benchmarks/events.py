"""Events per second of virtual time alone: the queue of asynchronous methods, without training.

    python benchmarks/events.py [--clients 1000000] [--at-once 1000] [--events 100000] [--profile]

Clients of log-normal speeds; each event is a job that ends, a client that is drawn from those that
are free, and its job that begins. It prints seconds to set up and events per second, then the same
for a hundredth of the clients: what an event costs should hardly differ.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
from time import perf_counter

import numpy as np

from hpcfed.algorithms.events import Coordinator
from hpcfed.clients.participation import Draws
from hpcfed.clients.profiles import Profiles, draw
from hpcfed.config.sections import Local
from hpcfed.config.system import System
from hpcfed.engine.event_queue import EventQueue


def make_queue(clients: int, at_once: int) -> EventQueue:
    """Clients with 20 examples each, whose jobs last as long as their work."""
    system = System(distribution="lognormal", spread=1.0, speed=1.0)
    profiles = Profiles(**draw(system, clients, 0), example=np.ones(clients))
    draws = Draws(0, system, Local(), profiles, np.full(clients, 20).tolist())
    return EventQueue(draws, at_once, profiles.compute, Coordinator())


def measure(clients: int, at_once: int, events: int) -> tuple[float, float]:
    """Seconds of the set-up, and events per second after it."""
    start = perf_counter()
    queue = make_queue(clients, at_once)
    queue.fill()
    middle = perf_counter()
    queue.advance(events)
    return middle - start, events / (perf_counter() - middle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=10**6)
    parser.add_argument("--at-once", type=int, default=1000)
    parser.add_argument("--events", type=int, default=10**5)
    parser.add_argument("--profile", action="store_true", help="print where time is spent")
    options = parser.parse_args()
    for clients in (options.clients, max(options.clients // 100, options.at_once)):
        setup, rate = measure(clients, options.at_once, options.events)
        print(
            f"{clients} clients, {options.at_once} at once: set-up {setup:.2f} s, "
            f"{rate:.0f} events/s"
        )
    if options.profile:
        queue = make_queue(options.clients, options.at_once)
        queue.fill()
        with cProfile.Profile() as profile:
            queue.advance(options.events)
        pstats.Stats(profile).sort_stats("tottime").print_stats(12)


if __name__ == "__main__":
    main()
