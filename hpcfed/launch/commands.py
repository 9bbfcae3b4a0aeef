"""The commands of `hpcfed`, their arguments, and the functions that they call.

Arguments of several commands are constants; those of a single command are defined with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcfed.core.registry import Entry

Argument = tuple[tuple[str, ...], dict[str, Any]]  # what ArgumentParser.add_argument takes


def argument(*names: str, **options: Any) -> Argument:
    """Return one argument of a command, as ArgumentParser.add_argument takes it."""
    return names, options


def select(arguments: Sequence[Argument], *names: str) -> tuple[Argument, ...]:
    """Return the arguments with these first names, in the order that they have."""
    return tuple(each for each in arguments if each[0][0] in names)


@dataclass(frozen=True)
class Command(Entry):
    """One command: its target is called with the values of its arguments, by name.

    fields: whether it also takes a job's command line, that is all words that are not its own
    arguments; they become the argument `words`.
    """

    arguments: tuple[Argument, ...] = ()
    fields: bool = False

    @property
    def places(self) -> list[str]:
        """The names of its arguments that are no flags, as its usage shows them."""
        return [options["metavar"] for names, options in self.arguments if names[0][0] != "-"]


RUN = argument("run", type=Path, metavar="RUN", help="folder of a run, or its results.h5")
RUNS = argument(
    "runs", type=Path, metavar="RUN", nargs="+", help="folder of a run, or its results.h5"
)
JSON = argument("--json", action="store_true", help="machine-readable output")
NAME = argument(
    "name", metavar="NAME", help="an algorithm, data set, partition, model, metric or figure"
)
KINDS = (
    *("algorithms", "datasets", "partitions", "models", "selections", "codecs", "protocols"),
    *("attacks", "defences"),
    *("tasks", "metrics", "figures"),
)
KIND = argument("kind", nargs="?", choices=KINDS, help="only these; default: all")
PAGE = argument(
    "-o", "--out", type=Path, metavar="FILE", help="page to write; default: report.html in RUN"
)
WORDS = argument(
    "words", nargs="+", metavar="COMMAND", help="-- mpirun -np 4 python -m hpcfed.main JOB.toml ..."
)
PLACE = "folder of a run or sweep, a results.h5, or a folder of these"
PLACES = argument("runs", type=Path, metavar="RUN", nargs="+", help=PLACE)
VALUES = (
    "last (round; default), last:10, best, before (local training), received (the server's next "
    "model), final and final_received (the same after the method's last step), pooled (over all "
    "clients' test examples together), received_pooled, final_pooled, "
    "final_received_pooled, worst (client), worst_tenth (of the clients), spread (standard "
    "deviation over clients), jain, gini, all five also as received_worst, group:F "
    "(evaluate.groups), worst_group, group_gap, also as received_group:F, accuracy, up, down, or "
    "seconds"
)
METRIC = argument(
    "--metric",
    metavar="NAME",
    help="which metric (`hpcfed list metrics`); default: accuracy, or the first that runs have",
)
NAMES = argument(
    "--names",
    metavar="NAME=TEXT,...",
    help="names of methods and data in place of the usual ones: fedavg=FedAvg,mine:Mine=Ours",
)
TABLES = (
    argument("--format", choices=("csv", "parquet"), default="csv", help="default: csv"),
    argument(
        "-o",
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder to write to; default: export in RUN",
    ),
)
WEB = (
    argument("--web", action="store_true", help="serve the page of report, on 127.0.0.1 only"),
    argument("--port", type=int, metavar="N", help="port of the page; default: a free one"),
)
CLIENTS = argument("--clients", metavar="0,3", help="only these; default: all")
OWN = argument(
    "--own",
    action="append",
    metavar="MODULE:NAME",
    help="your own method or model that the run uses and that may be imported",
)
OWN_CHANGED = argument(
    "--own-changed",
    action="store_true",
    help="accept that the code of these has changed since the model was trained",
)
PROBE = (
    CLIENTS,
    OWN,
    OWN_CHANGED,
    argument(
        "--examples",
        type=int,
        default=1000,
        metavar="N",
        help="test examples to use; default: 1000",
    ),
)
LEAKAGE = (
    argument(
        "--attack",
        choices=("dlg", "idlg", "invert", "membership"),
        default="invert",
        help="reconstruct images from gradients (Zhu et al., Zhao et al., Geiping et al.), or tell "
        "training examples from others by their loss; default: invert",
    ),
    argument(
        "--clients",
        metavar="0,3",
        help="clients whose uploads are attacked; default: the first one that does not "
        "attack itself, for membership 10 of them",
    ),
    argument(
        "--round",
        type=int,
        metavar="T",
        help="of a run: its checkpoint after T rounds; default: the newest",
    ),
    argument(
        "--images",
        type=int,
        default=4,
        metavar="N",
        help="images of each client to reconstruct; default: 4",
    ),
    argument("--batch", type=int, default=1, metavar="N", help="images in one upload; default: 1"),
    argument(
        "--local-steps",
        type=int,
        default=1,
        metavar="N",
        help="steps of the client on these images before it sends; default: 1",
    ),
    argument(
        "--iterations",
        type=int,
        metavar="N",
        help="of the attack; default: 300 (dlg, idlg), 1000 (invert)",
    ),
    argument(
        "--tv",
        type=float,
        default=0.1,
        metavar="X",
        help="invert: weight of the total variation, more for noisy uploads; default: 0.1",
    ),
    argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="picture to write; default: leakage-ATTACK.png in RUN, or here",
    ),
)
MODELS = (
    CLIENTS,
    OWN,
    OWN_CHANGED,
    argument("--common", action="store_true", help="the global model alone, if there is one"),
    argument(
        "--format",
        choices=("safetensors", "onnx"),
        default="safetensors",
        help="default: safetensors, which hpcfed predict takes",
    ),
    argument(
        "-o",
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder to write to; default: models in RUN",
    ),
)
TRAINED = argument(
    "run",
    type=Path,
    metavar="RUN",
    help="folder of a run, or a .safetensors file of a trained model",
)
MISSING = argument(
    "--missing",
    choices=("refuse", "fill"),
    help="refuse missing values, and categories that the training data do not have, or fill in "
    "what stands for missing values; default: missing values as in training, categories refuse",
)
ADAPT = (
    argument(
        "--data",
        type=Path,
        required=True,
        metavar="DATA",
        help="the client's examples with labels, in the form of the run's data",
    ),
    argument("--name", default="", help="name of the client; default: that of the data"),
    argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="file of the model; default: NAME.safetensors",
    ),
    argument(
        "--how",
        choices=("all", "head", "distil"),
        default="",
        help="train all layers, only the head, or with distillation; default: as the job's "
        "[adapt], or as a client of the method in a round",
    ),
    argument("--epochs", type=int, metavar="N", help="default: as in the job"),
    argument("--lr", type=float, metavar="X", help="learning rate; default: as in the job"),
    argument(
        "--held-out",
        type=float,
        default=0.2,
        metavar="SHARE",
        help="share of the examples that scores the model and is not trained on; default: 0.2",
    ),
    MISSING,
    OWN,
    OWN_CHANGED,
)
PREDICT = (
    argument(
        "data",
        type=Path,
        metavar="DATA",
        help="table (.csv, .parquet), arrays (.npz, .h5), texts (.txt), image or folder of images",
    ),
    argument(
        "-o",
        "--out",
        type=Path,
        default=Path("predictions.csv"),
        metavar="FILE",
        help="CSV file to write; default: predictions.csv",
    ),
    argument(
        "--model",
        choices=("common", "ensemble"),
        default="",
        help="the global model, or the mean of all clients' models; default: common, or ensemble "
        "if the method has no global model",
    ),
    argument("--client", metavar="NAME", help="name or number of the client whose model predicts"),
    argument(
        "--id", default="", metavar="COLUMN", help="column to copy; default: id, if there is one"
    ),
    MISSING,
    OWN,
    OWN_CHANGED,
)
BY = argument(
    "--job",
    action="append",
    dest="job_ids",
    metavar="ID",
    help="Slurm job whose run is continued",
)
PLOT = (
    argument(
        "--figure",
        metavar="NAMES",
        help="figures, separated by commas, or all (`hpcfed list figures`); default: curves,labels",
    ),
    argument(
        "--metric",
        metavar="NAME",
        help="metric of curves, learning, bytes, time and accuracies: one of `hpcfed list "
        "metrics`, also NAME_received (the server's next model), NAME_pooled, NAME_received_pooled",
    ),
    argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="picture to write; default: in the first RUN's folder",
    ),
    argument(
        "--format",
        choices=("png", "svg", "pdf"),
        help="default: the suffix of FILE, or png; fonts are embedded in pdf",
    ),
    NAMES,
    argument("--size", metavar="WxH", help="inches of a figure, such as 3.4x2.3"),
    argument("--title", metavar="TEXT", help="title above each figure"),
    argument(
        "--band",
        choices=("seeds", "clients"),
        help="standard deviation over these; default: seeds, if a line has several",
    ),
    argument(
        "--fonts",
        metavar="NAME",
        help="family of fonts: serif, sans-serif, monospace, or a name such as 'Times New Roman'",
    ),
)
CLEAN = (
    argument("--delete", action="store_true", help="delete the files; default: only list them"),
    argument(
        "--last",
        action="store_true",
        help="also the last checkpoint of finished runs, with their models",
    ),
)
TABLE = (
    argument(
        "--rows",
        metavar="FIELDS",
        help="fields of the job, separated by commas, or ranks, nodes, version; default: method "
        "and its parameters",
    ),
    argument(
        "--columns",
        metavar="FIELDS",
        help="default: all other fields in which runs differ, except the seed",
    ),
    argument(
        "--choose",
        metavar="FIELDS",
        help="take the values with the best validation score (evaluate.validation), not all",
    ),
    argument("--value", metavar="NAME", help=VALUES),
    METRIC,
    argument(
        "--deviation",
        choices=("seeds", "clients", "none"),
        help="standard deviation over these; default: seeds",
    ),
    argument("--percent", action="store_true", help="accuracies in percent"),
    argument(
        "--layout",
        metavar="TABLE",
        help="a paper's table: fedclassavg-2 (to -5), fedhenn-1 (to -3)",
    ),
    argument(
        "--paper", action="store_true", help="with --layout: the paper's own numbers beside ours"
    ),
    argument(
        "--format",
        choices=("text", "markdown", "latex", "csv"),
        default="text",
        help="default: text",
    ),
    argument("-o", "--out", type=Path, metavar="FILE", help="file to write; default: print it"),
    NAMES,
)
COMPARE = (
    argument(
        "--baseline",
        metavar="METHOD",
        help="a method, or one of its runs; default: that of the first RUN",
    ),
    argument(
        "--anyway",
        action="store_true",
        help="also compare runs with other rounds, data, partitions or clients",
    ),
    *select(TABLE, "--value", "--metric", "--percent", "--format", "-o", "--names"),
)
SCALING = (
    *select(TABLE, "--format", "--names"),
    argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="picture to write; default: scaling.png in the first RUN's folder",
    ),
)
BATCH = (
    argument("--nodes", type=int, default=1, metavar="N"),
    argument(
        "--ntasks-per-node",
        type=int,
        metavar="N",
        help="ranks per node; default: one per GPU, or one",
    ),
    argument("--gpus-per-node", metavar="[TYPE:]N"),
    argument(
        "--cpus-per-task",
        type=int,
        metavar="N",
        help="cores per rank; default: run.threads",
    ),
    *(
        argument(f"--{name}", help="as for sbatch")
        for name in ("mem", "time", "partition", "account", "qos", "constraint")
    ),
    argument(
        "--sbatch",
        action="append",
        metavar="OPTION",
        help="any other option of sbatch, such as --sbatch=--exclusive",
    ),
    argument(
        "--env",
        action="append",
        metavar="LINE",
        help="shell command to run first, such as 'module load openmpi'",
    ),
)
SWEEP = (
    argument(
        "--with",
        action="append",
        type=Path,
        dest="overlays",
        metavar="FILE.toml",
        help="job file that overrides each JOB.toml; repeat the option for several",
    ),
    argument(
        "-o",
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder of the sweep; default: runs/sweep-JOB",
    ),
    argument(
        "--at-once",
        type=int,
        metavar="N",
        help="number of concurrent runs; default: as many as cores, or Slurm, allow",
    ),
    argument(
        "--ranks", type=int, metavar="R", help="MPI ranks of each run; default: 1, without mpirun"
    ),
    argument(
        "--launcher", metavar="COMMAND", help="command that starts the ranks; default: mpirun"
    ),
    argument(
        "--search",
        choices=("random", "optuna"),
        help="draw values from ranges (0.001..0.1, log:0.001..0.1): at random, or as hpcfed[tune] "
        "proposes from validation scores",
    ),
    argument("--trials", type=int, metavar="N", help="draws of a search; default: 10"),
    argument(
        "--prune",
        action="store_true",
        help="with --search optuna: end trials whose validation scores stay below the median of "
        "the trials before",
    ),
    argument(
        "--task",
        type=int,
        metavar="I",
        help="only run number I, from 0, like a task of an array job",
    ),
    OWN,
    argument("--dry-run", action="store_true", help="check and list the runs, start nothing"),
    argument(
        "--submit", action="store_true", help="submit as a Slurm array job, one task per run; with:"
    ),
    *BATCH,
)
SUBMIT = (
    *BATCH,
    argument("--container", metavar="IMAGE", help="apptainer image in which the ranks run"),
    argument(
        "--launcher",
        default="auto",
        metavar="COMMAND",
        help="such as 'srun --mpi=pmi2'; default: mpirun, else srun",
    ),
    argument(
        "--chain",
        type=int,
        default=1,
        metavar="N",
        help="number of jobs; each continues where the previous one stopped",
    ),
    argument(
        "--each",
        action="append",
        metavar="FIELDS",
        help="add a run with these fields, as a task of an array job",
    ),
    argument(
        "--ranks",
        metavar="1,2,4",
        help="one run per number of ranks, one after the other",
    ),
    argument(
        "--dry-run",
        action="store_true",
        help="print the script (of a chain: the first), submit nothing",
    ),
)
PLAN = (
    argument(
        "--costs",
        type=Path,
        metavar="RUN",
        help="folder of a short run of the job, or its results.h5",
    ),
    argument(
        "--nodes",
        default="1",
        metavar="N,N,...",
        help="numbers of nodes; 1,2,4,...,1024: powers of two",
    ),
    argument(
        "--gpus-per-node", type=int, default=0, metavar="N", help="default: ranks compute on cores"
    ),
    argument(
        "--cores-per-node",
        type=int,
        metavar="N",
        help="physical cores; default: those that the ranks of the short run may use",
    ),
    argument(
        "--ranks-per-node",
        type=int,
        metavar="N",
        help="default: one per GPU, or as many as cores allow",
    ),
    argument(
        "--latency",
        type=float,
        default=2.0,
        metavar="US",
        help="of the network, in microseconds; default: 2",
    ),
    argument(
        "--bandwidth",
        type=float,
        default=100.0,
        metavar="GBIT/S",
        help="of the network, each way; default: 100",
    ),
)
DOCTOR = (
    argument(
        "jobs",
        nargs="*",
        type=Path,
        metavar="JOB.toml",
        help="job files, later ones override earlier ones; default: the embedded job",
    ),
    argument(
        "--ranks",
        type=int,
        metavar="N",
        help="ranks of the probe; default: Slurm's number of tasks, or 2",
    ),
    argument(
        "-o",
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder of runs; default: that of JOB, or runs",
    ),
    argument(
        "--slurm",
        default="",
        metavar="OPTIONS",
        help="options of srun and salloc, such as --slurm='--partition=gpu'",
    ),
    argument(
        "--limit",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="time limit of each probe; default: 60",
    ),
)


IMPORT = (
    argument("library", choices=("pfllib", "htfllib")),
    argument("words", nargs="+", metavar="FLAGS", help="-- and the flags of python main.py"),
    argument(
        "--generate",
        default="noniid - dir",
        metavar="WORDS",
        help="words of python generate_DATA.py, which made the partition; default: 'noniid - dir'",
    ),
)
COMPLETION = (
    argument("shell", choices=("bash", "zsh", "tcsh"), help="shell that the script is for"),
)


def command(target: str, line: str, *arguments: Argument, fields: bool = False) -> Command:
    return Command(target, line, arguments=arguments, fields=fields)


COMMANDS = {
    "run": command(
        "hpcfed.cli:run",
        "run one job; without arguments the embedded one",
        fields=True,
    ),
    "list": command(
        "hpcfed.report.catalogue:listing",
        "list methods, data sets, models, metrics, figures and so on",
        KIND,
        JSON,
    ),
    "show": command(
        "hpcfed.report.catalogue:show",
        "describe one of these: its parameters and its source",
        NAME,
        JSON,
    ),
    "summary": command(
        "hpcfed.results.summary:summary", "print accuracy, traffic and time of a run", RUN, JSON
    ),
    "status": command(
        "hpcfed.report.status:status",
        "show the progress of runs",
        argument(
            "runs",
            type=Path,
            metavar="RUN",
            nargs="*",
            default=[Path("runs")],
            help=f"{PLACE}; default: runs",
        ),
        JSON,
        argument("--tag", metavar="TAG", help="only runs with this tag (`hpcfed run --tag`)"),
    ),
    "watch": command(
        "hpcfed.report.watch.command:watch",
        "follow runs, in the terminal or as a page",
        RUNS,
        *WEB,
    ),
    "table": command(
        "hpcfed.report.table:table",
        "print a table of methods by data sets, over seeds",
        PLACES,
        *TABLE,
    ),
    "scaling": command(
        "hpcfed.report.scaling:scaling",
        "compare the times of one job on several numbers of ranks",
        PLACES,
        *SCALING,
    ),
    "compare": command(
        "hpcfed.report.compare:compare",
        "compare methods: differences, intervals, tests",
        PLACES,
        *COMPARE,
    ),
    "plot": command("hpcfed.report.figures.command:plot", "draw figures of runs", PLACES, *PLOT),
    "report": command(
        "hpcfed.report.page.command:report",
        "make one page for a browser: curves, tables, job",
        PLACES,
        PAGE,
        METRIC,
        NAMES,
        argument(
            "--clients",
            metavar="0,3",
            help="also write a page for each of these clients, or for all",
        ),
    ),
    "clean": command(
        "hpcfed.results.clean:clean",
        "list or delete files that results do not need",
        PLACES,
        *CLEAN,
    ),
    "export": command(
        "hpcfed.results.export:export",
        "write a run's numbers as CSV or Parquet, and its job",
        RUN,
        *TABLES,
    ),
    "models": command(
        "hpcfed.results.trained.export:models",
        "write the clients' trained models as safetensors or ONNX",
        RUN,
        *MODELS,
    ),
    "predict": command(
        "hpcfed.results.trained.predict:command",
        "predict new examples with a trained model",
        TRAINED,
        *PREDICT,
    ),
    "adapt": command(
        "hpcfed.results.trained.adapt:command",
        "personalise a run's model for a new client's data",
        RUN,
        *ADAPT,
    ),
    "probe": command(
        "hpcfed.results.trained.probe:command",
        "evaluate all trained models on the same test examples",
        RUN,
        *PROBE,
    ),
    "leakage": command(
        "hpcfed.launch.leakage.command:command",
        "attack what a server receives: images, membership",
        *LEAKAGE,
        JSON,
        fields=True,
    ),
    "cite": command("hpcfed.report.cite:cite", "print BibTeX for everything that a run used", RUN),
    "doctor": command(
        "hpcfed.launch.doctor.main:doctor",
        "check this machine's MPI, GPUs and Slurm, and say what to change",
        *DOCTOR,
        JSON,
    ),
    "supervise": command(
        "hpcfed.engine.fault_tolerance.supervise:supervise",
        "start a run, and restart it if it is interrupted",
        BY,
        WORDS,
    ),
    "submit": command(
        "hpcfed.launch.slurm.submit:submit",
        "submit a run as a Slurm batch job",
        *SUBMIT,
        fields=True,
    ),
    "sweep": command(
        "hpcfed.launch.sweep.command:sweep",
        "run all combinations of values of fields",
        *SWEEP,
        fields=True,
    ),
    "plan": command(
        "hpcfed.launch.plan.command:plan",
        "predict the time and cost of a job on clusters",
        *PLAN,
        JSON,
        fields=True,
    ),
    "matched": command(
        "hpcfed.launch.matched:matched",
        "print the job of what a method's clients do without the others",
        argument("method", metavar="METHOD"),
        fields=True,
    ),
    "import": command(
        "hpcfed.launch.pfllib:job_of",
        "print the job that a command line of PFLlib or HtFLlib becomes",
        *IMPORT,
    ),
    "completion": command(
        "hpcfed.cli:completion", "print a script for completion in a shell", *COMPLETION
    ),
    "digest": command(
        "hpcfed.storage.digest:digest", "print the SHA-256 of a run's results and weights", RUN
    ),
}
