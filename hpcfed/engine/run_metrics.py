"""Metrics of a run: of each client, and pooled over all clients' test examples."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfed.engine.group_metrics import group_metrics
from hpcfed.engine.round_record import Row
from hpcfed.tasks.task import Answers, concat

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation
    from hpcfed.training.evaluate import Score

Numbers = tuple[float, ...]  # one for each of `Metrics.names`
Scores = dict[int, "Score"]  # by client
Measured = dict[int, tuple[Numbers, Answers]]  # by client, in the order of their ids


class Metrics:
    """The answers to all test examples, and the metrics of these answers.

    All ranks have all answers, so that pooled metrics have the same bits for any number of ranks. A
    client that is not trained again keeps its score, so its answers are kept too: 2 bytes for each
    test example of up to 256 classes, 6 of two classes, 9 of survival times.

    names: metrics beyond the main one, which is part of each score.
    pooled: metrics that need all clients' answers.
    Phases are the endings of columns: "_before", "_received", and "" for clients' own models.
    """

    def __init__(self, fed: Federation):
        self.fed = fed
        self.names = fed.data.metrics[1:]
        self.counted = fed.task.metrics[fed.task.main].counted
        self.pooled = self.names if self.counted else fed.data.metrics
        if self.pooled:  # before the first round, because that takes seconds
            import sklearn.metrics  # noqa: F401
        # of the last evaluation, by phase, if numbers of the end need them (`closing`)
        self.closes = fed.data.groups is not None or fed.task.charts(fed.data.metrics)
        self.at_end: dict[str, Measured] = {}
        self.last: Measured = {}  # of evaluated clients that have not trained since
        # [K, 3]: main metric, loss and number of the examples that each client holds out
        wanted = fed.job.evaluate.validation > 0
        self.validation = np.full((fed.K, 3), np.nan) if wanted else None

    def gather(self, phases: Mapping[str, Scores]) -> dict[str, Measured]:
        """Gather all ranks' scores by phase, with the metrics of each client; collective.

        Nothing is sent if the main metric is the only one, and counts right answers.
        """
        if not self.pooled and self.fed.data.groups is None:
            return {phase: {} for phase in phases}
        mine: dict[int, dict[str, tuple[Numbers, Answers]]] = {}
        with self.fed.clock("evaluate"):
            for phase, scores in phases.items():
                for k, score in scores.items():
                    if score.answers is not None:
                        numbers = self.fed.task.compute(self.names, score.answers)
                        mine.setdefault(k, {})[phase] = (numbers, score.answers)
        every = self.fed.comm.gather(mine)
        return {
            phase: {k: by_phase[phase] for k, by_phase in every.items() if phase in by_phase}
            for phase in phases
        }

    def update(self, new: Measured, stale: np.ndarray) -> None:
        """Store the metrics of clients' own models until these clients train again.

        stale: [K], whether a client has trained since its last score.
        """
        valid = {k: one for k, one in (self.last | new).items() if not stale[k]}
        self.last = dict(sorted(valid.items()))

    def keep_only(self, evaluated: Iterable[int]) -> None:
        """Drop the metrics of clients that are not evaluated in this round."""
        self.last = {k: self.last[k] for k in sorted(self.last.keys() & {*evaluated})}

    def row(
        self,
        ids: np.ndarray,
        phases: Mapping[str, Measured],
        scores: Mapping[str, np.ndarray],
    ) -> Row:
        """Return these clients' columns, [n] each, and the metrics pooled over their answers.

        scores: the main metric of these clients, [n], by phase.
        """
        row: Row = {}
        for phase, measured in phases.items():
            present = [k for k in ids.tolist() if k in measured]
            table = np.full((len(ids), len(self.names)), np.nan)
            if present:
                table[np.isin(ids, present)] = [measured[k][0] for k in present]
            pooled = self.pool([measured[k][1] for k in present])
            row |= {f"clients/{n}{phase}": table[:, i] for i, n in enumerate(self.names)}
            for name, value in zip(self.pooled, pooled, strict=True):
                row[f"rounds/{name}{phase}_pooled"] = value
            if self.counted:
                row[f"rounds/{self.fed.task.main}{phase}_pooled"] = pooled_accuracy(
                    scores[phase], self.fed.data.test_sizes[ids]
                )
        return row

    def validate(
        self, ids: np.ndarray, new: Scores, stale: np.ndarray, evaluated: Collection[int]
    ) -> Row:
        """Return the columns of the clients' own validation sets, [n] each, and pooled; collective.

        The validation set of a client are the examples that it holds out (evaluate.validation).
        Without them the result is {}.

        new: this rank's scores.  stale: [K], whether a client's last score no longer holds; a
        client without test examples, which has none, is scored by this set alone.
        evaluated: the clients that are evaluated in this round, none in some rounds; the values of
        others are nan.
        """
        if self.validation is None:
            return {}
        mine = {k: score.validation for k, score in new.items() if score.validation}
        for k, validation in (self.fed.comm.gather(mine) if evaluated else {}).items():
            self.validation[k], stale[k] = validation, False
        valid = np.isin(ids, list(evaluated)) & ~stale[ids]
        metric, loss, n = np.where(valid[:, None], self.validation[ids], np.nan).T
        main = self.fed.task.main
        row = {f"clients/{main}_validation": metric, "clients/loss_validation": loss}
        if self.counted:
            row[f"rounds/{main}_validation_pooled"] = pooled_accuracy(metric, n)
        return row

    def note_end(self, measured: dict[str, Measured]) -> None:
        """Keep the answers of these phases until the end, if `closing` needs them."""
        if self.closes:
            self.at_end |= measured

    def closing(self) -> Row:
        """Return the arrays of the end of the run: metrics by group, and what charts show.

        Names end in "" for clients' own models after local training, in "_received" for those that
        they would receive, and in "_final" for own models after the method's last step.
        """
        fed, arrays = self.fed, dict[str, Any]()
        for phase, measured in ({"": self.last} | self.at_end).items():
            answers = [answers for _, answers in measured.values()]
            if not answers or phase == "_before":
                continue
            for name, rows in fed.task.chart(fed.data.metrics, answers, fed.classes).items():
                arrays[f"{name}{phase}"] = rows
                arrays[f"answered{phase}"] = np.array([*measured], dtype=np.int64)
            if fed.data.groups is not None:
                columns = group_metrics(
                    fed.task,
                    fed.data.metrics,
                    concat(answers),
                    len(fed.data.group_names),
                    fed.seed,
                )
                arrays |= {f"groups{phase}/{name}": values for name, values in columns.items()}
        return arrays

    def pool(self, answers: list[Answers]) -> Numbers:
        """Return the metrics of all these clients' examples together."""
        if not answers:
            return tuple(float("nan") for _ in self.pooled)
        with self.fed.clock("evaluate"):
            return self.fed.task.compute(self.pooled, concat(answers))

    def to_tree(self) -> dict[str, Any]:
        """Return the part of a checkpoint that concerns metrics, with one array for each name.

        It is {} if nothing has been measured.
        """
        tree: dict[str, Any] = {}
        if self.validation is not None:
            tree["validation"] = self.validation.copy()
        if self.last:
            tree["answers"] = answers_to_tree(self.last)
        at_end = {phase: answers_to_tree(of) for phase, of in self.at_end.items() if of}
        return tree | ({"at_end": at_end} if at_end else {})

    def from_tree(self, tree: Mapping[str, Any]) -> None:
        """Restore the state that `to_tree` returned."""
        if self.validation is not None and "validation" in tree:
            self.validation = np.array(tree["validation"])
        self.last = answers_from_tree(tree["answers"]) if "answers" in tree else {}
        self.at_end = {phase: answers_from_tree(of) for phase, of in tree.get("at_end", {}).items()}


def answers_to_tree(measured: Measured) -> dict[str, Any]:
    """Return clients' metrics and answers, at least one client's, as one array for each name."""
    numbers, answers = zip(*measured.values(), strict=True)
    sizes = [len(next(iter(one.values()))) for one in answers]
    return {
        "ids": np.array([*measured]),
        "sizes": np.array(sizes),
        "numbers": np.array(numbers),
        "of": concat(answers),
    }


def answers_from_tree(tree: Mapping[str, Any]) -> Measured:
    """Return the metrics and answers that `answers_to_tree` was given."""
    ends = np.cumsum(tree["sizes"])[:-1]
    parts = {name: np.split(np.array(of), ends) for name, of in tree["of"].items()}
    measured: Measured = {}
    for i, k in enumerate(tree["ids"].tolist()):
        answers = {name: of[i] for name, of in parts.items()}
        measured[k] = (tuple(tree["numbers"][i].tolist()), answers)
    return measured


def pooled_accuracy(accuracy: np.ndarray, sizes: np.ndarray) -> float:
    """Return the accuracy over the test examples of all clients whose accuracy is known.

    accuracy, sizes: [n] each; unknown accuracies are nan. Returns nan if none is known.
    """
    finite = np.isfinite(accuracy)
    right = np.rint(accuracy[finite] * sizes[finite]).sum()
    return float(right / sizes[finite].sum()) if finite.any() else float("nan")
