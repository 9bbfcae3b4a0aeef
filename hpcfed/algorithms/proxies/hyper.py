"""A graph hyper-network, which generates the weights of a network from its graph: HAFL-GHN.

Each layer with weights is a node. Messages along the edges tell a node which layers come before and
after it. A decoder then generates the values of its tensors in chunks, so that the hyper-network's
own parameters are the same for any network. Litany et al. (Federated Learning with Heterogeneous
Architectures using Graph HyperNetworks), 2022, arXiv:2201.08459.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hpcfed.core.errors import ConfigError
from hpcfed.models.model import Model
from hpcfed.models.precision import full, raised

KINDS: tuple[type[nn.Module], ...] = (nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.GroupNorm)
CHUNK = 64  # values that the decoder generates at once
PLACES = 64  # width of the encoding of their position in a tensor
SIZES = 2  # features of a node beside its kind: logarithms of its outputs and inputs


class Hyper(nn.Module):
    """The hyper-network: from a graph to the states of its nodes, and from a state to tensors.

    Nodes [N, features] and edges [N, N] give states [N, hidden]; the state of a node gives the
    values of its layer's tensors.
    """

    def __init__(self, hidden: int, rounds: int):
        super().__init__()
        self.rounds = rounds
        self.embed = nn.Linear(len(KINDS) + SIZES, hidden)
        self.own, self.before, self.behind = (nn.Linear(hidden, hidden) for _ in range(3))
        self.first = nn.ModuleDict(
            {name: nn.Linear(hidden + PLACES, hidden) for name in ("weight", "bias")}
        )
        self.last = nn.ModuleDict({name: nn.Linear(hidden, CHUNK) for name in ("weight", "bias")})
        for name in ("weight", "bias"):  # so that generated values have a variance of about 1
            nn.init.kaiming_normal_(self.first[name].get_parameter("weight"), nonlinearity="linear")
            nn.init.kaiming_normal_(self.last[name].get_parameter("weight"), nonlinearity="tanh")
            for layers in (self.first, self.last):
                nn.init.zeros_(layers[name].get_parameter("bias"))

    def encode(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Return the states of the nodes after the messages.

        edges[i, j] = 1: the output of layer i is the input of layer j.
        """
        h = raised(torch.tanh(self.embed(nodes)))
        for _ in range(self.rounds):
            with full(h.device):  # sums over a few nodes
                before, behind = edges.T @ h, edges @ h
            h = raised(torch.tanh(self.own(h) + self.before(before) + self.behind(behind)))
        return h

    def decode(self, state: Tensor, name: str, shape: torch.Size) -> Tensor:
        """Return the values of a tensor of this shape.

        state: [hidden], of its node.  name: weight or bias.
        """
        count = math.ceil(shape.numel() / CHUNK)
        places = encode_places(count, state.device).to(state.dtype)
        inputs = torch.cat([state.expand(count, -1), places], 1)
        values = self.last[name](torch.tanh(self.first[name](inputs)))
        return values.flatten()[: shape.numel()].view(shape)


def encode_places(count: int, device: torch.device | str = "cpu") -> Tensor:
    """Return encodings of the positions 0..count-1, [count, PLACES], nearly orthogonal.

    They are sines and cosines at PLACES / 2 frequencies that have no common period. With
    neighbours alike, as in encodings for attention, generated matrices would be nearly of rank 1.
    """
    waves = torch.arange(1, PLACES // 2 + 1, dtype=torch.float64, device=device)
    turns = torch.arange(count, dtype=torch.float64, device=device)[:, None] * math.sqrt(2) * waves
    angles = 2 * math.pi * (turns % 1)
    return math.sqrt(2) * torch.cat([angles.sin(), angles.cos()], 1)


class Made(nn.Module):
    """A network whose parameters a hyper-network generates in each forward pass.

    It has the network's buffers but no parameters of its own.

    number: of its first node in the graph.
    """

    def __init__(self, net: nn.Module, graph: Graph, number: int):
        super().__init__()
        self.net = net
        self.graph = [graph]  # in a list: the hyper-network is registered once, in the body
        self.tensors: list[tuple[str, str, torch.Size, int, bool]] = []
        for path, layer in net.named_modules():
            params = dict(layer.named_parameters(recurse=False))
            for name, value in params.items():
                full = f"{path}.{name}" if path else name
                norm = not isinstance(layer, nn.Conv2d | nn.Linear)
                self.tensors.append((full, name, value.shape, number, norm))
                del layer._parameters[name]
            number += bool(params)

    def make(self) -> dict[str, Tensor]:
        """Return the network's parameters by name, float32."""
        (graph,) = self.graph
        states = graph.states()
        return {
            full: scale(raised(graph.hyper.decode(states[i], name, shape)), name, norm)
            for full, name, shape, i, norm in self.tensors
        }

    def forward(self, x: Tensor) -> Tensor:
        return functional_call(self.net, self.make(), (x,))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Do what `Module.to` and the like do, also with the graph: copies in a step would wait."""
        (graph,) = self.graph
        graph.nodes, graph.edges = fn(graph.nodes), fn(graph.edges)
        return super()._apply(fn, recurse)


def scale(values: Tensor, name: str, norm: bool) -> Tensor:
    """Scale generated values, of variance 1 at first, to the size of a layer's initial values.

    Weights get a variance of 2 / inputs (He et al., 2015, arXiv:1502.01852), as in GHN-2
    (facebookresearch/ppuda), and a mean of 0 over the inputs of each unit: behind a ReLU inputs are
    positive, and a unit whose weights are mostly negative, as those of its layer then all are,
    never learns. The weights of normalisation are centred at 1, and biases are small.
    """
    if name == "bias":
        return 0.1 * values
    if norm:
        return 1 + 0.1 * values
    inputs = values[0].numel()
    if inputs == 1:
        return values * math.sqrt(2)
    centred = values - values.mean([*range(1, values.dim())], keepdim=True)
    return centred * math.sqrt(2 / (inputs - 1))  # centred, they have (inputs - 1) / inputs left


class Graph:
    """The graph of a network, and the hyper-network.

    The tensors of the graph move to another device with the modules that hold it (`Made`).
    """

    def __init__(self, hyper: Hyper, nodes: Tensor, edges: Tensor):
        self.hyper, self.nodes, self.edges = hyper, nodes, edges

    def states(self) -> Tensor:
        return self.hyper.encode(self.nodes, self.edges)


class MadeBody(Made):
    """The body with generated weights; it holds the hyper-network."""

    def __init__(self, net: nn.Module, graph: Graph):
        super().__init__(net, graph, 0)
        self.hyper = graph.hyper


class MadeHead(Made):
    """The head with generated weights."""

    def __init__(self, net: nn.Module, graph: Graph, number: int):
        super().__init__(net, graph, number)
        self.in_features, self.out_features = net.in_features, net.out_features


def describe(model: Model) -> tuple[Tensor, Tensor]:
    """Return the nodes of a model's graph, [N, features], and its edges, [N, N].

    Each layer with weights is connected to the next one, in the order of the model. Raises
    ConfigError for a layer whose weights cannot be generated.
    """
    rows = []
    for path, layer in model.named_modules():
        params = dict(layer.named_parameters(recurse=False))
        if not params:
            continue
        kind = next((i for i, one in enumerate(KINDS) if isinstance(layer, one)), None)
        if kind is None:
            raise ConfigError(
                f"ghn makes weights of convolutions, linear layers and normalisation, but {path} "
                f"is a {type(layer).__name__}; leave such models out of models.mix"
            )
        shape = layer.weight.shape
        sizes = [math.log(shape[0]) / 10, math.log(max(1, shape[1:].numel())) / 10]
        rows.append([float(kind == i) for i in range(len(KINDS))] + sizes)
    with torch.device("cpu"):
        return torch.tensor(rows), torch.diag(torch.ones(len(rows) - 1), 1)


def generate(model: Model, hidden: int, rounds: int) -> Model:
    """Replace the model's parameters by a new hyper-network that generates them; returns the model.

    The weights of the hyper-network are drawn.
    """
    nodes, edges = describe(model)
    graph = Graph(Hyper(hidden, rounds), nodes, edges)
    model.head = MadeHead(model.head, graph, len(nodes) - 1)  # type: ignore[assignment]
    model.body = MadeBody(model.body, graph)
    return model
