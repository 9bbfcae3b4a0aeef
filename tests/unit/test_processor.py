"""What a processor has for products in bfloat16, and what a run says about it."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hpcfed.comm import Serial
from hpcfed.config.load import load
from hpcfed.engine import describe, run
from hpcfed.machine.processor import find_bfloat16, name_processor
from hpcfed.models import precision
from tests.contract import toy

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16 amx_bf16 amx_tile\n", "amx_bf16"),
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16\n", "avx512_bf16"),
        ("flags\t\t: fpu avx2\nbugs\t: avx512_bf16\n", ""),
        ("Features\t: fp asimd bf16 i8mm\n", "bf16"),
        ("processor\t: 0\n", None),  # a system that lists no flags
    ],
)
def test_the_flags_of_a_processor_name_its_instructions(
    text: str, name: str | None, tmp_path: Path
):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(text)
    assert find_bfloat16(cpuinfo) == name


def test_a_processor_is_named_with_its_vectors_where_the_system_names_it(tmp_path: Path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel\t: 1\nmodel name\t: AMD EPYC 7763\n")
    vectors = torch.backends.cpu.get_cpu_capability()
    assert name_processor(cpuinfo) == f"AMD EPYC 7763, {vectors}"
    cpuinfo.write_text("processor\t: 0\nCPU part\t: 0xd40\n")  # ARM's has no name
    assert name_processor(cpuinfo).endswith(f", {vectors}")
    assert len(name_processor(cpuinfo)) > len(f", {vectors}")


def warnings_of_run(device: str, *flags: str) -> list[str]:
    """What a run of one rank on this device warns of when it begins."""
    messages: list[str] = []
    fed = SimpleNamespace(
        job=load(flags, environ={}),
        device=torch.device(device),
        comm=SimpleNamespace(size=1),
        placement=SimpleNamespace(ranks=[0]),
        warnings=SimpleNamespace(say=messages.append),
    )
    run.warn(fed, SimpleNamespace(warnings=()))
    return messages


@pytest.mark.parametrize(
    ("precision", "has", "device", "warns"),
    [
        ("bf16", "", "cpu", True),
        ("bf16", "avx512_bf16", "cpu", False),
        ("bf16", None, "cpu", False),
        ("bf16", "", "cuda", False),
        ("float32", "", "cpu", False),
    ],
)
def test_a_run_warns_if_bf16_is_emulated(
    precision: str, has: str | None, device: str, warns: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run, "find_bfloat16", lambda: has)
    messages = warnings_of_run(device, "--run.precision", precision)
    assert [("emulated" in message) for message in messages] == [True] * warns


@pytest.mark.parametrize(
    ("gpus", "wanted", "device", "warns"),
    [
        ("4", "auto", "cpu", True),
        ("4", "cpu", "cpu", False),
        ("4", "auto", "cuda", False),
        ("0", "auto", "cpu", False),
    ],
)
def test_a_run_on_the_cpu_in_a_batch_job_with_gpus_says_so(
    gpus: str, wanted: str, device: str, warns: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", gpus)
    messages = warnings_of_run(device, "--run.device", wanted)
    said = ["SLURM_GPUS_ON_NODE = 4" in message for message in messages]
    assert said == [True] * warns


NOTHING = (
    "  no layer of the models is computed in it for batches of {} examples: "
    "run.precision = 'bf16' changes nothing in local training"
)


@pytest.mark.parametrize(
    ("method", "small", "flags", "want"),
    [
        ("fedavg", 5e6, (), [NOTHING.format(8)]),
        ("fedclassavg", 5e6, (), [NOTHING.format(16)]),  # in two views
        ("fedavg", 1e5, (), ["  mlp: 1 of 3 layers for 8 examples"]),  # 8 * 64 * 200 products
        ("fedavg", 1e5, ("--local.batch", "100"), ["  mlp: 2 of 3 layers for 32 examples"]),
        ("fedavg", 1e5, ("--privacy.by", "examples", "--privacy.clip", "1"), [NOTHING.format(1)]),
    ],
)
def test_a_run_says_how_many_layers_are_computed_in_bfloat16(
    method: str,
    small: float,
    flags: tuple[str, ...],
    want: list[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(precision, "SMALL", small)
    monkeypatch.setattr(describe, "find_bfloat16", lambda: "")
    words = ("--run.precision", "bf16", "--models.mix", "mlp", "--local.batch", "8", *flags)
    job = toy.job(method, *words)
    lines = describe.setting(toy.world(job, Serial()), toy.start(Serial(), job).fed)
    start = lines.index("bfloat16: emulated (run.precision)")
    assert lines[start + 1 : start + 1 + len(want)] == want
