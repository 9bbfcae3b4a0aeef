"""The console command: each command answers, or says in one message what is wrong."""

import json
import os
import re
import shlex
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import hpcfed
from hpcfed import cli
from hpcfed.algorithms import ALGORITHMS
from hpcfed.config.load import load
from hpcfed.config.methods import KINDS
from hpcfed.core.errors import HpcfedError
from hpcfed.launch import commands
from hpcfed.models import MODELS
from hpcfed.storage import results
from hpcfed.storage.results import Results
from tests import forked
from tests.mpirun import environment

REPOSITORY = Path(hpcfed.__file__).parents[1]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two clients, one round; no checkpoint."""
    data = {"name": "digits", "partition": "iid"}
    job = {"algorithm": {"name": "local"}, "data": data, "clients": 2, "rounds": 1, "seed": 0}
    header = {"job": job, "ranks": 1, "architectures": ["mlp", "cnn"], "classes": ["a", "b"]}
    results = Results(tmp_path / "run", header, {"label_counts": np.ones((2, 2), np.int64)})
    results.append({"clients/accuracy": np.array([0.25, 0.75]), "clients/cohort": np.ones(2, bool)})
    (tmp_path / "run").mkdir()
    results.finish()
    return tmp_path / "run"


def python(*words: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=env, check=False
    )


def test_list_as_json_names_every_algorithm_with_line_and_citation(capsys):
    assert cli.main(["list", "algorithms", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(ALGORITHMS)
    assert all(set(row) == {"name", "line", "cite", "group"} and row["line"] for row in rows)


def test_algorithms_are_listed_by_the_folders_of_their_kinds(capsys):
    assert cli.main(["list", "algorithms"]) == 0
    lines, title = capsys.readouterr().out.splitlines(), ""
    groups: dict[str, list[str]] = {}
    for line in lines[1:]:
        if line.startswith("    "):
            groups[title].append(line.split()[0])
        elif line.strip():
            title = line.strip()
            groups[title] = []
    folders = {
        KINDS[path.parent.name]: {p.stem for p in path.parent.glob("*.py")} & {*ALGORITHMS}
        for path in (REPOSITORY / "hpcfed/algorithms").glob("*/__init__.py")
    }
    assert {title: set(names) for title, names in groups.items()} == folders
    assert [title for title in KINDS.values() if title in groups] == list(groups)


def test_list_names_all_four_kinds_and_each_of_their_names(capsys):
    assert cli.main(["list"]) == 0
    listing = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert {*commands.KINDS, *ALGORITHMS, *MODELS, "digits", "dirichlet"} <= listing
    cli.main(["list", "--json"])
    assert set(json.loads(capsys.readouterr().out)) == set(commands.KINDS)


def test_summary_as_json_is_complete(run, capsys):
    assert cli.main(["summary", str(run), "--json"]) == 0
    listing = json.loads(capsys.readouterr().out)
    assert set(listing) == {
        "run",
        "algorithm",
        "rounds",
        "engine",
        "accuracy",
        "best",
        "metrics",
        "traffic",
        "time",
    }
    assert (listing["run"], listing["algorithm"], listing["rounds"]) == (str(run), "local", 1)
    accuracy = listing["accuracy"]
    later = {"before", "received", "final", "final_received"}
    spread = {"mean", "std", "min", "max", "clients", "pooled", "best"}
    assert set(accuracy) == spread | {"by_architecture"} | later
    assert (accuracy["mean"], accuracy["std"], accuracy["before"]["mean"]) == (0.5, 0.25, None)
    assert set(listing["traffic"]) == {
        "down_per_client_round",
        "up_per_client_round",
        "down_total",
        "up_total",
    }


def test_summary_show_cite_and_plot_print_for_people(run, capsys):
    for words, text in [
        (["summary", str(run)], "all clients, last round"),
        (["show", "fedprox"], "algorithm.mu"),
        (["show", "digits"], "@misc{alpaydin1998"),
        (["cite", str(run)], "@software{hpcfed"),
        (["plot", str(run)], f"{run}/curves.png"),
    ]:
        assert cli.main(words) == 0
        assert text in capsys.readouterr().out, words


@pytest.mark.parametrize("command", ["summary", "plot", "cite", "digest"])
def test_a_path_without_a_run_is_one_message_and_status_2(command, tmp_path, capsys):
    for path in (tmp_path / "absent", tmp_path):
        assert cli.main([command, str(path)]) == 2
        out, err = capsys.readouterr()
        assert out == "" and str(path) in err and "Traceback" not in err


def test_help_names_every_command_and_each_has_its_own_help(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--help"])
    text = capsys.readouterr().out
    assert all(name in text and command.line in text for name, command in cli.COMMANDS.items())
    for name in cli.COMMANDS.keys() - {"run"}:  # which shows that of python -m hpcfed.main
        with pytest.raises(SystemExit, match="0"):
            cli.main([name, "--help"])


def test_run_is_the_command_of_a_run_with_all_its_arguments(tmp_path, monkeypatch):
    """Once as two processes, with a user's method beside them; else by what the one gives the
    other.
    """
    (tmp_path / "mine.py").write_text("from hpcfed import RoundBased as Mine\n")
    flags = ["--algorithm.name", "mine:Mine", "--models.mix", "mlp", "--rounds", "3", "--dry-run"]
    ways = [
        subprocess.run(
            [forked.python(), "-m", *way, *flags],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=environment({}),
        )
        for way in (["hpcfed.cli", "run"], ["hpcfed.main"])
    ]
    measured = re.compile("local training: about .*")  # which differs from run to run
    outcomes = {(way.returncode, measured.sub("", way.stdout), way.stderr) for way in ways}
    assert len(outcomes) == 1
    assert ways[0].stdout and ways[0].returncode == 0
    started = []
    monkeypatch.setattr("hpcfed.main.program", lambda words: started.append(words) or 2)
    for words in (flags, ["--rounds", "2"]):
        assert cli.main(["run", *words]) == 2 and started.pop() == words


MISTAKES = {
    "--data.alfa=1": "no field 'data.alfa'; did you mean 'data.alpha'",
    "--data.alpha=-1": "command line: --data.alpha: input should be greater than 0",
    "--algorithm.name=fedpox": "no algorithm 'fedpox'; did you mean 'fedprox'",
    "--models.mix=mpl": "no model 'mpl'; did you mean 'mlp'?",
}
ANSWERS = """
import io, json, runpy, sys
from contextlib import redirect_stderr
answers = []
for module, *words in json.loads(sys.argv[1]):
    sys.argv = ["hpcfed", *words]
    with redirect_stderr(io.StringIO()) as err:
        try:
            runpy.run_module(module, run_name="__main__")
        except SystemExit as stop:
            answers.append((stop.code, "torch" in sys.modules, err.getvalue()))
print(json.dumps(answers))
"""


def test_mistakes_outside_the_method_are_reported_before_torch_is_imported():
    ways = product((["hpcfed.cli", "run"], ["hpcfed.main"]), MISTAKES)
    calls = json.dumps([[*way, word] for way, word in ways])
    answers = json.loads(python("-c", ANSWERS, calls).stdout)
    for (status, has_torch, err), text in zip(answers, [*MISTAKES.values()] * 2, strict=True):
        assert (status, has_torch) == (2, False) and text in err


def test_help_of_a_run_is_answered_without_starting_one(monkeypatch, capsys):
    monkeypatch.setattr("hpcfed.main.program", lambda words: pytest.fail("a run was started"))
    assert cli.main(["run", "--help", "fedprox"]) == 0
    assert "--algorithm.mu 0.1" in capsys.readouterr().out


def test_run_without_arguments_explains_itself_and_suggests_three_existing_commands(
    monkeypatch, capsys
):
    started = []
    monkeypatch.setattr("hpcfed.main.program", lambda words: started.append(words) or 0)
    assert cli.run([]) == 0 and started == [[]]
    text, _, following = capsys.readouterr().out.partition("Next:")
    assert "embedded" in text
    commands = [line.split("   ")[0].split() for line in following.strip().splitlines()]
    assert [words[:2] for words in commands] == [["hpcfed", w] for w in ("run", "compare", "plot")]
    name, other = commands[1][2:]
    assert name == str(load([]).folder) and other == str(load(commands[0][2:]).folder)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run --algorithm.name fedpr", {"fedprox", "fedproto"}),
        ("run --data.name cifar1", {"cifar10"}),
        ("run --models.mix lst", {"lstm-1", "lstm-2", "lstm-char"}),
        ("sweep --local.optimiser ", {"adam", "sgd"}),
        ("run --algorithm.sampling ", {"uniform", "size"}),
        ("show fedpr", {"fedprox", "fedproto"}),
        ("table --metric kap", {"kappa"}),
    ],
)
def test_completion_completes_values(completed, line, words):
    assert completed(line) >= words and all(w.startswith(line.split(" ")[-1]) for w in words)


@pytest.fixture(scope="module")
def completed(tmp_path_factory):
    """What bash offers for the last word of a command line."""
    script = tmp_path_factory.mktemp("completion") / "hpcfed.bash"
    script.write_text(cli.completion("bash"))

    def answers(line: str) -> set[str]:
        words = ["hpcfed", *line.split(" ")]
        asked = f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}"
        code = f'source {script}; {asked}; _shtab_hpcfed; printf "%s\\n" "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
        return set(done.stdout.split())

    return answers


def test_completion_knows_commands_options_and_fields(capsys):
    assert cli.main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    words = "COMP_WORDS=(hpcfed {}); COMP_CWORD={}; _shtab_hpcfed; echo ${{COMPREPLY[@]}}\n"
    asked = [("pl", 1), ("run --data.al", 2), ("plot --fig", 2)]
    script += "".join(words.format(*line) for line in asked)
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["plot plan", "--data.alpha", "--figure"]


def test_any_error_of_a_user_is_printed_alone(monkeypatch, capsys):
    def fail(**_: object) -> None:
        raise HpcfedError("what, where, what to do")

    monkeypatch.setattr(commands.Command, "load", lambda self: fail)
    assert cli.main(["list"]) == 2
    assert capsys.readouterr() == ("", "hpcfed: what, where, what to do\n")


@pytest.mark.parametrize("words", [["--help"], ["list", "algorithms"], ["list"]])
def test_quick_commands_do_not_load_torch(words):
    code = f"""
import sys
from hpcfed.cli import main
try:
    main({words})
except SystemExit:
    pass
print(sorted({{"torch", "h5py", "matplotlib", "mpi4py"}} & set(sys.modules)), file=sys.stderr)
"""
    assert python("-c", code).stderr == "[]\n"


def test_a_result_file_is_read_without_torch(run):
    code = (
        "import sys; from hpcfed.cli import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    )
    assert python("-c", code, "summary", str(run)).stdout.endswith("\nFalse\n")


def test_neither_ones_own_model_nor_sub_models_nor_texts_load_torchs_compiler(tmp_path):
    """It takes a second and more, on each rank, and sympy half of one."""
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\n\n"
        "def net(shape, d):\n    return nn.Sequential(nn.Flatten(), nn.Linear(256, d))\n"
    )
    usual = ["--clients", "2", "--data.train_limit", "40", "--data.partition", "iid"]
    usual += ["--rounds", "1", "--log.picture", "false", "--out", str(tmp_path / "run")]
    users_model = ["--models.mix", "mine:net"]
    sub_models = ["--algorithm.name", "heterofl", "--models.mix", "cnn", "--models.widths", "1,0.5"]
    words, y = np.array(["good fine", "bad poor"] * 20), np.arange(40) % 2
    file = tmp_path / "texts.npz"
    np.savez(file, text_train=words, y_train=y, text_test=words, y_test=y)
    texts = ["--data.name", str(file), "--algorithm.name", "local", "--models.mix", "lstm-1"]
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from hpcfed.cli import main
for flags in {users_model, sub_models, texts}:
    assert not main(["run", "--overwrite", *{usual}, *flags])
print({{"torch._dynamo", "sympy"}} & set(sys.modules))
"""
    done = subprocess.run(
        [forked.python(), "-c", code], capture_output=True, text=True, env=environment({})
    )
    assert done.stdout.endswith("\nset()\n"), done.stderr


def test_a_reader_that_goes_away_is_no_traceback():
    code = (
        "import sys; from hpcfed.cli import main; sys.stdin.read(); sys.exit(main(['list', "
        "'algorithms']))"
    )
    env = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], env=env, **pipes) as process:
        process.stdout.close()  # before it prints: it waits for the end of its input
        process.stdin.close()
        assert (process.stderr.read(), process.wait()) == (b"", 1)


def test_a_run_whose_reader_goes_away_continues_to_its_end(tmp_path):
    words = ["--algorithm.name", "fedavg", "--models.mix", "logistic", "--clients", "2"]
    words += ["--rounds", "2", "--log.picture", "false", "--out", str(tmp_path / "run")]
    command = [forked.python(), "-m", "hpcfed.main", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment({}), **pipes) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 0)
    assert results.load(tmp_path / "run").rounds == 2


def test_a_command_that_takes_a_job_finds_methods_in_the_folder_where_it_is_called(
    tmp_path, monkeypatch, capsys
):
    source = "from hpcfed.algorithms.base import RoundBased\n\nclass Here(RoundBased):\n    pass\n"
    (tmp_path / "own_method.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    fields = ["--algorithm.name", "own_method:Here", "--models.mix", "mlp", "--seed", "0,1"]
    assert cli.main(["sweep", *fields, "--out", "runs", "--dry-run"]) == 0, capsys.readouterr().err


def test_code_that_a_command_may_import_is_found_in_the_folder_where_it_is_called(
    tmp_path, monkeypatch, capsys
):
    source = "from torch import nn\n\n\ndef here(shape, d):\n    return nn.Flatten()\n"
    (tmp_path / "own_network.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(REPOSITORY), *(p for p in sys.path if p)])
    job = ["--algorithm.name", "local", "--models.mix", "own_network:here", "--models.d", "256"]
    words = ["--rounds", "1", "--clients", "2", "--log.picture", "false", "--quiet", "--out", "run"]
    assert cli.main(["run", *job, *words]) == 0, capsys.readouterr().err
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    monkeypatch.delitem(sys.modules, "own_network")
    assert cli.main(["models", "run", "--own", "own_network:here"]) in (0, None)
    assert "models of 2 clients after round 1" in capsys.readouterr().out


def test_no_command_shows_the_help_and_a_misspelt_one_the_right_name(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([])
    assert end.value.code == 0 and "Run a job" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        cli.main(["rnu"])
    assert end.value.code == 2 and "did you mean 'run'" in capsys.readouterr().err
