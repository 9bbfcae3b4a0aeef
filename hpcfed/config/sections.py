"""The sections of a job, frozen and checked on entry.

The text under a field is its line in `--help`.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from annotated_types import Ge, Gt, Le
from pydantic import (
    ConfigDict,
    Field,
    PositiveFloat,
    model_validator,
)
from pydantic import NonNegativeFloat as NonNegative

from hpcfed.config.conditions import SET, UNSET, above, at_most, field, other_than
from hpcfed.config.datasets import PARTITIONS
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
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True
    )


# the data are divided among clients, who do not make their own; by a partition drawn here
DIVIDED = {"name": other_than("synthetic")}
DRAWN = {"name": other_than("synthetic"), "partition_file": None}
# clients who make their own examples have a partition by nature
NOT_READ = ({"name": "synthetic"}, {"partition_file": None})
BY_CLASS = {**DRAWN, "partition": tuple(n for n, one in PARTITIONS.items() if one.by_class)}
OF_IMAGES = {"data.name": other_than("synthetic")}


class Shift(Section):
    """How the images of clients differ (feature skew), in training and in tests.

    Rotation comes before colour, colour before noise.
    """

    rotation_groups: Annotated[int, Gt(0), Le(4)] = field(1, used_if=OF_IMAGES)
    """1, 2 or 4: client k has all its images turned by k modulo this number of equal parts of a
    circle (IFCA).
    """
    reuse: bool = field(False, used_if={"rotation_groups": above(1)})
    """Each group of rotation_groups has all training images, so that an image is in each group
    once; otherwise an image is in one group.
    """
    degrees: tuple[Annotated[float, Field(ge=-360, le=360)], ...] = field(
        (), used_if={**OF_IMAGES, "rotation_groups": at_most(1)}
    )
    """Client k's images are rotated to the left by the k-th of these angles (modulo length); pixels
    from outside are black.
    """
    hue_groups: PositiveInt = field(1, used_if=OF_IMAGES)
    """The hue of client k's images is moved by k modulo this number of equal parts of the colour
    circle; three channels.
    """
    noise: NonNegative = field(0.0, used_if=OF_IMAGES)
    """Sigma: Gaussian noise on pixels of 0..1, which is stronger the higher the client's number
    (NIID-Bench); drawn once per image, not cut off at 0 and 1.
    """
    noise_of: Literal["std", "variance"] = field("std", used_if="noise")
    """What sigma is: the standard deviation of the last of K clients, and sigma k / (K - 1) that of
    client k (the authors' code); or a variance, sigma (k + 1) / K that of client k (the paper).
    """

    @property
    def copies(self) -> int:
        """How many times the training images are used."""
        return self.rotation_groups if self.reuse else 1

    @property
    def active(self) -> bool:
        """Whether any image changes."""
        return bool(
            self.rotation_groups > 1 or any(self.degrees) or self.hue_groups > 1 or self.noise
        )

    @model_validator(mode="after")
    def agrees(self) -> Self:
        if self.rotation_groups == 3:
            raise ValueError(
                "rotation_groups = 3: images are turned by quarters of a circle; give 1, 2 or 4, "
                "or set degrees = [0, 120, 240]"
            )
        return self


class Data(Section):
    """Which examples the clients hold."""

    name: Annotated[str, Field(min_length=1)] = "digits"
    """A known data set (`hpcfed list datasets`), a .csv, .parquet, .h5 or .npz file, a folder of
    images, or hf:NAME.
    """
    label: Annotated[str, Field(max_length=60)] = ""
    """Name of the data in titles and tables; default: data.name, for a file without its folders.
    """
    root: FileName = Path("data")
    """The folder of known data sets, to which they are also downloaded."""
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
    ] = field("dirichlet", used_if=NOT_READ, refused=False)
    """How the training examples are assigned to clients (`hpcfed list partitions`)."""
    partition_by: Literal["label", "client"] = field("label", used_if=BY_CLASS, refused=False)
    """What partitions by class use as classes: labels, or any column (columns.client, or the data's
    users).
    """
    sizes: Literal["equal", "free"] = field(
        "equal", used_if={"partition": "dirichlet"}, refused=False
    )
    """All clients have the same size, or the drawn sizes."""
    alpha: PositiveFloat = field(
        0.5, used_if={"partition": ("dirichlet", "inner-dirichlet")}, refused=False
    )
    """Concentration; smaller is more skewed."""
    client_sizes: tuple[PositiveInt, ...] = field(
        (), used_if={"partition": ("sizes", "inner-dirichlet")}
    )
    """Examples of each client; none with inner-dirichlet: equally many each."""
    classes_per_client: PositiveInt = field(
        2, used_if={"partition": ("classes", "pathological", "distribution")}, refused=False
    )
    """Number of classes per client."""
    class_choice: Literal["random", "first-deterministic", "deterministic"] = field(
        "random", used_if={"partition": "pathological"}
    )
    """Classes are drawn; or the first one is k modulo C for client k; or all are determined by
    k.
    """
    distribution: FileName | None = field(None, used_if={"partition": "distribution"})
    """A .csv file of numbers, one row per class; none: drawn log-normal."""
    preassigned: Count = field(0, used_if={"partition": "distribution"})
    """Examples of each of its classes that a client gets before the others are distributed."""
    rescale: bool = field(True, used_if={"partition": "distribution"})
    """The rows of the table are proportions; otherwise numbers of examples."""
    shards_per_client: PositiveInt = field(2, used_if={"partition": "shards"}, refused=False)
    """Number of label-sorted shards per client."""
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
    halve: Share = field(0.0, used_if=DRAWN)
    """Share of the clients that keep only half of their examples."""
    domains: Names = field((), used_if=DIVIDED)
    """Natural clients (columns.client, or the data's users) whose examples are used, by name; none:
    all. digits-domains: mnist, svhn, usps, emnist-digits, mnist-m (these if none) and digits.
    """
    clients_per_domain: PositiveInt = field(1, used_if={**DRAWN, "partition": "natural"})
    """Natural: clients that share the examples of one natural client, equally and at random."""
    client_limit: PositiveInt | None = field(None, used_if=DRAWN)
    """Maximum number of training examples of each client, drawn class by class; none: all. Test
    sets are those of the unlimited training sets.
    """
    test_limit: PositiveInt | None = field(None, used_if=DRAWN)
    """Maximum number of test examples of each client, drawn class by class; none: all."""
    least: Count = field(0, used_if=DRAWN)
    """Natural: users with fewer training examples are left out."""
    wrong_labels: Share = field(0.0, used_if=DIVIDED)
    """Share of each client's training examples, drawn, whose label is another class, drawn too."""
    missing_labels: Share = field(0.0, used_if=DRAWN)
    """Share of each client's training examples, drawn, that have no label and are not used."""
    partition_file: FileName | None = field(None, used_if=DIVIDED)
    """Load the partition from this file instead of drawing it."""
    train_limit: PositiveInt | None = field(None, used_if=DRAWN)
    """Total number of training examples that are used, drawn class by class; none: all."""
    imbalance: Annotated[float, Field(ge=1, le=1e6)] = field(1.0, used_if=DRAWN)
    """Long tail: class c keeps the share imbalance^(-c / (C - 1)) of its training examples, at
    least one, so that the first class is `imbalance` times as frequent as the last. 1: all are
    kept.
    """
    sort_clients: bool = field(False, used_if=DRAWN)
    """Number the clients by their most frequent label, then by the mean of their labels, so that
    neighbours in number (a block of the day, a ring) hold similar labels.
    """
    task: str = ""
    """Your own data: type of the labels (`hpcfed list tasks`); default: as data and [columns]
    determine.
    """
    test_file: FileName | None = None
    """A table, .csv or .parquet, whose rows are the test examples of the table in data.name."""
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Your own data without test examples: fraction of the examples that is held out as the test
    set, drawn label by label.
    """
    channels: Literal["auto", "first", "last"] = "auto"
    """Your own arrays of images with four axes: the axis of the channels, [n, channels, height,
    width] or [n, height, width, channels]; auto: the axis of size 1 to 4.
    """
    image_size: Count = 0
    """Folder of images, hf: scale images to this height and width in pixels; 0: all have one
    size.
    """
    test_share: Annotated[float, Gt(0), Le(1e6)] = field(0.3, used_if=NOT_READ, refused=False)
    """Size of a client's test set as a share of its training set; natural clients of data whose
    test examples name their users have all of those instead.
    """
    public: Count = 0
    """Public examples, taken from the training set before it is partitioned, or from
    public_source.
    """
    public_source: str = field("", used_if="public")
    """Another data set with inputs of the same shape, from which the public examples are drawn.
    Its classes are those of the clients that have the same names.
    """
    vocabulary: Annotated[int, Field(ge=3)] = 10_000
    """Text: size of the vocabulary, the most frequent tokens of the training texts, including
    padding and unknown.
    """
    tokens: PositiveInt = 32
    """Text: length of an example; longer texts are cut, shorter ones filled up."""
    shift: Shift = Shift()
    """Table `[data.shift]`: how the images of clients differ."""


class Columns(Section):
    """Roles of the columns of a table: CSV, Parquet, rows of numbers in HDF5 and NPZ, and hf:."""

    label: str = ""
    """Column of the labels; default: label, labels, target, class or y, whichever exists."""
    target: Names = ()
    """Columns of numbers to predict, one or several. The task is then regression."""
    labels: Names = ()
    """Columns of 0 and 1, each a label that an example has or not. The task is then multilabel."""
    positive: str = ""
    """The one of two labels that counts as positive; metrics are then those of a binary task."""
    event: str = ""
    """Column of 0 and 1: whether the event was observed at the time in columns.label. The task is
    then survival.
    """
    client: str = ""
    """Column that names the client of each example, for data.partition = "natural"; in HDF5 and NPZ
    any array with one value per example; for a folder of images, a column of its metadata.csv, or
    `folder`: its folders are those of clients, with a folder for each class in each.
    """
    test: str = ""
    """Column that says which examples are tests: test, true or 1; train, false or 0."""
    inputs: Names = field((), used_if={"text": UNSET})
    """Input columns, separated by commas; default: all without another role."""
    ignore: Names = ()
    """Columns that are not used."""
    one_hot: Names = ()
    """Columns of numbers that are categories, to one-hot encode; columns of words always are."""
    text: str = ""
    """Column of texts, which are then the inputs (data.vocabulary, data.tokens)."""
    image: str = ""
    """Hugging Face: column of images, which are then the inputs."""
    missing: Literal["refuse", "fill", "drop"] = "refuse"
    """Missing values: refuse the table; fill in the mean of the training part, but no labels; drop
    each row with any gap.
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
    """Which of them a client has: all; drawn ones; for client k the k-th of `sets` (modulo length);
    those of its own examples.
    """
    rate: Annotated[float, Field(gt=0, le=1)] = field(
        1.0, used_if={"clients": "drawn", "sets": UNSET}
    )
    """Drawn: probability of each modality at each client; a client that would have none gets a
    random one.
    """
    sets: Names = field((), used_if={"clients": ("drawn", "listed")})
    """Drawn or listed: sets that clients may have, such as accelerometer,accelerometer+skeleton;
    drawn: replaces rate.
    """
    shares: tuple[PositiveFloat, ...] = field((), used_if={"clients": "drawn", "sets": SET})
    """Drawn: relative frequencies of `sets`; default: equal."""
    missing: Share = 0.0
    """Probability that a modality of a client is missing in its training examples; its tests have
    all of its modalities.
    """
    encoders: Literal["all", "own"] = field("all", used_if={"clients": other_than("all")})
    """Encoders in a client's model: for all modalities in use, or for those that it has."""


class Models(Section):
    """Architectures, and which client has which."""

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
    """Share of each layer's units in clients' sub-models, assigned like the architectures.
    """
    proxy: str = ""
    """A model that every client trains besides its own, for methods that share this model."""
    server: str = ""
    """The server's own model, for methods whose server has one."""
    d: PositiveInt = 512
    """Width of the representation, the same on all clients."""
    relu_head: bool = False
    """A ReLU between the representation and the head, as in the authors' FedClassAvg code."""
    norm: Literal["batch", "group"] = "batch"
    """Normalisation of networks that have batch normalisation: group puts group normalisation in
    its place, for which examples do not depend on one another (privacy.by = "examples"), or layer
    normalisation if a group would have fewer than 16 values (vectors, small maps).
    """
    weights: Names = ()
    """Initial weights of each architecture of the mix: a file, or none."""
    train: Names = ()
    """Train and send only the tensors with these names (head.*) and freeze all others; none: all,
    with LoRA the head.
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
    """Examples in one local step; a client with fewer uses all of them."""
    epochs: PositiveInt = field(1, used_if={"steps": None})
    """Passes over the client's data in one round."""
    steps: PositiveInt | None = None
    """Local steps in one round, instead of epochs."""
    schedule: Literal["constant", "cosine", "step"] = field(
        "constant",
        used_if=({"schedule": other_than("step")}, "milestones"),
        why="without local.milestones the learning rate never falls",
    )
    """Learning rate over rounds: cosine falls to 0 in the last round; step multiplies it by decay
    at each milestone.
    """
    milestones: tuple[PositiveInt, ...] = field((), used_if={"schedule": "step"})
    """Rounds at which the learning rate falls."""
    decay: PositiveFloat = field(0.1, used_if="milestones")
    """Factor at each milestone."""
    keep_optimiser: bool = field(False, used_if=({"optimiser": "adam"}, "momentum"))
    """Keep the optimiser's moments from round to round instead of resetting them."""
    augment: Literal["auto", "none", "crop-flip", "simclr", "affine"] = "auto"
    """Augmentation; auto: affine for digits, simclr if the algorithm needs two views, else none.
    """
    stragglers: Share = 0.0
    """Share of a cohort that completes only a random part of its epochs. Methods without partial
    work leave these clients out of the round, and count nothing of them.
    """
    class_weights: Literal["none", "client", "all", "given"] = "none"
    """Weights of the classes in the loss: their inverse frequency among the client's own training
    examples, or among those of all clients; or as given in `weights`.
    """
    weights: tuple[PositiveFloat, ...] = field((), used_if={"class_weights": "given"})
    """Weight of each class in the loss, in the order of the classes."""
    focal: NonNegative = 0.0
    """Focusing parameter gamma of the focal loss, in which examples that are already classified
    well count less; 0: cross-entropy.
    """
    balanced_batches: bool = False
    """Draw the examples of batches with replacement, each class of the client equally often."""


class Training(Section):
    """How local steps are computed.

    All engines give the same bits, except stacked, which rounds differently.
    """

    engine: Literal["auto", "eager", "traced", "graphed", "stacked"] = field(
        "auto",
        used_if={"privacy.by": other_than("examples")},
        why="gradients of single examples have a step of their own (privacy.by)",
    )
    """Eager: autograd; traced: a recorded step is replayed; graphed: CUDA graphs; stacked: equal
    clients at once; auto: the fastest that applies.
    """
    stack: PositiveInt = 64
    """Stacked: maximum number of clients in a group, which trains on one rank."""


class Checkpoint(Section):
    """When the run is saved."""

    every: Count = 10
    """Rounds between checkpoints; 0: none by rounds, but `minutes` and signals still save. The last
    round is always saved.
    """
    minutes: NonNegative = 30.0
    """Minutes after which a checkpoint is written before `every` rounds have passed; 0: never.
    """
    keep: PositiveInt | None = None
    """Number of newest checkpoints that are kept; while one is written the disk holds one more.
    Default: 2 while the run continues, and the last one when it is finished.
    """
    required: bool = False
    """Stop when checkpoint or results cannot be written; otherwise the run warns, continues, and
    tries again next time.
    """
    mirror: bool = False
    """Each rank keeps a copy of its part and of another rank's in memory: no round is repeated when
    a rank dies.
    """


class Log(Section):
    """Output of rank 0 besides the result file: logs by round, and a picture."""

    picture: bool = True
    """Draw the learning curves in the run's folder when the run ends; takes half a second."""
    ranks: bool = False
    """A log per rank, ranks/rank-R.log in the run's folder: its machine, seconds and memory of each
    round, and the error that ended it.
    """
    energy: bool = False
    """Joules of processors and GPUs by phase, from the counters of the machine; GPUs need
    hpcfed[energy].
    """
    carbon: PositiveFloat | None = field(None, used_if="energy")
    """Grams of CO2 equivalents for each kWh of the site's electricity, for an estimate."""
    pue: Annotated[float, Ge(1)] = field(1.0, used_if="carbon")
    """Power usage effectiveness of the site: all energy over that of its computers."""
    tensorboard: bool = False
    """Event files for TensorBoard, in the run's folder; needs hpcfed[tensorboard]."""
    wandb: bool = False
    """Weights & Biases: in the run's folder, to be synced later, or as WANDB_MODE says; needs
    hpcfed[wandb].
    """
    mlflow: bool = False
    """MLflow: in the run's folder, or at MLFLOW_TRACKING_URI; needs hpcfed[mlflow]."""


class Run(Section):
    """How ranks use the machine."""

    threads: Annotated[int, Gt(0), Le(1024)] = 1
    """Torch threads per rank; affects the result, because sums in another order give other bits."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Auto: GPU number (local rank modulo GPUs) if there is one, else the CPU."""
    ranks_per_gpu: PositiveInt | None = None
    """Maximum number of ranks per GPU; none: any number, with a warning if several share one."""
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    """Precision of products: tf32 in everything that a GPU computes, bf16 in large layers of local
    objectives and of training on the server; weights and sums are float32.
    """
    resident: NonNegative = 2.0
    """GiB of clients' weights and memories that each rank keeps in host memory; the rest is spilled
    to disk.
    """
    device_resident: NonNegative | None = None
    """GiB of clients' weights and memories that each rank keeps in its GPU's memory; the rest stays
    in host memory. Default: half of the rank's share of the GPU.
    """
    speeds: tuple[PositiveFloat, ...] = ()
    """Relative speed of each rank, or of each node, by which clients are placed. Default: equal.
    """
    rebalance: Count = 2
    """Move clients between ranks by measured cost after this many rounds, once clients of all
    architectures have trained; 0: never.
    """
    on_client_fault: Literal["stop", "drop"] = "stop"
    """A client that diverges, runs out of memory or has bad data ends the run, or leaves the
    round.
    """
    grace: PositiveFloat = 10.0
    """Seconds from a signal to the end of the run: half to finish the current clients, half to
    save.
    """
    watchdog: NonNegative = 1800.0
    """Seconds without progress of any rank, or with a silent rank at the start, after which the run
    ends; 0: never.
    """
    on_fault: Literal["shrink", "restart", "stop"] = "shrink"
    """If a rank dies: shrink: the others continue if MPI has ULFM, else as restart; restart: end
    with status 75; stop: end with status 1.
    """
    max_restarts: Count = 10
    """Maximum number of restarts by `hpcfed supervise`."""
