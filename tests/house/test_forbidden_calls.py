"""No global random generator outside hpcfed/core/rng.py; nothing that runs what a file or a user
says.
"""

import ast
from collections.abc import Callable
from pathlib import Path

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
NOT_RNG = [path for path in OURS if path.name != "rng.py"]


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


def offenders(files: list[Path], wrong: Callable[[str, ast.Call], object]) -> list[str]:
    """The calls of these files of which `wrong` is true, as a failing rule names them."""
    return [
        f"{name(path)}:{node.lineno}: {call}"
        for path in files
        for call, node in calls(path)
        if wrong(call, node)
    ]


def test_generators_come_from_rng_alone():
    assert [name(path) for path in NOT_RNG if "random" in imports(path)] == []
    assert offenders(NOT_RNG, lambda call, node: seeds(call)) == []


def test_no_draw_without_a_generator():
    wrong = offenders(NOT_RNG, lambda call, node: draws(call) and "generator" not in keywords(node))
    assert wrong == []


def test_nothing_is_unpickled_or_evaluated():
    modules = [
        f"{name(path)}: {full}"
        for path in OURS
        for full in imports(path)
        if full.split(".")[0] in UNSAFE_MODULES
    ]
    assert modules == []

    def unsafe(call: str, node: ast.Call) -> bool:
        arguments = keywords(node)
        if call == "torch.load" and arguments.get("weights_only") == "True":
            return False  # tensors alone, of a file that the user names
        return call in UNSAFE_CALLS or "True" in (
            arguments.get("shell"),
            arguments.get("allow_pickle"),
        )

    assert offenders(OURS, unsafe) == []


def test_the_rules_find_their_forbidden_examples():
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
