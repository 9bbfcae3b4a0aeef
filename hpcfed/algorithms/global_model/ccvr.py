"""CCVR: FedAvg whose classifier is calibrated after the last round on virtual features.

Luo et al. (No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-IID
Data), NeurIPS 2021, arXiv:2106.05001, section 4. Virtual features are drawn from one Gaussian per
class. After the last round every client k sends for each of its classes c the number n_kc, the mean
mu_kc and the covariance S_kc (over n_kc - 1) of the inputs of the common head. From these the
server computes the statistics of all features together, mu_c (eq. 3) and S_c (eq. 4); N_c is the
sum of the n_kc. A class with fewer than two examples is left out. This upload of C + C_k (d^2 + d)
numbers comes after the last round and is in no round's record.

Objective: F_k(w)
Server: w <- sum_k p_k w_k; mu_c = sum_k n_kc mu_kc / N_c; S_c = (sum_k (n_kc - 1) S_kc + sum_k n_kc
    mu_kc mu_kc^T - N_c mu_c mu_c^T) / (N_c - 1)
Round:
1. Every round is one of FedAvg.
2. After the last round each client sends number, mean and covariance of its features by class.
3. The server computes the mean and covariance of each class over all clients.
4. It draws virtual features from N(mu_c, S_c) and trains the head alone on them, by cross-entropy.
5. It sends the model to all clients.

Deviations: features are computed in eval mode. The authors have published no code, so that the
number of virtual features, the optimiser and the epochs of the head are our choice.
"""

from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import Client, Federation, Guide, Mean, Params, RoundBased, Upload, rng
from hpcfed.config.conditions import field
from hpcfed.models.model import in_head
from hpcfed.training.infer import represent
from hpcfed.training.server import fit


class CCVR(RoundBased):
    """FedAvg with classifier calibration; up to the last round it is FedAvg, bit for bit.

    With final_epochs = 0 it is FedAvg throughout.
    """

    guide = Guide(
        data="different labels",
        sent="all weights; class means and covariances once",
        won="a better classifier after FedAvg, FedProx or MOON",
    )

    needs_classes: ClassVar[str] = "it computes the moments of each class's features"
    reads_head: ClassVar[bool] = True

    final_epochs: NonNegativeInt = 10
    """Epochs of the head over the virtual features, after the last round."""
    final_samples: PositiveInt = field(200, used_if="final_epochs")
    """Virtual features of each class, on average."""
    final_balance: Literal["equal", "shares"] = field("equal", used_if="final_epochs")
    """Every class gets equally many virtual features, or in proportion to its share of the clients'
    examples.
    """
    final_lr: PositiveFloat = field(0.01, used_if="final_epochs")
    """Learning rate of the head, by plain SGD."""
    final_batch: PositiveInt = field(64, used_if="final_epochs")
    """Virtual features in one step of the head."""

    def statistics(self, fed: Federation, client: Client) -> dict[str, Any]:
        """Return what a client sends: numbers of examples, means and covariances by class.

        counts: [C], int32.
        mean, covariance: of the inputs of the head, [C_k, d] and [C_k, d, d], for the classes that
        the client has.
        """
        z = represent(fed, client, client.train).double()
        z = F.relu(z) if fed.job.models.relu_head else z
        labels = torch.from_numpy(client.train.labels).to(z.device)
        classes = [z[labels == c] for c in range(fed.classes)]
        present = [rows for rows in classes if len(rows)]
        return {
            "counts": torch.tensor([len(rows) for rows in classes], dtype=torch.int32),
            "mean": torch.stack([rows.mean(0) for rows in present]).float(),
            "covariance": torch.stack([covariance(rows) for rows in present]).float(),
        }

    def send(self, fed: Federation, client: Client, state: Params) -> Upload:
        """Return what a client sends after the last round: its classes' means and covariances."""
        self.receive(client, fed.down(client, state))
        return Upload(**self.statistics(fed, client))

    def moments(self, fed: Federation, sent: dict[str, Tensor]) -> Mean:
        """Return a client's part in mu_c and in the mean of z z^T, by class, float64."""
        counts = sent["counts"].to(fed.device)
        classes, n = counts.nonzero()[:, 0], counts[counts > 0].double()[:, None, None]
        mean, spread = sent["mean"].double(), sent["covariance"].double()
        square = ((n - 1) * spread + n * outer(mean)) / n
        rows = ([int(c) for c in classes],)
        weights = Params(mean=n[:, 0], square=n)
        return Mean.of(Params(mean=mean, square=square), weights, {"mean": rows, "square": rows})

    def finish(self, fed: Federation, state: Params, t: int) -> Params | None:
        if not self.final_epochs:
            return None
        d = state["head.weight"].shape[1]
        zero = torch.zeros(fed.classes, d, d, dtype=torch.float64, device=fed.device)
        keep = Params(mean=zero[:, 0], square=zero)
        sent = fed.stream(range(fed.K), partial(self.send, fed), arguments=(state,))
        parts = ((k, self.moments(fed, statistics)) for k, statistics in sent)
        pooled = fed.mean(parts, keep=keep, per="row")
        calibrated = fed.on_root(lambda: self.calibrate(fed, state, pooled, t))
        for client in fed.mine(range(fed.K)):
            self.receive(client, calibrated)
        return calibrated

    def calibrate(self, fed: Federation, state: Params, pooled: Params, t: int) -> Params:
        """Return the model with its head trained on virtual features.

        pooled: mu_c and the mean of z z^T.
        """
        N = torch.as_tensor(sum(fed.label_counts[k] for k in range(fed.K)))  # [C]
        counts = self.count_virtual(N)
        z, y = [], []
        for c in torch.nonzero(counts)[:, 0].tolist():
            g = rng.torch_stream(fed.seed, "virtual", t, c)
            z.append(draw(pooled["mean"][c], pool(pooled, c, int(N[c])), int(counts[c]), g))
            y += [c] * int(counts[c])
        if not y:
            return state
        features, labels = torch.cat(z).float(), torch.tensor(y, device=fed.device)

        def loss(model: Params, rows: Tensor) -> Tensor:
            head = F.linear(features[rows], model["head.weight"], model["head.bias"])
            return F.cross_entropy(head, labels[rows])

        head = fit(
            fed,
            state.pick(in_head),
            loss,
            torch.from_numpy,
            len(labels),
            "calibration",
            t,
            epochs=self.final_epochs,
            size=self.final_batch,
            lr=self.final_lr,
        )
        return Params({**state, **head})

    def count_virtual(self, N: Tensor) -> Tensor:
        """Return the number of virtual features of each class, [C].

        N: number of the clients' examples of each class, [C].
        """
        usable = N >= 2
        if self.final_balance == "equal":
            return self.final_samples * usable
        total = self.final_samples * int(usable.sum())
        return torch.round(total * N * usable / (N * usable).sum().clamp(min=1)).long()


def covariance(z: Tensor) -> Tensor:
    """Return the covariance of the rows of z, [n, d], over n - 1: [d, d]; 0 for a single row."""
    centred = z - z.mean(0)
    return centred.T @ centred / max(len(z) - 1, 1)


def outer(mu: Tensor) -> Tensor:
    """Return mu mu^T of each row: [n, d] -> [n, d, d]."""
    return mu[:, :, None] * mu[:, None, :]


def pool(pooled: Params, c: int, N: int) -> Tensor:
    """Return S_c, the covariance of all N >= 2 features of class c together, [d, d] (eq. 4)."""
    return (pooled["square"][c] - outer(pooled["mean"][c : c + 1])[0]) * (N / (N - 1))


def draw(mean: Tensor, spread: Tensor, n: int, g: torch.Generator) -> Tensor:
    """Return n draws from N(mean, spread), [n, d].

    Negative eigenvalues, which are rounding errors, count as 0.
    g: generator on the CPU.
    """
    values, vectors = torch.linalg.eigh(spread)
    root = vectors * values.clamp(min=0).sqrt()
    noise = torch.randn(n, len(mean), generator=g, dtype=torch.float64).to(mean.device)
    return mean + noise @ root.T
