"""Colours and dashes of all drawings, in figures, pages and the terminal.

After Okabe and Ito: they can be distinguished with nearly all kinds of colour vision.
"""

from typing import Any

LIGHT = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)  # of lines, on light ground
DARK = (
    "#3D9BDB",
    "#E8743B",
    "#1DB586",
    "#D98FB8",
    "#F0B429",
    "#8FD0F5",
    "#FFFFFF",
)  # the same ones on dark ground
DASHES = ("solid", "dashed", "dotted", "dashdot")  # the next seven lines
PHASES = {
    "train": 0,
    "communicate": 1,
    "checkpoint": 2,
    "server": 3,
    "wait": 4,
    "evaluate": 5,
}  # which of the colours


def phase(name: str) -> str:
    """Return the colour of a phase on light ground."""
    return LIGHT[PHASES[name]]


def for_scripts() -> dict[str, Any]:
    """Return colours and dashes for the scripts of a page, on light and on dark ground."""
    return {"colours": list(zip(LIGHT, DARK, strict=True)), "dashes": DASHES}
