"""What a server learns of clients, protected or not: images from gradients, and membership.

`python benchmarks/leakage.py`: 10 minutes of one core. Results that are in build/benchmarks/leakage
are not computed again.

The upload is that of a client's first round with one step on one image, and the attack is that of
`hpcfed leakage`: "invert" on the FedAvg paper's CNN (d = 64), "idlg" on the network with sigmoids
of the DLG paper. Membership is inferred from what a client with 100 examples sends after 20 epochs
on them. The table is results/leakage/table.md, the picture that of the documentation's page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image as Picture
from PIL import ImageDraw, ImageFont
from runs import FOLDER, RESULTS
from torch import nn

from hpcfed.config.load import load
from hpcfed.launch.leakage.membership import infer_members
from hpcfed.launch.leakage.reconstruction import reconstruct
from hpcfed.launch.leakage.settings import Settings
from hpcfed.launch.leakage.target import open_rounds

KEPT, CELLS = RESULTS / "leakage", FOLDER / "leakage"
PICTURE = Path(__file__).parents[1] / "docs/pages/leakage.png"
DATA = ("fashion-mnist", "cifar10")
NETWORKS = {"invert": ("cnn", 600), "idlg": ("leakage:sigmoid", 200)}
IMAGES, SHOWN, CLIENTS = 3, 2, (0, 1)
LOCAL = "--algorithm.weighting uniform --privacy.by local --privacy.clip 1"
PROTECTIONS = {
    "none": "",
    "int8": "--compression.by int8",
    "QSGD, 4 bits": "--compression.by qsgd --compression.bits 4",
    "top-k, 1 %": "--compression.by top-k --compression.share 0.01",
    "signs": "--compression.by sign",
    "noise 0.001": f"{LOCAL} --privacy.noise 0.001",
    "epsilon 1000": f"{LOCAL} --privacy.epsilon 1000 --rounds 1",
    "epsilon 8": f"{LOCAL} --privacy.epsilon 8 --rounds 1",
}
IN_PICTURE = ("none", "QSGD, 4 bits", "top-k, 1 %", "signs", "noise 0.001", "epsilon 1000")
JOB = """--algorithm.name fedavg --clients 10 --data.partition iid --data.client_limit 100
--data.test_limit 100 --data.root ../shared/data --data.download false --models.d 64
--local.optimiser sgd --local.lr 0.1 --local.batch 10 --local.epochs 20"""
TILE, LEFT, TOP, COLOURS = 32, 78, 14, 40  # pixels; colours of the picture


def sigmoid(shape: Sequence[int], d: int) -> nn.Module:
    """DLG's network, of ten classes: 5x5 convolutions of 12 channels with sigmoids."""
    channels, sizes = shape[0], ((2, 2), (2, 2), (1, 2))
    layers: list[nn.Module] = []
    for stride, padding in sizes:
        conv = nn.Conv2d(channels, 12, 5, stride=stride, padding=padding)
        nn.init.uniform_(conv.weight, -0.5, 0.5)
        layers += [conv, nn.Sigmoid()]
        channels = 12
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(12 * (shape[1] // 4) ** 2, 10))


class Cell(NamedTuple):
    """PSNR of each image in dB, and pixels, uint8 [n, height, width, channels]."""

    psnr: np.ndarray
    originals: np.ndarray
    results: np.ndarray


def main() -> None:
    CELLS.mkdir(parents=True, exist_ok=True)
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / "table.md").write_text("\n".join(table()) + "\n")
    draw()


def words(data: str, name: str) -> list[str]:
    return f"--data.name {data} {JOB} {PROTECTIONS[name]}".split()


def invert(data: str, attack: str, name: str) -> Cell:
    """The attack on the first images of client 0."""
    path = CELLS / f"{data}-{attack}-{name}.npz".replace(" ", "")
    if not path.exists():
        network, iterations = NETWORKS[attack]
        print(f"{data}, {attack}, {name}", file=sys.stderr, flush=True)
        rounds, classes = open_rounds(load([*words(data, name), "--models.mix", network]))
        images = reconstruct(rounds, 0, Settings(attack, IMAGES, iterations=iterations), classes)
        pixels = (
            np.stack([np.uint8(255 * getattr(i, part).permute(1, 2, 0).numpy()) for i in images])
            for part in ("original", "result")
        )
        np.savez_compressed(path, *[np.array([i.psnr for i in images])], *pixels)
    with np.load(path) as arrays:
        return Cell(*arrays.values())


def membership(data: str, name: str) -> np.ndarray:
    """AUC, advantage and true positive rate, means over clients."""
    path = CELLS / f"{data}-membership-{name}.npy".replace(" ", "")
    if not path.exists():
        print(f"{data}, membership, {name}", file=sys.stderr, flush=True)
        rounds, _ = open_rounds(load([*words(data, name), "--models.mix", "cnn"]))
        np.save(path, np.mean([infer_members(rounds, k)[2] for k in CLIENTS], 0))
    return np.load(path)


def table() -> Iterator[str]:
    """The table as lines of Markdown: means over images, and over clients."""
    columns = [*((data, "invert") for data in DATA), (DATA[0], "idlg")]
    heads = [f"{data}, {attack}: PSNR (dB)" for data, attack in columns]
    heads += [f"{DATA[1]}, membership: AUC (advantage)"]
    yield f"| protection | {' | '.join(heads)} |"
    yield "|---|" + "---:|" * len(heads)
    for name in PROTECTIONS:
        cells = [f"{invert(data, attack, name).psnr.mean():.1f}" for data, attack in columns]
        auc, advantage, _ = membership(DATA[1], name)
        yield f"| {name} | {' | '.join(cells)} | {auc:.2f} ({advantage:.2f}) |"


def draw() -> None:
    """Originals above what the attack makes of the uploads, with few colours for a small file."""
    rows = ["original", *IN_PICTURE]
    size = (LEFT + 2 * SHOWN * TILE + 4, TOP + len(rows) * TILE)
    picture, font = Picture.new("RGB", size, "white"), ImageFont.load_default(size=10)
    pen = ImageDraw.Draw(picture)
    for column, data in enumerate(DATA):
        left = LEFT + column * (SHOWN * TILE + 4)
        pen.text((left, 1), data, fill="black", font=font)
        for row, name in enumerate(rows):
            cell = invert(data, "invert", name if row else IN_PICTURE[0])
            for i, image in enumerate((cell.results if row else cell.originals)[:SHOWN]):
                tile = Picture.fromarray(image.squeeze())
                picture.paste(tile, (left + i * TILE, TOP + row * TILE))
    for row, name in enumerate(rows):
        pen.text((0, TOP + row * TILE + 10), name, fill="black", font=font)
    few = picture.quantize(COLOURS, dither=Picture.Dither.NONE)
    double = few.resize((2 * size[0], 2 * size[1]), Picture.Resampling.NEAREST)
    double.save(PICTURE, optimize=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))  # where the network is
    main()
