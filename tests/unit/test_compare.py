"""Methods side by side: differences, intervals and tests by hand, and what cannot be paired."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hpcfed.core.errors import ConfigError
from hpcfed.report.compare import compare, make_comparison, notes
from hpcfed.report.differences import (
    Paired,
    bootstrap,
    holm,
    ranks_can_differ,
    t_interval,
    t_test,
    wilcoxon,
)
from hpcfed.report.formats import Shown, tex
from hpcfed.report.table import table
from hpcfed.results.run import find
from hpcfed.storage.record import load
from hpcfed.storage.results import Results
from tests import records
from tests.unit import test_table
from tests.unit.test_table import job, lines
from tests.unit.test_table import run as run_of


def run(
    folder: Path,
    last: list[float],
    seed: int = 0,
    rows: tuple[int, ...] = (0, 1, 2, 3),
    done: int | None = None,
    received: list[float] | None = None,
    receives_model: bool | None = None,
    **about: object,
) -> Path:
    """A run folder of one round with these accuracies of the clients, who hold these rows of the
    training split.

    done: rounds that it has, if it has not ended.
    received: accuracies of the models that clients receive, if they were scored.
    receives_model: whether clients receive all of a model; None: the file does not say.
    """
    folder.mkdir(parents=True)
    header = {
        "job": job(seed=seed, **{"rounds": 1, "clients": len(last)} | about),
        "ranks": 1,
        "architectures": ["mlp"] * len(last),
    }
    ended = {"ended": "finished"} if done is None else {}
    if receives_model is not None:
        ended |= {"receives_model": receives_model}
    results = Results(folder, header | ended, {"partition": np.array(rows)})
    counts = np.arange(len(last))
    for _ in range(header["job"]["rounds"] if done is None else done):
        results.append(
            {
                "clients/accuracy": np.array(last),
                "clients/up": counts,
                "clients/cohort": np.ones(len(last)),
                "rounds/seconds": 2.0 + seed,
            }
            | ({"clients/accuracy_received": np.array(received)} if received else {})
        )
    results.finish()
    return folder


def seeds(folder: Path, method: str, means: list[float], **about: object) -> list[Path]:
    """A run a seed, of two clients with this mean accuracy, 0.2 apart."""
    return [
        run(
            folder / f"{method}{s}",
            [mean - 0.1, mean + 0.1],
            seed=s,
            rows=(s, s + 1),
            method=method,
            **about,
        )
        for s, mean in enumerate(means)
    ]


def squeezed(line: str) -> str:
    return " ".join(line.split())


def test_the_t_interval_is_that_of_the_books():
    low, high = t_interval(np.array([0.1, 0.2, 0.3]))  # 0.2 -+ 4.302653 * 0.1 / sqrt(3)
    assert (low, high) == pytest.approx((-0.048414, 0.448414), abs=1e-6)


def test_the_signed_rank_test_counts_the_signs_that_are_as_extreme():
    assert wilcoxon(np.array([0.1, 0.2, 0.3])) == 0.25  # all positive: 2 of 8
    assert wilcoxon(np.array([0.1, 0.1, 0.1])) == 0.25  # ties, but the same
    assert (
        wilcoxon(np.array([0.4, -0.1, 0.2, 0.3])) == 0.25
    )  # sum of negative ranks 1: (1 + 1) * 2 of 16
    assert wilcoxon(np.zeros(5)) == 1.0


def test_the_t_test_is_that_of_the_interval():
    each = np.array([0.1, 0.2, 0.3])  # t = 0.2 / (0.1 / sqrt(3)) = 2 sqrt(3), 2 degrees of freedom
    assert t_test(each) == pytest.approx(1 - (12 / 14) ** 0.5)
    assert t_test(np.zeros(3)) == 1.0 and t_test(np.full(3, 0.1)) == 0.0
    edge = each - t_interval(each)[0]  # an interval that begins at 0
    assert t_test(edge) == pytest.approx(0.05)


def test_paired_differences_are_clustered_by_seed():
    paired = Paired((np.array([0.1, 0.3]), np.array([0.4]), np.array([-0.2, 0.2, 0.0])))
    np.testing.assert_allclose(paired.seeds, [0.2, 0.4, 0.0])
    assert paired.mean == pytest.approx(0.2)
    assert paired.interval == t_interval(paired.seeds) and paired.p == t_test(paired.seeds)
    assert paired.counts() == (4, 1, 1) and paired.counts(high=False) == (1, 4, 1)
    values = [0.1, 0.3, 0.4, -0.2, 0.2, 0.0]
    assert paired.effect == pytest.approx(np.mean(values) / np.std(values, ddof=1))
    few = Paired(paired.by_seed[:2])
    assert few.interval is None and few.p is None
    assert Paired((np.array([0.1]),)).effect is None
    assert Paired((np.array([0.3 - 0.2, 0.1]),)).effect is None  # equal but for rounding


def test_ranks_are_compared_from_so_many_seeds_on_that_all_tests_together_can_give_a_difference():
    each = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    paired = Paired(tuple(each[:, None]))
    assert paired.rank_p == wilcoxon(each) == 2 / 2**6 and paired.p == t_test(each)
    enough = {m: min(n for n in range(12) if ranks_can_differ([n] * m, m)) for m in range(1, 8)}
    assert enough == {1: 6, 2: 7, 3: 7, 4: 8, 5: 8, 6: 8, 7: 9}
    assert not ranks_can_differ([7, 6], 2) and not ranks_can_differ([6], 2)  # one more of clients


def test_one_test_compares_all_methods_whichever_has_lost_a_seed(tmp_path):
    gains = {"fedavg": np.linspace(0.1, 0.13, 7), "fedprox": np.linspace(0.02, 0.04, 7)}
    runs = find(seeds(tmp_path, "local", [0.5] * 7))
    for method, each in gains.items():
        runs += find(seeds(tmp_path, method, [*(0.5 + each)]))
    result = make_comparison(runs)
    assert [one.p for one in result.done] == [2 / 2**7] * 2
    assert "paired t interval, and Wilcoxon's signed-rank test. Seeds" in notes(result)[0]
    result = make_comparison(runs[:-1])  # two tests of six seeds cannot give p < 0.05 by ranks
    by_t = [t_test(gains["fedavg"]), t_test(gains["fedprox"][:6])]
    assert [one.p for one in result.done] == pytest.approx(by_t)
    assert "paired t interval, and paired t test. Seeds" in notes(result)[0]
    [alone] = make_comparison(runs[:13]).done
    assert alone.p == 2 / 2**6


@pytest.mark.parametrize("unit", [1.0, 1e-14, 1e14])
def test_the_unit_of_a_metric_changes_no_test(unit):
    each = np.array([0.21, 0.24, 0.19, 0.3, -0.2, 0.25])
    one, other = (tuple(np.array([x, 1.1 * x]) for x in scale * each) for scale in (1.0, unit))
    for n in (3, 6):
        want, paired = Paired(one[:n]), Paired(other[:n])
        assert paired.p == pytest.approx(want.p, rel=1e-9) and want.p < 1
        assert paired.rank_p == want.rank_p < 1
        assert paired.effect == pytest.approx(want.effect, rel=1e-9)
        assert paired.counts() == want.counts()


@pytest.mark.parametrize("unit", [1.0, 1e-14, 1e14])
def test_values_that_are_equal_but_for_rounding_are_equal_in_any_unit(unit, tmp_path):
    paired = Paired(tuple(np.array([x]) for x in (1e-17 * unit, -1e-17 * unit, 0.0)), scale=unit)
    assert paired.p == paired.rank_p == 1.0
    assert paired.effect is None and paired.counts() == (0, 0, 3)
    runs = [
        run(tmp_path / f"{method}{seed}", values, seed=seed, method=method)
        for seed in range(3)
        for method, values in (("local", [0.3 * unit]), ("fedavg", [(0.1 + 0.2) * unit]))
    ]
    assert squeezed(lines(compare(runs))[4]).endswith(" 1.0000 3 seeds 0 / 0 / 3")


def test_holm_multiplies_the_smallest_by_all_and_the_others_by_the_remaining_number():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


def test_a_bootstrap_depends_only_on_its_seed():
    each = np.array([0.1, 0.3, -0.1, 0.2])
    assert bootstrap(each, 0) == bootstrap(each, 0) and bootstrap(
        np.array([0.1, 0.1]), 0
    ) == pytest.approx((0.1, 0.1))
    low, high = bootstrap(np.array([0.0, 1.0]), 1)  # means 0, 0.5, 1 with 1/4, 1/2, 1/4
    assert (low, high) == (0.0, 1.0)


def test_over_three_seeds_the_seeds_are_the_units(tmp_path):
    runs = [*seeds(tmp_path, "local", [0.5, 0.5, 0.5]), *seeds(tmp_path, "fedavg", [0.6, 0.7, 0.8])]
    head, _, heads, base, ours, _, note, effect = lines(compare(runs))
    assert head == (
        "Test accuracy of each client's model after local training in the last "
        "round, mean over clients; paired differences from Local, "
        "with 95 % "
        "confidence intervals."
    )
    assert "Holm" not in heads  # one test
    assert squeezed(base) == "Local (baseline) 0.5000"
    assert squeezed(ours) == (
        "FedAvg 0.7000 +0.2000 -0.0484 to +0.4484 0.0742 +2.24 3 seeds 6 / 0 / 0"
    )
    assert "and paired t test. Seeds are the units" in note
    assert effect.startswith("Effect size: mean over standard deviation of the clients'")


def test_a_comparison_of_one_seed_is_over_clients_and_states_its_limits(tmp_path):
    local = run(tmp_path / "a", [0.5, 0.5, 0.5, 0.5], method="local")
    ours = run(tmp_path / "b", [0.6, 0.7, 0.8, 0.9])
    text = lines(compare([local, ours]))
    assert squeezed(text[4]).startswith("FedAvg 0.7500 +0.2500 ")
    assert squeezed(text[4]).endswith(" 0.1250 +1.94 4 clients of one seed 4 / 0 / 0")  # p: 2 of 16
    assert "not independent" in text[6] and "not what another seed would give" in text[6]


def test_two_seeds_are_too_few_for_an_interval_or_a_test(tmp_path):
    text = compare([*seeds(tmp_path, "local", [0.5, 0.5]), *seeds(tmp_path, "fedavg", [0.4, 0.5])])
    assert squeezed(lines(text)[2]) == (
        "method mean difference effect size over clients better / worse / equal"
    )
    assert squeezed(lines(text)[4]) == "FedAvg 0.4500 -0.0500 -0.87 2 seeds 0 / 2 / 2"
    assert "need 3 of them" in text


def with_errors(folder: Path, method: str, errors: list[float]) -> list[Path]:
    """A run a seed, of two clients with this MSE."""
    paths = []
    for seed, error in enumerate(errors):
        about = {"job": job(method, seed=seed, rounds=1), "metrics": ["mse"], "ended": "finished"}
        results = Results(
            folder / f"{method}{seed}", about | {"architectures": ["mlp"] * 2, "ranks": 1}, {}
        )
        results.path.parent.mkdir(parents=True)
        results.append({"clients/mse": np.full(2, error), "rounds/seconds": 1.0})
        results.finish()
        paths.append(results.path.parent)
    return paths


def test_numbers_that_stand_together_have_the_same_decimals(tmp_path):
    runs = [
        *with_errors(tmp_path, "local", [1.617, 1.617, 1.617]),
        *with_errors(tmp_path, "fedavg", [1.717, 1.7374, 1.7582]),
        *with_errors(tmp_path, "fedprox", [61_730.25, 61_730.0, 61_729.0]),
    ]
    rows = [squeezed(line) for line in lines(table(runs))]
    assert "Local 1.617 ± 0.000 *" in rows and "FedAvg 1.738 ± 0.021" in rows
    assert "FedProx 61,729.75 ± 0.66" in rows
    one, other = (Shown(f"{x}", "", "", x, places=n) for x, n in ((12.35, 2), (12.346, 3)))
    assert one.equals(other) and not replace(one, places=3).equals(other)
    ours = next(line for line in lines(compare(runs)) if line.startswith("FedAvg"))
    assert squeezed(ours).startswith("FedAvg 1.738 +0.121 +0.069 to +0.172 ")
    assert r"$-$0.121 & $-$0.172 to $-$0.069" in compare(runs, baseline="fedavg", format="latex")


def test_signs_of_comparison_and_bars_are_mathematics_in_latex(tmp_path):
    runs = [*seeds(tmp_path, "local", [0.5] * 3), *seeds(tmp_path, "fedavg", [0.6] * 3)]
    assert r" & $<$ 0.0001 & " in compare(runs, format="latex")
    assert tex("-0.5 (-1) lr=1e-05 sst-2 n - 1") == "$-$0.5 ($-$1) lr=1e-05 sst-2 n - 1"
    assert tex("a|b > c") == "a$|$b $>$ c"  # which are other signs in text of LaTeX


def test_several_methods_against_one_are_corrected(tmp_path):
    means = {"local": [0.5, 0.5, 0.5], "fedavg": [0.6, 0.7, 0.8], "fedprox": [0.4, 0.6, 0.45]}
    runs = [path for method, each in means.items() for path in seeds(tmp_path, method, each)]
    text = lines(compare(runs, format="csv"))
    assert text[0].endswith(",p,p_holm,effect,seeds,clients,better,worse,equal")
    one, other = (dict(zip(text[0].split(","), line.split(","), strict=True)) for line in text[1:])
    assert one["method"] == "FedAvg" and other["method"] == "FedProx"
    assert float(one["p"]) == pytest.approx(0.0742, abs=1e-4)
    assert float(one["p_holm"]) == pytest.approx(2 * float(one["p"]))
    assert float(one["effect"]) == pytest.approx(5**0.5)  # 0.2 over 0.2 / sqrt(5)
    assert float(other["p_holm"]) == float(other["p"]) > 0.5
    assert [other[name] for name in ("seeds", "clients", "better", "worse", "equal")] == list(
        "36240"
    )
    assert "p (Holm) is corrected for 2 tests; the intervals are not." in compare(runs)


def test_the_baseline_is_the_first_runs_method_or_one_that_is_named_or_that_of_a_run(tmp_path):
    runs = [*seeds(tmp_path, "local", [0.5]), *seeds(tmp_path, "fedavg", [0.6])]
    assert compare(runs, baseline="Local") == compare(runs, baseline="local")
    assert compare(runs, baseline="local") == compare(runs) == compare(runs, baseline=str(runs[0]))
    assert squeezed(lines(compare(runs, baseline="fedavg"))[4]).startswith("Local 0.5000 -0.1000 ")
    assert compare(runs[1:], baseline=str(runs[0])) == compare(runs[::-1], baseline="local")
    with pytest.raises(ConfigError, match="no method 'locl'; did you mean 'Local'"):
        compare(runs, baseline="locl")


def test_a_methods_parameters_tell_its_runs_apart(tmp_path):
    runs = [
        run(tmp_path / f"{mu}", [0.5, 0.5], method="fedprox", algorithm_mu=mu) for mu in (0.1, 1.0)
    ]
    base, ours = lines(compare(runs))[3:5]
    assert base.startswith("FedProx, mu=0.1 (baseline)") and ours.startswith("FedProx, mu=1 ")
    with pytest.raises(ConfigError, match="may be any of: FedProx, mu=0.1; FedProx, mu=1"):
        compare(runs, baseline="fedprox")


def test_runs_that_cannot_be_paired_are_refused_with_the_differing_fields(tmp_path):
    one = run(tmp_path / "a", [0.5, 0.5])
    with pytest.raises(ConfigError, match=r"differ in data.alpha \(0.1 and 0.5\)"):
        compare(
            [one, run(tmp_path / "b", [0.5, 0.5], method="local", alpha=0.1, rows=(3, 2, 1, 0))]
        )
    with pytest.raises(ConfigError, match=r"differ in data.name \(cifar10 and digits\)"):
        compare([one, run(tmp_path / "c", [0.5, 0.5], method="local", data="cifar10")])
    with pytest.raises(ConfigError, match=r"differ in data.shift.noise \(0.1 and null\)"):
        compare([one, run(tmp_path / "shift", [0.5, 0.5], method="local", data_shift_noise=0.1)])
    with pytest.raises(ConfigError, match="differ in no field, but in who holds which examples"):
        compare([one, run(tmp_path / "d", [0.5, 0.5], method="local", rows=(0, 2, 1, 3))])
    with pytest.raises(
        ConfigError,
        match="no seed with a finished run of both: Local has seeds 1; FedAvg has seeds 0",
    ):
        compare([one, run(tmp_path / "e", [0.5, 0.5], seed=1, method="local")])
    with pytest.raises(ConfigError, match=r"2 runs of FedAvg have the same seed: \S*a, \S*f; give"):
        compare(
            [one, run(tmp_path / "f", [0.5, 0.5]), run(tmp_path / "g", [0.5, 0.5], method="local")]
        )
    with pytest.raises(ConfigError, match="all runs are FedAvg"):
        compare([one])


def test_methods_of_another_partition_are_named_as_not_compared_and_take_no_comparison_away(
    tmp_path,
):
    runs = [
        run(tmp_path / f"{method}{alpha}", [0.5, last], alpha=alpha, rows=rows, method=method)
        for method, last in (("local", 0.5), ("fedavg", 0.7))
        for alpha, rows in ((0.1, (0, 1, 2, 3)), (0.5, (3, 2, 1, 0)))
    ]
    text = lines(compare(runs, baseline="Local, alpha=0.5"))
    assert squeezed(text[4]).startswith("FedAvg, alpha=0.5 0.6000 +0.1000 ") and text[5] == ""
    for method in ("Local", "FedAvg"):
        [note] = [line for line in text if line.startswith(f"{method}, alpha=0.1 is not compared")]
        assert note.endswith("other examples; they differ in data.alpha (0.1 and 0.5)")
    with pytest.raises(ConfigError, match=r"fedavg0.1 and \S*local0.5 cannot be paired(.|\n)*any"):
        compare(runs[1:3], baseline="Local")
    with pytest.raises(ConfigError, match="Local, alpha=0.1; Local, alpha=0.5; give one of them"):
        compare(runs, baseline="local")


def test_runs_of_other_rounds_or_clients_are_compared_only_when_asked_to(tmp_path):
    one = run(tmp_path / "a", [0.5, 0.5], method="local", local_lr=0.1)
    longer = run(tmp_path / "b", [0.6, 0.7], local_lr=0.0005, rounds=3)
    with pytest.raises(ConfigError, match=r"differ in rounds \(3 and 1\)\n.*--anyway"):
        compare([one, longer])
    text = lines(compare([one, longer], anyway=True))
    assert squeezed(text[4]).endswith("2 clients of one seed 2 / 0 / 0")  # the same clients
    assert text[-1] == "FedAvg and Local also differ: rounds 3/1, local.lr 0.0005/0.1"
    others = run(tmp_path / "c", [0.6, 0.7], local_lr=0.1, alpha=0.1, rows=(3, 2, 1, 0))
    with pytest.raises(ConfigError, match=r"differ in data.alpha \(0.1 and 0.5\)\n.*--anyway"):
        compare([one, others])
    text = lines(compare([one, others], anyway=True))
    assert squeezed(text[4]) == "FedAvg 0.6500 +0.1500 one seed"  # no client has its like
    assert text[-1] == "FedAvg and Local also differ: data.alpha 0.1/0.5"


def test_numbers_of_several_rounds_are_compared_only_if_the_same_rounds_were_evaluated(tmp_path):
    runs = [
        run(tmp_path / f"{every}", [0.5, 0.5], rounds=2, method=method, evaluate_every=every)
        for method, every in (("local", 1), ("fedavg", 2))
    ]
    for value in ("best", "last:2"):
        with pytest.raises(ConfigError, match=r"differ in evaluate.every \(2 and 1\)\n.*--anyway"):
            compare(runs, value=value)
        for text in (compare(runs, value=value, anyway=True), table(runs, value=value)):
            assert "also differ: evaluate.every " in text
    for value in ("last", "last:1"):
        assert "differ: " not in compare(runs, value=value) + table(runs, value=value)


def test_a_note_says_when_means_over_rounds_are_not_those_of_the_table(tmp_path):
    nan = np.nan
    rounds = [[0.2, nan], [nan, 0.8], [nan, 0.8]]  # by round 0.6, by client 0.5
    runs = [run_of(tmp_path / name, rounds, method=name) for name in ("local", "fedavg")]
    note = "Local, FedAvg: the evaluated clients change by round"
    assert "0.6000" in table(runs, value="last:3") and note in compare(runs, value="last:3")
    text = lines(compare(runs, value="last:3"))
    assert squeezed(text[4]).startswith("FedAvg 0.5000 0.5000 +0.0000 ")
    assert note not in compare(runs, value="last:2") + compare(runs, value="best")


def test_fields_that_move_no_example_may_differ(tmp_path):
    runs = [
        run(tmp_path / "a", [0.5, 0.5]),
        run(tmp_path / "b", [0.5, 0.7], method="ktpfl", data_public=3000),
    ]
    assert "+0.1000" in compare(runs)


def test_runs_that_do_not_count_are_listed(tmp_path):
    runs = [
        *seeds(tmp_path, "local", [0.5, 0.5]),
        *seeds(tmp_path, "fedavg", [0.6]),
        run(tmp_path / "x", [0.6, np.nan], rows=(0, 1), method="fedprox"),
    ]
    text = compare(runs)
    assert "seed 1 of Local has no finished run of FedAvg, and does not count" in text
    assert "FedProx: clients that have a number in only one run of a pair do not count: 1" in text


def test_a_method_that_cannot_be_paired_takes_no_comparison_away(tmp_path):
    runs = [*seeds(tmp_path, "local", [0.5] * 3), *seeds(tmp_path, "fedavg", [0.6, 0.7, 0.8])]
    lost = run(tmp_path / "x", [0.6, 0.7], seed=7, method="fedprox")
    text = lines(compare([*runs, lost]))
    assert squeezed(text[4]).startswith("FedAvg 0.7000 +0.2000 ") and text[5] == ""
    assert (
        "FedProx is not compared: no seed with a finished run of both: FedProx has seeds 7; Local "
        "has seeds 0, 1, 2"
    ) in text
    silent = seeds(tmp_path, "fedprox", [np.nan] * 3)
    text = lines(compare([*runs, *silent]))
    assert squeezed(text[4]).startswith("FedAvg 0.7000 +0.2000 ")
    assert any("FedProx is not compared: --value accuracy: no client has it" in t for t in text)
    with pytest.raises(ConfigError, match=r"no client has it in both(.|\n)*FedProx has seeds 7"):
        compare([*runs[:3], lost, run(tmp_path / "y", [np.nan] * 2, method="fedavg", rows=(0, 1))])


def test_runs_of_a_method_that_is_not_compared_are_named_if_they_are_unfinished(tmp_path):
    runs = [*seeds(tmp_path, "local", [0.5]), *seeds(tmp_path, "fedavg", [0.6])]
    begun = run(tmp_path / "x", [0.6, 0.7], method="fedprox", rounds=2, done=1)
    text = compare([*runs, begun])
    assert "FedProx is not compared" in text and "1 of 2 rounds are done" in text


def test_a_seed_without_numbers_does_not_count_and_a_note_names_it(tmp_path):
    runs = [*seeds(tmp_path, "local", [0.5] * 3), *seeds(tmp_path, "fedavg", [0.6, np.nan, 0.7])]
    text = compare(runs)
    assert squeezed(lines(text)[4]) == "FedAvg 0.6500 +0.1500 +2.60 2 seeds 4 / 0 / 0"
    assert "seed 1 has no numbers in the runs of both FedAvg and Local, and does not count" in text


def test_a_comparison_says_which_runs_ended_early_and_of_which_clients_failed(tmp_path):
    early, failed = {"early": "the loss has not fallen"}, np.array([[1, 0], [1, 0], [0, 0]])
    a = test_table.run(tmp_path / "a", [[0.5, 0.7]], header=early)
    b = test_table.run(tmp_path / "b", [[0.5, 0.7]] * 3, method="local", faults=failed)
    notes = lines(compare([a, b]))
    assert f"ended early: {a} after 1 of 3 rounds" in notes
    assert f"reports of clients failed: {b} 2 of 6 (diverged)" in notes


def test_seconds_are_compared_with_the_ranks_of_each_method_in_view(tmp_path):
    runs = [
        test_table.run(tmp_path / m, [[0.5, 0.7]] * 3, method=m, ranks=ranks)
        for m, ranks in (("local", 1), ("fedavg", 4))
    ]
    text = lines(compare(runs, value="seconds"))
    assert text[3].startswith("Local, ranks=1 ") and text[4].startswith("FedAvg, ranks=4 ")
    assert "FedAvg, ranks=4 and Local, ranks=1 also differ: ranks 4/1" in text
    assert "ranks" not in compare(runs)


def with_gaps(folder: Path) -> list[Path]:
    """Three seeds of two methods, of which some clients have no accuracy."""
    nan = np.nan
    last = {
        "fedavg": ([0.9, 0.8, 0.7], [0.9, nan, 0.7], [0.9, nan, nan]),
        "local": ([0.9, 0.8, 0.7], [0.9, 0.7, nan], [0.9, nan, 0.5]),
    }
    return [
        run(folder / f"{method}{seed}", values, seed=seed, method=method)
        for method, by_seed in last.items()
        for seed, values in enumerate(by_seed)
    ]


def test_the_baseline_of_a_difference_is_shown_if_it_is_not_that_of_all_clients(tmp_path):
    heads, base, ours = lines(compare(with_gaps(tmp_path)))[2:5]
    assert heads.split()[:4] == ["method", "mean", "paired", "baseline"]
    assert squeezed(base) == "FedAvg (baseline) 0.8333"
    assert squeezed(ours).startswith("Local 0.8667 0.8667 +0.0000 ")


def test_a_table_says_which_cells_are_means_over_different_clients(tmp_path):
    runs = with_gaps(tmp_path)
    text = lines(table(runs))
    assert text[-1] == (
        "means over different clients, because not all have a value: Local 2 to 3 "
        "clients, FedAvg 1 to 3 clients"
    )
    other = [run(tmp_path / f"m{s}", [0.9, 0.5, 0.1], seed=s, data="mnist") for s in range(3)]
    assert any(line.startswith("digits: means over") for line in lines(table([*runs, *other])))
    assert "means over different" not in table(runs, value="up")
    alike = [runs[0], run(tmp_path / "b", [0.9, 0.5, 0.1], method="local")]
    assert "means over different" not in table(alike)


def test_a_table_names_the_clients_that_cells_of_as_many_clients_lack(tmp_path):
    runs = [
        *(run(tmp_path / f"a{s}", [0.9, np.nan, 0.7], s, method="local") for s in (0, 1)),
        *(run(tmp_path / f"b{s}", [np.nan, 0.5, 0.6], s, method="fedavg") for s in (0, 1)),
    ]
    why = "means over different clients, because not all have a value: "
    assert lines(table(runs))[-1] == why + "Local lacks 1; FedAvg lacks 0"
    assert "different clients" not in table(runs[:2])


def test_rows_as_received_have_numbers_of_clients_of_their_own(tmp_path):
    runs = [
        run(tmp_path / "a", [0.9, 0.8, 0.7], method="local"),
        run(tmp_path / "b", [0.9, 0.8, 0.7], method="fedavg", received=[0.9, np.nan, 0.7]),
    ]
    assert lines(table(runs))[-1] == (
        "means over different clients, because not all have a value: Local 3 clients, "
        "FedAvg 3 clients, FedAvg, as received 2 clients"
    )


def test_a_method_whose_clients_receive_no_model_has_no_row_as_received(tmp_path):
    def of(name: str, **about: object) -> Path:
        return run(tmp_path / name, [0.9, 0.7], received=[0.8, 0.6], method=name, **about)

    runs = [of("local", receives_model=False), of("fedavg", receives_model=True), of("moon")]
    rows = [" ".join(line.split()) for line in lines(table(runs))]
    received = [row.partition(",")[0] for row in rows if ", as received 0." in row]
    assert received == ["FedAvg", "MOON"]  # older files do not say it
    assert any(row.startswith("as received: the model that each client would") for row in rows)
    assert "0.7000" in table(runs[:1], value="received")


def test_with_very_many_clients_only_recorded_ones_are_paired(tmp_path):
    for method, who, values in (("local", [5, 9], [0.5, 0.5]), ("fedavg", [9, 11], [0.7, 0.9])):
        results = Results(
            made := tmp_path / method,
            {
                "job": job(method, rounds=1) | {"clients": 20_000},
                "ranks": 1,
                "ended": "finished",
                "architectures": ["mlp"] * 20_000,
            },
            {},
        )
        made.mkdir()
        results.append(
            {
                "clients/id": np.array(who),
                "clients/accuracy": np.array(values),
                "rounds/seconds": 1.0,
                "clients/architecture": np.zeros(2),
            }
        )
        results.finish()
    text = compare([tmp_path / "local", tmp_path / "fedavg"])
    assert squeezed(lines(text)[4]) == "FedAvg 0.7000 +0.2000 1 client of one seed 1 / 0 / 0"
    assert "do not count: 2" in text


def test_a_number_that_is_not_of_clients_is_compared_over_seeds(tmp_path):
    runs = [*seeds(tmp_path, "local", [0.5, 0.5]), *seeds(tmp_path, "fedavg", [0.6, 0.6])]
    assert squeezed(lines(compare(runs, value="seconds"))[4]) == "FedAvg 2.50 s +0.00 s 2 seeds"
    with pytest.raises(ConfigError, match="no client has it in both"):
        compare(runs, value="final")


def test_runs_of_different_code_are_noted_below_tables_and_comparisons(tmp_path):
    def of(name: str, version: str, code: str) -> Path:
        header = records.header(2, 1, 2, versions={"hpcfed": version}, commit="c" * 40)
        header["own"] = {"mine:Mine": code}
        header["job"]["algorithm"]["name"] = name
        results = Results(tmp_path / name, header, {})
        for t in (1, 2):
            results.append(records.row(t, 2, 1))
        results.finish()
        return tmp_path / name

    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    runs = [of("a", "0.1.0", "1"), of("b", "0.2.0", "2")]
    for text in (compare(runs, anyway=True), table(runs)):
        versions = f"hpcfed 0.1.0 ({'c' * 10}), hpcfed 0.2.0 ({'c' * 10})"
        assert f"the runs are of different code: {versions}" in text
        assert "the code of mine:Mine differs between or within the runs" in text
    assert "code" not in table(runs[:1])


def test_runs_are_compared_by_the_rounds_that_they_have_done(tmp_path):
    runs = [run(tmp_path / m, [0.5, 0.7], method=m, rounds=2, rows=(0, 1)) for m in ("a", "b")]
    old = load(runs[0])
    header = old.header | {"job": job("a", rounds=1)}
    Results.resume(runs[0], 2, header, arrays=old.arrays).finish()
    with pytest.raises(ConfigError, match=r"they differ in"):
        compare([runs[0], run(tmp_path / "c", [0.5, 0.7], method="c", rounds=1, rows=(0, 1))])
    assert "a (baseline)" in compare(runs)
