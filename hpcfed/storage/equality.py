"""Comparison of two jobs."""

import json
from typing import Any

from hpcfed.core.errors import CheckpointError
from hpcfed.storage.fields import flat

ABSENT = "absent"


def same_job(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Raise CheckpointError, with the fields that differ, unless both jobs are the same."""
    here = flat(json.loads(json.dumps(ours)))  # tuples become lists, as in theirs
    saved = flat(theirs)
    differences = [
        f"{name}: {here.get(name, ABSENT)} here, {saved.get(name, ABSENT)} in the checkpoint"
        for name in sorted(here.keys() | saved.keys())
        if here.get(name, ABSENT) != saved.get(name, ABSENT)
    ]
    if differences:
        raise CheckpointError(
            "the checkpoint is of another job:\n  "
            + "\n  ".join(differences)
            + "\n  set these fields as they are in the checkpoint, or start anew without --resume"
        )
