"""A local step as a list of tensor operations, replayed without modules and autograd.

The recording holds the operations of eager training, forward and backward, so a replay gives the
same bits; the first one is compared with an eager step. It pays if a step is short, because Python
takes most of the time then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

if TYPE_CHECKING:
    from torch.fx import Graph, GraphModule, Node

    from hpcfed.models.flat import Skeleton

Objective = Callable[[nn.Module, Sequence[Tensor]], Tensor]  # model, other inputs -> scalar
VIEWS = {
    "aten::t",
    "aten::view",
    "aten::transpose.int",
    "aten::permute",
    "aten::unsqueeze",
    "aten::slice.Tensor",
    "aten::select.int",
    "aten::expand",
    "aten::_unsafe_view",
    "aten::squeeze.dim",
}
UNFIT = {"aten::mkldnn_rnn_layer"}  # without autograd it saves nothing for its backward pass
# ranks may be threads of one process, and while torch records it changes its own functions
ALONE = threading.Lock()
SAME = {"aten::detach", "aten::alias"}  # no effect on tensors without gradient


class RecordedStep:
    """One recorded step of a skeleton's model: (other inputs) -> its loss, and the gradient.

    objective: (model, inputs) -> scalar. It must depend on nothing else that changes: other values
    that it reads are recorded as they are now.
    inputs: examples of its inputs; only shapes, types and memory layouts count.
    trained: names of the parameters whose gradients are wanted.
    Raises whatever torch raises if a step cannot be recorded, for example because it makes
    decisions by values.
    """

    def __init__(
        self,
        skeleton: Skeleton,
        objective: Objective,
        inputs: Sequence[Tensor],
        trained: Sequence[str],
    ):
        module = record(skeleton.model, objective, inputs, trained)
        state = [*skeleton.model.parameters(), *skeleton.model.buffers()]
        self.fixed = fold(module.graph, [t.detach() for t in state])
        module.recompile()
        self.forward = module.forward
        self.params = [skeleton.view(name) for name in trained]
        # gradients whose memory layout differs from their parameters'
        self.astray: list[int] | None = None

    def __call__(self, inputs: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the loss, and the gradient by parameter, each in its parameter's memory layout."""
        with torch.inference_mode():
            value, *gradient = self.forward(*self.fixed, *inputs)
            if self.astray is None:
                pairs = enumerate(zip(gradient, self.params, strict=True))
                self.astray = [i for i, (g, p) in pairs if g.stride() != p.stride()]
            for i in self.astray:
                gradient[i] = alike(gradient[i], self.params[i])
        return value, gradient


def alike(gradient: Tensor, p: Tensor) -> Tensor:
    """Return the gradient in its parameter's memory layout.

    Optimisers over whole buffers rely on that layout.
    """
    return gradient if gradient.stride() == p.stride() else torch.empty_like(p).copy_(gradient)


def record(
    model: nn.Module, objective: Objective, inputs: Sequence[Tensor], trained: Sequence[str]
) -> GraphModule:
    """Return the step as a graph of (parameters, buffers, inputs) -> [loss, gradients].

    It computes nothing and draws nothing.
    """
    names = [name for kind in (model.named_parameters(), model.named_buffers()) for name, _ in kind]
    module = Whole(model, objective)

    def step(*tensors: Tensor) -> list[Tensor]:
        state = dict(zip(names, tensors, strict=False))
        leaves = {name: state[name].detach().requires_grad_() for name in trained}
        every = {f"model.{name}": v for name, v in (state | leaves).items()}
        value = functional_call(module, every, tensors[len(names) :])
        gradient = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
        return [value.detach(), *gradient]

    state = [t.detach() for t in (*model.parameters(), *model.buffers())]
    return graph(step, state, inputs)


def graph(
    step: Callable[..., list[Tensor]],
    state: Sequence[Tensor],
    inputs: Sequence[Tensor],
) -> GraphModule:
    """Return a function of (state, inputs) as a graph of tensor operations; computes nothing.

    state, inputs: examples of its tensors. Raises RuntimeError if the graph could not be replayed.
    """
    from torch.fx.experimental.proxy_tensor import make_fx  # takes half a second to import

    with ALONE:
        module = make_fx(step, tracing_mode="fake")(*state, *inputs)
    if unfit := sorted(UNFIT.intersection(map(name, module.graph.nodes))):
        raise RuntimeError(f"{unfit[0]} cannot be replayed")
    return module


class Whole(nn.Module):
    """An objective as a module, so that other tensors can replace those of its model."""

    def __init__(self, model: nn.Module, objective: Objective):
        super().__init__()
        self.model, self.objective = model, objective
        self.train(model.training) if model.training != self.training else None

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.objective(self.model, inputs)


def fold(graph: Graph, state: list[Tensor]) -> list[Tensor]:
    """Remove from a graph the operations that need not be repeated in each step.

    Returns the tensors for its first inputs afterwards.

    state: the tensors for its first inputs before; their memory stays. Operations without effect
    are removed. Views of the state are made once, here, and become inputs; so does the gradient of
    the loss by itself, which is 1.
    """
    nodes = [node for node in graph.nodes if node.op == "placeholder"]
    constants = dict(zip(nodes, state, strict=False))
    rest, last = nodes[len(state) :], nodes[len(state) - 1]
    for node in list(graph.nodes):
        if (same := find_original(node)) is None and (
            value := constant(node, constants)
        ) is not None:
            with graph.inserting_after(last):
                same = last = graph.placeholder(f"fixed_{len(constants)}")  # a unique name
            constants[last] = last.meta["val"] = value
        if same is not None:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
    for node in [node for node in constants if not node.users]:
        graph.erase_node(node)
        del constants[node]
    assert [n for n in graph.nodes if n.op == "placeholder"] == [*constants, *rest]
    return list(constants.values())


def find_original(node: Node) -> Node | None:
    """Return the node whose values this one only repeats; None if there is no such node."""
    source: Any = node.args[0] if node.args else None  # of these operations it is a node
    if name(node) in SAME or (name(node) in VIEWS and form(node) == form(source)):
        return source
    twice = name(node) == "aten::t" and name(source) == "aten::t"
    return source.args[0] if twice else None


def constant(node: Node, constants: dict[Node, Tensor]) -> Tensor | None:
    """Return the value of a node that is the same in every step; None for other nodes."""
    operation: Any = node.target  # of a node with a name it can be called
    source: Any = node.args[0] if node.args else None
    if name(node) in VIEWS and source in constants:
        return operation(constants[source], *node.args[1:], **node.kwargs)
    if name(node) == "aten::scalar_tensor" and not is_written(node):
        return operation(*node.args, **node.kwargs)
    if name(node) == "aten::ones_like" and not is_written(node):
        like = node.meta["val"]
        return torch.ones(like.shape, dtype=like.dtype, device=like.device)
    return None


def is_written(node: Node) -> bool:
    """Return whether an operation writes into the tensor of a node, or into a view of it."""
    return any(writes(user) or (is_view(user) and is_written(user)) for user in node.users)


def is_view(node: Node) -> bool:
    """Return whether an operation's result may share the memory of its input."""
    operation: Any = node.target
    return name(node) != "" and any(v.alias_info is not None for v in operation._schema.returns)


def writes(node: Node) -> bool:
    """Return whether an operation writes into one of its inputs."""
    operation: Any = node.target
    return name(node) != "" and operation._schema.is_mutable


def name(node: Node) -> str:
    """Return the operation of a node; "" for inputs and the like."""
    return node.target.name() if isinstance(node.target, torch._ops.OpOverload) else ""


def form(node: Node) -> Any:
    """Return the shape and memory layout of a node's tensor."""
    return node.meta["val"].shape, node.meta["val"].stride()
