"""Parameter-efficient training: only some tensors of a model are trained and sent.

They are chosen by patterns of their names (`models.train`), by LoRA (`models.lora`), or both. All
other tensors are frozen. They are the same on all clients and the server, exist once for each
module, and are not part of the flat vector of a model; so they are neither sent nor saved, nor
stored for each client.

LoRA: Hu et al., ICLR 2022, arXiv:2106.09685, equation 3: a frozen matrix W [m, n] acts as W + B A,
B [m, r] initialised to 0 and A [r, n] from Kaiming's uniform distribution, as in the authors' code.
Deviations: the scale alpha / r is 1, because with Adam it only scales the learning rate (their
section 4.1); the sum W + B A is formed in each forward pass, so that the merged weights give the
same logits bit for bit.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn
from torch.nn.utils import parametrize

from hpcfed.core.architecture import Architecture
from hpcfed.core.errors import CheckpointError, ConfigError
from hpcfed.core.paths import only_regular
from hpcfed.core.wording import join_few
from hpcfed.models.model import Extended, Model, Pair, every_tensor

if TYPE_CHECKING:
    from hpcfed.config.job import Job

HEAD = ("head.*",)  # trained beside LoRA by default
ATTENTION = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
SHOWN = 16  # digits of a checksum that a message shows
MARK = ".parametrizations."  # in torch's names of a parametrised weight


@dataclass(frozen=True)
class Finetuning:
    """The initial weights of models, and the choice of tensors that are trained.

    train: patterns of names. If empty, those of the method (`trains`) count; if it has none either,
    all tensors are trained, or with LoRA the head.
    lora: rank of LoRA's matrices; 0: none.
    weights: by architecture the file, or "none".
    checksums: of these files when the run was set up (`sums`), which identify its start.
    """

    train: tuple[str, ...] = ()
    lora: int = 0
    weights: Mapping[str, str] = field(default_factory=dict)
    checksums: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job, checksums: Mapping[str, str] | None = None) -> Finetuning:
        """Return the choice of a job."""
        models, kinds = job.models, tuple(dict.fromkeys(job.models.mix))
        names = [str(Architecture.parse(kind)) for kind in kinds]
        sources = models.weights if len(models.weights) > 1 else models.weights * len(kinds)
        train = models.train or tuple(job.algorithm.trains)
        weights = dict(zip(names, sources, strict=False))
        return cls(train, models.lora, weights, checksums or {})

    @property
    def some(self) -> bool:
        """Whether only a part of each model is trained."""
        return bool(self.train or self.lora)

    @cached_property
    def files(self) -> dict[str, Path]:
        """The files of weights by architecture. Raises ConfigError if one does not exist."""
        from hpcfed.models.pretrained import find_file

        paths = {name: find_file(source) for name, source in self.weights.items()}
        return {name: path for name, path in paths.items() if path}

    def sums(self) -> dict[str, str]:
        """Return the SHA-256 of the files of weights by architecture."""
        return {name: sha256(path) for name, path in self.files.items()}

    def same_weights(self, checksums: Any) -> None:
        """Raise CheckpointError if a file of weights is not the one that the run started from.

        checksums: the checksums in a checkpoint.
        """
        for name, total in self.checksums.items():
            if isinstance(checksums, dict) and checksums.get(name, total) != total:
                raise CheckpointError(
                    f"models.weights: {self.files[name]} ({name}) is not the file that the run "
                    f"began from: its SHA-256 is {total[:SHOWN]}..., that of the run's was "
                    f"{str(checksums[name])[:SHOWN]}...; put that file back, or begin a new run"
                )

    def wanted(self, name: str) -> bool:
        """Return whether the tensor of this name is trained itself."""
        patterns = self.train or (HEAD if self.lora else ("*",))
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    def start(self, model: nn.Module, architecture: str, classes: Sequence[str] = ()) -> bool:
        """Load the weights of the architecture's file, if it has one, into a new model.

        classes: names of the outputs. Returns False if there is a file, but the head stays as it
        was drawn, because the file's is for other classes.
        """
        name = str(Architecture.parse(architecture).model)
        if path := self.files.get(name):
            from hpcfed.models.pretrained import load

            one = model.own if isinstance(model, Pair) else cast(Model, model)
            has_head = load(one, name, path, classes)
            if isinstance(model, Extended):
                model.update_copies()
            return has_head
        return True

    def restrict(self, model: nn.Module, base: Mapping[str, Tensor] | None) -> None:
        """Leave only the trained tensors among the parameters of a new model, in place.

        base: the frozen tensors by name, which the model shares from now on; None: the model's own.
        LoRA's matrices are drawn from torch's global generator. Raises ConfigError if nothing would
        be trained.
        """
        layers = list(self.adapted(model)) if self.lora else []
        buffers = {name for name, _ in model.named_buffers() if self.wanted(name)}
        for path, module in list(model.named_modules()):
            prefix = f"{path}." if path else ""
            freeze(module, partial(self.is_frozen, prefix), prefix, base)
        for module, name in layers:
            lora = Lora(getattr(module, name), self.lora, is_transposed(module))
            parametrize.register_parametrization(module, name, lora)
        model.frozen = frozenset(n for n, _ in model.named_buffers()) - buffers  # type: ignore[assignment]

    def is_frozen(self, prefix: str, name: str) -> bool:
        """Return whether the tensor of this name in the module at this prefix is not trained."""
        return not self.wanted(prefix + name)

    def adapted(self, model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
        """Yield the matrices to which LoRA adds: the frozen ones of linear and attention layers."""
        for path, module in model.named_modules():
            linear = isinstance(module, nn.Linear) or is_transposed(module)
            names: tuple[str, ...] = ("weight",) if linear else ()
            names = ATTENTION if isinstance(module, nn.MultiheadAttention) else names
            for name in names:
                if getattr(module, name, None) is not None and not self.wanted(f"{path}.{name}"):
                    yield module, name

    def check(self, model: nn.Module, architecture: str) -> None:
        """Raise ConfigError if a pattern matches no parameter of a model, or LoRA finds no layer.

        A rank of LoRA above both sides of a matrix is refused too. One above the shorter side is
        not: a model may have one small matrix among large ones.
        model: as it is built, before `restrict`.
        """
        names = [name for name, _ in model.named_parameters()]
        for pattern in self.train:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ConfigError(
                    f"models.train: no parameter of {architecture} has a name like {pattern!r}; "
                    f"its names are {join_few(names, 6)}"
                )
        if not self.lora:
            return
        shapes = [getattr(module, name).shape for module, name in self.adapted(model)]
        if not shapes:
            raise ConfigError(
                f"models.lora = {self.lora}: {architecture} has no linear or attention layer whose "
                f"weights models.train leaves frozen; set models.lora = 0, or take another model"
            )
        m, n = min(shapes, key=max)
        if self.lora > max(m, n):
            raise ConfigError(
                f"models.lora = {self.lora}: {architecture} has a matrix of {m} x {n}, and a rank "
                f"above both is refused; set models.lora to at most {max(m, n)} (a rank of "
                f"{min(m, n)} expresses any change of this matrix)"
            )


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hex. Raises ConfigError if it cannot be read."""
    try:
        with open(path, "rb", opener=only_regular) as raw:
            return hashlib.file_digest(raw, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"models.weights: {path}: cannot be read: {error}") from error


def is_transposed(layer: nn.Module) -> bool:
    """Return whether this is a linear layer of transformers with the weight [inputs, outputs].

    "hf:gpt2" has such layers, for example; transformers is not imported for that.
    """
    transformers = sys.modules.get("transformers.pytorch_utils")
    return transformers is not None and isinstance(layer, transformers.Conv1D)


class Lora(nn.Module):
    """LoRA's low-rank addition to a weight: W -> W + B A.

    W: [m, n], or its transpose [n, m] if `transposed`.  b: [m, rank], initially zeros.
    a: [rank, n].
    """

    def __init__(self, weight: Tensor, rank: int, transposed: bool = False):
        super().__init__()
        self.transposed = transposed
        m, n = reversed(weight.shape) if transposed else weight.shape
        self.a = nn.Parameter(weight.new_empty(rank, n))
        self.b = nn.Parameter(weight.new_zeros(m, rank))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        addition = self.b @ self.a
        return weight + (addition.T if self.transposed else addition)


def freeze(
    module: nn.Module,
    which: Callable[[str], bool],
    prefix: str,
    base: Mapping[str, Tensor] | None,
) -> None:
    """Turn a module's own parameters and statistics into constants, if they are to be frozen.

    which: whether a tensor is frozen, by its name in the module.
    prefix: of these names in the model.
    base: constants to use instead of the module's own values, by name in the model; None: its own.
    """
    for name, value in list(module.named_parameters(recurse=False)):
        if which(name):
            del module._parameters[name]
            constant = value.detach() if base is None else base[prefix + name]
            module.register_buffer(name, constant)
    for name, buffer in list(module.named_buffers(recurse=False)):
        if base is not None and which(name) and buffer.is_floating_point():
            module._buffers[name] = base[prefix + name]
    statistics = getattr(module, "running_mean", None)
    if isinstance(statistics, Tensor) and which("running_mean"):
        kind: Any = type(module)
        module.__class__ = settled(kind)
        module.eval()


@cache
def settled(cls: Any) -> Any:
    """Return a subclass of a normalisation layer that always uses its running statistics.

    It never changes them, in train mode either.
    """

    def train(self: nn.Module, mode: bool = True) -> nn.Module:
        return cls.train(self, False)

    return type(cls.__name__, (cls,), {"train": train, "__module__": cls.__module__})


def plain_state(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's tensors by the names of the plain model, with LoRA's matrices merged."""
    tensors: dict[str, Tensor] = {}
    for name, value in every_tensor(module).items():
        path, mark, rest = name.partition(MARK)
        tensor = rest.partition(".")[0]
        layer: Any = module.get_submodule(path) if mark else None
        if mark and isinstance(layer.parametrizations[tensor][0], Lora):
            tensors.setdefault(f"{path}.{tensor}", getattr(layer, tensor).detach())
        else:
            tensors[name] = value
    return tensors
