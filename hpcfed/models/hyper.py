"""A graph hyper-network, which makes the weights of a network from its graph: HAFL-GHN.

Each layer with weights is a node. Messages along the edges tell a node what stands before and
behind it; a decoder then makes the values of its tensors, some at a time, so that the
hyper-network's own parameters are the same whatever network it serves. Litany et al. (Federated
Learning with Heterogeneous Architectures using Graph HyperNetworks), 2022, arXiv:2201.08459.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hpcfed.core.errors import ConfigError
from hpcfed.models.model import Model

KINDS: tuple[type[nn.Module], ...] = (nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.GroupNorm)
CHUNK = 64  # values that the decoder makes at once
PLACES = 16  # of the encoding of where in a tensor these stand
SIZES = 2  # features of a node beside its kind: logarithms of its outputs and inputs


class Hyper(nn.Module):
    """Weights from a graph: nodes [N, features] and edges [N, N] -> states of nodes [N, hidden];
    of a state the values of a tensor.
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

    def encode(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """States of the nodes after the messages; edges[i, j] = 1: what i makes goes into j."""
        h = torch.tanh(self.embed(nodes))
        for _ in range(self.rounds):
            h = torch.tanh(self.own(h) + self.before(edges.T @ h) + self.behind(edges @ h))
        return h

    def decode(self, state: Tensor, name: str, shape: torch.Size) -> Tensor:
        """The values of a tensor of this shape. name: weight or bias.

        state: [hidden], of its node.
        """
        count = math.ceil(shape.numel() / CHUNK)
        places = encode_places(count, state.device).to(state.dtype)
        given = torch.cat([state.expand(count, -1), places], 1)
        values = self.last[name](torch.relu(self.first[name](given)))
        return values.flatten()[: shape.numel()].view(shape)


def encode_places(count: int, device: torch.device | str = "cpu") -> Tensor:
    """Sines and cosines of 0..count-1 at PLACES / 2 wavelengths from 2 pi to 10,000, [count,
    PLACES].
    """
    speeds = 10_000 ** (-torch.arange(PLACES // 2, device=device) / (PLACES // 2))
    angles = torch.arange(count, device=device)[:, None] * speeds
    return torch.cat([angles.sin(), angles.cos()], 1)


class Made(nn.Module):
    """A network whose parameters a hyper-network makes whenever it runs.

    It registers the network's buffers, not its parameters, for it has none.

    number: of its first node in the graph.
    """

    def __init__(self, net: nn.Module, graph: Graph, number: int):
        super().__init__()
        self.net = net
        self.graph = [graph]  # in a list: the hyper-network is registered once, in the body
        self.tensors: list[tuple[str, str, torch.Size, int, bool]] = []
        for path, layer in net.named_modules():
            own = dict(layer.named_parameters(recurse=False))
            for name, value in own.items():
                full = f"{path}.{name}" if path else name
                norm = not isinstance(layer, nn.Conv2d | nn.Linear)
                self.tensors.append((full, name, value.shape, number, norm))
                del layer._parameters[name]
            number += bool(own)

    def make(self) -> dict[str, Tensor]:
        """The network's parameters by name."""
        (graph,) = self.graph
        states = graph.states()
        return {
            full: scale(graph.hyper.decode(states[i], name, shape), name, norm)
            for full, name, shape, i, norm in self.tensors
        }

    def forward(self, x: Tensor) -> Tensor:
        return functional_call(self.net, self.make(), (x,))


def scale(values: Tensor, name: str, norm: bool) -> Tensor:
    """Values as a layer can begin with them: weights by the root of their number of inputs, those
    of normalisation about 1, biases small.
    """
    if name == "bias":
        return 0.1 * values
    return 1 + 0.1 * values if norm else values * (2 / math.sqrt(values[0].numel()))


class Graph:
    """The graph of a network, which stays where the network is, and the hyper-network."""

    def __init__(self, hyper: Hyper, nodes: Tensor, edges: Tensor):
        self.hyper, self.nodes, self.edges = hyper, nodes, edges

    def states(self) -> Tensor:
        like = self.hyper.embed.weight
        return self.hyper.encode(self.nodes.to(like), self.edges.to(like))


class MadeBody(Made):
    """The body; it holds the hyper-network."""

    def __init__(self, net: nn.Module, graph: Graph):
        super().__init__(net, graph, 0)
        self.hyper = graph.hyper


class MadeHead(Made):
    """The head."""

    def __init__(self, net: nn.Module, graph: Graph, number: int):
        super().__init__(net, graph, number)
        self.in_features, self.out_features = net.in_features, net.out_features


def describe(model: Model) -> tuple[Tensor, Tensor]:
    """The nodes of a model's graph, [N, features], and its edges, [N, N]: each layer with weights
    goes into the next one, in the order in which the model has them.

    Raises ConfigError for a layer of which weights cannot be made.
    """
    rows = []
    for path, layer in model.named_modules():
        own = dict(layer.named_parameters(recurse=False))
        if not own:
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
    """The model with parameters that a new hyper-network makes; draws that one's."""
    nodes, edges = describe(model)
    graph = Graph(Hyper(hidden, rounds), nodes, edges)
    model.head = MadeHead(model.head, graph, len(nodes) - 1)  # type: ignore[assignment]
    model.body = MadeBody(model.body, graph)
    return model
