"""What a processor is called, and what it has for products in bfloat16 (run.precision = "bf16")."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

# flags of processors by which torch's libraries choose their kernels, the fastest first: of x86,
# and of ARM ("bf16")
FLAGS = ("amx_bf16", "avx512_bf16", "bf16")
CPUINFO = Path("/proc/cpuinfo")  # Linux's description of the processor


def name_processor(cpuinfo: Path = CPUINFO) -> str:
    """Return the processor's name and the vectors that torch's kernels use, such as "AMD EPYC 7763,
    AVX2": processors that differ in either take other times and round differently.
    """
    import torch

    text = cpuinfo.read_text(errors="replace") if cpuinfo.exists() else ""
    names = (
        value.strip()
        for name, _, value in (line.partition(":") for line in text.splitlines())
        if name.strip() == "model name"
    )
    name = next(names, "") or platform.processor() or platform.machine()
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


def find_bfloat16(cpuinfo: Path = CPUINFO) -> str | None:
    """Return the name of the processor's instructions for bfloat16; "" if it has none.

    The result is None if the system does not say.
    """
    if cpuinfo.exists():
        lines = cpuinfo.read_text(errors="replace").splitlines()
        flags = {
            word
            for line in lines
            if line.lower().startswith(("flags", "features"))
            for word in line.partition(":")[2].split()
        }
        return next((name for name in FLAGS if name in flags), "") if flags else None
    if platform.machine().lower() in ("x86_64", "amd64"):
        import torch

        capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
        return (
            next((name for name in FLAGS if capabilities.get(name)), "") if capabilities else None
        )
    return None
