"""The sections of a job, frozen and checked on entry.

The text under a field is its line in `--help`.
"""

from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Gt, Le
from pydantic import (
    ConfigDict,
    Field,
    PositiveFloat,
)
from pydantic import NonNegativeFloat as NonNegative

from hpcfed.config.conditions import SET, UNSET, field, other_than
from hpcfed.config.limits import (
    Count,
    FileName,
    Limited,
    Names,
    PositiveInt,
    Share,
)


class Section(Limited):
    """A frozen record of settings, which refuses unknown fields.

    The text under each field is its help.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )


# the data are divided among clients, who do not make their own; by a partition drawn here
DIVIDED = {"name": other_than("synthetic")}
DRAWN = {"name": other_than("synthetic"), "partition_file": None}


class Data(Section):
    """Which examples the clients hold."""

    name: Annotated[str, Field(min_length=1)] = "digits"
    """A known data set (`hpcfed list datasets`), a .csv, .parquet, .h5 or .npz file, a folder of
    images, or hf:NAME.
    """
    label: Annotated[str, Field(max_length=60)] = ""
    """What the data are called in titles and tables; default: the name, of a file without its
    folders.
    """
    root: FileName = Path("data")
    """The folder in which known data sets lie or are downloaded to."""
    download: bool = True
    """Download a known data set that is not in root."""
    partition: Literal[
        "iid",
        "dirichlet",
        "classes",
        "shards",
        "quantity",
        "natural",
        "sizes",
        "linear",
        "square",
        "exponential",
        "inner-dirichlet",
        "pathological",
        "distribution",
    ] = "dirichlet"
    """How the training examples are assigned to clients (`hpcfed list partitions`)."""
    partition_by: Literal["label", "client"] = "label"
    """What partitions by class go by: labels, or any column (columns.client, or the data's
    users).
    """
    sizes: Literal["equal", "free"] = field(
        "equal", used_if={"partition": "dirichlet"}, refused=False
    )
    """All clients of one size, or sizes as they are drawn."""
    alpha: PositiveFloat = field(
        0.5, used_if={"partition": ("dirichlet", "inner-dirichlet")}, refused=False
    )
    """Concentration; smaller is more skewed."""
    client_sizes: tuple[PositiveInt, ...] = field(
        (), used_if={"partition": ("sizes", "inner-dirichlet")}
    )
    """Examples of each client; of inner-dirichlet none: all alike."""
    classes_per_client: PositiveInt = field(
        2, used_if={"partition": ("classes", "pathological", "distribution")}, refused=False
    )
    """How many classes each client holds."""
    class_choice: Literal["random", "first-deterministic", "deterministic"] = field(
        "random", used_if={"partition": "pathological"}
    )
    """Classes are drawn; the first is k modulo C for client k; all follow from k."""
    distribution: FileName | None = field(None, used_if={"partition": "distribution"})
    """A .csv file of numbers, a row for each class; none: drawn log-normal."""
    preassigned: Count = field(0, used_if={"partition": "distribution"})
    """Examples of each of its classes that a client has beforehand."""
    rescale: bool = field(True, used_if={"partition": "distribution"})
    """The rows of the table are proportions; else numbers of examples."""
    shards_per_client: PositiveInt = field(2, used_if={"partition": "shards"}, refused=False)
    """How many label-sorted shards each client gets."""
    spread: NonNegative = field(
        1.0, used_if={"partition": ("quantity", "distribution")}, refused=False
    )
    """Standard deviation of the logarithm of the client sizes."""
    synthetic: tuple[NonNegative, NonNegative] = field(
        (1.0, 1.0), used_if={"name": "synthetic"}, refused=False
    )
    """Synthetic: alpha, how much the clients' models differ, and beta, how much their inputs do."""
    examples: PositiveInt | None = field(None, used_if={"name": "synthetic"}, refused=False)
    """Synthetic: training examples of each client, instead of log-normal sizes."""
    halve: Share = field(0.0, used_if=DIVIDED)
    """Share of the clients that keep only half of their examples."""
    least: Count = field(0, used_if=DRAWN)
    """Natural: users with fewer training examples are left out."""
    wrong_labels: Share = field(0.0, used_if=DIVIDED)
    """Share of each client's training examples, drawn, whose label is another class, drawn too."""
    missing_labels: Share = field(0.0, used_if=DRAWN)
    """Share of each client's training examples, drawn, that have no label and are not used."""
    partition_file: FileName | None = field(None, used_if=DIVIDED)
    """Load the partition from this file instead of drawing it."""
    train_limit: PositiveInt | None = field(None, used_if=DIVIDED)
    """Use only so many training examples in all, drawn class by class."""
    imbalance: Annotated[float, Field(ge=1, le=1e6)] = field(1.0, used_if=DIVIDED)
    """Long tail: class c keeps the share imbalance^(-c / (C - 1)) of its training examples, one at
    least, so that the last class is so many times as rare as the first. 1: all are kept.
    """
    sort_clients: bool = field(False, used_if=DIVIDED)
    """Number the clients by their most frequent label, then by the mean of their labels, so that
    neighbours in number (a block of the day, a ring) hold similar labels.
    """
    task: str = ""
    """Own data: what the labels are (`hpcfed list tasks`); default: as data and [columns] say."""
    test_file: FileName | None = None
    """A table, .csv or .parquet, whose rows are the test examples of the table in data.name."""
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Own data without test examples: the share of the examples that serves as such, drawn label by
    label.
    """
    channels: Literal["auto", "first", "last"] = "auto"
    """Own arrays of images with four axes, which the channels are: [n, channels, height, width] or
    [n, height, width, channels]; auto: the axis with 1 to 4 of them.
    """
    image_size: Count = 0
    """Folder of images, hf: scale them to so many pixels in height and width; 0: they are alike."""
    test_share: Annotated[float, Gt(0), Le(1e6)] = 0.3
    """Size of a client's test set as a share of its training set; natural clients of data whose
    test examples name their users have all of those instead.
    """
    public: Count = 0
    """Public examples, taken from the training set before it is partitioned, or from
    public_source.
    """
    public_source: str = ""
    """Another data set with inputs of the same shape, from which the public examples are drawn."""
    vocabulary: Annotated[int, Field(ge=3)] = 10_000
    """Text: the most frequent so many tokens of the training texts are told apart, padding and
    unknown included.
    """
    tokens: PositiveInt = 32
    """Text: length of an example; longer texts are cut, shorter ones filled up."""


class Columns(Section):
    """Roles of the columns of a table: CSV, Parquet, rows of numbers in HDF5 and NPZ, and hf:."""

    label: str = ""
    """Column of the labels; default: label, labels, target, class or y, whichever there is."""
    target: Names = ()
    """Columns of numbers to predict, one or several. The task is then regression."""
    labels: Names = ()
    """Columns of 0 and 1, each a label that an example has or not. The task is then multilabel."""
    positive: str = ""
    """The one of two labels that counts as positive; metrics are then those of a binary task."""
    event: str = ""
    """Column of 0 and 1: whether the event was seen at the time that columns.label holds. The task
    is then survival.
    """
    client: str = ""
    """Column that names the client of each example, for data.partition = "natural"; of HDF5 and NPZ
    any array with a value an example; of a folder of images, in its metadata.csv.
    """
    test: str = ""
    """Column that says which examples are tests: test, true or 1; train, false or 0."""
    inputs: Names = ()
    """Columns that models are given, separated by commas; default: all that are nothing else."""
    ignore: Names = ()
    """Columns that are not used."""
    one_hot: Names = ()
    """Columns of kinds; each kind is a 0 or 1 of its own. Columns of words are, unless in codes."""
    codes: Names = ()
    """Columns of kinds that become 0, 1, 2, ... in the order of their values."""
    text: str = ""
    """Column of texts, which are then the inputs (data.vocabulary, data.tokens)."""
    image: str = ""
    """Hugging Face: column of images, which are then the inputs."""
    missing: Literal["refuse", "fill", "drop"] = "refuse"
    """Values that are not there: refuse the table; fill in the mean of the training part; drop the
    rows.
    """
    missing_words: Names = ("?", "na", "n/a", "nan", "null", "none", "-")
    """Words that stand for a missing value, in any case of letters; an empty value always does."""
    encoding: Annotated[str, Field(min_length=1)] = "utf-8"
    """CSV: how the file's characters are stored, such as latin-1 or cp1252 (older Windows)."""


class Modalities(Section):
    """Which modalities clients have, for data with several."""

    use: Names = ()
    """Modalities of the data that are used, separated by commas; default: all."""
    clients: Literal["all", "drawn", "listed", "natural"] = "all"
    """Which of them a client has: all; drawn; client k the k-th of `sets` (modulo length); those of
    its own examples.
    """
    rate: Annotated[float, Field(gt=0, le=1)] = field(
        1.0, used_if={"clients": "drawn", "sets": UNSET}
    )
    """Drawn: probability of each modality at each client; who would have none gets one, drawn."""
    sets: Names = field((), used_if={"clients": ("drawn", "listed")})
    """Drawn or listed: what clients may have, as accelerometer,accelerometer+skeleton; drawn: it
    stands for rate.
    """
    shares: tuple[PositiveFloat, ...] = field((), used_if={"clients": "drawn", "sets": SET})
    """Drawn: how often each of `sets` is drawn, relative to one another; default: alike."""
    missing: Share = 0.0
    """Probability of each modality of each client to be missing in its training examples; tests
    have all that it has.
    """
    encoders: Literal["all", "own"] = field("all", used_if={"clients": other_than("all")})
    """Encoders in a client's model: of all modalities that are used, or of those that it has."""


class Models(Section):
    """Which client has which architecture."""

    mix: Annotated[Names, Field(min_length=1)] = (
        "resnet18",
        "shufflenetv2",
        "googlenet",
        "alexnet",
    )
    """Architectures (`hpcfed list models`), separated by commas."""
    assign: Literal["round-robin", "random", "listed"] = "round-robin"
    """Client k gets mix[k modulo length], a random one, or (listed) the k-th of a list with one per
    client.
    """
    widths: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(min_length=1)] = (1.0,)
    """Share of each layer's units that clients have (sub-models), assigned as the architectures
    are.
    """
    proxy: str = ""
    """A model that every client trains besides its own, for methods that share that one."""
    server: str = ""
    """The server's own model, for methods in which it has one."""
    d: PositiveInt = 512
    """Width of the representation, the same on all clients."""
    relu_head: bool = False
    """A ReLU between the representation and the head, as in the authors' FedClassAvg code."""
    weights: Names = ()
    """What each architecture of the mix starts from: a file, cache (of torchvision or timm; nothing
    is downloaded), or none.
    """
    train: Names = ()
    """Train and send only the tensors with these names (head.*), all others are frozen; none: all,
    beside LoRA the head.
    """
    lora: Count = 0
    """Rank of LoRA's matrices, which are trained and sent beside frozen linear and attention
    layers; 0: no LoRA.
    """


class Local(Section):
    """Local training."""

    optimiser: Literal["adam", "sgd"] = "adam"
    """Local optimiser."""
    lr: PositiveFloat = 1e-3
    """Learning rate."""
    betas: tuple[Share, Share] = field((0.9, 0.999), used_if={"optimiser": "adam"})
    """Decay rates of the two moments."""
    momentum: Share = field(0.0, used_if={"optimiser": "sgd"})
    """Momentum."""
    weight_decay: NonNegative = 0.0
    """Weight of the L2 penalty."""
    batch: PositiveInt = 64
    """Examples in one local step; a client with fewer takes all it has."""
    epochs: PositiveInt = field(1, used_if={"steps": None})
    """Passes over the client's data in one round."""
    steps: PositiveInt | None = None
    """Local steps in one round, instead of epochs."""
    schedule: Literal["constant", "cosine", "step"] = field(
        "constant",
        used_if=({"schedule": other_than("step")}, "milestones"),
        why="without local.milestones the learning rate never falls",
    )
    """Learning rate over rounds: cosine falls to 0 at the last; step is multiplied by decay at each
    milestone.
    """
    milestones: tuple[PositiveInt, ...] = field((), used_if={"schedule": "step"})
    """Rounds at which the learning rate falls."""
    decay: PositiveFloat = field(0.1, used_if="milestones")
    """Factor at each milestone."""
    keep_optimiser: bool = field(False, used_if=({"optimiser": "adam"}, "momentum"))
    """Keep the optimiser's moments from round to round instead of starting anew."""
    augment: Literal["auto", "none", "crop-flip", "simclr", "affine"] = "auto"
    """Augmentation; auto: affine for digits, simclr where the algorithm wants two views, else
    none.
    """
    stragglers: Share = 0.0
    """Share of a cohort that completes only a random part of its epochs."""


class Training(Section):
    """How local steps are computed.

    All engines give the same bits, except stacked, which rounds differently.
    """

    engine: Literal["auto", "eager", "traced", "graphed", "stacked"] = "auto"
    """Eager: autograd; traced: replayed; graphed: as CUDA graphs; stacked: alike clients at once;
    auto: what pays.
    """
    stack: PositiveInt = 64
    """Stacked: most clients of a group, which trains on one rank."""


class Checkpoint(Section):
    """When the run is saved."""

    every: Count = 10
    """Save after every so many rounds, and after the last; 0: only the last."""
    minutes: NonNegative = 30.0
    """Save also when so many minutes have passed since the last save; 0: never for that reason."""
    keep: PositiveInt | None = None
    """How many of the newest checkpoints are kept; while one is written the disk holds one more.
    Default: 2 while the run continues, and the last one when it is finished.
    """
    required: bool = False
    """Stop when checkpoint or results cannot be written; else the run warns, goes on, and tries
    again next time.
    """
    mirror: bool = False
    """Each rank keeps a copy of its part and of another rank's in memory: no round is repeated when
    a rank dies.
    """


class Log(Section):
    """What rank 0 makes of a run's numbers beside the result file: logs by round, and a picture."""

    picture: bool = True
    """Draw the learning curves when the run ends, in the run's folder: half a second."""
    tensorboard: bool = False
    """Event files for TensorBoard, in the run's folder; needs hpcfed[tensorboard]."""
    wandb: bool = False
    """Weights & Biases: in the run's folder, to be synced, or as WANDB_MODE says; needs
    hpcfed[wandb].
    """
    mlflow: bool = False
    """MLflow: in the run's folder, or at MLFLOW_TRACKING_URI; needs hpcfed[mlflow]."""


class Run(Section):
    """How ranks use the machine."""

    threads: Annotated[int, Gt(0), Le(1024)] = 1
    """Torch threads of each rank; part of the result, for sums in another order give other bits."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Auto: GPU number (local rank modulo GPUs) where there is one, else the CPU."""
    ranks_per_gpu: PositiveInt | None = None
    """Most ranks that may share a GPU; none: any number, with a warning where several do."""
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    """Of products: tf32 in all that a GPU computes, bf16 in clients' objectives; weights and sums
    are float32.
    """
    resident: NonNegative = 2.0
    """GiB of clients' weights and memories that each rank keeps in memory, beside a GPU's; the rest
    waits on disk.
    """
    device_resident: NonNegative | None = None
    """GiB of clients' weights and memories that each rank keeps in its GPU's memory; the rest waits
    in the host's. Default: half of the rank's share of the GPU.
    """
    speeds: tuple[PositiveFloat, ...] = ()
    """Speed of each rank, or of each node, relative to one another: clients are placed by it.
    Default: all alike.
    """
    rebalance: Count = 2
    """Move clients between ranks by measured cost after so many rounds; 0: never."""
    on_client_fault: Literal["stop", "drop"] = "stop"
    """A client that diverges, runs out of memory or has bad data ends the run, or leaves the
    round.
    """
    grace: PositiveFloat = 10.0
    """Seconds from a signal to the end of the run: half for the clients in hand, half to save."""
    watchdog: NonNegative = 1800.0
    """Seconds in which no rank gets on, or one is silent at the start, after which the run ends; 0:
    never.
    """
    on_fault: Literal["shrink", "restart", "stop"] = "shrink"
    """A rank dies. Shrink: the others go on, where MPI has ULFM, else as restart. Restart: end with
    status 75.
    """
    max_restarts: Count = 10
    """`hpcfed supervise` starts the run again at most so many times."""
