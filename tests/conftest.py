"""What holds for all tests: they compute on the CPU; which tier they are of; how processes share
them out.

Tiers, by marker. `quick` (`make check`): all of house/ and golden/, the units that say so, which
run no job and start no process, and the contract of three methods. `alone`: starts so many
processes that nothing runs beside it. The rest has no marker. `make test` runs all.

Several processes take the tests by file, those of the virtual cluster as one, and so the house
rules, which parse all of the source. Files whose tests wait for other processes take turns with
several that compute, so that no core idles. The contract is taken by method, last: its small parts
fill up what is left of the time.
"""

import fcntl
import gc
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain, groupby, islice
from pathlib import Path

import pytest

# A run whose job leaves run.device at "auto" computes where it does without a GPU, also in the
# processes that a test starts: bits, times and memory are those that the tests know. A test of a
# GPU pretends one, or starts a process with a mask of its own.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
# Nor does a run draw its curves at its end, which takes as long as a small run.
os.environ["HPCFED_LOG__PICTURE"] = "false"
# Nor do other packages' plugins make Hypothesis import them.
os.environ["HYPOTHESIS_NO_PLUGINS"] = "1"
# While tests are collected, all is imported, and nothing is garbage.
gc.disable()

TESTS = Path(__file__).parent
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

WAITING = (  # for the processes that they start; the longest first
    "tests/system/test_many_processes.py",
    "tests/slurm/",
    "tests/system/",
    "tests/unit/test_chaos_benchmark.py",
    "tests/attack/",
    "tests/mpi/",
    "tests/browser/",
)
BY_METHOD = tuple(
    f"tests/contract/test_{name}.py"
    for name in (
        *("contract", "options", "mechanisms", "uploads", "downloads", "compressed"),
        "privacy_methods",
    )
)
COMPUTING = 5  # files that compute after each that waits
QUICK = ("tests/house/", "tests/golden/")
# The contract of these is quick: ranks, checkpoints, resume, faults and uploads of a method with
# the default round, of one whose clients have a state, and of one in virtual time.
CONTRACT = "tests/contract/test_contract.py"
QUICK_METHODS = ("[fedavg]", "[scaffold]", "[fedasync]")


def pytest_ignore_collect(collection_path, config):
    """With `-m quick`, files without a quick test are not even imported."""
    name = collection_path.relative_to(config.rootpath).as_posix()
    quick = name.startswith((*QUICK, CONTRACT))
    if config.option.markexpr != "quick" or quick or not name.endswith(".py"):
        return None
    return True if "mark.quick" not in collection_path.read_text() else None


@pytest.hookimpl(tryfirst=True)
def pytest_collect_directory(path, parent):
    return InTurn.from_parent(parent, path=path) if path.parent == TESTS else None


class InTurn(pytest.Dir):
    """A folder whose files each process collects from another one on.

    Python compiles a file when it is imported for the first time: with one order, all processes
    would compile all files, side by side.
    """

    def collect(self):
        nodes = list(super().collect())
        number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        start = number * len(nodes) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
        return nodes[start:] + nodes[:start]


def pytest_collection_modifyitems(items):
    for item in items:
        if item.nodeid.startswith(QUICK) or (
            item.nodeid.startswith(CONTRACT) and item.nodeid.endswith(QUICK_METHODS)
        ):
            item.add_marker(pytest.mark.quick)
    items.sort(
        key=lambda item: (
            [not item.nodeid.startswith(folder) for folder in WAITING],
            item.nodeid.startswith(BY_METHOD),
            item.path,
        )
    )
    items[:] = take_turns(items)


def take_turns(items):
    """Put several files that compute after each whose tests wait; each list has its order."""
    by_file = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    waiting = [tests for tests in by_file if tests[0].nodeid.startswith(WAITING)]
    computing = iter(by_file[len(waiting) :])
    turns = [[tests, *islice(computing, COMPUTING)] for tests in waiting]
    return [item for tests in chain(*turns, computing) for item in tests]


def pytest_collection_finish():
    """Garbage is collected ten times less often, and without a look at what was imported."""
    gc.freeze()
    gc.set_threshold(7_000, 10, 20)
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        """By file; the virtual cluster as one, and the house rules; the contract by method."""

        def _split_scope(self, nodeid: str) -> str:
            for folder in ("tests/slurm", "tests/house"):
                if nodeid.startswith(f"{folder}/"):
                    return folder
            if nodeid.startswith(BY_METHOD):
                return f"tests/contract[{nodeid.partition('[')[2]}"
            return super()._split_scope(nodeid)

    config.option.loadscopereorder = False  # which would begin with the files of most tests
    return ByFile(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # so that no test's time limit counts the wait
def pytest_runtest_protocol(item, nextitem):
    others = "PYTEST_XDIST_WORKER" in os.environ
    alone = item.get_closest_marker("alone") is not None
    with share_machine(item.config.cache.mkdir("machine"), alone) if others else nullcontext():
        return (yield)


@pytest.fixture(autouse=True)
def seeds():
    """What a test draws from global generators depends on no test before it."""
    import numpy as np
    import torch  # only here: the process that hands out the tests computes nothing

    random.seed(0)
    np.random.seed(0)
    torch.default_generator.manual_seed(0)  # torch.manual_seed also formats the stack, for devices


@pytest.fixture(autouse=True)
def signal_handlers():
    """Restore the handlers of signals after each test.

    A program of hpcfed that ends in the process of a test leaves the signals that ask it to stop
    ignored, and a process that a later test starts would inherit that.
    """
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@contextmanager
def share_machine(folder: Path, alone: bool) -> Iterator[None]:
    """Inside, a test runs beside those of the other processes, or alone.

    Who waits to be alone holds the gate, so that no other test begins meanwhile.
    """
    with open(folder / "gate", "w") as gate, open(folder / "room", "w") as room:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield
