"""The result of runs in two sentences, and the pages of clients."""

from pathlib import Path

import numpy as np
import pytest

from hpcfed.core.errors import ConfigError
from hpcfed.report.naming import find_named, with_titles
from hpcfed.report.page import clients
from hpcfed.report.page.command import report
from hpcfed.report.page.result import sentences
from hpcfed.storage.results import Results
from tests.unit.test_table import job


def run(
    folder: Path,
    last: list[float],
    seed: int = 0,
    rounds: int = 2,
    metric: str = "accuracy",
    **about: object,
) -> Path:
    """A run of two rounds with these accuracies, or this metric, of the clients after the last."""
    folder.mkdir(parents=True)
    about = {"clients": len(last), "rounds": 2} | about
    header = {"job": job(seed=seed, **about), "architectures": ["mlp"] * len(last), "ranks": 1}
    header |= {"classes": ["no", "<yes>"], "metrics": [metric]}
    arrays = {"label_counts": np.array([[k, 9 - k] for k in range(len(last))])}
    results = Results(folder, header, arrays)
    for t in range(rounds):
        values = np.array(last) * (t + 1) / 2
        results.append({f"clients/{metric}": values, "clients/cohort": np.ones(len(last))})
    results.finish()
    return folder


def three(folder: Path, method: str, means: list[float]) -> list[Path]:
    return [
        run(folder / f"{method}{i}", [m - 0.1, m + 0.1], seed=i, method=method)
        for i, m in enumerate(means)
    ]


def result(paths: list[Path]) -> list[str]:
    return sentences(with_titles(find_named(paths)))


def test_the_best_method_is_named_and_how_sure_that_is(tmp_path):
    better = three(tmp_path, "fedavg", [0.70, 0.71, 0.72])
    worse = three(tmp_path, "local", [0.60, 0.60, 0.60])
    assert result([*worse, *better]) == [
        "Of 2 methods FedAvg has the highest test accuracy: 0.7100 ± 0.0100, mean over 2 clients "
        "and 3 seeds; Local 0.6000 ± 0.0000.",
        "That is +0.1100 against Local, the next (95 % interval +0.0852 to +0.1348, over 3 seeds).",
    ]
    noisy = three(tmp_path, "fedprox", [0.9, 0.6, 0.66])
    assert result([*noisy, *better])[1].endswith("so the two cannot be told apart.")


def test_a_difference_over_fewer_seeds_or_clients_than_the_means_says_so(tmp_path):
    def of(name: str, method: str, by_seed: dict[int, list[float]]) -> list[Path]:
        folder = tmp_path / name
        return [
            run(folder / f"{method}{seed}", values, seed=seed, method=method)
            for seed, values in by_seed.items()
        ]

    fedavg = of("seeds", "fedavg", {0: [0.5], 1: [0.6], 2: [0.7]})
    head, tail = result([*fedavg, *of("seeds", "apfl", {0: [0.4], 3: [0.99], 4: [0.99]})])
    assert head.startswith("Of 2 methods APFL has the highest test accuracy: 0.7933 ")
    assert tail.startswith("Over the seeds and clients that both have it is -0.1000 against FedAvg")
    gaps = of("clients", "fedavg", {0: [0.5, 0.6]}) + of("clients", "apfl", {0: [0.6, np.nan]})
    assert result(gaps)[1].startswith("Over the seeds and clients that both have it is +0.1000 ")


def test_a_mean_is_over_the_clients_that_have_a_value(tmp_path):
    part = [
        run(tmp_path / str(seed), values, seed=seed)
        for seed, values in enumerate(([0.4, np.nan, 0.6], [0.7, np.nan, np.nan]))
    ]
    assert ", mean over 2 clients, one seed." in result(part[:1])[0]
    assert ", mean over 1 to 2 clients and 2 seeds." in result(part)[0]


def test_a_single_method_its_clients_and_other_data_have_sentences_of_their_own(tmp_path):
    one = run(tmp_path / "a", [0.5, 0.6, 0.9])
    assert result([one]) == [
        "FedAvg reaches a test accuracy of 0.6667, mean over 3 clients, one seed.",
        "Its clients lie between 0.5000 and 0.9000, half of them above 0.6000.",
    ]
    others = run(tmp_path / "b", [0.2, 0.4, 0.3], data="mnist", method="local")
    head, tail = result([one, others])
    assert head.startswith(
        "By test accuracy the best methods are Local on mnist (0.3000), FedAvg on"
    )
    assert tail.startswith("These are 2 settings, whose numbers do not compare")
    assert result([run(tmp_path / "c", [0.5, 0.5], rounds=1)]) == []


@pytest.mark.parametrize(
    ("field", "values", "text"),
    [("alpha", (0.1, 10.0), "alpha"), ("participation", (0.1, 1.0), "participation")],
)
def test_methods_are_compared_within_one_skew_and_participation(tmp_path, field, values, text):
    runs = [
        run(tmp_path / f"{method}{value}", [accuracy] * 2, method=method, **{field: value})
        for value, (ours, alone) in zip(values, ((0.5, 0.6), (0.9, 0.8)), strict=True)
        for method, accuracy in (("fedavg", ours), ("local", alone))
    ]
    low, high = (f"{text}={value:g}" for value in values)
    assert result(runs)[0] == (
        f"By test accuracy the best methods are Local on {low} (0.6000), FedAvg on {high} (0.9000)."
    )


def test_each_client_that_is_asked_for_has_a_page(tmp_path):
    runs = [
        *three(tmp_path, "fedavg", [0.7, 0.7, 0.7]),
        run(tmp_path / "x", [0.55, 0.5], method="local"),
    ]
    page = Path(report(runs, tmp_path / "r.html", clients="0"))
    [path] = (tmp_path / "r-clients").iterdir()
    text = path.read_text()
    assert path.name == "client-0.html" and 'href="../r.html"' in text
    assert (
        "With FedAvg, the best of 2 methods for it, this client has a test accuracy of 0.6000"
        in (text)
    )
    assert "0.6000 ± 0.0000" in text and "2 of 2" in text and "1 of 2" in text  # places
    assert "&lt;yes&gt;" in text and "<yes>" not in text and "<script" not in text
    assert "FedAvg has the highest test accuracy" in page.read_text()
    report(runs, tmp_path / "r.html", clients="all")
    assert len(list((tmp_path / "r-clients").iterdir())) == 2
    with pytest.raises(ConfigError, match="--clients 2: these runs have the clients 0 to 1"):
        report(runs, tmp_path / "r.html", clients="2")


def test_a_clients_page_has_a_section_for_each_first_metric_of_the_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(clients, "curve", lambda cases, k, metric: metric.encode())
    paths = [
        run(tmp_path / "a", [0.7, 0.9]),
        run(tmp_path / "b", [2.0, 3.0], method="local", metric="mse"),
    ]
    text = clients.render(find_named(paths), 0, [], "../r.html")
    first, second = text.split("<h2>Methods by test ")[1:]
    assert first.startswith("MSE<") and "Local" in first and "FedAvg" not in first
    assert second.startswith("accuracy<") and "FedAvg" in second and "Local" not in second
    assert "this client has a test MSE of 2." in text and "a test accuracy of 0.7000." in text
