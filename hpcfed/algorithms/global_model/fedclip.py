"""FedCLIP: clients train and send only a small adapter of a frozen image-text model.

Lu et al. (FedCLIP: Fast Generalization and Personalization for CLIP in Federated Learning), IEEE
Data Engineering Bulletin 2023, arXiv:2302.13485. The model is a dual encoder of images and texts.
An adapter multiplies the values of an image's representation z by an attention a(z) = softmax(W2
tanh(W1 z + b1) + b2), and a(z) z is divided by its length. The logits are exp(s) times the cosines
to the texts "a picture of a NAME" of the classes, where s is frozen too. Clients minimise the mean
of two cross-entropies over the pairs of a batch: of each image over the texts of all images'
labels, and of each text over all images. An adapter theta has 2 (d^2 + d) values. Details and
defaults are those of the public code (microsoft/PersonalizedFL): there too images of one class in a
batch are each other's negatives, and the weight decay is in the gradient. With W2 = b2 = 0 the
attention is equal for all values, and predictions are the dual encoder's own (zero-shot).

Models: `clip-tiny`, random and for tests; `clip:FOLDER`, a CLIPModel as Hugging Face's transformers
saves it (`hpcfed.models.clip`). For any other model the head's weights replace the texts; they are
those of models.weights, or random.

Objective: (CE_image + CE_text) / 2
Server: theta <- mean_k theta_k
Round:
1. The server sends the adapter theta; the dual encoder is frozen on all clients.
2. Each client trains its adapter on pairs of images and texts of their classes.
3. It sends the adapter alone.
4. The server takes the uniform mean of the adapters.

Deviations: Adam's eps is 1e-8; that code has 1e-6. A batch of a single image, which has no loss, is
a step of the weight decay; that code leaves it out. That code also tests on a client that takes no
part in training, and keeps the round that is best on validation data.
"""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from hpcfed import Client, Guide, Model, Params, RoundBased
from hpcfed.algorithms.base import OWN_LOSS
from hpcfed.config.conditions import Unused


class FedCLIP(RoundBased):
    """FedAvg of adapters; without the tensors of a good dual encoder it learns little.

    hpcfed includes no such tensors.
    """

    guide = Guide(
        data="different domains",
        sent="the adapter",
        won="photographs from several domains: above whole models, with a fraction of the bytes",
    )
    unused: ClassVar[Unused] = OWN_LOSS

    needs_classes: ClassVar[str] = "it compares images with the names of classes"
    variants: ClassVar[tuple[str, ...]] = ("~adapter",)
    trains: ClassVar[tuple[str, ...]] = ("adapter.*",)
    local_defaults: ClassVar[dict[str, Any]] = {
        "lr": 5e-5,
        "betas": (0.9, 0.98),
        "weight_decay": 0.2,
        "batch": 32,
    }

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean: its number of training examples, or 1."""

    def loss(self, client: Client, state: Params, model: Model, x: Any, y: Tensor) -> Tensor:
        return contrast_pairs(model(x), y)


def contrast_pairs(logits: Tensor, y: Tensor) -> Tensor:
    """Return the mean of two cross-entropies over the pairs of a batch.

    One is of each image over the texts of the batch, the other of each text over its images.
    logits: [n, C].
    y: [n], the label whose text belongs to each image.
    """
    pairs = logits[:, y]  # [n, n], image i and the text of image j
    target = torch.arange(len(y), device=y.device)
    return (F.cross_entropy(pairs, target) + F.cross_entropy(pairs.T, target)) / 2
