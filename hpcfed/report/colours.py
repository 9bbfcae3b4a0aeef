"""Colours, dashes and markers of all drawings, in figures, pages and the terminal.

The first seven colours are those of Okabe and Ito, which can be distinguished with nearly all kinds
of colour vision. A method has one colour, in every drawing; the variants of a method differ in
dashes and tint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcfed.config.methods import ALGORITHMS

LIGHT = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#7F7F7F",
    "#8C564B",
    "#332288",
    "#882255",
    "#999933",
    "#44AA99",
)  # of lines, on light ground
DARK = (
    "#3D9BDB",
    "#E8743B",
    "#1DB586",
    "#D98FB8",
    "#F0B429",
    "#8FD0F5",
    "#FFFFFF",
    "#AAAAAA",
    "#C08A7E",
    "#8E82D8",
    "#CC6699",
    "#C4C45C",
    "#7FD1C3",
)  # the same ones on dark ground
DASHES = ("solid", "dashed", "dotted", "dashdot")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
TINTS = (0.0, 0.45, -0.4)  # towards white, and towards black
VARIANTS = len(DASHES) * len(TINTS)  # of a colour
USERS = 6  # the colour of users' methods, which no other method has
OF_METHOD = {  # the methods that are compared most have colours of their own
    "fedavg": 0,
    "fedclassavg": 1,
    "scaffold": 2,
    "fedproto": 3,
    "fedprox": 4,
    "ktpfl": 5,
    "local": 7,
    "central": 8,
    "fedmd": 9,
    "lgfedavg": 10,
    "fedopt": 11,
    "ditto": 12,
}
PHASES = {
    "train": 0,
    "communicate": 1,
    "checkpoint": 2,
    "server": 3,
    "wait": 4,
    "evaluate": 5,
}  # which of the colours


@dataclass(frozen=True)
class Look:
    """How a line is drawn: its colour on light and on dark ground, its dashes, its marker."""

    light: str
    dark: str
    dash: str
    marker: str


def looks(methods: Sequence[str]) -> list[Look]:
    """Return the look of each line, in the order of lines.

    methods: the method of each line, as jobs name it. A further line of a method, or of another
    method with the same look, has the same colour with other dashes, then in another tint. If all
    lines are of one method they have the colours in their order, because only then no colour would
    tell them apart.
    """
    if len(set(methods)) == 1 < len(methods):
        return [look(i % len(LIGHT), i // len(LIGHT), i) for i in range(len(methods))]
    taken: set[tuple[int, int]] = set()
    result = []
    for method in methods:
        colour, usual_variant = usual(method)
        variants = [(usual_variant + n) % VARIANTS for n in range(VARIANTS)]
        variant = next((n for n in variants if (colour, n) not in taken), usual_variant)
        taken.add((colour, variant))
        result.append(look(colour, variant, variant))
    return result


def usual(method: str) -> tuple[int, int]:
    """Return the number of a method's colour, and its usual dashes."""
    if method in OF_METHOD:
        return OF_METHOD[method], 0
    if method not in ALGORITHMS:
        return USERS, 0
    colours = [i for i in range(len(LIGHT)) if i != USERS]
    rank = [name for name in ALGORITHMS if name not in OF_METHOD].index(method)
    return colours[rank % len(colours)], 1 + rank // len(colours) % (len(DASHES) - 1)


def look(colour: int, variant: int, marker: int) -> Look:
    """Return the look of a variant of a colour."""
    tint = TINTS[variant // len(DASHES) % len(TINTS)]
    return Look(
        mix(LIGHT[colour], tint),
        mix(DARK[colour], -tint),
        DASHES[variant % len(DASHES)],
        MARKERS[marker % len(MARKERS)],
    )


def mix(colour: str, share: float) -> str:
    """Return a colour mixed with this share of white, or if it is negative of black."""
    end = 255 if share > 0 else 0
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(p + abs(share) * (end - p)):02X}" for p in parts)


def phase(name: str) -> str:
    """Return the colour of a phase on light ground."""
    return LIGHT[PHASES[name]]
