"""What the hooks of a user's method do beside what they return, as a trial of the method sees it.

Results would depend on the number of ranks, or on where a run was interrupted, if a hook changed
the server's state in place, used a model that has received no weights, or kept something in a value
of the class. The first two are refused; of the others, and of a method that exchanges nothing, the
user is warned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from hpcfed.algorithms.base import Method, RoundBased, is_plain
from hpcfed.algorithms.hook_check import users_classes
from hpcfed.core import user_code
from hpcfed.core.params import Mean
from hpcfed.core.payload import tensors, to_tree
from hpcfed.core.wording import join_few
from hpcfed.engine.changed_data import digest
from hpcfed.federation.upload import Transform, Upload

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.federation.federation import Federation

CONTAINERS = (list, dict, set, bytearray, Tensor, np.ndarray)  # values that can change in place
IN_TURN = ("round", "local", "receive", "train", "loss", "weight", "offer")
AT_SERVER = ("round", "aggregate", "averaged", "server")


class HookEffects(Transform):
    """A transform that changes nothing, and sees all that clients receive and send in a trial."""

    keeps_state = False

    def __init__(self, fed: Federation) -> None:
        self.fed, self.method = fed, fed.job.algorithm
        # name, tensor and a copy: of the server's state, and of what clients received in the round,
        # by the tensor's identity
        self.state: list[tuple[str, Tensor, Tensor]] = []
        self.received: dict[int, tuple[str, Tensor, Tensor]] = {}
        self.changed: set[int] = set()  # those of them that a turn has changed
        self.downloads, self.uploads = 0, 0
        self.weights: list[float] = []  # of the means that clients send

    def of_trial(self) -> Transform:
        return Transform()

    def begin(self, state: Any) -> None:
        """Note the server's state as a round begins."""
        self.state, self.received, self.changed = list(copies(to_tree(state))), {}, set()

    def download(self, fed: Federation, client: Client, value: Any) -> tuple[Any, int | None]:
        self.downloads += 1
        for name, tensor, copy in copies(value):
            changed = [self.received[id(tensor)]] if id(tensor) in self.changed else []
            self.refuse_changed(changed, IN_TURN, "what several clients receive")
            self.received[id(tensor)] = name, tensor, copy
        return value, None

    def upload(self, fed: Federation, client: Client, upload: Upload) -> Upload:
        self.uploads += 1
        self.refuse_changes(IN_TURN)
        self.changed |= {key for key, noted in self.received.items() if differs(*noted[1:])}
        for part in upload.parts.values():
            for term in part.terms if isinstance(part, Mean) else ():
                weight = term.weight  # a number, a tensor, or Params of them
                each = weight.values() if isinstance(weight, Mapping) else [weight]
                self.weights += [float(torch.as_tensor(value).sum()) for value in each]
        return upload

    def refuse_changes(self, hooks: tuple[str, ...] = AT_SERVER) -> None:
        """Raise OwnError if a tensor of the server was changed in place.

        hooks: names of those that may have done it.
        """
        self.refuse_changed(self.state, hooks, "the server's state")

    def refuse_changed(
        self, noted: Iterable[tuple[str, Tensor, Tensor]], hooks: tuple[str, ...], whose: str
    ) -> None:
        """Raise OwnError for a tensor that differs from its copy.

        noted: name, tensor and copy.  whose: of what they are parts.
        """
        for name, tensor, before in noted if isinstance(self.method, RoundBased) else ():
            if differs(tensor, before):
                raise user_code.OwnError(
                    f"{self.places(hooks)} changes {name!r} of {whose} in place, so that the next "
                    f"client, and a round that is repeated, would begin from the changed values; "
                    f"make new tensors, as `state[name] * 0.9`, or change a copy, `state.clone()`"
                )

    @contextmanager
    def refuse_blank_models(self) -> Iterator[None]:
        """Raise OwnError in the block if a model is used of which tensors have no values yet."""

        def check(module: nn.Module, inputs: Any) -> None:
            for skeleton in self.fed.store.skeletons.values():
                parts = [skeleton.model, *skeleton.model.children()]
                if module in parts and (blanks := skeleton.blanks):
                    raise user_code.OwnError(self.explain_blank(blanks[0]))

        handle = register_module_forward_pre_hook(check)
        try:
            yield
        finally:
            handle.remove()

    def explain_blank(self, name: str) -> str:
        """Return the message for a model whose tensor of this name has no values."""
        return (
            f"{self.places(IN_TURN)} uses a client's model before its {name!r} has been received "
            f"in this round; all tensors are exchanged, so that clients keep no weights from round "
            f"to round; give the model what the client received, "
            f"`self.receive(client, fed.down(client, state))`, or declare "
            f"`keeps_weights: ClassVar = True`"
        )

    def places(self, hooks: tuple[str, ...]) -> str:
        """Return file, line and name of the user's hooks among these, for messages."""
        cls = type(self.method)
        owners = {
            name: next((c for c in users_classes(cls) if name in vars(c)), None) for name in hooks
        }
        functions = [getattr(owner, name) for name, owner in owners.items() if owner]
        if not functions:
            return cls.__name__
        names = " or ".join(f"{cls.__name__}.{fn.__name__}" for fn in functions)
        return f"{user_code.line_of(functions[0])}: {names}"

    def warnings(self, before: Mapping[str, Any]) -> Iterator[str]:
        """Yield what may be a mistake, one line each.

        before: the values of the class before the trial, as `class_values` returns them.
        """
        after, cls = class_values(self.method), type(self.method)
        if changed := [name for name in before if after.get(name) != before[name]]:
            yield (
                f"{self.places(IN_TURN + AT_SERVER)}: {join_few(changed, 4)} of {cls.__name__} "
                f"changes during the run; no checkpoint saves it, and each rank has another; keep "
                f"what a client remembers in client.memory, what the server remembers in its "
                f"state, and what is computed once in a function with functools.cache"
            )
        if is_plain(self.method, "round", "local"):
            kinds = sorted({*self.fed.architectures})
            names = [name for kind in kinds for name in self.fed.shapes(architecture=kind)]
            if not any(map(self.method.shared, names)):
                yield (
                    f"{self.places(('shared',))} is false for all tensors ({join_few(names, 4)}), "
                    f"so that nothing is exchanged: clients train alone"
                )
        silent = self.downloads and not self.uploads
        if silent and is_plain(self.method, "round") and not is_plain(self.method, "local"):
            yield (
                f"{self.places(('local',))} returns None in all turns of a trial; if it does in "
                f"the run, clients send nothing"
            )
        if self.weights and not any(self.weights):
            yield (
                f"{self.places(('weight', 'local'))}: in a trial all uploads have the weight 0; if "
                f"they have it in the run, no mean changes the server's state"
            )


def differs(tensor: Tensor, before: Tensor) -> bool:
    """Return whether a tensor differs from an earlier copy."""
    return not torch.isclose(tensor, before, rtol=0, atol=0, equal_nan=True).all()


def copies(value: Any) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield name, tensor and a copy for each tensor in a value."""
    for name, tensor in tensors(value):
        if isinstance(tensor, Tensor):
            yield name, tensor, tensor.detach().clone()


def class_values(method: Method) -> dict[str, Any]:
    """Return the contents of what can change in a user's method, by name: fields, class values."""
    values = dict(method) | (method.__pydantic_private__ or {})
    for c in users_classes(type(method)):
        values |= {
            name: value
            for name, value in vars(c).items()
            if isinstance(value, CONTAINERS) and not name.startswith(("__", "model_"))
        }
    return {name: contents(value) for name, value in values.items()}


def contents(value: Any) -> Any:
    """Return something that is equal for equal contents, and is not the value itself."""
    if isinstance(value, Tensor):
        row = value.detach().cpu().to_dense().flatten().contiguous()
        return digest(row.view(torch.uint8).numpy())
    if isinstance(value, np.ndarray):
        return contents(value.tolist()) if value.dtype.hasobject else digest(value)
    if isinstance(value, float):
        return repr(value)  # nan differs from itself
    if isinstance(value, Mapping):
        return [(contents(key), contents(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [contents(item) for item in value]
    if isinstance(value, set | bytearray):
        return type(value)(value)
    return value
