"""Where a user's method reads the test examples of clients for training, as a trial of it sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hpcfed.clients.client import Client, LazyClient, Shard
from hpcfed.core import user_code

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation


class WatchedTests(Shard):
    """Test examples that note the user's line if a batch is read while gradients are recorded.

    Evaluation records none (torch.no_grad), so it is not meant.
    """

    def __init__(self, shard: Shard, lines: list[str]):
        self.__dict__ = dict(shard.__dict__)
        self.lines = lines

    def batch(self, which: np.ndarray, at: Tensor | None = None) -> tuple[Any, Any]:
        if torch.is_grad_enabled() and not self.lines:
            self.lines.append(user_code.caller())
        return super().batch(which, at)


def watch_tests(fed: Federation) -> list[str]:
    """Let clients note reads of their test examples; return the list that gets the first line."""
    lines, make = list[str](), fed.clients.make

    def watched(k: int) -> Client:
        client = make(k)
        if not isinstance(client, LazyClient):  # which makes its examples
            client.test = WatchedTests(client.test, lines)
        return client

    fed.clients.make = watched
    return lines


def describe_reads(lines: list[str]) -> list[str]:
    """Return the warning about a method that reads test examples for training; [] for none."""
    return [
        f"{line}client.test is read with gradients, as for training; if it is for training, read "
        f"client.train; if not, read it under torch.no_grad()"
        for line in lines
    ]
