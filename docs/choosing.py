"""The page that helps to choose a method: what may differ between clients, what travels, what it
needs, what it costs beside FedAvg, and where its paper saw it win.

Guides are the methods' own. Bytes are measured on trial rounds (traffic.py), passes and seconds are
of the committed results of benchmarks/methods.py, and what a method adds to local training that
does the same work is of those of benchmarks/study.
"""

import json
from pathlib import Path
from typing import Any

from methods import MODELS, time, title
from text import joined, prose, table
from traffic import cost

from hpcfed.algorithms import ALGORITHMS
from hpcfed.algorithms.base import Method
from hpcfed.config.methods import by_kind
from hpcfed.report.catalogue import needs_of

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "benchmarks/results/methods/table.json"
VERDICTS = ROOT / "benchmarks/results/study/verdicts.json"
UNKNOWN = "not measured yet"
DATA = "fashion-mnist"  # whose cost is shown
HEAD = (
    "method",
    "made for data that are",
    "models of clients",
    "speeds",
    "what is sent",
    "also needs",
    "receives",
    "sends",
    "keeps",
    "passes",
    "seconds",
    "its paper saw it win",
    "beside the same work alone",
)
INTRO = """
# Choosing a method

Begin with what differs between your clients.

- **Their models**, and you have no public data: FedClassAvg, LG-FedAvg, FedProto and FedGH share a
  head or class means; FML, FedKD and FedType a small common model; FedZKT has the server make
  examples. With public data there are FedMD, DS-FL, KT-pFL, FedHeNN and FedDF.
- **Their strength**, with one model: HeteroFL, FedRolex, FjORD, Federated Dropout.
- **Their speed**: what has *no waiting* below; or FedProx and FedNova, which count unfinished work.
  With any method in rounds, `selection.by = "oort"` draws slow clients less often.
- **Their data**, with one model: for a global model FedAvg first, then SCAFFOLD, FedDyn, MOON; for
  personal ones FedRep, Ditto, Per-FedAvg, FedALA, FedPAC; in clusters IFCA, FeSEM, CFL; where
  nobody knows the groups, FedAMP.
- **Their domains**, with the same classes (scanners, writers, cameras): FedBN, if the model has
  batch normalisation.
- **How often they take part**: MIFA.
- **How the worst of them fares**: q-FedAvg, and with few clients AFL.
- **Their modalities**: Harmony; and any method of one architecture, with a fusion model
  (`models.mix = ["concat"]`) whose encoders of missing modalities are not used.

Hold a method against local training and FedAvg on your data before you believe a table, this one
too. `hpcfed matched METHOD JOB.toml` prints the job of local training with the method's own epochs,
views, terms of the loss and learning rate: what the method gains over that comes from the other
clients.

Costs are per client and round. *Receives*, *sends* and *keeps* are multiples of the bytes of the
weights that the client trains: FedAvg receives and sends 1 x, and keeps nothing from round to
round. What is kept are own models, second models, control variates and the like; models are those
of the section *Traffic* of the method's page. *Passes* over the client's examples and *seconds* are
multiples of FedAvg's run in [the table of all methods](benchmarks/results/methods/table.md)
(Fashion-MNIST; methods for different models have five small ones there, and methods with local
epochs of their own have these). *Its paper* is each method's own: papers differ in data, tuning and
rivals.

*Beside the same work alone*: whether clients' own models gain over the matched job of local
training, by how much accuracy on average, and in how many cells of [the
study](benchmarks/results/study/table.md). A method helps or harms there if the interval of its gain
leaves out 0 on that side in most cells, at least two, and the mean is at least 0.01.
"""


def page() -> str:
    """The page."""
    runs, verdicts = measured(), json.loads(VERDICTS.read_text())
    parts = (
        (
            f"## {kind[0].upper()}{kind[1:]}",
            table(HEAD, ((*row(name, runs), verdicts.get(name, UNKNOWN)) for name in entries)),
        )
        for kind, entries in by_kind().items()
    )
    return joined(INTRO, *(text for part in parts for text in part))


def row(name: str, runs: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    """One method.

    runs: what was measured of each method's run.
    """
    method, run, bytes_ = ALGORITHMS[name].load()(), runs.get(name, {}), cost(name)
    return (
        f"[{title(name)}](algorithms/{name}.md)",
        prose(method.guide.data),
        MODELS.get(method.accepts, method.accepts),
        speeds(method),
        prose(method.guide.sent),
        ", ".join(needs_of(method)),
        *(multiple(part / bytes_.trained) for part in (bytes_.down, bytes_.up, bytes_.memory)),
        *(
            multiple(run[ratio]) if ratio in run else UNKNOWN
            for ratio in ("epochs_ratio", "seconds_ratio")
        ),
        prose(method.guide.won),
    )


def multiple(ratio: float) -> str:
    """A multiple with two digits."""
    if not ratio:
        return "0"
    if ratio < 0.01:
        return "< 0.01 x"
    return f"{ratio:.0f} x" if ratio >= 10 else f"{ratio:.2g} x"


def speeds(method: Method) -> str:
    """What becomes of clients that are slower than others."""
    if "virtual time" in time(method):
        return "no waiting"
    return "unfinished work counts" if method.keeps_stragglers else "rounds wait"


def measured() -> dict[str, dict[str, Any]]:
    """Each method's first row in the table of all methods, with its epochs over FedAvg's.

    None where that table is not there.
    """
    runs: dict[str, dict[str, Any]] = {}
    for entry in json.loads(MEASURED.read_text())[DATA] if MEASURED.exists() else ():
        runs.setdefault(entry["method"], entry)
    usual = runs.get("fedavg", {}).get("epochs")
    return {
        name: run | ({"epochs_ratio": run["epochs"] / usual} if usual and run["epochs"] else {})
        for name, run in runs.items()
    }
