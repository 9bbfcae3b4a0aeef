"""What `pip install hpcfed` brings: it works outside a checkout, and lacks nothing."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.mpirun import ROOT

UNUSED = {ROOT: ("build", "runs", "data"), ROOT / "benchmarks": ("results",)}
CONTAINERS = ("Dockerfile", "hpcfed.def")
SMALL = "--rounds 1 --clients 2 --data.train_limit 40"
BUILD = "import sys; from setuptools import build_meta; print(build_meta.{}(sys.argv[1]))"


def unused(folder: str, names: list[str]) -> set[str]:
    """What a package does not need of this tree: hidden, made, or measured."""
    generated = {name for name in names if name.startswith((".", "__pycache__"))}
    return (
        generated
        | {name for name in names if name.endswith(".egg-info")}
        | {*UNUSED.get(Path(folder), ())}
    )


def build(what: str, source: Path, out: Path) -> Path:
    """The archive that setuptools makes of a source tree, without a network."""
    command = [sys.executable, "-c", BUILD.format(what), str(out)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def archives(tmp_path_factory) -> tuple[Path, Path]:
    """The archive of sources, made of this tree; and the wheel, made of that archive alone."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT, folder / "tree", ignore=unused)
    source = build("build_sdist", folder / "tree", folder)
    with tarfile.open(source) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    [unpacked] = (folder / "unpacked").iterdir()
    return source, build("build_wheel", unpacked, folder)


def files(folder: str, *endings: str) -> set[str]:
    """The files of this tree in a folder, from its root."""
    paths = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return {
        path.relative_to(ROOT).as_posix()
        for path in paths
        if "__pycache__" not in path.parts and (not endings or path.suffix in endings)
    }


def test_the_wheel_has_every_file_of_the_package_and_the_archive_of_sources_all_that_a_checkout_has(
    archives,
):
    source, wheel = archives
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        inside = {name for name in names if ".dist-info/" not in name}
        assert [name for name in names if name.endswith("LICENSE")]
    assert inside == files("hpcfed")
    with tarfile.open(source) as archive:
        names_in_archive = {name.partition("/")[2] for name in archive.getnames()}
    wanted = files("hpcfed") | files("jobs") | files("slurm") | files("tests", ".py")
    wanted |= files("docs", ".py", ".md", ".yml", ".css")
    more = {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "constraints.txt", "Makefile"}
    assert (wanted | more) - names_in_archive == set()


@pytest.mark.timeout(300)
def test_installed_from_the_wheel_it_runs_lists_and_draws_in_any_folder(archives, tmp_path):
    _, wheel = archives
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-index"]
    # where PYTHONPATH has a checkout that was installed to be edited, pip takes that for installed
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True, env=env)
    # what hpcfed needs is that of this Python; a line of a .pth file reads no others, so that this
    # Python's own hpcfed is not found
    [site] = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (site / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    desk = tmp_path / "desk"
    desk.mkdir()
    env |= {"PATH": f"{python.parent}{os.pathsep}{env['PATH']}"}

    def shell(command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command], cwd=desk, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert str(site) in shell("python -c 'import hpcfed; print(hpcfed.__file__)'")
    assert "1 of 1 rounds done" in shell(f"hpcfed run {SMALL} --out runs/a")
    assert "fedclassavg" in shell("hpcfed list algorithms")
    shell("hpcfed plot runs/a -o a.png && hpcfed report runs/a -o a.html")
    assert (desk / "a.png").stat().st_size > 1000


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_has_the_versions_of_constraints_and_files_that_there_are(name):
    lines = (ROOT / "slurm" / name).read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")) + "\n"
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    installs = [line for line in text.splitlines() if re.search(r"\bpip install\b", line)]
    assert installs and all("-c /opt/hpcfed/constraints.txt" in line for line in installs)
    for package, version in re.findall(r"\b([\w-]+)==([\w.]+)", text):
        assert pinned[package] == version
    extras = re.findall(r"/opt/hpcfed\[(.+)\]", text)[0].split(",")
    declared = re.findall(r'^        "(\w+)": \[', (ROOT / "setup.py").read_text(), re.MULTILINE)
    assert set(extras) <= set(declared)
    lowest = re.search(r'python_requires=">=(.+)"', (ROOT / "setup.py").read_text())[1]
    assert re.search(r"python:([\d.]+)-slim", text)[1] == lowest
    copied = set(re.findall(r"\b[\w.]+\.(?:toml|py|md|txt)\b(?= )", text)) | {"LICENSE", "hpcfed"}
    assert copied >= {"pyproject.toml", "setup.py", "README.md", "constraints.txt"}
    assert all((ROOT / file).exists() for file in copied)


def test_constraints_pin_all_that_the_package_needs():
    setup = (ROOT / "setup.py").read_text()
    needed = re.findall(r'^ {8}"([\w-]+)>=', setup, re.MULTILINE)
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    names = {name.lower().replace("_", "-") for name in pinned}
    assert {"torch", "tomli-w", "shtab"} <= set(needed) and set(needed) - names == set()
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
