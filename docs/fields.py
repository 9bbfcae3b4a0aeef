"""The reference of a job's fields, from the schema that checks them."""

from pydantic import BaseModel
from text import anchored, code, joined, prose, table

from hpcfed.config.fields import format_flag_value, is_part, table_names
from hpcfed.config.fields import section as part_at
from hpcfed.config.job import FREE, Job
from hpcfed.report.catalogue import parameter
from hpcfed.storage.fields import covers

HEAD = ("field", "type, limits", "default", "resume", "meaning")
INTRO = """
# Fields of a job

Made from the schema that every job is checked against; `python -m hpcfed.main --help all` prints
the same, with the values that a command would run with. How a job is given, and what overrides
what: [The job](../job.md).

`data.alpha` is `alpha` below `[data]` in a job file, the flag `--data.alpha`, and
`HPCFED_DATA__ALPHA` in the environment. Limits hold for each value of a list. On `--resume` some
fields are *free*: a run that is continued may have other values of them. Those which decide about
results *stay*.
"""
ALGORITHM = """
## algorithm

`algorithm.name`, and the fields of the method of that name: each method's page has them
([all methods](../algorithms/index.md)).
"""


def page() -> str:
    """The whole page: first the fields without a table, then each table."""
    top = fields(Job, "", without=("algorithm",))
    tables = [section(name, part_at(Job, name.split("."))) for name in table_names(Job)]
    return joined(INTRO, "## The run itself", top, ALGORITHM, *tables)


def section(name: str, part: type[BaseModel]) -> str:
    return joined(f"## {name}", prose(part.__doc__), fields(part, f"{name}."))


def fields(part: type[BaseModel], prefix: str, without: tuple[str, ...] = ()) -> str:
    """The fields of one table of the job; tables inside it have their own."""
    names = [n for n, field in part.model_fields.items() if not is_part(field.annotation)]
    return table(HEAD, (row(prefix, parameter(part, n)) for n in names if n not in without))


def row(prefix: str, facts: dict) -> tuple[str, ...]:
    """One field."""
    name = prefix + facts["name"]
    return (
        anchored(name, name.replace(".", "-")),
        kind(facts),
        default(facts),
        "free" if covers(FREE, name) else "stays",
        prose(facts["meaning"]),
    )


def default(facts: dict) -> str:
    """The default of a field as files and flags take it."""
    value = facts["default"]
    return code(value if isinstance(value, list) else format_flag_value(value))


def kind(facts: dict) -> str:
    """The type of a field, and its limits."""
    return ", ".join(prose(facts[name]) for name in ("type", "range") if facts[name])
