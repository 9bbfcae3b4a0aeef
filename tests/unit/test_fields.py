"""Nested tables by dotted names."""

from hpcfed.storage.fields import at, covers, flat, nested


def test_nested_tables_are_one_by_dotted_names():
    assert flat({"seed": 0, "data": {"alpha": 0.5, "more": {}}}) == {
        "seed": 0,
        "data.alpha": 0.5,
        "data.more": {},
    }
    assert flat({}) == nested({}) == {}


def test_values_by_dotted_names_become_nested_tables():
    tables = {"seed": 0, "data": {"shift": {"noise": 0.2}, "alpha": 0.5}}
    assert nested({"seed": 0, "data.shift.noise": 0.2, "data.alpha": 0.5}) == tables
    assert nested(flat(tables)) == tables


def test_a_value_is_found_by_name_or_is_none():
    job = {"seed": 0, "data": {"alpha": 0.5}}
    assert [at(job, name) for name in ("data.alpha", "data.beta", "seed.alpha")] == [
        0.5,
        None,
        None,
    ]


def test_a_part_covers_its_fields_and_no_name_that_only_begins_like_it():
    assert covers(["rounds", "run"], "run") and covers(["rounds", "run"], "run.threads")
    assert (
        not covers(["run"], "rounds")
        and not covers(["run.threads"], "run")
        and not covers([], "run")
    )
