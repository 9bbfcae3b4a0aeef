"""hpcfed.run: the bits of the command, in a process that is afterwards as it was before."""

import os
import random
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import hpcfed
from hpcfed.algorithms.global_model.fedprox import FedProx
from hpcfed.config.load import load
from hpcfed.config.write import to_toml
from hpcfed.core.exit_status import DONE, RESUME_ME
from hpcfed.launch import python
from hpcfed.machine.devices import prepare
from hpcfed.machine.settings import VARIABLES, backend, usual_settings
from hpcfed.main import main
from hpcfed.report import progress
from hpcfed.results.export import export
from hpcfed.storage import digest as digests
from tests import forked
from tests.mpirun import environment, launcher


def digest(run):
    return digests.digest(Path(run))


TINY = {"rounds": 2, "clients": 3, "quiet": True, "models": {"mix": ["mlp"], "d": 8}}
MINE = """
import torch.nn.functional as F
from torch import nn
from hpcfed import RoundBased

class Mine(RoundBased):
    scale: float = 1.0

    def loss(self, client, state, model, x, y):
        return self.scale * F.cross_entropy(model(x), y)

def build(shape, d):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], d), nn.ReLU())
"""


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def of_command(tmp_path_factory):
    """A run of FedProx by the command."""
    out = tmp_path_factory.mktemp("command") / "run"
    job = out.with_name("job.toml")
    job.write_text(to_toml(TINY))
    words = [str(job), "--algorithm.name", "fedprox", "--algorithm.mu", "0.5", "--out", str(out)]
    assert main(words) == DONE
    return out


@pytest.fixture(scope="module")
def by_command(of_command):
    return digest(of_command)


def arrays(n=60):
    g = np.random.default_rng(3)
    return g.integers(0, 256, (n, 6, 6), np.uint8), g.integers(0, 3, n)


def settings():
    """What a run may change of this process."""
    return [
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
        np.geterr(),
        list(sys.path),
        {name: os.environ.get(name) for name in (*VARIABLES, "OMP_NUM_THREADS", "PYTHONPATH")},
        [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)],
        {thread.name for thread in threading.enumerate()},
        sys.stdout,
    ]


def test_a_call_has_the_bits_of_the_command_and_restores_torchs_settings(
    by_command,
):
    threads = torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(3)
    torch.manual_seed(17)
    try:
        before = settings()
        with torch.no_grad(), np.errstate(all="raise"):
            hpcfed.run(TINY, algorithm={"name": "FedProx", "mu": 0.5}, out="a")
        run = hpcfed.run(TINY, algorithm=FedProx(mu=0.5), out="b")
        assert settings() == before
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)
    assert digest("a") == digest("b") == by_command
    assert len(run) == 2 and run.job["algorithm"] == hpcfed.load("a").job["algorithm"]


def test_job_files_and_fields_of_a_call_lie_over_one_another_as_files_and_flags(
    tmp_path, monkeypatch
):
    (tmp_path / "a.toml").write_text(
        "rounds = 5\nclients = 4\n[data]\nalpha = 0.2\n[models]\nmix = ['cnn']\n"
    )
    (tmp_path / "b.toml").write_text("[algorithm]\nname = 'fedprox'\nmu = 0.3\n")
    monkeypatch.setenv("HPCFED_CLIENTS", "5")
    monkeypatch.setenv("HPCFED_ROUNDS", "6")

    def job(words, *files):
        call = python.Call(*files)
        return load([*map(str, call.files), *words], arguments=call.arguments)

    fields = {"rounds": np.int64(7), "data.alpha": 0.1, "data": {"partition": "iid"}}
    parsed = job([], ["a.toml", "b.toml"], fields)
    flags = ["--rounds", "7", "--data.alpha", "0.1", "--data.partition", "iid"]
    assert parsed.plain() == job(["a.toml", "b.toml", *flags], None, {}).plain()
    assert (parsed.rounds, parsed.clients, parsed.algorithm.mu) == (7, 5, 0.3)
    other = job([], ["a.toml", "b.toml"], {"algorithm": "fedavg"})
    assert other.algorithm.name == "fedavg"  # and the other's mu is none of its fields
    assert parsed.origins()["rounds"] == "hpcfed.run"


def test_classes_functions_and_arrays_have_the_bits_of_files(tmp_path, monkeypatch):
    (tmp_path / "minefile.py").write_text(MINE)
    x, y = arrays()
    np.savez("d.npz", x_train=x, y_train=y)
    (tmp_path / "job.toml").write_text(to_toml(TINY))
    words = [
        "job.toml",
        "--algorithm.name",
        "minefile:Mine",
        "--algorithm.scale",
        "0.5",
        "--models.mix",
    ]
    monkeypatch.syspath_prepend(tmp_path)
    words += ["minefile:build", "--data.name", "d.npz", "--out", "command"]
    assert main(words) == DONE
    space = {"__name__": "__main__"}
    exec(MINE, space)  # as a notebook's cell
    method, tensors = space["Mine"](scale=0.5), (torch.from_numpy(x), torch.from_numpy(y))
    hpcfed.run(TINY, data=tensors, algorithm=method, model=space["build"], out="call")
    assert digest("call") == digest("command")
    job = hpcfed.load("call").job
    assert job["algorithm"]["name"] == "__main__:Mine"
    import minefile

    method = {"name": minefile.Mine, "scale": 0.5}
    data = {"x_train": x, "y_train": y}
    run = hpcfed.run(TINY, data=data, algorithm=method, model=[minefile.build], out="file")
    assert digest("file") == digest("command")
    assert run.job["algorithm"]["name"] == "minefile:Mine"
    assert run.job["data"]["name"] == job["data"]["name"]  # of the same arrays
    assert [p.name for p in tmp_path.joinpath("data").iterdir()] == [job["data"]["name"]]


def test_a_class_that_is_defined_again_is_another_one():
    """A cell of a notebook is run again: method and model of the same names are new."""
    calls = []
    for units, scale in ((4, 0.1), (9, 0.7)):

        class Mine(hpcfed.RoundBased):
            own: float = scale

            def loss(self, client, state, model, x, y):
                return self.own * nn.functional.cross_entropy(model(x), y)

        def build(shape, d, units=units):
            return nn.Sequential(nn.Flatten(), nn.Linear(256, units), nn.Linear(units, d))

        run = hpcfed.run(TINY, algorithm=Mine, model=build, overwrite=True, out="run")
        calls.append(digest("run"))
        assert run.job["algorithm"]["own"] == scale
        assert run.down[0, 0] == 4 * (256 * units + units + 8 * units + 8 + 80 + 10)
    assert calls[0] != calls[1]


STEPS = {"done": 0, "until": -1}  # of client 1, and at which Ctrl-C comes


class Interrupted(hpcfed.RoundBased):
    """Local training that Ctrl-C hits where STEPS says so."""

    def loss(self, client, state, model, x, y):
        STEPS["done"] += client.id == 1
        if STEPS["done"] == STEPS["until"]:
            signal.raise_signal(signal.SIGINT)
        return nn.functional.cross_entropy(model(x), y)


def test_ctrl_c_saves_the_run_and_resume_continues_with_the_same_bits():
    job = TINY | {"rounds": 4, "training": {"engine": "eager"}}
    hpcfed.run(job, algorithm=Interrupted, out="whole")
    STEPS.update(until=STEPS["done"] * 13 // 8)  # half-way through round 3
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="saved in run"):
        hpcfed.run(job, algorithm=Interrupted, out="run", resume=True)
    assert signal.getsignal(signal.SIGINT) is before
    assert hpcfed.load("run").state.word == "stopped" and len(hpcfed.load("run")) == 2
    run = hpcfed.run(job, algorithm=Interrupted, out="run", resume=True)
    assert len(run) == 4 and digest("run") == digest("whole")


class Impatient(hpcfed.RoundBased):
    def loss(self, client, state, model, x, y):
        raise KeyboardInterrupt


class Wrong(hpcfed.RoundBased):
    def loss(self, client, state, model, x, y):
        return model(x)["no such"]


def test_any_end_of_a_run_frees_its_folder():
    for method, error in ((Impatient, KeyboardInterrupt), (Wrong, hpcfed.ConfigError)):
        with pytest.raises(error):
            hpcfed.run(TINY, algorithm=method, out="run")
    with pytest.raises(hpcfed.ConfigError, match=r"test_python.py, line \d+, in loss") as caught:
        hpcfed.run(TINY, algorithm=Wrong, out="run")
    assert isinstance(caught.value.__cause__, Exception)
    assert len(hpcfed.run(TINY, algorithm="local", out="run")) == 2


def test_a_folder_that_another_process_takes_over_ends_the_run_but_not_the_interpreter(
    monkeypatch,
):
    from hpcfed.storage import lock

    def lose(self):
        self.lose("somebody")

    monkeypatch.setattr(lock.Lock, "renew", lose)
    monkeypatch.setattr(lock, "BEAT", -1)
    monkeypatch.setattr(lock.Lock, "keep", lambda self: None)
    with pytest.raises(hpcfed.ConfigError, match="somebody has taken this run folder over"):
        hpcfed.run(TINY, algorithm="local", out="run")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(round=3), r"hpcfed.run: round: no field 'round'; did you mean 'rounds'"),
        (dict(rounds=-1), r"hpcfed.run: rounds: input should be greater than 0, got -1"),
        (dict(job="fedavg"), r"'fedavg' is not a job file \(.toml\)"),
        (dict(job=3), "a job is the path of a job file"),
        (dict(ranks=0), "ranks = 0: give a whole number from 1"),
        (dict(dry_run=True), "hpcfed run JOB.toml --dry-run"),
        (dict(model=nn.Linear(2, 2)), "is one existing module"),
        (dict(algorithm=3), "algorithm.name = 3: give a name, a class or a function"),
        ({"local": 0.5, "local.batch": 8}, "hpcfed.run: local: must be a table, got 0.5"),
        (dict(job={"local": 0.5}, local={"batch": 8}), "local: must be a table, got 0.5"),
        (dict(data=(1, 2, 3)), r"data of 3 parts; give \(x, y\)"),
        (dict(data=([1.0, 2.0], [0, 1])), r"hpcfed.run: data: x_train: shape \[2\]"),
        (dict(data=object()), "data is a object; give"),
        (dict(data=dict(x_train=[1], label=[0])), "data has no array 'label'"),
        (dict(data=dict(x_train=[{}], y_train=[0])), "x_train holds object"),
        (dict(data=dict(y_train=[[1], [1, 2]])), "y_train is not an array"),
    ],
)
def test_each_mistake_is_one_message(arguments, message):
    job = arguments.pop("job", TINY)
    with pytest.raises(hpcfed.HpcfedError, match=message):
        hpcfed.run(job, **({"algorithm": "local", "out": "run"} | arguments))
    assert not os.path.exists("run")


def test_the_reason_of_an_end_is_no_warning_that_came_before_it():
    said = "hpcfed: warning: log.energy: no counters\nhpcfed: rank 0 of 2: the loss is nan\n  more"
    assert python.reason(said, 1) == "rank 0 of 2: the loss is nan\n  more"


def test_classes_of_a_script_and_launched_scripts_are_refused_on_several_ranks(monkeypatch):
    with pytest.raises(hpcfed.ConfigError, match=r"\w+:Mine is defined in this script or notebook"):

        class Mine(hpcfed.RoundBased):
            """Of this function."""

        hpcfed.run(TINY, ranks=2, algorithm=Mine)
    monkeypatch.setenv("PMI_SIZE", "4")
    with pytest.raises(hpcfed.ConfigError, match=r"as one of several processes \(PMI_SIZE\)"):
        hpcfed.run(TINY)


@pytest.fixture
def mpi(monkeypatch):
    """How tests start ranks: `launcher`, in an environment without a job around it."""
    for name, value in environment({}).items():
        monkeypatch.setenv(name, value)
    return shlex.join(launcher())


def test_a_call_with_ranks_has_the_same_bits_with_classes_of_a_file_and_arrays(
    mpi, tmp_path, monkeypatch
):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "minealone.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    import minealone

    arguments = {"algorithm": minealone.Mine(scale=0.3), "model": minealone.build, "data": arrays()}
    monkeypatch.setattr(sys, "executable", forked.python())
    hpcfed.run(TINY, **arguments, out="one")
    run = hpcfed.run(TINY, ranks=2, launcher=mpi, **arguments, out="two")
    assert run.header["ranks"] == 2 and digest("two") == digest("one")


class Nested(hpcfed.RoundBased):
    """Begins a run inside a run."""

    def loss(self, client, state, model, x, y):
        hpcfed.run(TINY, algorithm="local", out="inner")


def test_one_run_at_a_time_computes_in_a_process():
    with pytest.raises(hpcfed.ConfigError, match="another run is in progress in this process"):
        hpcfed.run(TINY, algorithm=Nested, out="run")
    assert len(hpcfed.run(TINY, algorithm="local", out="run")) == 2
    with pytest.raises(
        hpcfed.ConfigError, match="run holds a run already; resume=True continues it"
    ):
        hpcfed.run(TINY, algorithm="local", out="run")


def test_ctrl_c_stops_ranks_resume_continues_and_a_mistake_is_one_message(mpi, monkeypatch):
    monkeypatch.setattr(sys, "executable", forked.python())
    job = TINY | {"algorithm": "local", "rounds": 3000}
    show, calls = progress.Rounds.show, []

    def interrupt(self, record):
        show(self, record)
        if record and record.rounds and not calls:
            calls.append(record.rounds)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(progress.Rounds, "show", interrupt)
    with pytest.raises(KeyboardInterrupt):
        hpcfed.run(job, ranks=2, launcher=mpi, out="run")
    done = len(hpcfed.load("run"))
    assert calls[0] <= done < 3000
    more = job | {"rounds": done + 1}
    assert len(hpcfed.run(more, ranks=2, launcher=mpi, out="run", resume=True)) == done + 1
    with pytest.raises(hpcfed.HpcfedError, match="^run.device = 'cuda', but torch sees no GPU"):
        hpcfed.run(job, ranks=2, launcher=mpi, out="gpu", **{"run.device": "cuda"})


def test_the_job_that_export_writes_runs_again_with_the_same_bits(of_command, by_command, tmp_path):
    export(of_command, out=tmp_path / "export")
    hpcfed.run("export/job.toml", out="again", quiet=True)
    assert digest("again") == by_command


def test_a_notebook_shows_a_bar_that_is_drawn_in_one_place(monkeypatch, capsys):
    shown = []

    class Handle:
        def update(self, cell):
            shown.append(cell._repr_html_())

    def display(cell, display_id):
        shown.append(cell._repr_html_())
        return Handle()

    kernel = SimpleNamespace(kernel=object())
    ipython, module = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython, module.display = lambda: kernel, display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    hpcfed.run(TINY | {"quiet": False}, algorithm="local", out="run")
    assert [html.count("<progress") for html in shown] == [1, 1]
    assert 'value="2" max="2"' in shown[-1] and "2/2  accuracy 0." in shown[-1]
    assert "round 1/2" not in capsys.readouterr().out


def test_dir_shows_what_is_public_and_nothing_else():
    code = "import hpcfed; print(*dir(hpcfed)); print(*sorted(hpcfed.__all__))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    shown, public = done.stdout.splitlines()
    assert shown == public
    assert not [name for name in public.split() if getattr(hpcfed, name, None) is None]


def test_an_interrupt_while_the_ranks_start_is_an_interrupt(monkeypatch):
    """They do not heed the signal yet, which ends them."""
    end = ["sh", "-c", "kill -USR1 $$"]
    monkeypatch.setattr(python, "find_launcher", lambda *_: end)
    monkeypatch.setattr(python, "watch", lambda *_: signal.raise_signal(signal.SIGINT))
    assert python.beside(load([]), 2, "") == (RESUME_ME, signal.SIGINT)


PRECISIONS = ("", "cuda.matmul", "cudnn.conv", "mkldnn.matmul")


@pytest.mark.skipif(
    not hasattr(torch.backends, "fp32_precision"), reason="this torch has the older interface alone"
)
@pytest.mark.parametrize("place", PRECISIONS)
def test_a_call_has_its_own_precision_of_products_and_leaves_that_of_torchs_newer_interface(place):
    def precisions():
        return {name: backend(name).fp32_precision for name in PRECISIONS}

    fresh = backend(place).fp32_precision
    backend(place).fp32_precision = "tf32"
    try:
        wanted = precisions()
        with usual_settings():
            assert precisions() == dict(
                zip(PRECISIONS, ("none", "none", "tf32", "none"), strict=True)
            )
            prepare(torch.device("cpu"), 1, "tf32")
            assert backend("cuda.matmul").fp32_precision == "tf32"
        assert precisions() == wanted
    finally:
        backend(place).fp32_precision = fresh


@pytest.mark.skipif(
    not hasattr(torch.backends, "fp32_precision"), reason="this torch has the older interface alone"
)
def test_a_call_sets_no_precision_of_products_that_is_that_of_a_fresh_process(monkeypatch):
    writes = []
    # the first one: whatever other tests have left
    with usual_settings(), monkeypatch.context() as patch:
        patch.setattr(torch, "set_float32_matmul_precision", writes.append)
        for setter in ("_set_fp32_precision_setter", "_set_cudnn_allow_tf32"):
            patch.setattr(torch._C, setter, lambda *values: writes.append(values))
        with usual_settings():
            pass
        backend("mkldnn.matmul").fp32_precision = "tf32"
    assert writes == [("mkldnn", "matmul", "tf32")]
