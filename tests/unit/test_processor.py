"""What a processor has for products in bfloat16, and what a run says about it."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hpcfed.config.load import load
from hpcfed.engine import run
from hpcfed.machine.processor import find_bfloat16

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
    messages: list[str] = []
    fed = SimpleNamespace(
        job=load(["--run.precision", precision], environ={}),
        device=torch.device(device),
        comm=SimpleNamespace(size=1),
        placement=SimpleNamespace(ranks=[0]),
        warnings=SimpleNamespace(say=messages.append),
    )
    run.warn(fed, SimpleNamespace(warnings=()))
    assert [("emulated" in message) for message in messages] == [True] * warns
