"""Named random streams, each determined by the seed, its purpose, round and client.

`stream(seed, "cohort", t)` is the same on all ranks. `stream(seed, "batches", t, k)` is the same on
whichever rank client k lives. So results do not depend on placement, and a checkpoint holds no
generator state. This is the only module that uses global generators.
"""

import hashlib
import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache

import numpy as np
import torch

_GLOBAL = threading.RLock()  # ranks that are threads of one process share torch's global generator


def number(seed: int, *key: str | int) -> int:
    """Return the 128-bit integer of a seed and a key, the same on every machine."""
    parts = (_quoted(k) if isinstance(k, str) else str(int(k)) for k in (int(seed), *key))
    text = f"[{', '.join(parts)}]"  # as JSON writes it
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")


_quoted = cache(json.dumps)  # cached, because a run has few different parts of names


def stream(seed: int, *key: str | int) -> np.random.Generator:
    """Return the NumPy generator of this name, for draws on the host.

    Such draws are cohorts, partitions and the order of batches.
    """
    return np.random.Generator(np.random.Philox(key=number(seed, *key)))


def torch_stream(seed: int, *key: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return the torch generator of this name, for draws on a device (augmentation)."""
    return torch.Generator(device).manual_seed(number(seed, *key) % 2**63)


def shuffled(n: int, g: torch.Generator) -> list[int]:
    """Return 0..n-1 in an order that the generator's state determines, on the host.

    For a generator of a GPU, its seed and offset, which the host knows, name a stream. Reading a
    draw of the GPU would wait for all its work.
    """
    if g.device.type == "cpu":
        return torch.randperm(n, generator=g).tolist()
    state = bytes(g.get_state().tolist())
    return stream(int.from_bytes(state, "little"), "shuffled").permutation(n).tolist()


@contextmanager
def keep_states() -> Iterator[None]:
    """Restore torch's global generators, including those of GPUs in use, after the block."""
    cpu = torch.get_rng_state()
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        if gpus:
            torch.cuda.set_rng_state_all(gpus)


@contextmanager
def scoped(
    seed: int, *key: str | int, device: torch.device | str = "cpu", everywhere: bool = False
) -> Iterator[Callable[[], bool]]:
    """Seed torch's global generator inside the block, and restore it afterwards.

    This serves library code that takes no generator (dropout, torch.nn.init). No collective may run
    inside: ranks that are threads enter one after the other.
    everywhere: also those of NumPy and Python, from which users' code may draw.
    Yields a function that returns whether anything has been drawn in the block.
    """
    value = number(seed, *key)
    others = _others_seeded(value) if everywhere else nullcontext()
    with _GLOBAL, _torch_seeded(value, device) as generators, others:
        begin = [generator.get_state() for generator in generators]
        begin_of_others = _states_of_others() if everywhere else None

        def drawn() -> bool:
            now = [generator.get_state() for generator in generators]
            same_of_others = not everywhere or _states_of_others() == begin_of_others
            return not (same_of_others and all(map(torch.equal, begin, now)))

        yield drawn


_spare: list[np.random.MT19937] = []  # for `_others_seeded`; to make one takes 0.2 ms


@contextmanager
def scoped_everywhere(
    seed: int, *key: str | int, device: torch.device | str = "cpu"
) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python in the block, and restore them.

    This serves users' code, which may draw from any of them. Unlike in `scoped`, collectives may
    run inside, and ranks that are threads would disturb each other's draws.
    """
    value = number(seed, *key)
    with _torch_seeded(value, device), _others_seeded(value):
        yield


@contextmanager
def _others_seeded(value: int) -> Iterator[None]:
    """Seed the global generators of NumPy and Python in the block, and restore them."""
    of_python = random.getstate()
    of_numpy = np.random.get_bit_generator()  # type: ignore[attr-defined]
    twister = _spare.pop() if _spare else np.random.MT19937()
    np.random.set_bit_generator(twister)  # type: ignore[attr-defined]
    np.random.seed(value % 2**32)
    random.seed(value)
    try:
        yield
    finally:
        # A rank that is a thread may have entered meanwhile, and restore this generator when it
        # leaves: then it is no spare one.
        if np.random.get_bit_generator() is twister:  # type: ignore[attr-defined]
            np.random.set_bit_generator(of_numpy)  # type: ignore[attr-defined]
            _spare.append(twister)
        random.setstate(of_python)


def _states_of_others() -> tuple[object, ...]:
    """Return the states of the global generators of Python and NumPy, to be compared."""
    name, words, *others = np.random.get_state()
    return random.getstate(), name, np.asarray(words).tobytes(), others


@contextmanager
def _torch_seeded(value: int, device: torch.device | str) -> Iterator[list[torch.Generator]]:
    """Seed torch's global generators, of the CPU and this device, in the block; yield them."""
    generators = [torch.random.default_generator, *_on(torch.device(device))]
    before = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(value % 2**63)
    try:
        yield generators
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


def _on(device: torch.device) -> list[torch.Generator]:
    """Return the GPU's global generator in a list; [] for a CPU."""
    if device.type != "cuda":
        return []
    torch.cuda.init()
    return [
        torch.cuda.default_generators[
            torch.cuda.current_device() if device.index is None else device.index
        ]
    ]
