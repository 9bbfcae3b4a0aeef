"""Store of the weights and memories of all clients of one rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from copy import copy, deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hpcfed.clients.client_state import ClientState, UndoLog, state_store
from hpcfed.core import rng
from hpcfed.core.architecture import Architecture
from hpcfed.core.inputs import zeros
from hpcfed.core.payload import LEAVES, map_tensors, on_device, row_major, tensors
from hpcfed.core.registry import outside
from hpcfed.models import build, for_shapes
from hpcfed.models.cost import work
from hpcfed.models.finetuning import Finetuning
from hpcfed.models.flat import Layout, Skeleton
from hpcfed.models.precision import choose_precisions, least_batches
from hpcfed.models.widths import Units, structure
from hpcfed.tasks import Task
from hpcfed.tasks.classification import Classification

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.models.model import Model, Pair


class ClientStore:
    """Models of one rank's clients: one module per architecture, one flat weight vector per client.

    A client's vector is copied into the module of its architecture when the client is used, and
    back when another client of that architecture is used. A client that was never used has no
    weights yet, and takes no memory.

    resident: bytes of weights and memories that stay in the host's memory. The least recently used
    ones go to files in `folder`.
    device_bytes: bytes that stay in the memory of a GPU.
    finetuning: the weights that models start from, and which of them are trained.
    names: names of the outputs (classes).
    task: what the clients' labels are.
    precision: run.precision, by which layers choose theirs.
    """

    def __init__(
        self,
        seed: int,
        shape: tuple[int, ...],
        classes: int,
        d: int,
        relu_head: bool,
        device: torch.device,
        vocabulary: int = 0,
        resident: float = math.inf,
        folder: Path = Path("spill"),
        device_bytes: float = math.inf,
        finetuning: Finetuning | None = None,
        names: Sequence[str] = (),
        task: Task = Classification(),  # noqa: B008, it is frozen
        precision: str = "float32",
    ):
        self.seed, self.device, self.task, self.precision = seed, device, task, precision
        # labels of a client -> the task with the weights of its loss; None: all train on `task`
        self.weighted_task: Callable[[np.ndarray], Task] | None = None
        # what a model depends on beside its architecture
        recipe = (shape, classes, d, relu_head, vocabulary, tuple(names))
        self.recipe: tuple[Any, ...] = recipe
        self.finetuning = finetuning or Finetuning()
        self.bases: dict[tuple[str, tuple[int, ...] | None], dict[str, Tensor]] = {}  # frozen
        self.form, self.vocabulary = (shape, classes, d), vocabulary
        self.layouts: dict[str, Layout] = {}
        # what `least_batches` has returned for the models of these architectures and inputs
        self.least: dict[tuple[str, tuple[int, ...] | None], dict[str, float]] = {}
        self.skeletons: dict[tuple[str, str], Skeleton] = {}  # by architecture and owner
        # architecture -> the client whose weights are in its module
        self.active: dict[str, int] = {}
        self.states = state_store(folder, resident, device, device_bytes)
        self.undo_log = UndoLog(self, state_store(folder / "before", resident, device, 0.0))
        self.weighted: set[int] = set()  # clients that have weights of their own
        # models with the weights from which all clients start; None: each has weights of its own
        self.starts: dict[tuple[str, tuple[int, ...] | None], Skeleton] | None = None
        self.stateless = (
            False  # every tensor is received anew each round: clients have no weights of their own
        )
        # whether the method is a user's own, which may forget that a module serves many clients:
        # then it is blank before a client without weights receives some, and what outlives a turn
        # is examined for parts of it
        self.careful = False

    def fresh(self) -> ClientStore:
        """Return a store of the same models on the CPU, in which no client has state.

        All clients of an architecture start from the same weights, so that these are made once.
        """
        store = copy(self)
        store.device, store.bases, store.skeletons, store.active = torch.device("cpu"), {}, {}, {}
        store.states = state_store(self.states.folder / "fresh", math.inf, store.device, 0.0)
        store.undo_log = UndoLog(
            store, state_store(self.states.folder, math.inf, store.device, 0.0)
        )
        store.weighted = set()
        store.starts = {}
        return store

    def scoped(self, architecture: str, *key: str | int) -> AbstractContextManager[object]:
        """Seed torch's global generator in a block that makes or calls a model of this name.

        If it is the user's own, NumPy's and Python's are seeded too.  key: names the draws.
        """
        return rng.scoped(self.seed, *key, everywhere=any(outside(architecture)))

    def new(self, architecture: str, shape: tuple[int, ...] | None = None) -> Model | Pair:
        """Build a new model, with the weights of `hpcfed.models.build`."""
        of_examples, *others = self.recipe
        return build(architecture, shape or of_examples, *others)

    def build(self, architecture: str, shape: tuple[int, ...] | None = None) -> Model | Pair:
        """Build a new model, with the weights of `hpcfed.models.build` or those of models.weights.

        All models of an architecture share the tensors that models.train freezes.
        """
        model = self.new(architecture, shape)
        meta = next(model.parameters()).is_meta
        if not meta:
            self.finetuning.start(model, architecture, self.recipe[-1])
        if self.finetuning.some:
            self.finetuning.check(model, architecture)
            self.finetuning.restrict(model, None if meta else self.base(architecture, shape))
        if self.precision == "bf16":
            choose_precisions(model)
            if not meta:
                least = self._least(architecture, shape, model)
                model.bf16_batch = min(least.values(), default=math.inf)
        return model

    def bf16_batches(self, architecture: str) -> dict[str, float]:
        """Return the least batch for which each layer is computed in bfloat16, by its name.

        It is {} without run.precision = "bf16". See `least_batches`.
        """
        if self.precision == "bf16" and (architecture, None) not in self.least:
            with self.scoped(architecture, "precision", architecture):
                self.build(architecture)
        return self.least.get((architecture, None), {})

    def _least(
        self, architecture: str, shape: tuple[int, ...] | None, model: Model | Pair
    ) -> dict[str, float]:
        """Return `least_batches` of this new model, computed once for its architecture."""
        if (architecture, shape) not in self.least:
            x = zeros(shape or self.form[0], 1, self.vocabulary)
            with self.scoped(architecture, "precision", architecture):
                self.least[architecture, shape] = least_batches(model, x)
        return self.least[architecture, shape]

    def base(self, architecture: str, shape: tuple[int, ...] | None) -> dict[str, Tensor]:
        """Return the frozen tensors of the model that client 0 would start from."""
        if (architecture, shape) not in self.bases:
            with self.scoped(architecture, "init", 0):
                model = self.new(architecture, shape)
            self.finetuning.start(model, architecture, self.recipe[-1])
            named = [*model.named_parameters(), *model.named_buffers()]
            self.bases[architecture, shape] = {
                name: value.detach() for name, value in named if not self.finetuning.wanted(name)
            }
        return self.bases[architecture, shape]

    def skeleton(
        self, architecture: str, owner: str = "clients", shape: tuple[int, ...] | None = None
    ) -> Skeleton:
        """Return the module of an architecture, with the weights that it holds at present.

        owner: each owner has modules of its own.
        shape: of the module's inputs, if they are not examples.
        """
        if (architecture, owner) not in self.skeletons:
            with self.scoped(architecture, "module", architecture):
                model = (
                    self.build(architecture, shape)
                    if self.starts is None
                    else deepcopy(self.initial(architecture, 0, shape).model)
                )
                self.skeletons[architecture, owner] = Skeleton(model, self.device)
        return self.skeletons[architecture, owner]

    def layout(self, architecture: str) -> Layout:
        """Return the names and shapes of an architecture's tensors; computed once.

        No weights are made for it, unless `for_shapes` says so.
        """
        if architecture not in self.layouts:
            with for_shapes(architecture):
                self.layouts[architecture] = Layout.of(self.build(architecture))
        return self.layouts[architecture]

    def units(self, architecture: str) -> Units:
        """Return the units from which sub-models of this architecture are cut.

        Raises ConfigError for an architecture that cannot be cut.
        """
        return structure(str(Architecture.parse(architecture).full), *self.form)

    def work(self, architecture: str) -> int:
        """Return the multiply-adds of one example's forward pass."""
        return work(architecture, *self.form, self.vocabulary).multiply_adds

    def initial(self, architecture: str, k: int, shape: tuple[int, ...] | None = None) -> Skeleton:
        """Build a model on the CPU with client k's initial weights; the same on every rank."""
        if self.starts is not None and (architecture, shape) in self.starts:
            return self.starts[architecture, shape]
        start = self.start(architecture, k, shape)
        if self.starts is not None:
            self.starts[architecture, shape] = start
        return start

    def start(self, architecture: str, k: int, shape: tuple[int, ...] | None = None) -> Skeleton:
        """Build a model on the CPU whose weights are drawn from client k's stream."""
        with self.scoped(architecture, "init", k):
            return Skeleton(self.build(architecture, shape))

    def activate(self, client: Client) -> Skeleton:
        """Return the module of the client's architecture, with the client's weights in it."""
        self.undo_log.note(client.id)
        skeleton = self.skeleton(client.architecture)
        if self.active.get(client.architecture) != client.id:
            self.rest(client.architecture)
            state = self.states.get(client.id)
            if state and state.weights is not None:
                skeleton.load(state.weights)
                state.weights = None
            elif not self.stateless:
                skeleton.load(self.initial(client.architecture, client.id).flat)
            elif self.careful:
                skeleton.blank()
            self.active[client.architecture] = client.id
            self.weighted.add(client.id)
        return skeleton

    def rest(self, architecture: str) -> None:
        """Copy the active client's weights back into its vector."""
        k = self.active.pop(architecture, None)
        if k is not None:
            self.entry(k).weights = self.skeleton(architecture).flat.clone()
            self.states.fit(keep=self.active.values())

    def own(self, k: int) -> ClientState:
        """Return the state of client k, which the caller may change."""
        self.undo_log.note(k)
        return self.entry(k)

    def entry(self, k: int) -> ClientState:
        state = self.states.get(k)
        if state is None:
            self.states.put(k, state := ClientState())
        return state

    def arrange(self, k: int) -> None:
        """Put all that client k remembers into memory of its own, in row-major order.

        See `apart` and `row_major`.
        """
        state = self.states.peek(k)
        if state and state.memory:
            memory = self.apart(state.memory) if self.careful else state.memory
            state.memory = row_major(memory)

    def apart(self, value: Any) -> Any:
        """Return the value with copies of tensors that are parts of a module; itself, without any.

        The module of an architecture holds the weights of another client in the next turn, so that
        what outlives a turn must not lie in its memory. A numpy array without memory of its own
        (`weight.detach().numpy()`) may lie there too.
        """
        addresses = {a for skeleton in self.skeletons.values() for a in skeleton.addresses}
        addresses.discard(0)  # of empty tensors, and of those without values

        def inside(leaf: Tensor | np.ndarray) -> bool:
            if isinstance(leaf, Tensor):
                return leaf.untyped_storage().data_ptr() in addresses
            return not leaf.flags.owndata

        def owned(leaf: Tensor | np.ndarray) -> Tensor | np.ndarray:
            if not inside(leaf):
                return leaf
            return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf.copy()

        if not any(inside(leaf) for _, leaf in tensors(value)):
            return value
        return map_tensors(value, owned, LEAVES)

    def parcel(self, k: int) -> dict[str, Any]:
        """Return client k's weights and memory, to be read, sent or saved.

        The weights are None if the client has none of its own yet.
        """
        self.settle(k)
        state = self.states.peek(k) or ClientState()
        return {"weights": state.weights, "memory": state.memory}

    def settle(self, k: int) -> None:
        """Copy client k's weights from a module back into its vector, if they are in one."""
        for architecture in [a for a, active in self.active.items() if active == k]:
            self.rest(architecture)

    def flat(self, k: int) -> Tensor | None:
        """Return client k's weights, or None if it has none of its own yet."""
        return self.parcel(k)["weights"]

    def put(self, k: int, flat: Tensor | None, memory: dict[str, Any] | None = None) -> None:
        """Set the weights of client k, and its memory if one is given."""
        self.drop(k)
        state = self.entry(k)
        if flat is not None:
            state.weights = flat.to(self.device)
            self.weighted.add(k)
        state.memory = state.memory if memory is None else on_device(memory, self.device)
        self.states.fit(keep=self.active.values())

    def drop(self, *ks: int) -> None:
        """Remove these clients' weights; the clients would start from their initial ones again."""
        self.active = {a: active for a, active in self.active.items() if active not in ks}
        self.weighted.difference_update(ks)
        for k in [k for k in ks if k in self.states]:
            state = self.entry(k)
            state.weights = None
            if not state.memory:
                self.states.drop(k)

    def forget(self, k: int) -> None:
        """Remove all state of client k."""
        self.states.drop(k)
        self.drop(k)

    def __contains__(self, k: int) -> bool:
        """Return whether this client has state of its own."""
        return k in self.states or k in self.weighted

    def __iter__(self) -> Iterator[int]:
        """Iterate over the ids of the clients that have state of their own."""
        return iter(sorted({*self.states, *self.weighted}))

    def prefetch(self, ks: Iterable[int]) -> None:
        """Load these clients' states into memory in the background."""
        self.states.prefetch(ks)

    def close(self) -> None:
        """Remove all state, and the files."""
        self.undo_log.states.close()
        self.states.close()
