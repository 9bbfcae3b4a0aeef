"""The page that helps to choose a method: what may differ between clients, what travels, what it
needs, what it costs beside FedAvg, and where its paper saw it win.

All but the cost is the methods' own; that is of the committed results of benchmarks/methods.py.
"""

import json
from pathlib import Path
from typing import Any

from methods import MODELS, time, title
from text import joined, prose, table

from hpcfed.algorithms import ALGORITHMS
from hpcfed.algorithms.base import Method
from hpcfed.config.methods import by_kind
from hpcfed.report.catalogue import needs_of

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "benchmarks/results/methods/table.json"
UNKNOWN = "not measured yet"
DATA = "fashion-mnist"  # whose cost is shown
HEAD = (
    "method",
    "made for data that are",
    "models of clients",
    "speeds",
    "what is sent",
    "also needs",
    "seconds",
    "bytes",
    "its paper saw it win",
)
INTRO = """
# Choosing a method

Begin with what differs between your clients.

- **Their models**, and you have no public data: FedClassAvg, LG-FedAvg, FedProto and FedGH share a
  head or class means; FML, FedKD and FedType a small common model; FedZKT has the server make
  examples. With public data there are FedMD, DS-FL, KT-pFL, FedHeNN and FedDF.
- **Their strength**, with one model: HeteroFL, FedRolex, FjORD, Federated Dropout.
- **Their speed**: what has *no waiting* below; or FedProx and FedNova, which count unfinished work.
- **Their data**, with one model: for a global model FedAvg first, then SCAFFOLD, FedDyn, MOON; for
  personal ones FedRep, Ditto, Per-FedAvg; in clusters IFCA, FeSEM, CFL.
- **Their domains**, with the same classes (scanners, writers, cameras): FedBN, if the model has
  batch normalisation.
- **How often they take part**: MIFA.
- **Their modalities**: Harmony; and any method of one architecture, with a fusion model
  (`models.mix = ["concat"]`) whose encoders of missing modalities are not used.

Hold a method against local training and FedAvg on your data before you believe a table, this one
too.

*Seconds* and *bytes* are multiples of FedAvg's: of a run, and of what a client sends and receives
when it takes part, both in [the table of all methods](benchmarks/results/methods/table.md)
(Fashion-MNIST; methods for different models there have five small ones). *Its paper* is each
method's own: papers differ in data, tuning and rivals.
"""


def page() -> str:
    """The page."""
    costs = measured()
    parts = (
        (f"## {kind[0].upper()}{kind[1:]}", table(HEAD, (row(name, costs) for name in entries)))
        for kind, entries in by_kind().items()
    )
    return joined(INTRO, *(text for part in parts for text in part))


def row(name: str, costs: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    """One method."""
    own, cost = ALGORITHMS[name].load()(), costs.get(name, {})
    return (
        f"[{title(name)}](algorithms/{name}.md)",
        prose(own.guide.data),
        MODELS.get(own.accepts, own.accepts),
        speeds(own),
        prose(own.guide.sent),
        ", ".join(needs_of(own)),
        *(
            f"{cost[ratio]:.2g} x" if ratio in cost else UNKNOWN
            for ratio in ("seconds_ratio", "bytes_ratio")
        ),
        prose(own.guide.won),
    )


def speeds(own: Method) -> str:
    """What becomes of clients that are slower than others."""
    if "virtual time" in time(own):
        return "no waiting"
    return "unfinished work counts" if own.keeps_stragglers else "rounds wait"


def measured() -> dict[str, dict[str, Any]]:
    """Each method's first row in the table of all methods; none where that is not there."""
    found: dict[str, dict[str, Any]] = {}
    for entry in json.loads(MEASURED.read_text())[DATA] if MEASURED.exists() else ():
        if "label" in entry:  # else of the table as it was before it had costs
            found.setdefault(entry["method"], entry)
    return found
