"""FedKTL: a generator at the server turns clients' knowledge of classes into images with vectors.

Class means of the clients' outputs are moved into the generator's latent space. The generator makes
one image of each class from there, which any model can learn from.

Zhang et al. (An Upload-Efficient Scheme for Transferring Knowledge From a Server-Side Pre-trained
Generator to Clients in Heterogeneous Federated Learning), CVPR 2024, arXiv:2403.15760. v_c are the
C columns of a simplex equiangular tight frame, to which all clients' outputs f turn: phi_c is the
angle between f and v_c. The loss is that of ArcFace, with the factor s and the margin m between
angles. P_kc is client k's mean of f / ||f|| over class c. A network T at the server maps it to a
latent vector of length D; b_c is the centre of a class, and r are standard normal vectors.
x_c = G(q_c) is the image of class c. z is a representation, and h a linear layer of the client.

Objective: CE(s u, y) + mu ||h(z(x_c)) - q_c||^2 / D; u_y = cos(phi_y + m); u_c = cos(phi_c)
Server: T, b <- argmin_(T, b) MMD(T(P), r) + lam ||T(P_kc) - b_c||^2 / D; q_c = mean_k T(P_kc)
Round:
1. The server sends an image x_c and its latent vector q_c for each class that it knows.
2. Each client starts h anew (unless keep_h), trains on its own examples, and maps its
   representations of the images to their latent vectors.
3. It sends its mean normalised output P_kc of each class c that it has.
4. The server trains the network T that maps these means into the generator's latent space.
5. It makes an image from the mean latent vector of each class that was sent; others keep theirs.

Deviations: the text of the paper was not at hand; formulas are those of its authors' HtFLlib. The
paper's generators are StyleGAN-XL, StyleGAN3 and Stable Diffusion, of gigabytes. Here the generator
is a file of weights, of `ImageGenerator` (`VectorGenerator` for examples that are no images) in
hpcfed.algorithms.data_free.generators, whose latent vectors are standard normal; or the mean and
the principal components of public images, with latent vectors in units of their standard
deviations; or, as a control, an untrained network. The frame and the start of h, which is the same
in all rounds, follow from the job's seed and are not sent. The frame is drawn evenly; the code's
start is a matrix of positive numbers. A class that nobody has sent has no image; the code sends
that of a random vector. Class means are not normalised again; the code does so. cos(phi + m)
is computed without phi, whose gradient is infinite at 0. T has no bias before its batch
normalisation, which would take it away. Gradients of model and h are clipped together, and so are
those of T and b.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from hpcfed import (
    Client,
    Federation,
    Guide,
    LocalSteps,
    Params,
    RoundBased,
    Upload,
    rng,
)
from hpcfed.algorithms.common_head.class_means import join_means, mean_by_class
from hpcfed.algorithms.data_free.generators import (
    Generator,
    apply_layers,
    check_finite,
    example_shape,
)
from hpcfed.algorithms.public_data.image_decoder import decode, principal_components, read
from hpcfed.config.conditions import Unused, field
from hpcfed.models.model import Model
from hpcfed.models.precision import full, raised
from hpcfed.models.variants import name_variant
from hpcfed.training import examples
from hpcfed.training.batches import batches
from hpcfed.training.infer import class_sums, logits
from hpcfed.training.losses import mean_discrepancy
from hpcfed.training.server import fit

BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)  # of the kernels of MMD
BESIDE = 100  # latent vectors that are decoded beside those of classes, for normalisation by batch
CLIP = 100.0  # largest norm of a gradient, at clients and at the server
ENDLESS = 2**62  # steps
STATISTICS = ("1.running_mean", "1.running_var")  # of the batch normalisation in T


@dataclass(frozen=True)
class State:
    """The server's state.

    pairs: images as models take them, "image" [C, *shape], and their latent vectors, "latent"
    [C, D]; rows of classes that nobody has sent yet are nan.
    transformer: the network T: a linear layer, batch normalisation, ReLU, a linear layer.
    decoder: the generator, which never changes.
    """

    pairs: Params
    transformer: Params
    decoder: Params


class FedKTL(RoundBased):
    """With mu = 0 each client trains alone by ArcFace's loss on the frame."""

    guide: ClassVar[Guide] = Guide(
        data="different labels; public images or a generator",
        sent="class means up, an image of each class down",
        won="above FedProto, FedTGP and FedGen with up to eight architectures",
    )

    accepts: ClassVar[str] = "any models"
    needs_classes: ClassVar[str] = "it makes an image of each class"
    unused: ClassVar[Unused] = {"weighting": "nothing is averaged over clients"}
    alone: ClassVar[dict[str, Any]] = {"algorithm.mu": 0.0}

    mu: NonNegativeFloat = 50.0
    """Weight of the squared distance to latent vectors; 0: nothing is exchanged."""
    scale: PositiveFloat = 64.0
    """ArcFace's factor of the cosines, s."""
    margin: NonNegativeFloat = 0.5
    """ArcFace's margin between the angles, m, in radians."""
    generator: str = field("public", used_if="mu")
    """The generator: the principal components of the public images (public), a network with random
    weights (untrained), or a file of weights, which is read without running code of the file.
    """
    latent: PositiveInt = field(64, used_if="mu")
    """Values of a latent vector, D: principal components, or those that the file's generator takes.
    """
    keep_h: bool = field(False, used_if="mu")
    """The layer h stays with the client, instead of starting anew in each round."""
    lam: NonNegativeFloat = field(1.0, used_if="server_epochs")
    """Weight of the distance of latent vectors to the centre of their class."""
    server_epochs: NonNegativeInt = field(100, used_if="mu")
    """Passes of the server over the class means of a round."""
    server_lr: PositiveFloat = field(0.01, used_if="server_epochs")
    """Learning rate of the server's Adam."""
    server_batch: PositiveInt = field(100, used_if="server_epochs")
    """Class means in one step of the server."""

    @property
    def needs(self) -> tuple[str, ...]:
        return ("public",) if self.mu and self.generator == "public" else ()

    @property
    def variants(self) -> Any:
        # models with the layer h, `model.transfer`, which `add_transfer` below adds
        return (name_variant("transfer", self.latent),) if self.mu else ("",)

    def shared(self, name: str) -> bool:
        return False

    def traffic(self, fed: Federation, k: int) -> tuple[int, int]:
        """Return the most: the images of all classes are received."""
        _, up = super().traffic(fed, k)
        pair = math.prod(example_shape(fed)) + self.latent
        return (4 * fed.classes * pair if self.mu else 0), up

    def init(self, fed: Federation) -> State:
        if not self.mu:
            return State(Params(), Params(), Params())
        C, shape = fed.classes, example_shape(fed)
        latent = torch.full((C, self.latent), torch.nan, device=fed.device)
        image = torch.full((C, *shape), torch.nan, device=fed.device)
        with rng.scoped(fed.seed, "transformer"):
            network = nn.Sequential(
                nn.Linear(C, C, bias=False),  # which batch normalisation would take away again
                nn.BatchNorm1d(C),
                nn.ReLU(),
                nn.Linear(C, self.latent),
            )
        transformer = {n: v for n, v in network.state_dict().items() if v.is_floating_point()}
        return State(
            Params(image=image, latent=latent),
            Params(transformer).map(lambda v: v.to(fed.device)).clone(),
            fed.on_root(lambda: self.make_decoder(fed)),
        )

    def make_decoder(self, fed: Federation) -> Params:
        """Return the weights of the generator.

        Readers of checkpoints, which have neither public data nor the file, get the shapes alone.
        """
        without_data = fed.public is None
        if self.generator == "public":
            if without_data:
                values = math.prod(example_shape(fed))
                return Params(mean=torch.zeros(values), basis=torch.zeros(self.latent, values))
            return principal_components(fed, self.latent)
        network = Generator(fed, self.latent)
        if without_data or self.generator == "untrained":
            return network.initial()
        return read(self.generator, network)

    def model(self, state: State) -> Params:
        return state.pairs

    def offer(self, fed: Federation, client: Client, state: State) -> Params:
        if not self.mu:
            return Params()
        valid = ~state.pairs["latent"].isnan().any(1)
        return state.pairs.map(lambda v: v[valid]) if valid.any() else Params()

    def receive(self, client: Client, state: Params) -> None:
        pass

    def loss(self, client: Client, state: Params, model: Model, x: Any, y: Tensor) -> Tensor:
        """Return ArcFace's loss. state: the frame, which `local` gives to `train`."""
        outputs = F.normalize(raised(model(x)))
        with full(outputs.device):  # times 64, rounding to bfloat16 is an error of 0.1
            cosines = outputs @ state["frame"]
        return client.task.loss(self.scale * widen(cosines, y, self.margin), y)

    def objective(
        self, client: Client, directions: Params, pairs: Params, model: Any, x: Any, y: Tensor
    ) -> Tensor:
        """Return the local objective on one batch.

        directions: the frame.  pairs: some of the images, and their latent vectors.
        """
        value = self.loss(client, directions, model, x, y)
        mapped = model.transfer(model.body(pairs["image"]))
        return value + self.mu * F.mse_loss(mapped, pairs["latent"])

    def predictor(self, fed: Federation, client: Client, state: State) -> Callable[[Any], Tensor]:
        v = frame(fed.seed, fed.classes).to(fed.device)
        return lambda x: self.scale * (F.normalize(client.model(x)) @ v)

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Upload | None:
        directions = Params(frame=frame(fed.seed, fed.classes).to(fed.device))
        if not self.mu:
            self.train(fed, client, directions, t, clip=CLIP)
            return None
        pairs = fed.down(client, self.offer(fed, client, state))
        if not self.keep_h:
            client.load(start_of_transfer(fed, client, self.latent))
        if pairs:
            self.train_with(fed, client, directions, pairs, t)
        else:
            self.train(fed, client, directions, t, clip=CLIP)
        return mean_by_class(fed, client, F.normalize(logits(fed, client, client.train)))

    def train_with(
        self, fed: Federation, client: Client, directions: Params, pairs: Params, t: int
    ) -> None:
        """Train the client's model on its examples and on images with latent vectors.

        As many images as a batch has examples are in a step.
        """
        n, size = len(pairs["latent"]), fed.job.local.batch
        draws = rng.stream(fed.seed, "pairs", t, client.id)
        rows = batches(n, size, ENDLESS, True, draws)
        with LocalSteps(fed, client, t, clip=CLIP) as steps:
            if steps.private:
                examples.refuse(fed, "its batches have generated images beside examples")
            for x, y in steps:
                which = torch.from_numpy(next(rows)).to(fed.device, non_blocking=True)
                batch = Params({name: value[which] for name, value in pairs.items()})
                steps.learn(partial(self.objective, client, directions, batch), x, y)

    def aggregate(self, fed: Federation, state: State, uploads: list[tuple[int, Any]]) -> State:
        if not self.mu:
            return state
        sent = fed.at_root(dict(uploads))
        new = fed.on_root(lambda: self.learn(fed, state, *join_means([*sent.values()])))
        return State(*new, state.decoder)

    def learn(
        self, fed: Federation, state: State, means: Tensor, y: Tensor
    ) -> tuple[Params, Params]:
        """Return the pairs of the next round, and T after training.

        means: class means of all clients, [n, C].  y: their classes, [n].
        """
        transformer = state.transformer
        if self.server_epochs:
            transformer = self.align(fed, transformer, means, y)
        latents, present = latent_means(transformer, means, y)
        beside = torch.randn(
            BESIDE, self.latent, generator=rng.torch_stream(fed.seed, "latent vectors")
        )
        inputs = torch.cat([latents[present], beside.to(means.device)])
        images = decode(fed, state.decoder, inputs)[: int(present.sum())]
        check_finite(fed, "images", images, "algorithm.server_lr")
        new = state.pairs.clone()
        new["latent"][present], new["image"][present] = latents[present], images
        return new, transformer

    def align(self, fed: Federation, transformer: Params, means: Tensor, y: Tensor) -> Params:
        """Return the network T after training."""
        # b, which starts at the mean latent vector of each class, and is trained with T
        centres, _ = latent_means(transformer, means, y)
        g = rng.torch_stream(fed.seed, "alignment", fed.t)

        def loss(params: Params, rows: Tensor) -> Tensor:
            q = apply_layers(params, means[rows], training=len(rows) > 1)
            normal = torch.randn(q.shape, generator=g).to(q.device)
            near = F.mse_loss(q, params["centres"][y[rows]])
            return mean_discrepancy(q, normal, BANDWIDTHS) + self.lam * near

        new = fit(
            fed,
            Params({**transformer, "centres": centres}),
            loss,
            torch.from_numpy,
            len(y),
            "alignment",
            fed.t,
            epochs=self.server_epochs,
            size=self.server_batch,
            lr=self.server_lr,
            optimiser="adam",
            trained=lambda name: name not in STATISTICS,
            clip=CLIP,
        )
        return new.pick(transformer.__contains__)


def add_transfer(model: Model, latent: int) -> Model:
    """Add the layer h beside body and head, [n, d] -> [n, D], and return the model.

    Only losses use it. hpcfed.models.variants loads this function by its name.
    """
    model.transfer = nn.Linear(model.head.in_features, latent)
    return model


def start_of_transfer(fed: Federation, client: Client, latent: int) -> Params:
    """Return the weights with which h starts, the same for all representations of one width."""
    d = client.model.head.in_features
    with rng.scoped(fed.seed, "transfer", d):
        layer = nn.Linear(d, latent)
    start = Params(layer.named_parameters()).clone().prefixed("transfer.")
    return start.map(lambda value: value.to(fed.device))


@cache
def frame(seed: int, classes: int) -> Tensor:
    """Return a simplex equiangular tight frame, [C, C]: column c is the direction of class c.

    Columns have length 1, and any two of them the cosine -1 / (C - 1).
    """
    noise = torch.randn(
        classes, classes, generator=rng.torch_stream(seed, "frame"), dtype=torch.float64
    )
    q, _ = torch.linalg.qr(noise)
    v = math.sqrt(classes / max(classes - 1, 1)) * (q - q.mean(1, keepdim=True))
    return v.float()


def widen(cosines: Tensor, y: Tensor, margin: float) -> Tensor:
    """Return cosines of angles, [n, C], of which those of the true classes are wider by the margin.

    Deng et al. (ArcFace), CVPR 2019, arXiv:1801.07698, eq. 3.
    """
    c = cosines.clamp(-1, 1)
    sine = (1 - c.square()).clamp(min=torch.finfo(c.dtype).eps).sqrt()
    wide = c * math.cos(margin) - sine * math.sin(margin)
    return torch.where(F.one_hot(y, cosines.shape[1]).bool(), wide, cosines)


def latent_means(weights: Params, means: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean latent vector of each class, [C, D], 0 without one; and which have one."""
    sums, counts = class_sums(apply_layers(weights, means), y.cpu().numpy(), means.shape[1])
    return (sums / counts.clamp(min=1)[:, None]).float(), counts > 0
