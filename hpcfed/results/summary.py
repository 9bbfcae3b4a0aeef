"""`hpcfed summary`: the results of a run, as numbers (`facts`) and as a table (`render`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from hpcfed.config import methods
from hpcfed.core.errors import printable
from hpcfed.core.tables import duration, size, table
from hpcfed.core.wording import count_noun, join_few
from hpcfed.machine.energy import OTHER, carbon
from hpcfed.results import groups, privacy
from hpcfed.results.columns import (
    architectures,
    at_the_end,
    best_mean,
    by_round,
    client_names,
    column,
    evaluated_rounds,
    faults,
    format_metric,
    last,
    main_metric,
    metrics,
    title_metric,
)
from hpcfed.results.one_class import one_class
from hpcfed.storage.columns import PHASES
from hpcfed.storage.results import Record, load


def summary(run: Path, json: bool = False) -> dict[str, Any] | Group:
    """Return the summary of a run as a table, or with `json` as numbers.

    Raises CheckpointError if there are no readable results.
    """
    record = load(run)
    return (
        {"run": str(run), **facts(record)}
        if json
        else Group(Text(f"{printable(run)}\n", "bold"), render(record))
    )


NAMED = 20  # largest number of natural clients that are listed by name
LATER = {  # rows that not every run has
    "received": "model that each client would receive next",
    "final": "after the method's last step, own models",
    "final_received": "model that each client would receive after the end",
}


def facts(record: Record) -> dict[str, Any]:
    """Return the numbers of a run, as JSON types; None for values that were not recorded.

    engine: that of local training, as far as bits depend on it: stacked, or one of the others.
    accuracy, or another main metric by its name: of the last evaluated round, mean and population
    standard deviation over the clients that have test data (as in the papers' tables).
    before: the same before local training.
    received: the same of all clients with the model that they would receive next.
    final, final_received: the same of own models and received ones after the method's final step.
    best: the round with the best mean; it is chosen by test data, so it is optimistic.
    groups: with evaluate.groups, the metrics by group with their intervals, by phase.
    natural_clients: by name, if the data name them and they are few.
    unseen: with evaluate.unseen, the domain, and the score on it.
    energy: with log.energy, joules by phase, and kg of CO2 equivalents by log.carbon.
    attack: with an attack, its name, the number of attackers, and the success of a backdoor.
    metrics: the same of each metric that the run measured, the main one included; pooled: over the
    test examples of all these clients together.
    privacy: with an account, epsilon after the last round and what it means.
    traffic: bytes.
    time: seconds; those of a phase are the mean over ranks, and its share is of all phases
    together; virtual: the time that the clients' devices and network would have taken.
    """
    return {
        "algorithm": record.header["job"]["algorithm"]["name"],
        "rounds": record.rounds,
        "engine": record.header.get("engine"),
        main_metric(record): main_facts(record),
        "best": best(record, main_metric(record)),
        "metrics": {name: metric(record, name) for name in metrics(record)},
        "traffic": traffic(record),
        "time": time(record),
    } | more_facts(record)


def more_facts(record: Record) -> dict[str, Any]:
    """Return the numbers of `facts` that not every run has."""
    more: dict[str, Any] = {
        "groups": groups.facts(record),
        "privacy": privacy.facts(record),
        "natural_clients": natural_clients(record),
    }
    if f"rounds/{main_metric(record)}_unseen" in record.columns:
        more["unseen"] = unseen(record, main_metric(record))
    if has_attack(record):
        more["attack"] = attack(record)
    if f"ranks/joules_{OTHER}" in record.columns:
        more["energy"] = energy(record)
    return {name: value for name, value in more.items() if value}


def energy(record: Record) -> dict[str, Any]:
    """Return the joules of all ranks by phase and in sum, and what they mean in CO2.

    rounds: number of rounds with a value, whose joules those of the phases are. If they are not all
    rounds, the sum and its CO2 are None; if there are none, the phases are None too.
    """
    log = record.header["job"]["log"]
    joules = {phase: column(record, f"ranks/joules_{phase}") for phase in (*PHASES, OTHER)}
    rounds = int(np.any([np.isfinite(v).any(1) for v in joules.values()], axis=0).sum())
    complete = rounds == record.rounds > 0
    total = float(sum(np.nansum(values) for values in joules.values())) if complete else None
    emitted = total is not None and log["carbon"] is not None
    return {
        "rounds": rounds,
        "joules": total,
        "kg_co2e": carbon(total or 0.0, log["carbon"], log["pue"]) if emitted else None,
    } | {name: float(np.nansum(values)) if rounds else None for name, values in joules.items()}


def describe_energy(about: Mapping[str, Any], rounds: int) -> str:
    """Return the energy of a run in one line.  rounds: number of rounds done."""
    if not about["rounds"]:
        return "energy: no counter could be read"
    total = sum(about[phase] for phase in (*PHASES, OTHER))
    some = "" if about["rounds"] == rounds else f" of {about['rounds']} of {rounds} rounds"
    emitted = about["kg_co2e"]
    more = "" if emitted is None else f", {emitted:.3g} kg of CO2 equivalents"
    train = about["train"] / (total or 1)
    return f"energy{some}: {total:.4g} J, {train:.0%} of it in training{more}"


def has_attack(record: Record) -> bool:
    """Return whether there are attackers, or public examples are poisoned, or the success of a
    backdoor is measured without either.
    """
    return record.header["job"].get("attack", {}).get("by", "none") != "none"


def attack(record: Record) -> dict[str, Any]:
    """Return the attack, the number of attackers, the defence, and the success of a backdoor."""
    job = record.header["job"]
    scored = by_round(record, "attack_success")
    return {
        "by": job["attack"]["by"],
        "attackers": len(job["attack"]["clients"])
        or round(job["attack"]["share"] * job["clients"]),
        "defence": job["defence"]["by"],
        "success": number(scored[np.isfinite(scored)]),
    }


def natural_clients(record: Record) -> list[dict[str, Any]]:
    """Return the main metric of each natural client that has a name; [] for more than NAMED.

    accuracy, or another main metric by its name: of its own model in the last evaluated round;
    received: of the model that it would receive next.
    """
    names, metric = client_names(record), main_metric(record)
    if not names or len(names) > NAMED:
        return []
    after, received = (last(record, f"clients/{metric}{phase}") for phase in ("", "_received"))
    if not np.isfinite(received).any():
        final = at_the_end(record, f"final/{metric}_received")
        received = np.array([final.get(k, np.nan) for k in range(len(names))])
    return [
        {"name": name, metric: number(after[k : k + 1]), "received": number(received[k : k + 1])}
        for k, name in enumerate(names)
    ]


def unseen(record: Record, name: str) -> dict[str, Any]:
    """Return the score on the domain on which no client trains, in the last evaluated round.

    It is that of the server's model, with no deviation, or the mean over clients' models.
    """
    scores = summary_statistics(last(record, f"clients/{name}_unseen"))
    scored = by_round(record, f"{name}_unseen")
    return {
        "domain": record.header["job"]["evaluate"]["unseen"],
        "mean": number(scored[np.isfinite(scored)]),
        "std": scores["std"],
        "clients": scores["clients"] or None,
    }


def main_facts(record: Record) -> dict[str, Any]:
    """Return the numbers of the main metric in `facts`."""
    name = main_metric(record)
    values, kinds = last(record, f"clients/{name}"), architectures(record)
    by = {}
    for kind in dict.fromkeys(kinds.tolist()):
        statistics = summary_statistics(values[kinds == kind])
        by[kind] = {key: statistics[key] for key in ("mean", "std", "clients")}
    return {**metric(record, name), "by_architecture": by}


def metric(record: Record, name: str) -> dict[str, Any]:
    """Return one metric of `facts`."""
    values = last(record, f"clients/{name}")
    statistics = {**summary_statistics(values), "pooled": last_pooled(record, name)}
    statistics["best"] = best(record, name)
    for phase in ("before", "received"):
        row = summary_statistics(last(record, f"clients/{name}_{phase}"))
        pooled = last_pooled(record, f"{name}_{phase}")
        statistics[phase] = {"mean": row["mean"], "std": row["std"], "pooled": pooled}
    for phase, end in (("final", ""), ("final_received", "_received")):
        row = summary_statistics(record.arrays.get(f"final/{name}{end}", np.empty(0)))
        pooled = number(record.arrays.get(f"final/{name}{end}_pooled", np.empty(0)))
        statistics[phase] = {"mean": row["mean"], "std": row["std"], "pooled": pooled}
    return statistics


def last_pooled(record: Record, name: str) -> float | None:
    """Return a metric over all test examples in the last evaluated round; None if there is none."""
    return number(by_round(record, f"{name}_pooled")[evaluated_rounds(record)])


def number(values: np.ndarray) -> float | None:
    """Return the last of these values as JSON has it; None if there is none, or it is nan."""
    return float(values[-1]) if len(values) and np.isfinite(values[-1]) else None


def summary_statistics(values: np.ndarray) -> dict[str, Any]:
    """Return mean, population standard deviation, minimum and maximum over clients without nan.

    The deviation of a single client is None.
    """
    finite = values[np.isfinite(values)]
    if not len(finite):
        return {"mean": None, "std": None, "min": None, "max": None, "clients": 0}
    numbers = (
        ("mean", finite.mean()),
        ("std", finite.std() if len(finite) > 1 else None),
        ("min", finite.min()),
        ("max", finite.max()),
    )
    statistics = {name: None if number is None else float(number) for name, number in numbers}
    return {**statistics, "clients": len(finite)}


def best(record: Record, name: str) -> dict[str, Any]:
    """Return the round, counted from 1, with the best mean of a metric.

    It is the first one if several are equal.
    """
    means = [summary_statistics(row)["mean"] for row in column(record, f"clients/{name}")]
    t = best_mean(name, means)
    mean, number = (None, None) if t is None else (means[t], t + 1)
    return {"round": number, "mean": mean, "selected_on": "test data"}


def traffic(record: Record) -> dict[str, Any]:
    """Return the bytes that clients received and sent.

    Values per client and round (or job, without rounds) are means over all reports, of downloads
    also over the clients that were lost; integers if exact.
    """
    name = "clients/reports" if "clients/reports" in record.columns else "clients/cohort"
    reports = int(np.nansum(column(record, name)))
    lost = int(np.nansum(column(record, "clients/lost")))
    totals = {way: int(np.nansum(column(record, f"clients/{way}"))) for way in ("down", "up")}
    turns = {"down": reports + lost, "up": reports}
    each = {
        f"{way}_per_client_round": whole(n / turns[way]) if turns[way] else None
        for way, n in totals.items()
    }
    return {**each, **{f"{way}_total": n for way, n in totals.items()}}


def whole(number: float) -> int | float:
    return int(number) if number.is_integer() else number


def time(record: Record) -> dict[str, Any]:
    total = float(np.nansum(by_round(record, "seconds")))
    spent = {phase: per_rank(column(record, f"ranks/{phase}")) for phase in PHASES}
    together = sum(spent.values()) or 1.0
    phases = {
        phase: {"seconds": seconds, "share": seconds / together} for phase, seconds in spent.items()
    }
    each, ends = (
        total / record.rounds if record.rounds else None,
        by_round(record, "virtual_seconds"),
    )
    simulated = float(ends[-1]) if np.isfinite(ends[-1:]).any() else None
    return {"seconds": total, "seconds_per_round": each, "virtual_seconds": simulated, **phases}


def per_rank(seconds: np.ndarray) -> float:
    """Return seconds [T, R], mean over the ranks of each round, summed over rounds.

    Entries are nan for ranks that a round did not have.
    """
    ranks = np.isfinite(seconds).sum(1)
    return float((np.nansum(seconds, 1) / ranks.clip(min=1)).sum())


def render(record: Record) -> Group:
    """Return the facts as a table for `rich.print`."""
    results = facts(record)
    scored = results[main_metric(record)]["clients"]
    whose = "all" if scored == record.header["job"]["clients"] else "evaluated"
    measured = (metric_table(results, whose),) if metrics(record) != ["accuracy"] else ()
    tables = (
        main_table(results, whose, main_metric(record)),
        *client_tables(results, main_metric(record)),
        *measured,
        *group_tables(record),
        traffic_table(results["traffic"]),
        time_table(results["time"]),
    )
    warning = one_class(record)
    if warning:
        tables = (Text(f"warning: {warning}"), *tables)
    hardware = Text(printable(f"hardware: {words(record.header.get('hardware', 'unknown'))}"))
    return Group(
        *(piece for part in (Text(brief(record)), *tables) for piece in (part, Text())), hardware
    )


def brief(record: Record) -> str:
    """Return the job in two lines, with more for what not every run has."""
    ranks, rounds = record.header["ranks"], record.header["job"]["rounds"]
    name = record.header["job"]["data"]["name"]
    path = f"data: {name}\n" if name != data_name(record.header["job"]["data"]) else ""
    done = f"{record.rounds} of {rounds} rounds done, on {count_noun(ranks, 'rank')}"
    if early := record.header.get("early"):
        done += f"\nended early: {early}"
    if engine := record.header.get("engine"):
        done += f"\nengine: {printable(engine)}"
    done += "".join(f"\n{line}" for line in privacy.lines(record))
    if (failed := record.columns.get("rounds/secure_failed")) is not None:
        by = record.header["job"]["secure"]["by"]
        done += f"\nsecure aggregation: {by}, {int(np.nansum(failed))} rounds failed"
    if failed_reports := faults(record):
        rounds_with = len({t for t, _, _ in failed_reports})
        who = sorted({k for _, k, _ in failed_reports})
        done += (
            f"\nfailed: {count_noun(len(failed_reports), 'report')} of clients "
            f"{join_few(who, NAMED)}, in {count_noun(rounds_with, 'round')}"
        )
    if f"ranks/joules_{OTHER}" in record.columns:
        done += f"\n{describe_energy(energy(record), record.rounds)}"
    if has_attack(record):
        done += f"\n{describe_attack(attack(record))}"
    return f"{title(record)}\n{path}{done}"


def describe_attack(about: Mapping[str, Any]) -> str:
    """Return an attack in one line."""
    success = "" if about["success"] is None else f", success {about['success']:.4f}"
    n = about["attackers"]
    who = f"{count_noun(n, 'attacker')}, not among the clients below" if n else "no attackers"
    return f"attack: {about['by']}, {who}{success}"


def title(record: Record) -> str:
    """Return the job in one line."""
    job = record.header["job"]
    clients = count_noun(job["clients"], "client")
    method = methods.spelling(job["algorithm"]["name"])
    return printable(f"{method} on {data(job['data'])}, {clients}, seed {job['seed']}")


def data(about: dict[str, Any]) -> str:
    """Return a short description of a job's data."""
    skew = f"({about['alpha']:g})" if about["partition"] == "dirichlet" and "alpha" in about else ""
    changes = image_changes(about.get("shift", {}))
    return ", ".join([data_name(about), f"{about['partition']}{skew}", *changes])


def image_changes(shift: dict[str, Any]) -> list[str]:
    """Return in words how the images of clients differ, by the fields of `[data.shift]`."""
    changes = []
    if (groups := shift.get("rotation_groups", 1)) > 1:
        changes.append(f"{groups} rotations{', images reused' if shift.get('reuse') else ''}")
    if angles := shift.get("degrees"):
        changes.append(f"rotated by {' / '.join(f'{angle:g}' for angle in angles)} degrees")
    if (hues := shift.get("hue_groups", 1)) > 1:
        changes.append(f"{hues} hues")
    if noise := shift.get("noise"):
        changes.append(f"noise {noise:g}")
    return changes


def data_name(about: dict[str, Any]) -> str:
    """Return the name of a job's data: its label, its name, or its file's name without folders."""
    return about.get("label") or Path(about["name"]).name


def words(item: Any) -> str:
    """Return nested facts in one line."""
    if isinstance(item, dict):
        return ", ".join(f"{name} {words(value)}" for name, value in item.items())
    return ", ".join(map(words, item)) if isinstance(item, list) else str(item)


def main_table(results: dict[str, Any], whose: str, metric: str) -> Table:
    """Return the table of the main metric, with a row for each architecture."""
    total, top = results[metric], results["best"]
    show = partial(format_metric, metric)
    by = ((f"  {kind}", numbers) for kind, numbers in total["by_architecture"].items())
    rows = [(f"{whose} clients, last round, after local training", total), *by]
    rows.append(("last round, before local training", total["before"]))
    rows += [(line, total[name]) for name, line in LATER.items() if total[name]["mean"] is not None]
    cells = [(name, show(s["mean"]), show(s["std"]), s.get("clients", "")) for name, s in rows]
    pooled = results["metrics"][metric]["pooled"]
    if pooled is not None:
        cells.insert(1, ("  pooled over all test examples", show(pooled), "", ""))
    if other := results.get("unseen"):
        models = "own models" if other["clients"] else "the server's model"
        row = (show(other["mean"]), show(other["std"]), other["clients"] or "")
        cells.append((printable(f"unseen domain {other['domain']}, {models}"), *row))
    if top["round"] is not None:
        best_round = f"best round: {top['round']}, selected on test data"
        cells.append((best_round, show(top["mean"]), "", ""))
    return table(f"test {title_metric(metric)},>mean,>std,>clients", cells)


def client_tables(results: dict[str, Any], metric: str) -> list[Table]:
    """Return a table of the natural clients by name, if there are any."""
    rows = results.get("natural_clients", [])
    show = partial(format_metric, metric)
    received = any(row["received"] is not None for row in rows)
    cells = [
        (printable(row["name"]), show(row[metric]), *([show(row["received"])] if received else []))
        for row in rows
    ]
    head = "client,>own model" + ",>model as received" * received
    return [table(head, cells)] if rows else []


def metric_table(results: dict[str, Any], whose: str) -> Table:
    """Return a table with a row for each metric, and further rows that not every run has.

    It also says how many clients have no value.
    """
    most = max(s["clients"] for s in results["metrics"].values())
    cells = []
    for name, s in results["metrics"].items():
        missing = f", {most - s['clients']} have none" if s["clients"] < most else ""
        show = partial(format_metric, name)
        row = (show(s["mean"]), show(s["std"]), f"{s['clients']}{missing}", show(s["pooled"]))
        cells.append((title_metric(name), *row))
        for phase, line in LATER.items():
            more = s[phase]
            if more["mean"] is not None or more["pooled"] is not None:
                row = (show(more["mean"]), show(more["std"]), "", show(more["pooled"]))
                cells.append((f"  {line}", *row))
    return table(
        f"metrics of {whose} clients after local training in the last round,"
        ">mean,>std,>clients,>pooled",
        cells,
    )


def group_tables(record: Record) -> list[Table]:
    """Return a table of the metrics by group for each model that was scored at the end."""
    tables = []
    for phase, words in groups.PHASES.items():
        rows: dict[str, list[str]] = {}
        heads: dict[str, None] = {}
        for one in groups.group_values(record, phase):
            heads[f">{one.group}: {count_noun(one.examples, 'example')}".replace(",", "")] = None
            rows.setdefault(title_metric(one.metric), []).append(one.text)
        if rows:
            head = f"by {groups.column_name(record)}: {words}".replace(",", "")
            tables.append(table(",".join([head, *heads]), [(n, *v) for n, v in rows.items()]))
    return tables


def traffic_table(results: dict[str, Any]) -> Table:
    rows = [
        (name, *(amount(results[f"{way}_{key}"]) for way in ("down", "up")))
        for name, key in (("per client and round", "per_client_round"), ("in all", "total"))
    ]
    return table("traffic,>down,>up", rows)


def amount(n: float | None) -> str:
    """Return bytes as text, with a tenth for means: `20,520 B (20.5 kB)`."""
    return (
        "-"
        if n is None
        else f"{whole(round(float(n), 1)):,} B" + (f" ({size(n)})" if n >= 1000 else "")
    )


def time_table(results: dict[str, Any]) -> Table:
    each = results["seconds_per_round"]
    rows = [
        (phase, duration(results[phase]["seconds"]), f"{results[phase]['share']:.1%}")
        for phase in PHASES
    ]
    total = duration(results["seconds"]) + (
        "" if each is None else f" ({duration(each)} per round)"
    )
    simulated = results["virtual_seconds"]
    total += "" if simulated is None else f"; virtual: {duration(simulated)}"
    return table(f"time: {total},>mean per rank,>share", rows)
