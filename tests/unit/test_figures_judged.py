"""Figures of what is recorded at the end of a run: reliability, and confusion by client."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest

from hpcfed.core.errors import ConfigError
from hpcfed.main import main
from hpcfed.report.figures import models, reliability
from hpcfed.report.figures.groups import groups
from hpcfed.report.figures.registry import FIGURES
from hpcfed.results.run import Run, find

FLAGS = ("--algorithm.name", "fedavg", "--models.mix", "logistic", "--data.partition", "iid")


@cache
def run(clients: int, metric: str = "ece") -> Run:
    out = Path(mkdtemp()) / f"of-{clients}"
    job = [*FLAGS, "--clients", str(clients), "--data.train_limit", "300", "--rounds", "1"]
    assert main([*job, "--evaluate.metrics", metric, "--quiet", "--out", str(out)]) == 0
    return find([out])[0]


@pytest.mark.parametrize("clients", [3, 100])
def test_the_diagram_has_the_error_of_the_metric_itself(clients: int):
    one = run(clients)
    result = reliability.reliabilities(groups([one])[0])
    pooled = one.record.columns["rounds/ece_pooled"][-1]
    each = one.record.columns["clients/ece"][-1]
    assert reliability.error(result.pooled) == pytest.approx(pooled, abs=1e-12)
    errors = [reliability.error(counts) for counts in result.counts]
    assert errors == pytest.approx(each[np.isfinite(each)].tolist(), abs=1e-12)
    assert result.received is not None
    final = one.record.arrays["final/ece_received_pooled"][0]
    assert reliability.error(result.received) == pytest.approx(final, abs=1e-12)


@pytest.mark.parametrize("clients", [3, 100])
def test_confusion_by_client_is_of_its_own_test_examples(clients: int):
    one = run(clients)
    matrices = models.client_confusions(one)
    accuracy = np.sort(one.record.columns["clients/accuracy"][-1])
    right = sorted(np.trace(m.counts) / m.counts.sum() for m in matrices)
    assert right == pytest.approx(accuracy[:12].tolist(), abs=1e-12)
    assert len(matrices) == min(clients, 12)


@pytest.mark.parametrize("name", ["reliability", "confusion-clients"])
def test_clients_up_to_ten_have_a_line_and_up_to_twelve_a_panel(name: str):
    few, many = (FIGURES[name].load()([run(clients)]) for clients in (3, 100))
    if name == "reliability":
        lines = [len(figure.axes[0].lines) for figure in (few, many)]
        assert lines == [1 + 3 + 2, 1 + 2]  # calibrated, clients, received and own
    else:
        panels = [sum(ax.get_aspect() == 1 for ax in figure.axes) for figure in (few, many)]
        assert panels == [3, 12]


def test_a_run_without_the_numbers_is_refused():
    with pytest.raises(ConfigError, match="reliability: (.|\\n)*evaluate.metrics ece"):
        reliability.figure([run(3, "kappa")])
    with pytest.raises(ConfigError, match="confusion-clients: (.|\\n)*evaluate.metrics macro_f1"):
        models.confusion_by_client([run(3, "accuracy")])
    with pytest.raises(ConfigError, match="2 runs; it shows the clients of one run"):
        models.confusion_by_client([run(3), run(3)])
