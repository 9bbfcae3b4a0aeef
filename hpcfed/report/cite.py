"""`hpcfed cite`: BibTeX entries for a run."""

from pathlib import Path

from hpcfed.config.privacy import PAPERS
from hpcfed.core.architecture import Architecture
from hpcfed.report.catalogue import keys, registry
from hpcfed.report.references import bibtex
from hpcfed.storage.results import Record, load


def citation_keys(record: Record) -> list[str]:
    """Return keys of references.bib for hpcfed and for the parts of the run, each once.

    Parts are its algorithm, data set, partition, privacy, codecs, secure aggregation, attack,
    defence, choice of cohorts and models. A user's own data file has no key.
    """
    job = record.header["job"]
    names = [
        ("algorithms", job["algorithm"]["name"]),
        ("datasets", job["data"]["name"]),
        ("partitions", job["data"]["partition"]),
        ("codecs", job.get("compression", {}).get("by", "none")),
        ("codecs", job.get("compression", {}).get("down", "none")),
        ("protocols", job.get("secure", {}).get("by", "none")),
        ("attacks", job.get("attack", {}).get("by", "none")),
        ("defences", job.get("defence", {}).get("by", "none")),
        ("selections", job.get("selection", {}).get("by", "uniform")),
        *(
            ("models", part.base)
            for name in record.header["architectures"]
            for part in Architecture.parse(name).parts
        ),
    ]
    entries = [registry(kind)[name] for kind, name in names if name in registry(kind)]
    about = job.get("privacy", {})
    private = [key for f in ("by", "clipping") for key in PAPERS.get(about.get(f), ())]
    profiled = ["zhao2022protea"] if job.get("system", {}).get("measured") else []
    entry_keys = [key for entry in entries for key in keys(entry)]
    return list(dict.fromkeys(["hpcfed", *entry_keys, *private, *profiled]))


def cite(run: Path) -> str:
    """Return BibTeX for a run. Raises CheckpointError if there are no readable results."""
    return bibtex(citation_keys(load(run)))
