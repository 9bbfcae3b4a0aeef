"""The registry of algorithms: one line each; the file of that name holds the method.

A method of your own needs no line here: `algorithm.name = "mine:Mine"` is class Mine of mine.py, in the folder
where you start or anywhere on Python's path.
"""

from hpcfed.config.parts import Part
from hpcfed.errors import ConfigError
from hpcfed.registry import Entry, find

ALGORITHMS = {
    "local": Entry("hpcfed.algorithms.local:Local", "each client trains alone; nothing is exchanged"),
    "central": Entry("hpcfed.algorithms.central:Central", "one model on all clients' data pooled (upper bound)"),
    "fedsgd": Entry("hpcfed.algorithms.fedsgd:FedSGD", "one full-batch gradient per client and round", "mcmahan2017"),
    "fedavg": Entry("hpcfed.algorithms.fedavg:FedAvg", "weighted mean of locally trained models", "mcmahan2017"),
    "fedprox": Entry("hpcfed.algorithms.fedprox:FedProx", "FedAvg with a proximal term; stragglers count", "li2020"),
    "fedclassavg": Entry(
        "hpcfed.algorithms.fedclassavg:FedClassAvg",
        "different architectures share their classifier; supervised contrastive local training",
        "jang2022,khosla2020",
    ),
}


def load(name: str) -> type:
    """The class of an algorithm: a registered name, or "module:Class". ConfigError if there is none."""
    if ":" not in name:
        return find("algorithm", name, ALGORITHMS).load()
    try:
        cls = Entry(name, "").load()
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"algorithm.name = {name!r}: cannot load it: {error}; write module:Class") from error
    if not (isinstance(cls, type) and issubclass(cls, Part)):
        raise ConfigError(f"algorithm.name = {name!r} is no algorithm; it must be a subclass of RoundBased")
    return cls
