"""All methods of hpcfed on the same clients, in one table: accuracy, bytes, simulated and real
seconds.

`python benchmarks/methods.py [--data fashion-mnist cifar10] [--only fedavg ...] [--side-by-side 2]`

Every method of the registry has a row by itself, on the kind of models that it accepts: clients of
one architecture, of five, or of one in three widths. Each sees the same examples; a client trains
for one epoch a round unless the method itself says otherwise, and its epochs are a column. What a
method needs beyond `methods.toml` and its defaults stands here (NEEDS, SETTINGS). What is not run
is named with the reason (ELSEWHERE). A row whose first seed takes less than two minutes has three.
Writes one result file a run, and the table as Markdown and JSON, to results/methods. Runs that are
exist already are not run again; stopped runs are continued.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import archive
import h5py
import numpy as np
from paired import one_a_line
from runs import FOLDER, RESULTS, Run, run_all, slug

from hpcfed.config.methods import ALGORITHMS, KINDS, kind_of
from hpcfed.machine.processor import name_processor
from hpcfed.storage.results import Record, load

JOB = Path(__file__).parent / "methods.toml"
KEPT = RESULTS / "methods"
DATA = ("fashion-mnist", "cifar10")
SEEDS, LIMIT = (0, 1, 2), 120.0  # seconds of the first one, above which a row has that alone
BASE = "FedAvg"  # what all rows are held against
FIVE = "--models.mix fedhenn-1,fedhenn-2,fedhenn-3,fedhenn-4,fedhenn-5"
MODELS = {  # by what a method accepts: what the table calls it, and the flags
    "one architecture": ("one", "--models.mix fedhenn-3"),
    "any models": ("five", FIVE),
    "a common head": ("five", FIVE),
    "widths": ("three widths", "--models.mix fedhenn-3 --models.widths 1,0.5,0.25"),
    "depths": ("two depths", "--models.mix rescnn-2,rescnn-4"),
}
MIX = ("--models.mix", "--models.widths")  # the flags in them
NEEDS = {  # what a method declares to need, of which nothing stands in methods.toml
    "public": "",
    "proxy": "--models.proxy fedhenn-2",
    "server": "--models.server fedhenn-5",
}
SETTINGS = {  # beside defaults, which are the papers' for more examples, rounds and clients
    "afl": "--local.momentum 0",
    "aruba": "--local.momentum 0",
    "cfl": "--algorithm.after 3",
    "dsfl": "--algorithm.distil_epochs 1",
    "dsgt": "--local.momentum 0",
    "fccl": "--algorithm.pretrain_epochs 2 --algorithm.public_batch 20",
    "fedasam": "--algorithm.rho 0.07",  # a tenth, as of FedSAM
    "fedbabu": "--algorithm.final_epochs 1",
    "fedbe": "--algorithm.server_epochs 2 --algorithm.server_batch 20",
    "fedbuff": "--algorithm.K 5",
    "feddf": "--algorithm.steps 50 --algorithm.server_batch 20",
    "feddropout": "--algorithm.scaler false",
    "fedclassavg": "--local.lr 0.02",  # 0.05 diverges on CIFAR-10
    "fedcompass": "--local.steps 10 --algorithm.min_steps 5",  # 10 steps are an epoch
    "fedet": "--algorithm.server_epochs 1 --algorithm.server_batch 20",
    "fedgen": "--local.lr 0.02",  # 0.05 diverges on CIFAR-10
    "fedgh": "--algorithm.server_epochs 10",
    "fedgkt": "--models.mix resnet8 --models.server resnet20-server --algorithm.server_epochs 1",
    "fedhenn": "--algorithm.rad_size 100 --algorithm.align_every 5 --algorithm.eta0 0.1",
    "fedkemf": "--algorithm.server_epochs 2 --algorithm.server_batch 20",
    "fedl2g": "--algorithm.warmup 2",  # of 10 rounds
    "fedlaw": "--algorithm.server_epochs 20",  # 100 on 200 public examples blow the weights up
    "fedmd": "--algorithm.transfer_epochs 1 --algorithm.digest_batch 20",
    "fedprox": "--algorithm.mu 0.1",
    "fedrare": "--algorithm.inter_after 3 --local.lr 0.02",  # 0.05 diverges on CIFAR-10
    "fedrep": "--algorithm.head_epochs 1 --algorithm.final_epochs 1",
    "fedrolex": "--algorithm.scaler false",
    "fedsam": "--algorithm.rho 0.01",  # with 0.1 this network does not start to learn
    "fedsgd": "--local.momentum 0",
    "fedspeed": "--algorithm.rho 0.01",  # as FedSAM
    "fedzkt": "--algorithm.server_steps 5 --algorithm.distil_steps 2 --algorithm.server_batch 32",
    "fesem": "--algorithm.clusters 2",
    "fesemma": "--algorithm.clusters 2",
    "heterofl": "--algorithm.scaler false",
    "ifca": "--algorithm.clusters 2",
    "ktpfl": "--algorithm.distil_batch 20",
    "mocha": "--models.mix logistic --local.optimiser adam --local.lr 0.001 --local.momentum 0",
    "pfedbayes": "--local.optimiser adam --local.lr 0.001 --local.momentum 0",
    "pfedknow": "--models.mix resnet8",  # it prunes by the scales of batch normalisation
    "perfedavg": "--algorithm.alpha 0.05",
    "pfedme": "--algorithm.inner_steps 2 --algorithm.eta 0.03",
    "qfedavg": "--local.momentum 0",
    "reptile": "--algorithm.first_rounds 5",
    "scaffold": "--local.momentum 0 --local.lr 0.02",
    "semicyclic": "--algorithm.blocks 2",
    "tkm": "--algorithm.clusters 2",
}
VARIANTS = {  # further rows of a method: what follows its name, and the flags over its own
    "local": {
        ", five models": FIVE,
        ", five models, two views + CL": f"{FIVE} --algorithm.contrastive true",
    },
    "fedclassavg": {" +weight": "--models.mix fedhenn-3 --algorithm.share all"},
    "fedhenn": {", one model": "--models.mix fedhenn-3 --algorithm.setting homogeneous"},
    "fedproto": {", heads": "--algorithm.inference head"},
    "ktpfl": {
        " +weight": "--models.mix fedhenn-3 --algorithm.share weights --algorithm.distil_batch 256"
    },
}
OVER = {"local": "--models.mix fedhenn-3"}  # a method's first row where it is not on these models
ELSEWHERE = {  # what is not run here, and why
    "harmony": "is of clients with several modalities: its table is in benchmarks/own",
    "fedcovid": "is of records with few positives: its table is in benchmarks/own",
    "fedclip": "trains an adapter of a frozen text and image encoder, which is not at hand",
}
ALIKE = "Seconds over FedAvg's are those of the fastest of three runs, on the same processor."
HEADS = (
    "models",
    "epochs",
    "personal",
    "over seeds",
    "over FedAvg",
    "received",
    "after the last step",
    "kB down",
    "kB up",
    "bytes / FedAvg",
    "simulated s",
    "real s",
    "real s / FedAvg",
)


class Row(NamedTuple):
    """One row: what it is called, its method, the kind of models, and the flags over the job."""

    label: str
    method: str
    models: str
    flags: tuple[str, ...]


def main() -> None:
    options = arguments()
    archive.unpack(KEPT)
    times = {timed(data, seed): (data, seed) for data in options.data for seed in SEEDS}
    runs = [Run(JOB, flags(rows()[BASE], *one), path) for path, one in times.items()]
    run_all(runs, options.side_by_side, options.folder)
    for seeds in (SEEDS[:1], SEEDS):  # which rows have three is known from the first
        files = planned(options.data, options.only, seeds)
        runs = [Run(JOB, flags(row, data, seed), path) for (data, row, seed), path in files.items()]
        run_all(runs, options.side_by_side, options.folder)
    tables = {data: table(data, planned([data]), of_base(data)) for data in DATA}
    KEPT.mkdir(parents=True, exist_ok=True)
    archive.pack(KEPT)
    (KEPT / "table.json").write_text(one_a_line(short(tables)))
    text = "\n".join(markdown(data, rows) for data, rows in tables.items())
    (KEPT / "table.md").write_text(text)
    print(text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=DATA, choices=DATA)
    parser.add_argument("--only", nargs="+", default=[], choices=ALGORITHMS, metavar="METHOD")
    parser.add_argument("--side-by-side", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of unfinished runs")
    return parser.parse_args()


def rows() -> dict[str, Row]:
    """All rows by their label, as the registry lists the methods."""
    methods = [row(name) for name in ALGORITHMS if name not in ELSEWHERE]
    for name, further in VARIANTS.items():
        methods += [row(name, suffix, over) for suffix, over in further.items()]
    order = list(KINDS)
    methods.sort(key=lambda it: order.index(kind_of(ALGORITHMS[it.method])))
    return {it.label: it for it in methods}


def row(name: str, suffix: str = "", over: str = "") -> Row:
    """A method's row: the models that it accepts, what it needs, its settings and what lies over
    them; the last of equal flags counts. KeyError where it accepts or needs what is not known here.
    """
    method = ALGORITHMS[name].load()()
    parts = [MODELS[method.accepts][1], *(NEEDS[need] for need in method.needs)]
    parts += [SETTINGS.get(name, ""), over or OVER.get(name, "")]
    words = " ".join(parts).split()
    settings = dict(zip(words[::2], words[1::2], strict=True))
    mix = " ".join(f"{flag} {settings[flag]}" for flag in settings if flag in MIX)
    models = {flags: called for called, flags in MODELS.values()}.get(mix, settings["--models.mix"])
    pairs = [word for pair in settings.items() for word in pair]
    return Row(title(name) + suffix, name, models, ("--algorithm.name", name, *pairs))


def title(name: str) -> str:
    """The method's name as its paper has it: what its file's docstring begins with."""
    text = import_module(ALGORITHMS[name].load().__module__).__doc__
    return " ".join(text.partition(":")[0].split()).partition(" (also")[0]


def flags(row: Row, data: str, seed: int) -> tuple[str, ...]:
    return (*row.flags, "--data.name", data, "--seed", str(seed))


def planned(
    data: Sequence[str] = DATA, only: Sequence[str] = (), seeds: Sequence[int] = SEEDS
) -> dict[tuple[str, Row, int], Path]:
    """The runs of the table, and the result file of each; the first seed of all rows comes first,
    and rows of which that took long, or is not there, have no other.
    """
    tried = [row for row in rows().values() if not only or row.method in only]
    pairs = [(one, row) for row in tried for one in data]
    further = set(seeds) - {SEEDS[0]}
    repeated = {pair for pair in pairs if further and quick(path(*pair, SEEDS[0]))}
    cells = [
        (*pair, seed) for seed in seeds for pair in pairs if seed == SEEDS[0] or pair in repeated
    ]
    return {cell: path(*cell) for cell in cells}


def path(data: str, row: Row, seed: int) -> Path:
    return KEPT / f"{data}-{slug(row.label)}-seed{seed}.h5"


def timed(data: str, seed: int) -> Path:
    """The result file of FedAvg's run on this processor: that of its row, or one beside it."""
    file = path(data, rows()[BASE], seed)
    if not file.exists() or load(file).header["hardware"]["cpu"] == name_processor():
        return file
    return file.with_name(f"{data}-{slug(BASE)}-on-{slug(name_processor())}-seed{seed}.h5")


def on_processors() -> dict[Path, tuple[str, int]]:
    """The result files of FedAvg's runs that were made for the seconds of a processor alone."""
    return {
        file: (data, seed)
        for data in DATA
        for seed in SEEDS
        for file in KEPT.glob(f"{data}-{slug(BASE)}-on-*-seed{seed}.h5")
    }


def of_base(data: str) -> dict[str, float]:
    """Seconds of the fastest of FedAvg's runs, by processor."""
    files = [path(data, rows()[BASE], seed) for seed in SEEDS]
    files += [file for file, (of, _) in on_processors().items() if of == data]
    least: dict[str, float] = {}
    for run in (measured(load(file)) for file in files if file.exists()):
        least[run["cpu"]] = min(run["seconds"], least.get(run["cpu"], np.inf))
    return least


def quick(path: Path) -> bool:
    """Whether the run of this file is there, and took less than LIMIT."""
    if not path.exists():
        return False
    with h5py.File(path) as file:  # one column alone: results are hundreds
        return file["columns/rounds/seconds"][()].sum() < LIMIT


def table(
    data: str,
    files: Mapping[tuple[str, Row, int], Path],
    seconds: Mapping[str, float],
) -> list[dict]:
    """One entry a row of which the first seed is there: means over clients, of that seed, and by
    seed; and what it is held against FedAvg.

    seconds: of FedAvg's fastest runs, by processor.
    """
    rows: dict[Row, list[dict]] = {}
    for (_, row, _), path in files.items():
        if path.exists():
            rows.setdefault(row, []).append(measured(load(path)))
    base = next((by_seed for row, by_seed in rows.items() if row.label == BASE), None)
    return [entry(row, by_seed, base, seconds) for row, by_seed in rows.items()]


def entry(
    row: Row,
    by_seed: list[dict],
    base: list[dict] | None,
    seconds: Mapping[str, float],
) -> dict:
    """A row's numbers. gain: mean over the seeds that both have; bytes, seconds: as a multiple,
    of seconds that of the fastest runs on the same processor.
    """
    personal = {
        "method": row.method,
        "label": row.label,
        "models": row.models,
        "kind": KINDS[kind_of(ALGORITHMS[row.method])],
        "by_seed": by_seed,
    } | by_seed[0]
    if base:
        pairs = list(zip(by_seed, base, strict=False))
        personal["gain"] = float(np.mean([a["accuracy"] - b["accuracy"] for a, b in pairs]))
        total = base[0]["down"] + base[0]["up"]
        personal["bytes_ratio"] = (personal["down"] + personal["up"]) / total
        # other work on the machine only adds to seconds, so the least are nearest to the cost
        ratios = [one["seconds"] / seconds[one["cpu"]] for one in by_seed if one["cpu"] in seconds]
        if ratios:
            personal["seconds_ratio"] = float(min(ratios))
    return personal


def measured(record: Record) -> dict[str, Any]:
    """What one run cost and reached; accuracies of the last round, means over clients.

    epochs: local ones of a client, in all rounds.  final: accuracy of own models after the step
    that a method makes after its last round, of those that make one.
    """
    last = {
        name: float(np.nanmean(record.column(f"clients/{name}")[-1]))
        for name in ("accuracy", "accuracy_received")
    }
    if (final := record.arrays.get("final/accuracy")) is not None:
        last["final"] = float(np.nanmean(final))
    last["epochs"] = float(record.column("clients/epochs").sum(0).mean())
    members = record.column("clients/cohort").sum()
    traffic = {
        way: float(record.column(f"clients/{way}").sum() / members / 1e3) for way in ("down", "up")
    }
    simulated = float(record.column("rounds/virtual_seconds")[-1])
    return (
        last
        | traffic
        | {"virtual": simulated, "seconds": float(record.column("rounds/seconds").sum())}
        | {"cpu": record.header["hardware"]["cpu"]}
    )


def short(value: Any) -> Any:
    """Return a table, or a part of one, with numbers of five digits."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {name: short(part) for name, part in value.items()}
    return [short(part) for part in value] if isinstance(value, list) else value


def markdown(data: str, entries: list[dict]) -> str:
    """The table of one data set, a part for each kind of methods, and what is not in it."""
    lines = [f"**{data}**", ""]
    for kind in dict.fromkeys(one["kind"] for one in entries):
        lines += [f"| {' | '.join((kind, *HEADS))} |", "|" + "---|" * (1 + len(HEADS))]
        lines += [f"| {line(one)} |" for one in entries if one["kind"] == kind] + [""]
    lines += [
        f"Not here: {title(name)} {why}." for name, why in ELSEWHERE.items() if name in ALGORITHMS
    ]
    open_ = [
        it.label for it in rows().values() if it.label not in {one["label"] for one in entries}
    ]
    lines += ["", ALIKE]
    return "\n".join([*lines, *([f"Not run yet: {', '.join(open_)}."] if open_ else []), ""])


def line(one: dict) -> str:
    seeds = [f["accuracy"] for f in one["by_seed"]]
    spread = f"{np.mean(seeds):.3f} ± {np.std(seeds, ddof=1):.3f}" if len(seeds) > 1 else ""
    ratios = [
        f"{one[name]:.2f}" if name in one else "" for name in ("bytes_ratio", "seconds_ratio")
    ]
    cells = (
        one["label"],
        one["models"],
        f"{one['epochs']:.0f}",
        f"{one['accuracy']:.3f}",
        spread,
        f"{one['gain']:+.3f}" if "gain" in one else "",
        f"{one['accuracy_received']:.3f}",
        f"{one['final']:.3f}" if "final" in one else "",
        f"{one['down']:,.0f}",
        f"{one['up']:,.0f}",
        ratios[0],
        f"{one['virtual']:,.1f}",
        f"{one['seconds']:.0f}",
        ratios[1],
    )
    return " | ".join(cells)


if __name__ == "__main__":
    main()
