"""Work that changes the environment of its process; imports nothing, as a new process does it."""

import os
from collections.abc import Callable


def change() -> Callable[[], str]:
    os.environ["CHANGED"] = "yes"
    return lambda: os.environ["CHANGED"]
