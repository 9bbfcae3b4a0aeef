"""`hpcfed import pfllib|htfllib -- ...`: the job of a command line of PFLlib or HtFLlib.

The flags, their defaults and what methods read of them are those of `system/main.py` and of
`dataset/utils/dataset_utils.py`: github.com/TsingZ0/PFLlib at d832e76, TsingZ0/HtFLlib at e959261.
"""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from hpcfed.config.load import load_derived
from hpcfed.config.methods import ALGORITHMS, bare, registered_name
from hpcfed.config.write import to_toml
from hpcfed.core.errors import ConfigError, printable, unknown
from hpcfed.storage.fields import flat

LIBRARIES = {"pfllib": "PFLlib", "htfllib": "HtFLlib"}


class Flag(NamedTuple):
    """A flag of the libraries.

    kind: as argparse calls it; bool("False") is true there, as for any text.
    pfllib, htfllib: its default; None: the library has no such flag.
    without: why a job has no counterpart of it; "": it has one, or a method reads it.
    """

    name: str
    kind: type
    pfllib: Any
    htfllib: Any
    without: str = ""


ON_GPU = "hpcfed takes the GPUs that CUDA_VISIBLE_DEVICES leaves"
SLEEP = "it makes clients sleep in real time; see [system] for devices in virtual time"
LEAK = "hpcfed runs no attack on gradients"
NEW = "hpcfed adapts the model of a finished run to a new client: hpcfed adapt"
OF_TEXT = "data sets of texts have their own vocabulary and length"

GENERAL = {
    "go": Flag("goal", str, "test", "test", "it names result files; a run has a folder (out)"),
    "dev": Flag("device", str, "cuda", "cuda"),
    "did": Flag("device_id", str, "0", "0", ON_GPU),
    "data": Flag("dataset", str, "MNIST", "MNIST"),
    "ncl": Flag("num_classes", int, 10, 10, "the data say how many classes there are"),
    "lbs": Flag("batch_size", int, 10, 10),
    "lr": Flag("local_learning_rate", float, 0.005, 0.01),
    "ld": Flag("learning_rate_decay", bool, False, False),
    "ldg": Flag("learning_rate_decay_gamma", float, 0.99, 0.99),
    "gr": Flag("global_rounds", int, 2000, 2000),
    "tc": Flag("top_cnt", int, 100, 100, "it is read only with -ab"),
    "ls": Flag("local_epochs", int, 1, 1),
    "algo": Flag("algorithm", str, "FedAvg", "FedAvg"),
    "jr": Flag("join_ratio", float, 1.0, 1.0),
    "rjr": Flag("random_join_ratio", bool, False, False, "cohorts have one size"),
    "nc": Flag("num_clients", int, 20, 2),
    "pv": Flag("prev", int, 0, 0, "each run has a seed: --seed"),
    "t": Flag("times", int, 1, 1, "for several runs: hpcfed sweep JOB.toml --seed 0,1,2"),
    "eg": Flag("eval_gap", int, 1, 1),
    "sfn": Flag("save_folder_name", str, "items", "temp", "a run has a folder (out)"),
    "ab": Flag(
        "auto_break",
        bool,
        False,
        False,
        "it stops by test accuracy; evaluate.patience stops by validation loss",
    ),
    "dlg": Flag("dlg_eval", bool, False, None, LEAK),
    "dlgg": Flag("dlg_gap", int, 100, None, LEAK),
    "bnpc": Flag("batch_num_per_client", int, 2, None, LEAK),
    "nnc": Flag("num_new_clients", int, 0, None, NEW),
    "ften": Flag("fine_tuning_epoch_new", int, 0, None, NEW),
    "fd": Flag("feature_dim", int, 512, 512),
    "vs": Flag("vocab_size", int, 80, 80, OF_TEXT),
    "ml": Flag("max_len", int, 200, 200, OF_TEXT),
    "mfn": Flag("models_folder_name", str, None, "", "models.weights names files of weights"),
    "fs": Flag("few_shot", int, 0, 0, "data.client_limit limits a client's examples, not a class"),
    "cdr": Flag("client_drop_rate", float, 0.0, 0.0),
    "tsr": Flag("train_slow_rate", float, 0.0, 0.0, SLEEP),
    "ssr": Flag("send_slow_rate", float, 0.0, 0.0, SLEEP),
    "ts": Flag("time_select", bool, False, False, "the library does not read it either"),
    "tth": Flag("time_threthold", float, 10000, 10000, "system.deadline is in virtual seconds"),
}
OF_SOME = {  # flags that some methods read
    "bt": Flag("beta", float, 0.0, 1.0),
    "lam": Flag("lamda", float, 1.0, 1.0),
    "mu": Flag("mu", float, 0.0, 50.0),
    "K": Flag("K", int, 5, None),
    "lrp": Flag("p_learning_rate", float, 0.01, None),
    "M": Flag("M", int, 5, None),
    "itk": Flag("itk", int, 4000, None),
    "alk": Flag("alphaK", float, 1.0, None),
    "sg": Flag("sigma", float, 1.0, None),
    "al": Flag("alpha", float, 1.0, 1.0),
    "pls": Flag("plocal_epochs", int, 1, None),
    "tau": Flag("tau", float, 1.0, None),
    "fte": Flag("fine_tuning_epochs", int, 10, None),
    "dlr": Flag("dr_learning_rate", float, 0.0, None),
    "L": Flag("L", float, 1.0, None),
    "nd": Flag("noise_dim", int, 512, 512),
    "glr": Flag("generator_learning_rate", float, 0.005, 0.005),
    "hd": Flag("hidden_dim", int, 512, 512),
    "se": Flag("server_epochs", int, 1000, 100),
    "lf": Flag("localize_feature_extractor", bool, False, None),
    "slr": Flag("server_learning_rate", float, 1.0, 0.01),
    "et": Flag("eta", float, 1.0, None),
    "s": Flag("rand_percent", int, 80, None),
    "p": Flag("layer_idx", int, 2, None),
    "mlr": Flag("mentee_learning_rate", float, 0.005, 0.01),
    "Ts": Flag("T_start", float, 0.95, 0.95),
    "Te": Flag("T_end", float, 0.98, 0.98),
    "mo": Flag("momentum", float, 0.1, None),
    "klw": Flag("kl_weight", float, 0.0, None),
    "fsb": Flag("first_stage_bound", int, 0, None),
    "ca": Flag("fedcross_alpha", float, 0.99, None),
    "cmss": Flag("collaberative_model_select_strategy", int, 1, None),
    "mart": Flag("margin_threthold", float, None, 100.0),
    "GPath": Flag("generator_path", str, None, "stylegan/stylegan-xl-models/imagenet64.pkl"),
    "prompt": Flag("stable_diffusion_prompt", str, None, "a cat"),
    "sbs": Flag("server_batch_size", int, None, 100),
    "gbs": Flag("gen_batch_size", int, None, 4),
    "sfd": Flag("sub_feature_dim", int, None, 128),
    "mdb": Flag("meta_study_batches", int, None, 1),
    "mqb": Flag("meta_quiz_batches", int, None, 1),
    "wu": Flag("warm_up_rounds", int, None, 50),
}
FLAGS = GENERAL | OF_SOME
MODEL_FLAGS = {"pfllib": ("model", "CNN"), "htfllib": ("model_family", "HtM10")}  # of -m

WEIGHTED = {"weighting": "samples"}  # where the usual weighting of hpcfed's method is uniform
BATCHWISE = {"prototypes": "during", **WEIGHTED}
GENERATOR = {
    "noise_size": "-nd",
    "hidden": "-hd",
    "server_steps": "-se",
    "server_lr": "-glr",
    "server_batch": "-lbs",
}
# methods of the libraries: the fields of hpcfed's method by their flag, or a fixed value
METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "pfllib": {
        **{name: {} for name in ("FedAvg", "Local", "FedPer", "FedBN", "LG-FedAvg")},
        "PerAvg": {"alpha": "-lr", **WEIGHTED},
        "pFedMe": {"lam": "-lam", "inner_steps": "-K", "eta": "-lr", "beta": "-bt", **WEIGHTED},
        "FedProx": {"mu": "-mu"},
        "Ditto": {"lam": "-mu", "personal_epochs": "-pls"},
        "FedRep": {"head_epochs": "-pls", "body_epochs": "-ls", "final_epochs": 0},
        "FedProto": {"lam": "-lam", **BATCHWISE},
        "FedDyn": {"alpha": "-al"},
        "MOON": {"mu": "-mu", "tau": "-tau"},
        "FedBABU": {"final_epochs": "-fte", **WEIGHTED},
        "FedGen": GENERATOR,
        "SCAFFOLD": {"eta_g": "-slr"},
        "FD": {"gamma": "-lam"},
        "FML": {"alpha": "-al", "beta": "-bt"},
        "FedKD": {"energy_start": "-Ts", "energy_end": "-Te"},
        "FedNTD": {"beta": "-bt", "tau": "-tau"},
        "FedGH": {"server_lr": "-slr", "server_epochs": 1, "server_batch": "-lbs"},
        "FedLC": {"tau": "-tau"},
        "FedALA": {"eta": "-et", "share": "-s"},
        "FedAMP": {"lam": "-lam", "alpha": "-alk", "sigma": "-sg"},
        "FedFomo": {"models": "-M", "epsilon": 0.0},
        "FedPAC": {"lam": "-lam", "head_lr": "-lr"},
    },
    "htfllib": {
        **{name: {} for name in ("Local", "LG-FedAvg")},
        "FedProto": {"lam": "-lam", **BATCHWISE},
        "FedGen": {"share": "head", **GENERATOR},
        "FD": {"gamma": "-lam"},
        "FML": {"alpha": "-al", "beta": "-bt"},
        "FedKD": {"energy_start": "-Ts", "energy_end": "-Te", **WEIGHTED},
        "FedGH": {"server_lr": "-slr", "server_epochs": "-se", "server_batch": "-lbs"},
        "FedTGP": {
            "lam": "-lam",
            "tau": "-mart",
            "server_epochs": "-se",
            "server_lr": "-lr",
            "server_batch": "-lbs",
            "gap": "nearest",
            "prototypes": "before",
        },
        "FedMRL": {"coarse": "-sfd"},
        "FedL2G-logit": {"guides": "logits", "warmup": "-wu", "server_lr": "-slr"},
        "FedL2G-feat": {"guides": "features", "warmup": "-wu", "server_lr": "-slr"},
    },
}
NO_METHOD, NO_DATA, NO_MODEL = "no such method", "no such data set", "no such model"
OTHER_METHODS = {  # of the libraries, and what hpcfed has for them
    "pfllib": dict.fromkeys(
        (
            *("FedMTL", "APFL", "FedPHP", "FedROD", "APPLE"),
            *("FedGC", "FedPCL", "FedCP", "GPFL", "FedDBE", "FedCAC", "PFL-DA", "FedAS"),
            "FedCross",
        ),
        NO_METHOD,
    ),
    "htfllib": dict.fromkeys(
        ("FedKTL-stylegan-xl", "FedKTL-stylegan-3", "FedKTL-stable-diffusion"), NO_METHOD
    ),
}
NAMES = {"PerAvg": "perfedavg", "FedL2G-logit": "fedl2g", "FedL2G-feat": "fedl2g"}
OF_METHODS = {  # in what hpcfed's method differs from the library's
    "pFedMe": "-lrp is local.lr, the rate of the personal model, and -lr is algorithm.eta",
    "FedDyn": "the library's penalty is alpha/2 ||w - w_t||; hpcfed's is the paper's, squared",
    "FedLC": "the library counts classes over all clients; hpcfed, as the paper, over the client's",
    "FD": "the library's distance is the cross-entropy with mean logits; hpcfed's the paper's KL",
    "FedKD": "the common model has the rate local.lr too (-mlr)",
    "FedALA": "two of -p, which counts tensors, are a layer (algorithm.layers)",
    "FedAMP": "the library's penalty has no gradient, so that its clients train alone",
    "FedPAC": "the library's prototypes are means of equal weights; hpcfed's count examples",
    "FedGen": "clients' loss has the paper's two terms, which are weighted and decay",
}

# data sets: name in hpcfed, classes per client of `noniid - pat`; 0: their clients are natural
DATA = {
    "MNIST": ("mnist", 2),
    "FashionMNIST": ("fashion-mnist", 2),
    "EMNIST": ("emnist-digits", 2),
    "Cifar10": ("cifar10", 2),
    "Cifar100": ("cifar100", 10),
    "FEMNIST": ("femnist", 0),
    "Shakespeare": ("shakespeare", 0),
    "Digit5": ("digits-domains", 0),
}
OTHER_DATA = {
    **dict.fromkeys(
        (
            *("AGNews", "AmazonReview", "COVIDx", "Camelyon17", "Country211", "Flowers102"),
            *("GTSRB", "Omniglot", "PAMAP2", "SogouNews", "StanfordCars", "iWildCam", "kvasir"),
        ),
        NO_DATA,
    ),
    **dict.fromkeys(
        ("DomainNet", "TinyImagenet"), "no such data set, but takes a folder of images (data.name)"
    ),
    "HAR": "these data (uci-har) as two modalities, with other models",
}
MODELS = {  # of PFLlib
    "CNN": "cnn",
    "MLR": "logistic",
    "DNN": "mlp",
    "ResNet18": "torchvision:resnet18",
    "ResNet34": "torchvision:resnet34",
    "GoogleNet": "torchvision:googlenet",
    "MobileNet": "torchvision:mobilenet_v2",
    "LSTM": "lstm-char",
    "Transformer": "transformer-char",
}
OTHER_MODELS = dict.fromkeys(
    ("ResNet10", "AlexNet", "BiLSTM", "fastText", "TextCNN", "AmazonMLP", "HARCNN"), NO_MODEL
)
OF_MODELS = {  # in what hpcfed's model differs
    "cnn": "cnn: its convolutions keep the size of the image, the library's do not",
    "mlp": "mlp: 200 hidden units and a representation, the library's DNN has 100 hidden units",
    "lstm-char": "lstm-char: characters are vectors of 8 values, the library's of feature_dim",
    "transformer-char": "transformer-char: its sizes are hpcfed's own",
}
RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
EIGHT = ("cnn", "googlenet", "mobilenet_v2", *RESNETS)
FAMILIES = {  # of HtFLlib; all but cnn are torchvision's
    "HtFE-img-2": ("cnn", "resnet18"),
    "HtFE-img-4": ("cnn", "googlenet", "mobilenet_v2", "resnet18"),
    "HtFE-img-5": ("googlenet", "mobilenet_v2", "resnet18", "resnet34", "resnet50"),
    "HtFE-img-8": EIGHT,
    "HtM-img-10": (*EIGHT, "vit_b_16", "vit_b_32"),
}
ONE_LAYER = "heads of one layer"
OTHER_FAMILIES = {  # and what hpcfed has for them
    "HtFE-img-3": "no ResNet-10",
    "HtFE-img-9": "no ResNet-4 to ResNet-10",
    "HtFE-img-8-HtC-img-4": ONE_LAYER,
    "Res34-HtC-img-4": ONE_LAYER,
    **dict.fromkeys(
        (
            *("HtFE-txt-2", "HtFE-txt-4", "HtFE-txt-5-1", "HtFE-txt-5-2", "HtFE-txt-5-3"),
            *("HtFE-txt-6", "MLPs", "MLP_1layer", "MLP_layers"),
            *("HtFE-sen-2", "HtFE-sen-3", "HtFE-sen-5", "HtFE-sen-8"),
        ),
        "no data set for it",
    ),
}

PARTITIONS: dict[str, dict[str, Any]] = {  # by the words of generate_*.py
    "iid": {"partition": "iid"},
    "dir": {"partition": "dirichlet", "alpha": 0.1, "sizes": "free"},
    "pat": {"partition": "classes"},
}
TEST_SHARE = 1 / 3  # of a client's training examples: train_ratio = 0.75

SAME_FOR_ALL = (  # differences between the libraries and hpcfed, whatever the flags
    "test examples are those of the data's test split; the library merges both splits and draws "
    "a quarter of each client's",
    "a client's last batch of an epoch counts, even if it is smaller; the library leaves it out",
    "accuracies are means over clients; the library's, pooled over test examples, are "
    "accuracy_pooled and accuracy_received_pooled",
    "the library evaluates clients at the start of a round, with what they then have received: "
    "accuracy_received; it trains one round more, after its last evaluation",
)


class Parser(ArgumentParser):
    """argparse with the libraries' rules; its errors are ConfigErrors."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"import: {printable(message)}")


class Line(NamedTuple):
    """A command line of a library.

    method: its algorithm, as the library spells it.  values: of all flags, by name.
    flags: the values of those on the command line, by "-lr" for example.
    """

    library: str
    method: str
    values: Namespace
    flags: dict[str, Any]

    def value(self, flag: str) -> Any:
        """Return the value of a flag, of "-lr" for example."""
        short = flag.removeprefix("-")
        return getattr(
            self.values, MODEL_FLAGS[self.library][0] if short == "m" else FLAGS[short].name
        )


def job_of(library: str, words: Sequence[str], generate: str = "noniid - dir") -> str:
    """Return the job of a command line as TOML, with comments on what has no counterpart.

    library: a key of LIBRARIES.  words: flags of `python main.py`.
    generate: words of `python generate_DATA.py`, which makes the library's partition.
    Raises ConfigError for what the library does not know and for what hpcfed has not.
    """
    line = parse(library, words)
    table, idle = load_derived(flat(fields(line, generate)))
    notes = [
        *(f"{short} {value}: {why}" for short, value, why in without_counterpart(line)),
        *(f"{name} is left out: {reason.why}" for name, reason in idle.items()),
        *differences(line, table, generate),
    ]
    command = " ".join(words)
    head = [f"{LIBRARIES[library]}: python main.py {command}".rstrip(), *notes]
    return "\n".join([*(f"# {printable(note)}" for note in head), "", to_toml(table).rstrip()])


def parse(library: str, words: Sequence[str]) -> Line:
    """Return the values of a command line, as the library's argparse reads them."""
    model, family = MODEL_FLAGS[library]
    flags = {"m": Flag(model, str, family, family)} | FLAGS
    flags = {short: flag for short, flag in flags.items() if getattr(flag, library) is not None}
    parser = Parser(prog=f"hpcfed import {library} --", add_help=False, argument_default=SUPPRESS)
    for short, flag in flags.items():
        parser.add_argument(f"-{short}", f"--{flag.name}", type=flag.kind)
    present = vars(parser.parse_args(list(words)))
    values = Namespace(**{flag.name: getattr(flag, library) for flag in flags.values()} | present)
    method = find(values.algorithm, methods_of(library), OTHER_METHODS[library], "algorithm")
    in_line = {f"-{s}": present[flag.name] for s, flag in flags.items() if flag.name in present}
    return Line(library, method, values, in_line)


def methods_of(library: str) -> dict[str, dict[str, Any]]:
    """Return the library's methods that hpcfed has, with the fields that flags of theirs give."""
    others: dict[str, dict[str, Any]] = {
        m: {} for m in OTHER_METHODS[library] if registered_name(m) in ALGORITHMS
    }
    return {**METHODS[library], **others}


def fields(line: Line, generate: str) -> dict[str, Any]:
    """Return the fields of the job, nested."""
    values = line.values
    algorithm = {
        "name": NAMES.get(line.method, registered_name(line.method)),
        **{
            name: line.value(value) if str(value).startswith("-") else value
            for name, value in methods_of(line.library)[line.method].items()
        },
    }
    if line.method == "FedALA":
        algorithm["share"] /= 100  # -s is in percent
    mix = models(line)
    needs = ALGORITHMS[algorithm["name"]].load()().needs
    joined = int(values.num_clients * values.join_ratio)  # as the libraries round it
    local = {
        "optimiser": "sgd",
        "lr": values.local_learning_rate,
        "batch": values.batch_size,
        "epochs": values.local_epochs,
    }
    if line.method == "pFedMe":
        local["lr"] = values.p_learning_rate
    if values.learning_rate_decay and line.library == "pfllib":
        milestones = [*range(1, values.global_rounds)]
        decay = values.learning_rate_decay_gamma
        local |= {"schedule": "step", "milestones": milestones, "decay": decay}
    table: dict[str, Any] = {
        "rounds": values.global_rounds,
        "clients": values.num_clients,
        "participation": joined / values.num_clients if values.num_clients else 1.0,
        "algorithm": algorithm,
        "models": {"mix": list(mix)} | ({"proxy": mix[0]} if "proxy" in needs else {}),
        "data": data(line, generate),
        "local": local,
        "evaluate": {"every": values.eval_gap, "before": False, "received": True},
    }
    if values.feature_dim != 512:
        table["models"]["d"] = values.feature_dim
    if values.client_drop_rate:
        table["system"] = {"dropout": values.client_drop_rate}
    if values.device == "cpu":
        table["run"] = {"device": "cpu"}
    return table


def find(name: str, names: Iterable[str], others: Mapping[str, str], what: str) -> str:
    """Return the library's spelling of a name.

    others: names without counterpart in hpcfed, with what it lacks.
    Raises ConfigError for these and for unknown names.
    """
    spellings = {bare(one): one for one in names}
    if bare(name) in spellings:
        return spellings[bare(name)]
    if lacks := {bare(one): why for one, why in others.items()}.get(bare(name)):
        raise ConfigError(
            f"import: {what} {name} has no counterpart, because hpcfed has {lacks}; these have "
            f"one: {', '.join(spellings.values())}"
        )
    raise ConfigError(f"import: {unknown(what, name, [*spellings.values(), *others])}")


def models(line: Line) -> tuple[str, ...]:
    """Return the architectures of -m."""
    name = line.value("-m")
    if line.library == "pfllib":
        return (MODELS[find(name, MODELS, OTHER_MODELS, "model")],)
    name = {bare(old).replace("img", ""): old for old in (*FAMILIES, *OTHER_FAMILIES)}.get(
        bare(name), name
    )  # HtFE8 is an older name of HtFE-img-8
    family = find(name, FAMILIES, OTHER_FAMILIES, "model family")
    return tuple(f"torchvision:{m}" if m != "cnn" else m for m in FAMILIES[family])


def data(line: Line, generate: str) -> dict[str, Any]:
    """Return the fields of [data]: the data set, and its partition by generate_DATA.py."""
    name, classes = DATA[find(line.values.dataset, DATA, OTHER_DATA, "data set")]
    how: dict[str, Any] = {"partition": "natural"}
    if classes:
        skew, _, partition = (*generate.split(), "", "", "")[:3]
        kind = partition if skew == "noniid" else skew
        if kind not in PARTITIONS:
            raise ConfigError(
                f"import: --generate {generate!r}: "
                + unknown("partition", kind, ["iid - -", "noniid - dir", "noniid - pat"])
            )
        how = PARTITIONS[kind] | ({"classes_per_client": classes} if kind == "pat" else {})
    return {"name": name, **how, "test_share": TEST_SHARE}


def without_counterpart(line: Line) -> Iterator[tuple[str, Any, str]]:
    """Yield the given flags that the job does not have, with their value and the reason."""
    read = methods_of(line.library)[line.method].values()
    for short, value in line.flags.items():
        name = short.removeprefix("-")
        if name in OF_SOME and short not in read and (name, line.method) != ("lrp", "pFedMe"):
            yield short, value, f"hpcfed's {line.method} does not read it"
        elif name in FLAGS and FLAGS[name].without:
            yield short, value, FLAGS[name].without
        elif name in ("ld", "ldg") and line.library == "htfllib":
            yield short, value, "the library does not read it either"


def differences(line: Line, table: dict[str, Any], generate: str) -> Iterator[str]:
    """Yield in what the job differs from the library, beyond flags."""
    if table["data"]["partition"] == "natural":
        yield "the data have natural clients; -nc has to be their number, or lower"
    else:
        yield f"partition: generate_{line.values.dataset}.py {generate} (--generate)"
    if table["data"]["partition"] in ("classes", "iid") and "balance" not in generate:
        yield "clients have equally many examples; the library's numbers are drawn (- - or - pat)"
    if line.values.client_drop_rate:
        yield "-cdr is the probability that a client is lost; the library loses this share"
    if table["local"].get("milestones"):
        yield "-ld: the rate falls each round; the library's, when the client takes part"
    yield from (OF_MODELS[model] for model in table["models"]["mix"] if model in OF_MODELS)
    if line.library == "htfllib":
        yield "representations of other widths get a linear layer to models.d; the library averages"
    if any("vit_" in model for model in table["models"]["mix"]):
        yield "the heads of vision transformers are one layer"
    if line.method in OF_METHODS:
        yield OF_METHODS[line.method]
    if line.method not in METHODS[line.library]:
        yield f"{line.method}'s own fields have hpcfed's defaults (hpcfed show {line.method})"
    yield from SAME_FOR_ALL
