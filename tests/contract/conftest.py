"""The toy world has its model's name and its files in memory only while these tests run: others go
over the whole registry, and read files.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpcfed.algorithms import trial
from hpcfed.clients.store import ClientStore
from hpcfed.data import files
from hpcfed.data.partition_file import Partition
from hpcfed.federation.federation import Federation
from hpcfed.models import MODELS, Entry
from hpcfed.models.finetuning import Finetuning
from hpcfed.models.flat import Layout, Skeleton
from tests.contract import toy

STARTS: dict[tuple[Any, ...], Skeleton] = {}  # models with clients' initial weights
LAYOUTS: dict[tuple[Any, ...], Layout] = {}  # of models


@pytest.fixture(autouse=True, scope="module")
def small_model() -> Iterator[None]:
    """A model "small", with dropout and batch normalisation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            MODELS, "small", Entry("tests.contract.toy:small", "of the tests", least=8, stem=True)
        )
        yield


@pytest.fixture(autouse=True, scope="module")
def files_in_memory() -> Iterator[None]:
    """The data and the partition of the toy world are read once, and not for each of many runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "read", read_once(files.read))
        patch.setattr(Partition, "load", read_once(Partition.load))
        yield


@pytest.fixture(autouse=True, scope="module")
def models_in_memory() -> Iterator[None]:
    """The initial weights of a client and the layout of an architecture are made once for all runs
    and methods.

    They are only read. That they follow from the seed, the client and the architecture alone:
    `tests/unit/test_client.py`.
    """
    start, layout = ClientStore.start, ClientStore.layout

    def start_once(store: ClientStore, architecture: str, k: int, shape: Any = None) -> Skeleton:
        if not reusable(store, architecture):
            return start(store, architecture, k, shape)
        key = store.seed, store.recipe, store.precision, architecture, k, shape
        if key not in STARTS:
            STARTS[key] = start(store, architecture, k, shape)
        return STARTS[key]

    def layout_once(store: ClientStore, architecture: str) -> Layout:
        if not reusable(store, architecture):
            return layout(store, architecture)
        key = store.recipe, store.precision, architecture
        if key not in LAYOUTS:
            LAYOUTS[key] = layout(store, architecture)
        return LAYOUTS[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientStore, "start", start_once)
        patch.setattr(ClientStore, "layout", layout_once)
        yield


@pytest.fixture(autouse=True)
def trials_in_memory() -> Iterator[None]:
    """Bytes of a job are measured once in a test, and not on each rank of each of its runs.

    A trial knows nothing of ranks: it is a federation of its own, on one of them.
    """
    trials: dict[str, tuple[Federation, Any]] = {}

    @contextmanager
    def open_once(fed: Federation, ids: list[int], encoded: bool = True) -> Iterator[Federation]:
        key = repr((fed.job.plain(), ids, encoded))
        if key in trials:
            yield trials[key][0]
            return
        with real_trial(fed, ids, encoded) as small:
            yield small
            trials[key] = small, results.pop(small)

    def perform_once(small: Federation) -> Any:
        for performed, result in trials.values():
            if performed is small:
                return result
        results[small] = perform(small)
        return results[small]

    perform, real_trial = trial.perform, trial.trial
    results: dict[Federation, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "trial", open_once)
        patch.setattr(trial, "perform", perform_once)
        yield


def reusable(store: ClientStore, architecture: str) -> bool:
    """Whether the model is that of all runs: of no fine-tuning, and of no name that may stand for
    other code in another test.
    """
    return ":" not in architecture and store.finetuning == Finetuning()


def read_once(read: Callable[..., Any]) -> Callable[..., Any]:
    """A function that reads each file of the toy world once for as long as it does not change, and
    other files as `read` does.
    """
    values: dict[str, Any] = {}

    def value(path: Path, *how: Any, **more: Any) -> Any:
        if Path(path).parent != toy.folder():
            return read(path, *how, **more)
        key = repr((path, *how, more, Path(path).stat().st_mtime_ns))
        if key not in values:
            values[key] = read(path, *how, **more)
        return values[key]

    return value
