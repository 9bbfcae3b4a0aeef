"""WindowBased: clients train a part of the server's model, chosen by a window on its units.

Such methods differ in the window. The rest is common: a client receives its piece and trains it as
a smaller dense model. Each value of the server's model becomes the mean over the clients whose
piece had it. Scaler, static batch normalisation, masked cross-entropy and the clipping of gradients
are those of Diao et al. (HeteroFL), ICLR 2021, and its authors' code.
"""

from typing import Any, ClassVar, Literal

from pydantic import NonNegativeFloat
from torch import Tensor

from hpcfed import Client, Federation, Job, Model, Params, RoundBased, Upload
from hpcfed.algorithms.widths import submodels
from hpcfed.config.conditions import SEVERAL, below, field
from hpcfed.models.scores import Mask, fill_absent
from hpcfed.models.widths import Window


class WindowBased(RoundBased):
    """A method with windows; by default the leading units of each layer, with all classes."""

    accepts: ClassVar[str] = "widths"
    per: ClassVar[str] = "value"

    scaler: bool = field(True, used_if={"models.widths": below(1)})
    """Multiply the outputs of hidden layers by 1 / width while training."""
    mask: Mask = "none"
    """Logits of classes without examples at a client become this; none: they and their rows are
    treated like others.
    """
    batch_norm: Literal["static", "aggregate"] = "static"
    """Statistics for evaluation: computed in one more pass over the cohort's data, or averaged like
    weights.
    """
    assignment: submodels.Assignment = field("fix", used_if={"models.widths": SEVERAL})
    """Clients keep their width, or draw one of models.widths for each round."""
    clip: NonNegativeFloat = 1.0
    """Maximum norm of a gradient in local training; 0: no limit. Narrow clients may then diverge,
    because the scaler multiplies their gradients too.
    """

    @property
    def draws_widths(self) -> bool:
        return self.assignment == "dynamic"

    @property
    def moves(self) -> bool:
        """Whether a client's window changes from round to round."""
        return False

    @property
    def needs_classes(self) -> str:
        return submodels.reason_for_classes(self.mask)

    def window(self, fed: Federation, client: Client, state: submodels.Wide) -> Window:
        """Return the units of the server's model that the client has in this round."""
        return submodels.window(fed, client.architecture)

    def statistics_architectures(self, fed: Federation) -> list[str]:
        """Return the architectures that are evaluated, whose batch statistics are taken anew."""
        return [submodels.base(fed)]

    def refuses(self, job: Job) -> dict[str, str]:
        return super().refuses(job) | submodels.refusal(job, self.assignment, self.moves)

    def init(self, fed: Federation) -> submodels.Wide:
        return submodels.start(
            fed, self.statistics_architectures(fed) if self.batch_norm == "static" else ()
        )

    def offer(self, fed: Federation, client: Client, state: submodels.Wide) -> Params:
        return submodels.piece(client, state, self.window(fed, client, state))

    def loss(self, client: Client, state: Params, model: Model, x: Any, y: Tensor) -> Tensor:
        logits = model(x)
        if submodels.ABSENT in state:
            logits = fill_absent(logits, state[submodels.ABSENT], self.mask)
        return client.task.loss(logits, y)

    def averaged(self, fed: Federation, state: submodels.Wide) -> Params:
        return state.weights

    def local(self, fed: Federation, client: Client, state: submodels.Wide, t: int) -> Upload:
        download = fed.down(client, self.offer(fed, client, state))
        self.receive(client, download)
        rows = None if self.mask == "none" else submodels.present_classes(client, fed.classes)
        with submodels.scale_outputs(client, self.scaler):
            self.train(fed, client, submodels.with_absent(download, rows), t, clip=self.clip)
        at = self.window(fed, client, state)
        return Upload(
            submodels.upload(client, at, self.weight(client), rows),
            relative_to=submodels.rows_of_head(download, rows),
        )

    def server(
        self, fed: Federation, state: submodels.Wide, mean: Params, cohort: list[int]
    ) -> submodels.Wide:
        statistics = submodels.measured_statistics(fed, state, mean, cohort)
        return submodels.Wide(mean, statistics, state.t + 1)
