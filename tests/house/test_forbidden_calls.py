"""No global random generator outside hpcfed/rng.py, and nothing that runs what a file or a user
says.
"""

import ast

import pytest

from tests.house.source import BENCHMARKS, PACKAGE, calls, imports, name

OURS = PACKAGE + BENCHMARKS
DRAWS = {
    "rand",
    "randn",
    "randint",
    "randperm",
    "normal",
    "bernoulli",
    "multinomial",
    "rand_like",
    "randn_like",
}
IN_PLACE = {
    "uniform_",
    "normal_",
    "bernoulli_",
    "random_",
    "exponential_",
    "log_normal_",
    "cauchy_",
    "geometric_",
}
SEEDS = {"manual_seed", "seed", "manual_seed_all", "set_rng_state", "fork_rng"}
UNSAFE_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load"}
each_file = pytest.mark.parametrize("path", OURS, ids=name)
not_rng = pytest.mark.parametrize(
    "path", [path for path in OURS if path.name != "rng.py"], ids=name
)


def keywords(call: ast.Call) -> dict[str | None, str]:
    return {word.arg: ast.unparse(word.value) for word in call.keywords}


def seeds(call: str) -> bool:
    """Whether a call of this name seeds a generator, or makes one that no stream of hpcfed.rng
    names.
    """
    *path, last = call.split(".")
    return (
        path[:2] in (["np", "random"], ["numpy", "random"])
        or (path[:1] == ["torch"] and last in SEEDS)
        or call == "torch.Generator"
    )


def draws(call: str) -> bool:
    """Whether a call of this name draws from torch, from the global generator unless it is given
    one.
    """
    *path, last = call.split(".")
    return (path == ["torch"] and last in DRAWS) or (
        bool(path) and last in IN_PLACE and path[-1] != "init"
    )


@not_rng
def test_generators_come_from_rng_alone(path):
    assert "random" not in imports(path)
    assert [f"{call} in line {node.lineno}" for call, node in calls(path) if seeds(call)] == []


@not_rng
def test_no_draw_without_a_generator(path):
    found = [
        (call, node)
        for call, node in calls(path)
        if draws(call) and "generator" not in keywords(node)
    ]
    assert [f"{call} in line {node.lineno}" for call, node in found] == []


@each_file
def test_nothing_is_unpickled_or_evaluated(path):
    assert {full.split(".")[0] for full in imports(path)} & UNSAFE_MODULES == set()
    unsafe = [
        node
        for call, node in calls(path)
        if call in UNSAFE_CALLS
        or keywords(node).get("shell") == "True"
        or keywords(node).get("allow_pickle") == "True"
    ]
    assert [f"line {node.lineno}: {ast.unparse(node)}" for node in unsafe] == []


def test_the_rules_know_what_they_forbid():
    assert all(
        map(
            seeds,
            ("np.random.rand", "numpy.random.seed", "torch.manual_seed", "torch.cuda.manual_seed"),
        )
    )
    assert (
        draws("torch.randn")
        and draws("x.normal_")
        and not draws("nn.init.normal_")
        and not draws("g.normal")
    )
