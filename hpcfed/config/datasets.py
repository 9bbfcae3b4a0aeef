"""Registries of the data sets and of the partitions.

They have names and lines, without the code behind them.
"""

from dataclasses import dataclass

from hpcfed.core.registry import Entry


@dataclass(frozen=True)
class Scheme(Entry):
    """One partition: its target is called as function(labels, clients, *values, g).

    The target returns the clients' shares, as indices into the labels.
    complete: whether every example goes to some client.
    by_class: whether it goes by the classes of examples.
    by_user: whether it goes by the users that the data name, who take the place of labels.
    fields: of [data], whose values it takes.
    """

    complete: bool = False
    by_class: bool = False
    by_user: bool = False
    fields: tuple[str, ...] = ()


def _vision(line: str, cite: str) -> Entry:
    return Entry("hpcfed.data.vision:load", line, cite)


DATASETS = {  # a target is called as function(name, root, download, how) and returns a DataSet
    "cifar10": _vision("photographs, 10 classes, 50,000 + 10,000, 3x32x32", "krizhevsky2009cifar"),
    "cifar100": _vision(
        "photographs, 100 classes, 50,000 + 10,000, 3x32x32", "krizhevsky2009cifar"
    ),
    "mnist": _vision("handwritten digits, 10 classes, 60,000 + 10,000, 1x28x28", "lecun1998mnist"),
    "fashion-mnist": _vision("clothes, 10 classes, 60,000 + 10,000, 1x28x28", "xiao2017fashion"),
    "emnist-letters": _vision(
        "handwritten letters, 26 classes, 124,800 + 20,800, 1x28x28", "cohen2017emnist"
    ),
    "emnist-balanced": _vision(
        "digits and letters, 47 classes, 112,800 + 18,800, 1x28x28", "cohen2017emnist"
    ),
    "emnist-digits": _vision(
        "handwritten digits, 10 classes, 240,000 + 40,000, 1x28x28", "cohen2017emnist"
    ),
    "svhn": _vision("house numbers, 10 classes, 73,257 + 26,032, 3x32x32", "netzer2011svhn"),
    "usps": _vision("digits from envelopes, 10 classes, 7,291 + 2,007, 1x16x16", "hull1994usps"),
    "digits": Entry(
        "hpcfed.data.digits:load",
        "small scans of digits, 10 classes, 1,437 + 360, 1x16x16; no download",
        "alpaydin1998digits",
    ),
    "digits-domains": Entry(
        "hpcfed.data.domains:load",
        "digits from 5 sources, 10 classes, 37,190 + 105,717, 3x28x28; Digit-5 as FedBN has it",
        "li2021fedbn,ganin2015",
    ),
    "synthetic": Entry(
        "hpcfed.data.synthetic:load",
        "Synthetic(alpha, beta): a population of any size, 10 classes, 60 features; no download",
        "li2020",
    ),
    "utd-mhad": Entry(
        "hpcfed.data.utd_mhad:load",
        "27 actions of 8 people, 648 + 213; accelerometer, gyroscope, skeleton",
        "chen2015",
    ),
    "health-records": Entry(
        "hpcfed.data.records:load",
        "made as FedCovid describes its own: 29 states, 5,006 + 1,520 patients; no download",
        "wang2022",
    ),
    "heart-disease": Entry(
        "hpcfed.data.heart:load",
        "heart disease at 4 hospitals as FLamby has it, 486 + 254, 13 features",
        "flamby2022",
    ),
    "tcga-brca": Entry(
        "hpcfed.data.tcga:load",
        "survival after breast cancer in 6 regions as FLamby has it, 866 + 222, 39 features",
        "flamby2022",
    ),
    "uci-har": Entry(
        "hpcfed.data.har:load",
        "6 activities of 30 people, 7,352 + 2,947; accelerometer, gyroscope",
        "anguita2013",
    ),
    "femnist": Entry(
        "hpcfed.data.leaf:femnist",
        "digits and letters by writer, 62 classes, 1x28x28; LEAF's files",
        "caldas2018leaf",
    ),
    "celeba": Entry(
        "hpcfed.data.celeba:load",
        "faces by celebrity, smiling or not, 3x84x84; torchvision's files",
        "liu2015,caldas2018leaf",
    ),
    "shakespeare": Entry(
        "hpcfed.data.leaf:shakespeare",
        "the next of 80 characters by role; LEAF's files",
        "caldas2018leaf",
    ),
    "sentiment140": Entry(
        "hpcfed.data.sentiment140:load",
        "tweets, negative or positive, 1,600,000 + 359, tokens",
        "go2009",
    ),
}

PARTITIONS = {
    "iid": Scheme(
        "hpcfed.data.schemes:iid", "at random, equal sizes", "mcmahan2017", complete=True
    ),
    "dirichlet": Scheme(
        "hpcfed.data.partition:dirichlet",
        "class proportions from Dirichlet(alpha); sizes equal (a few left over) or free",
        "hsu2019,yurochkin2019",
        by_class=True,
        fields=("alpha", "sizes"),
    ),
    "classes": Scheme(
        "hpcfed.data.schemes:classes",
        "classes_per_client classes per client, equal sizes as far as possible",
        "jang2022",
        by_class=True,
        fields=("classes_per_client",),
    ),
    "shards": Scheme(
        "hpcfed.data.schemes:shards",
        "sorted by label and cut; shards_per_client pieces per client",
        "mcmahan2017",
        complete=True,
        by_class=True,
        fields=("shards_per_client",),
    ),
    "quantity": Scheme(
        "hpcfed.data.schemes:quantity",
        "log-normal sizes, labels at random",
        complete=True,
        fields=("spread",),
    ),
    "natural": Scheme(
        "hpcfed.data.schemes:natural",
        "by the users that the data come from",
        complete=True,
        by_user=True,
        fields=("clients_per_domain",),
    ),
    "sizes": Scheme(
        "hpcfed.data.schemes:sizes",
        "at random, client_sizes examples each",
        "flower",
        fields=("client_sizes",),
    ),
    "linear": Scheme(
        "hpcfed.data.schemes:linear",
        "at random, sizes in proportion to 1, 2, 3, ...",
        "flower",
        complete=True,
    ),
    "square": Scheme(
        "hpcfed.data.schemes:square",
        "at random, sizes in proportion to 1, 4, 9, ...",
        "flower",
        complete=True,
    ),
    "exponential": Scheme(
        "hpcfed.data.schemes:exponential",
        "at random, sizes in proportion to e, e^2, e^3, ...",
        "flower",
        complete=True,
    ),
    "inner-dirichlet": Scheme(
        "hpcfed.data.schemes:inner_dirichlet",
        "client_sizes examples each, drawn one by one from Dirichlet(alpha)",
        "acar2021,flower",
        by_class=True,
        fields=("alpha", "client_sizes"),
    ),
    "pathological": Scheme(
        "hpcfed.data.schemes:pathological",
        "classes_per_client classes per client, chosen by class_choice; free sizes",
        "li2022,flower",
        by_class=True,
        fields=("classes_per_client", "class_choice"),
    ),
    "distribution": Scheme(
        "hpcfed.data.schemes:distribution",
        "classes_per_client neighbouring classes per client, shares of a table or log-normal",
        "li2020,flower",
        complete=True,
        by_class=True,
        fields=("classes_per_client", "distribution", "preassigned", "rescale", "spread"),
    ),
}
