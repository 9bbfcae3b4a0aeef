"""Every method on the same clients: accuracy, bytes, simulated and real seconds, in one table.

`python benchmarks/methods.py [--seeds 0] [--own-seeds 0,1,2] [--data fashion-mnist cifar10] [--only
fedavg ...]`

Three groups: clients of one architecture, of five, and of one architecture in three widths. Each
method sees the same examples in the same number of local epochs; what it needs beyond
`methods.toml` stands here. The papers' own methods run with all of --own-seeds. Writes one result
file a run, and the table as Markdown and JSON, to results/methods. Runs that are there already are
not run again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from runs import RESULTS, Run, run_all, slug

from hpcfed.storage.results import Record, load

JOB = Path(__file__).parent / "methods.toml"
DATA = ("fashion-mnist", "cifar10")
Cell = tuple[str, str, str, int]  # data set, group, row, seed
FIVE = "--models.mix fedhenn-1,fedhenn-2,fedhenn-3,fedhenn-4,fedhenn-5"
WIDTHS = "--models.widths 1,0.5,0.25"
ALIGNED = "--algorithm.rad_size 100 --algorithm.align_every 5 --algorithm.eta0 0.1"
OWN = (
    "fedclassavg",
    "fedhenn",
    "local",
    "fedavg",
)  # more seeds: the papers' own, and what they are held against

ONE_MODEL = {  # row: method and flags
    "local training": "local",
    "central training": "central",
    "FedSGD": "fedsgd --local.momentum 0",
    "FedAvg": "fedavg",
    "FedProx": "fedprox --algorithm.mu 0.1",
    "SCAFFOLD": "scaffold --local.momentum 0 --local.lr 0.02",
    "Per-FedAvg": "perfedavg --algorithm.alpha 0.05",
    "pFedMe": "pfedme --algorithm.inner_steps 2 --algorithm.eta 0.03",
    "FedRep": "fedrep --algorithm.head_epochs 1 --algorithm.final_epochs 1",
    "FeSEM, 2 clusters": "fesem --algorithm.clusters 2",
    "IFCA, 2 clusters": "ifca --algorithm.clusters 2",
    "KT-pFL +weight": "ktpfl --algorithm.share weights",
    "FedClassAvg +weight": "fedclassavg --algorithm.share all",
    "FedHeNN, homogeneous": f"fedhenn --algorithm.setting homogeneous {ALIGNED}",
    "FedAsync": "fedasync",
    "SWIFT, ring": "swift",
    "D-SGD, ring": "dsgd",
}
FIVE_MODELS = {
    "local training": "local",
    "local training, two views + CL": "local --algorithm.contrastive true",
    "LG-FedAvg": "lgfedavg",
    "FML": "fml --models.proxy fedhenn-2",
    "FedProto, prototypes": "fedproto --algorithm.lam 0.1",
    "FedProto, heads": "fedproto --algorithm.lam 0.1 --algorithm.inference head",
    "FedGH": "fedgh --algorithm.server_epochs 10",
    "FedGKT": "fedgkt --models.mix resnet8 --models.server resnet20-server "
    "--algorithm.server_epochs 1",
    "FedMD": "fedmd --algorithm.transfer_epochs 1 --algorithm.digest_batch 20",
    "DS-FL": "dsfl --algorithm.distil_epochs 1",
    "FedDF": "feddf --algorithm.steps 50 --algorithm.server_batch 20",
    "KT-pFL": "ktpfl --algorithm.distil_batch 20",
    "FedClassAvg": "fedclassavg",
    "FedHeNN, heterogeneous": f"fedhenn --algorithm.setting heterogeneous {ALIGNED}",
}
THREE_WIDTHS = {
    "HeteroFL": "heterofl --algorithm.scaler false",
    "FedRolex": "fedrolex --algorithm.scaler false",
    "Federated Dropout": "feddropout --algorithm.scaler false",
    "FjORD": "fjord",
}
GROUPS = {
    "one model": ("", ONE_MODEL),
    "five models": (FIVE, FIVE_MODELS),
    "three widths": (WIDTHS, THREE_WIDTHS),
}
COLUMNS = (
    "method",
    "personal",
    "received",
    "personal, 3 seeds",
    "kB down",
    "kB up",
    "simulated s",
    "real s",
)


def main() -> None:
    options = arguments()
    files = planned(options.data, options.seeds, options.own_seeds, options.only)
    run_all([Run(JOB, flags(*cell), kept) for cell, kept in files.items()], options.side_by_side)
    tables = {
        data: table({c: load(f) for c, f in files.items() if c[0] == data}) for data in options.data
    }
    (RESULTS / "methods/table.json").write_text(json.dumps(tables, indent=1))
    text = "\n".join(markdown(data, rows) for data, rows in tables.items())
    (RESULTS / "methods/table.md").write_text(text)
    print(text)


def planned(
    data: Sequence[str] = DATA,
    seeds: Sequence[int] = (0,),
    own_seeds: Sequence[int] = (0, 1, 2),
    only: Sequence[str] = (),
) -> dict[Cell, Path]:
    """The runs of the table, and the result file of each; what all rows need comes first."""
    cells = [
        (one, group, row, seed)
        for group, (_, rows) in GROUPS.items()
        for row, words in rows.items()
        if not only or words.split()[0] in only
        for seed in (own_seeds if words.split()[0] in OWN and "views" not in row else seeds)
        for one in data
    ]
    cells.sort(key=lambda cell: (cell[3], data.index(cell[0])))
    folder = RESULTS / "methods"
    return {cell: folder / f"{slug(' '.join(cell[:3]))}-seed{cell[3]}.h5" for cell in cells}


def arguments() -> argparse.Namespace:
    numbers = lambda text: [int(s) for s in text.split(",")]  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=numbers, default=[0])
    parser.add_argument(
        "--own-seeds", type=numbers, default=[0, 1, 2], help="of the papers' own methods"
    )
    parser.add_argument("--data", nargs="+", default=DATA)
    parser.add_argument("--only", nargs="+", default=[], help="names of methods")
    parser.add_argument("--side-by-side", type=int, default=2, help="runs at a time, one core each")
    return parser.parse_args()


def flags(data: str, group: str, row: str, seed: int) -> tuple[str, ...]:
    shared, rows = GROUPS[group]
    name, *own = rows[row].split()
    mix = [] if "--models.mix" in own else shared.split()
    return ("--algorithm.name", name, "--data.name", data, *mix, *own, "--seed", str(seed))


def table(records: dict[tuple, Record]) -> list[dict]:
    """One row a group and method: means over clients; of the first seed, which all have, and by
    seed.
    """
    rows = []
    for group, row in dict.fromkeys((g, r) for _, g, r, _ in records):
        found = [
            measured(record) for (_, g, r, _), record in records.items() if (g, r) == (group, row)
        ]
        rows.append({"group": group, "method": row, "by_seed": found} | found[0])
    return rows


def measured(record: Record) -> dict[str, float]:
    """What one run cost and reached; accuracies of the last round, means over clients."""
    last = {
        name: float(np.nanmean(record.column(f"clients/{name}")[-1]))
        for name in ("accuracy", "accuracy_received")
    }
    members = record.column("clients/cohort").sum()
    traffic = {
        way: float(record.column(f"clients/{way}").sum() / members / 1e3) for way in ("down", "up")
    }
    simulated = float(record.column("rounds/virtual_seconds")[-1])
    return (
        last
        | traffic
        | {"virtual": simulated, "seconds": float(record.column("rounds/seconds").sum())}
    )


def markdown(data: str, rows: list[dict]) -> str:
    lines = [f"**{data}**", ""]
    for group in dict.fromkeys(row["group"] for row in rows):
        lines += [f"| {' | '.join((group, *COLUMNS[1:]))} |", "|" + "---|" * len(COLUMNS)]
        lines += [f"| {line(row)} |" for row in rows if row["group"] == group] + [""]
    return "\n".join(lines)


def line(row: dict) -> str:
    seeds = [f["accuracy"] for f in row["by_seed"]]
    spread = f"{np.mean(seeds):.3f} +- {np.std(seeds, ddof=1):.3f}" if len(seeds) > 1 else ""
    cells = (
        row["method"],
        f"{row['accuracy']:.3f}",
        f"{row['accuracy_received']:.3f}",
        spread,
        f"{row['down']:,.0f}",
        f"{row['up']:,.0f}",
        f"{row['virtual']:,.1f}",
        f"{row['seconds']:.0f}",
    )
    return " | ".join(cells)


if __name__ == "__main__":
    main()
