"""The registry of algorithms: one line each; the file of that name holds the method."""

from hpcfed.registry import Entry

ALGORITHMS = {
    "local": Entry("hpcfed.algorithms.local:Local", "each client trains alone; nothing is exchanged"),
    "central": Entry("hpcfed.algorithms.central:Central", "one model trained on all clients' data pooled (upper bound)"),
    "fedsgd": Entry("hpcfed.algorithms.fedsgd:FedSGD", "one full-batch gradient per client and round", "mcmahan2017"),
    "fedavg": Entry("hpcfed.algorithms.fedavg:FedAvg", "weighted mean of locally trained models", "mcmahan2017"),
    "fedprox": Entry("hpcfed.algorithms.fedprox:FedProx", "FedAvg with a proximal term; keeps stragglers' work", "li2020"),
    "fedclassavg": Entry(
        "hpcfed.algorithms.fedclassavg:FedClassAvg",
        "different architectures share their classifier; supervised contrastive local training",
        "jang2022,khosla2020",
    ),
}
