"""Registry of the algorithms, with one line for each.

The file of an algorithm's name, in the folder of its kind, holds the method.

Your own method needs no line here: `algorithm.name = "mine:Mine"` is class Mine of mine.py, in the
current directory or anywhere on Python's path.
"""

from typing import Any

from hpcfed.config.sections import Section
from hpcfed.core import user_code
from hpcfed.core.errors import ConfigError
from hpcfed.core.registry import Entry, find

KINDS = {  # folders of hpcfed/algorithms, in the order in which methods are listed
    "references": "references",
    "global_model": "one global model",
    "matching": "one global model, units matched",
    "common_head": "different models, a common head",
    "public_data": "different models, public data",
    "data_free": "synthetic examples, no public data",
    "proxies": "different models, a small common or server model",
    "widths": "one model in several widths or depths",
    "personal": "personal models, one architecture",
    "clusters": "clusters of clients",
    "bayesian": "distributions over models",
    "multimodal": "several modalities, health records",
    "asynchronous": "asynchronous, in virtual time",
    "decentralised": "decentralised, without a server",
}


def methods(kind: str, **rows: tuple[str, ...]) -> dict[str, Entry]:
    """Return the methods of one category, a key of KINDS.

    rows: class, line of description, and keys of references.bib, by the name of the method, which
    is also that of its file.
    """
    folder = f"hpcfed.algorithms.{kind}"
    return {name: Entry(f"{folder}.{name}:{cls}", *about) for name, (cls, *about) in rows.items()}


ALGORITHMS = {
    **methods(
        "references",
        local=("Local", "each client trains alone; nothing is exchanged"),
        central=("Central", "one model on all clients' data pooled (upper bound)"),
        fedsgd=("FedSGD", "one full-batch gradient per client and round", "mcmahan2017"),
    ),
    **methods(
        "global_model",
        fedavg=("FedAvg", "weighted mean of locally trained models", "mcmahan2017"),
        fedprox=("FedProx", "FedAvg with a proximal term; stragglers count", "li2020"),
        fednova=(
            "FedNova",
            "updates divided by their numbers of steps; stragglers count",
            "wang2020",
        ),
        feddyn=(
            "FedDyn",
            "dynamic regularisation makes the clients' optima the common one",
            "acar2021",
        ),
        moon=(
            "MOON",
            "pulls representations to the global model's, away from the client's previous ones",
            "li2021moon",
        ),
        fedpan=("FedPAN", "FedAvg of networks whose units know their position", "li2022fedpan"),
        fedrare=(
            "FedRare",
            "FedAvg that contrasts rare classes in batches and with all clients' class vectors",
            "wu2022fedrare",
        ),
        fed2=(
            "Fed2",
            "upper layers in groups by class, averaged over clients with these classes",
            "yu2021fed2",
        ),
        fedpd=(
            "FedPD",
            "augmented Lagrangians with a dual variable per client; may skip communication",
            "zhang2021fedpd",
        ),
        fedsplit=(
            "FedSplit",
            "Peaceman-Rachford splitting: proximal steps from reflected variables",
            "pathak2020",
        ),
        reptile=(
            "Reptile",
            "FedAvg, then few steps and Adam on the server: a start that personalises well",
            "jiang2019",
        ),
        aruba=("ARUBA", "FedAvg with a learned local rate for each weight", "khodak2019"),
        semicyclic=(
            "SemiCyclic",
            "clients by time of day; one model per block, read out of the common chain",
            "eichner2019",
        ),
        fedclip=(
            "FedCLIP",
            "a frozen dual encoder; an adapter on its images' features is trained and sent",
            "lu2023fedclip,radford2021",
        ),
        scaffold=("Scaffold", "control variates against drift", "karimireddy2020"),
        feddane=(
            "FedDANE",
            "local training corrected by the mean gradient of a first exchange",
            "li2019feddane",
        ),
        feddist=(
            "FedDist",
            "FedAvg that moves part of the way to the mean; +WS by examples",
            "long2023",
        ),
        fedavgm=("FedAvgM", "FedAvg whose server has momentum", "hsu2019"),
        fedopt=("FedOpt", "the server steps by Adam, Yogi or Adagrad (FedAdam, ...)", "reddi2021"),
        fedsam=(
            "FedSAM",
            "gradients where one step of ascent leads: flat minima",
            "qu2022,caldarola2022",
        ),
        fedasam=(
            "FedASAM",
            "FedSAM whose ascent follows the scale of weights",
            "caldarola2022,kwon2021",
        ),
        fedspeed=("FedSpeed", "FedDyn with gradients after one step of ascent", "sun2023"),
        fedexp=(
            "FedExP",
            "the server extrapolates, the further the more updates differ",
            "jhunjhunwala2023",
        ),
        mifa=("MIFA", "absent clients count with their latest updates", "gu2021mifa"),
        qfedavg=("QFedAvg", "clients with larger losses count for more", "li2020qffl"),
        afl=("AFL", "the worst mixture of clients counts", "mohri2019"),
        fedlaw=("FedLAW", "the server learns the models' weights on labelled data", "li2023fedlaw"),
        fedrs=("FedRS", "logits of classes that a client lacks are scaled down", "li2021fedrs"),
        fedlc=(
            "FedLC",
            "margins by a client's examples of each class calibrate its logits",
            "zhang2022fedlc",
        ),
        fedntd=(
            "FedNTD",
            "clients keep the received model's scores of all classes but the true one",
            "lee2022fedntd",
        ),
        feddecorr=(
            "FedDecorr",
            "a loss decorrelates the components of representations",
            "shi2023feddecorr",
        ),
        cyclic=("Cyclic", "one model goes from client to client", "chang2018,flamby2022"),
        ccvr=(
            "CCVR",
            "FedAvg, then the head learns features drawn from a Gaussian of each class",
            "luo2021",
        ),
    ),
    **methods(
        "matching",
        otfusion=(
            "OTFusion",
            "units moved onto those of one model by optimal transport, then averaged",
            "singh2020",
        ),
        pfnm=("PFNM", "units matched; a beta process determines their number", "yurochkin2019"),
        fedma=(
            "FedMA",
            "units matched layer by layer; clients continue to train the layers above",
            "wang2020fedma",
        ),
    ),
    **methods(
        "common_head",
        fedclassavg=(
            "FedClassAvg",
            "different architectures share their classifier; supervised contrastive local training",
            "jang2022,khosla2020",
        ),
        lgfedavg=("LGFedAvg", "a common head, personal bodies", "liang2020"),
        fedproto=("FedProto", "only class means travel", "tan2022"),
        fedl2g=(
            "FedL2G",
            "the server learns a vector of each class that guides logits or representations",
            "zhang2024fedl2g",
        ),
        fd=("FD", "only mean outputs by class travel", "jeong2018"),
        fedgh=("FedGH", "the server trains the head on class means", "yi2023"),
        fedtgp=(
            "FedTGP",
            "the server trains prototypes that lie apart by a margin",
            "zhang2024fedtgp",
        ),
        fedorgp=(
            "FedORGP",
            "the server trains prototypes that are orthogonal",
            "guo2025fedorgp",
        ),
    ),
    **methods(
        "public_data",
        fedmd=("FedMD", "clients agree on their scores of public examples", "li2019fedmd"),
        dsfl=("DSFL", "clients learn a sharpened mean of soft predictions", "itahara2023"),
        feddf=("FedDF", "FedAvg by architecture, then ensemble distillation", "lin2020"),
        heterossfl=(
            "HeteroSSFL",
            "clients learn without labels; their representations' kernels are pulled to the mean",
            "makhija2022ssfl",
        ),
        fccl=(
            "FCCL",
            "clients correlate their scores of public examples, "
            "and forget neither others nor themselves",
            "huang2022",
        ),
        fedet=(
            "FedET",
            "FedAvg by architecture; the small models teach a large one on the server",
            "cho2022",
        ),
        pfedhr=(
            "PFedHR",
            "models stitched from blocks of the clients' models teach each client",
            "wang2023",
        ),
        fedhenn=(
            "FedHeNN",
            "representations of common examples agree; different or one architecture",
            "makhija2022,kornblith2019",
        ),
        ktpfl=("KTpFL", "personal mixtures of soft predictions", "zhang2021,jang2022"),
        fedktl=(
            "FedKTL",
            "class means become latent vectors, and a generator makes images of classes from them",
            "zhang2024fedktl,deng2019arcface",
        ),
    ),
    **methods(
        "data_free",
        fedzkt=(
            "FedZKT",
            "any models and the server's teach one another on generated examples",
            "zhang2022zkt",
        ),
        zeroshot=(
            "ZeroShot",
            "FedAvg with synthetic examples of missing classes, made at clients or at the server",
            "hao2021zeroshot",
        ),
        fedgen=(
            "FedGen",
            "a generator at the server makes representations of classes that clients train on",
            "zhu2021fedgen",
        ),
        fedsynth=(
            "FedSynth",
            "clients send a few synthetic examples whose gradient is their update",
            "goetz2020",
        ),
    ),
    **methods(
        "proxies",
        fml=("FML", "own and common model learn from each other", "shen2020,hinton2015"),
        fedkd=(
            "FedKD",
            "own and common model learn from each other; the common one travels in small factors",
            "wu2022",
        ),
        fedmrl=(
            "FedMRL",
            "a common model's representation is fused with the own one, the coarse part of it",
            "yi2024fedmrl",
        ),
        ghn=(
            "GHN",
            "a common graph hyper-network makes the weights of each client's own model",
            "litany2022",
        ),
        fedkemf=(
            "FedKEMF",
            "own models and small knowledge networks, which the server fuses on public data",
            "yu2022",
        ),
        fedtype=(
            "FedType",
            "private models imitate small proxies where conformal sets agree; "
            "proxies are aggregated as in FedAvg, FedProx, pFedMe or pFedBayes",
            "wang2024,angelopoulos2021",
        ),
        fedgkt=("FedGKT", "small clients and a large server teach each other", "he2020"),
    ),
    **methods(
        "widths",
        heterofl=("HeteroFL", "slices of one model by clients' widths", "diao2021"),
        fedrolex=("FedRolex", "slices that roll through one model", "alam2022"),
        feddropout=("FedDropout", "random parts of one model", "caldas2018"),
        fjord=("FjORD", "ordered dropout: nested slices of one model", "horvath2021"),
        inclusivefl=(
            "InclusiveFL",
            "models of several depths; last layers of shallow ones learn from deeper ones",
            "liu2022inclusivefl",
        ),
        depthfl=(
            "DepthFL",
            "models of several depths, whose classifiers teach each other",
            "kim2023depthfl,acar2021",
        ),
        fiarse=(
            "FIARSE",
            "the largest weights of one model, as many as a client can hold",
            "wu2024fiarse",
        ),
    ),
    **methods(
        "personal",
        fedper=("FedPer", "a common body, personal heads", "arivazhagan2019"),
        fedrep=("FedRep", "a common body, personal heads, trained in turn", "collins2021"),
        fedbabu=(
            "FedBABU",
            "a common body for a random head; personal after fine-tuning",
            "oh2022fedbabu",
        ),
        fedrod=(
            "FedRoD",
            "a common model of balanced classes, and a personal head that adds to its logits",
            "chen2022fedrod",
        ),
        apfl=("APFL", "a common model, mixed with a model of each client", "deng2020apfl"),
        fedcp=(
            "FedCP",
            "a policy divides representations between a common and a personal head",
            "zhang2023fedcp,gretton2012",
        ),
        gpfl=(
            "GPFL",
            "common embeddings of classes open a valve for global and personal features",
            "zhang2023gpfl",
        ),
        fedbn=("FedBN", "all but batch normalisation is common", "li2021fedbn"),
        fedala=(
            "FedALA",
            "clients learn how much of each weight they take from the global model",
            "zhang2023fedala",
        ),
        fedpac=(
            "FedPAC",
            "a common body and prototypes; each client gets the mixture of heads that suits it",
            "xu2023fedpac",
        ),
        fedfomo=(
            "FedFomo",
            "clients mix those of several models that help on their validation examples",
            "zhang2021fedfomo",
        ),
        fedamp=("FedAMP", "clients are drawn to mixtures of similar models", "huang2021fedamp"),
        perfedavg=("PerFedAvg", "an initial model that one step adapts", "fallah2020"),
        pfedme=("PFedMe", "personal models near a common one", "dinh2020"),
        waffle=(
            "WAFFLe",
            "weights are products of common factors, of which each client selects its own",
            "hao2020waffle",
        ),
        ditto=("Ditto", "FedAvg, and personal models near its model", "li2021ditto"),
        pfedknow=(
            "PFedKnow",
            "clients without labels prune their models; a labelled server and their peers teach",
            "wang2023pfedknow",
        ),
        mocha=(
            "MOCHA",
            "linear models whose relations are learned; clients ascend the dual",
            "smith2017",
        ),
    ),
    **methods(
        "clusters",
        ifca=("IFCA", "each client trains the best of several", "ghosh2020,mansour2020"),
        fesem=("FeSEM", "clients train from the nearest centre", "long2023"),
        tkm=("TKM", "clusters by trimmed K-means, with robust centres", "ghosh2019,long2023"),
        cfl=("CFL", "a cluster is split if its clients' updates diverge", "sattler2021,long2023"),
        fesemma=(
            "FeSEMMA",
            "FeSEM with units matched before they are averaged",
            "long2023,wang2020fedma",
        ),
    ),
    **methods(
        "bayesian",
        fedbe=("FedBE", "the mean model learns from models drawn around the clients'", "chen2021"),
        pfedbayes=("PFedBayes", "personal Gaussians over weights, near a common one", "zhang2022"),
    ),
    **methods(
        "multimodal",
        harmony=(
            "Harmony",
            "modality-wise training, then fusion in clusters by how encoders moved",
            "ouyang2023",
        ),
        fedcovid=(
            "FedCovid",
            "records with few positives: copies of them, a margin, "
            "logarithmic weights, large clients first",
            "wang2022",
        ),
    ),
    **methods(
        "asynchronous",
        fedasync=("FedAsync", "asynchronous: models are merged as they arrive", "xie2019"),
        fedbuff=("FedBuff", "a new model from every K updates in a buffer", "nguyen2022"),
        fedcompass=(
            "FedCompass",
            "steps by speed, so that clients arrive in groups",
            "li2024fedcompass",
        ),
    ),
    **methods(
        "decentralised",
        swift=("SWIFT", "decentralised and wait-free, in virtual time", "bornstein2023"),
        dsgd=(
            "DSGD",
            "decentralised in step: D-SGD, and PA-SGD and LD-SGD as its schedules",
            "lian2017,li2019ldsgd",
        ),
        dsgt=("DSGT", "decentralised; clients track the gradient of all", "pu2021"),
    ),
}


def bare(name: str) -> str:
    """Return a name without case and hyphens: fedavg for FedAvg, ktpfl for KT-pFL."""
    return "".join(c for c in name.lower() if c.isalnum())


SPELLINGS = {bare(name): name for name in ALGORITHMS}
IN_PAPERS = {  # spellings of papers that differ from the names of the classes
    "scaffold": "SCAFFOLD",
    "qfedavg": "q-FedAvg",
    "semicyclic": "Semi-Cyclic SGD",
    "otfusion": "OT fusion",
    "lgfedavg": "LG-FedAvg",
    "dsfl": "DS-FL",
    "heterossfl": "Hetero-SSFL",
    "fedet": "Fed-ET",
    "pfedhr": "pFedHR",
    "ktpfl": "KT-pFL",
    "feddropout": "Federated Dropout",
    "perfedavg": "Per-FedAvg",
    "pfedknow": "pFedKnow",
    "pfedme": "pFedMe",
    "waffle": "WAFFLe",
    "fesemma": "FeSEM-MA",
    "pfedbayes": "pFedBayes",
    "dsgd": "D-SGD",
}


def spelling(name: str) -> str:
    """Return a method's name as its paper spells it; of a user's "module:Class" the class."""
    if name in IN_PAPERS:
        return IN_PAPERS[name]
    target = ALGORITHMS[name].target if name in ALGORITHMS else name
    return target.rpartition(":")[2]


def name_of(cls: type) -> str:
    """Return a method's name in jobs by its class: a registered one, or "module:Class"."""
    target = f"{module_of(cls)}:{cls.__name__}"
    return next((name for name, entry in ALGORITHMS.items() if entry.target == target), target)


def own_name(thing: Any) -> str:
    """Return the name in jobs of a user's class, function or `partial`: "module:name"."""
    target = getattr(thing, "func", thing)  # of a functools.partial, its function
    name = getattr(target, "__qualname__", type(target).__name__).rpartition(".")[2]
    return f"{module_of(target)}:{name if name.isidentifier() else 'given'}"  # of a lambda


def module_of(target: Any) -> str:
    """Return the module of a class or function; __main__ if that has no name for imports."""
    module = getattr(target, "__module__", None) or ""
    is_name = all(part.isidentifier() for part in module.split("."))  # not runpy's <run_path>
    return module if is_name else "__main__"


def place(name: str) -> int:
    """Return a method's place in the order of lists; users' methods are last."""
    return PLACES.get(name, len(PLACES))


PLACES = {name: i for i, name in enumerate(ALGORITHMS)}


def kind_of(entry: Entry) -> str:
    """Return the category of a registered method, a key of KINDS: the folder of its file."""
    return entry.target.split(".")[2]


def by_kind() -> dict[str, dict[str, Entry]]:
    """Return the registered methods by the title of their kind, in the order of lists."""
    groups: dict[str, dict[str, Entry]] = {title: {} for title in KINDS.values()}
    for name, entry in ALGORITHMS.items():
        groups[KINDS[kind_of(entry)]][name] = entry
    return {title: entries for title, entries in groups.items() if entries}


def registered_name(name: str) -> str:
    """Return a method's name in the registry, from any spelling: fedavg for FedAvg or Fed-Avg.

    Other names are returned as they are.
    """
    return name if name in ALGORITHMS else SPELLINGS.get(bare(name), name)


def with_registered_name(values: dict[str, Any]) -> dict[str, Any]:
    """Return the nested values of a job with the method's name as in the registry."""
    table = values.get("algorithm")
    if not (isinstance(table, dict) and isinstance(table.get("name"), str)):
        return values
    return values | {"algorithm": table | {"name": registered_name(table["name"])}}


def load(name: str) -> type:
    """Return the class of an algorithm, from a registered name or "module:Class".

    Raises ConfigError if there is none.
    """
    if ":" not in name:
        return find("algorithm", name, ALGORITHMS).load()
    cls = user_code.load("algorithm.name", name, "module:Class")
    if not (isinstance(cls, type) and issubclass(cls, Section)):
        attribute = name.partition(":")[2]
        raise ConfigError(
            f"algorithm.name = {name!r}: {user_code.line_of(cls)}: {attribute} is not an "
            f"algorithm; write `class {attribute}(RoundBased):`, or EventBased"
        )
    return cls
