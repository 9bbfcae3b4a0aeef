"""Bytes of uploads and downloads of a ResNet-18 are the lengths of messages that are decoded."""

from typing import Any

import pytest
import torch

from hpcfed.config.compression import CODECS, Compression
from hpcfed.core.params import Mean, Params
from hpcfed.federation.transforms.compression import transform_of
from hpcfed.federation.transforms.compression.codec import Codec
from hpcfed.federation.transforms.values import STATISTICS
from hpcfed.federation.upload import Upload
from hpcfed.models import build
from tests.unit.test_compression import World

NAMES = [name for name in CODECS if name != "vote"]
PACKAGES = {"sz3": "pysz", "zfp": "zfpy"}
each_codec = pytest.mark.parametrize("name", NAMES)


def resnet(seed: int) -> Params:
    """The tensors of a ResNet-18, of a fourth of the channels, and its counters of batches."""
    state = build("resnet18", (3, 32, 32), 10).state_dict()
    g = torch.Generator().manual_seed(seed)
    sizes = {name: [n // 4 if n > 16 else n for n in v.shape] for name, v in state.items()}
    return Params(
        {
            name: 0.05 * torch.randn(sizes[name], generator=g)
            if value.is_floating_point()
            else value.clone()
            for name, value in state.items()
        }
    )


@pytest.fixture(scope="module")
def models() -> list[Params]:
    return [resnet(seed) for seed in range(3)]


class Messages:
    """Notes the messages of a codec, and decodes each of them once more."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.lengths: list[int] = []
        encode, decode = Codec.encode, Codec.decode

        def noted(codec: Codec, tensors: Any, generator: Any, memory: Any = None) -> bytes:
            self.message = encode(codec, tensors, generator, memory)
            self.lengths.append(len(self.message))
            return self.message

        def compared(codec: Codec, message: bytes, shapes: Any, generator: Any) -> Any:
            assert message == self.message
            return decode(codec, bytes(message), shapes, generator)

        patch.setattr(Codec, "encode", noted)
        patch.setattr(Codec, "decode", compared)


def world(name: str, way: str) -> World:
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name], reason="needs the extra compression")
    client = World()
    client.transform = transform_of(Compression(**{way: name}))
    return client


def rest(model: Params) -> int:
    """Bytes of what travels as it is: statistics of batch normalisation, and whole numbers."""
    raw = [v for n, v in model.items() if n.endswith(STATISTICS) or v.dtype != torch.float32]
    return sum(value.nbytes for value in raw)


@each_codec
def test_the_bytes_of_an_upload_are_the_length_of_its_message(
    name: str, models: list[Params], monkeypatch: pytest.MonkeyPatch
):
    messages, at = Messages(monkeypatch), world(name, "by")
    upload = at.send(Upload(Mean.of(models[1], 3.0), relative_to=models[0]))
    assert messages.lengths == [upload.nbytes - rest(models[0])]
    assert upload.nbytes < 0.6 * models[0].nbytes
    (term,) = upload.value.terms
    assert {n: v.shape for n, v in term.value.items()} == {n: v.shape for n, v in models[0].items()}
    received, update = (
        torch.cat([(model[n] - models[0][n]).ravel() for n in encoded(model)])
        for model in (term.value, models[1])
    )
    assert torch.dot(received, update) > 0


@each_codec
def test_the_bytes_of_downloads_are_those_of_the_model_and_then_of_a_message(
    name: str, models: list[Params], monkeypatch: pytest.MonkeyPatch
):
    """A client that was away gets the difference to the model that it has, whichever that is."""
    messages, at = Messages(monkeypatch), world(name, "down")
    model, size = at.receive(models[0])
    assert size is None or size == models[0].nbytes
    assert messages.lengths == []
    assert all(torch.equal(model[n], v) for n, v in models[0].items())
    near = models[0] + Params(
        {n: 0.01 * v if n in encoded(models[1]) else v * 0 for n, v in models[1].items()}
    )
    for _ in range(5):  # rounds in which the client is away
        at.next_round()
    received, size = at.receive(near)
    flags = -(-len(encoded(near)) // 8)  # whether it is the difference
    assert [size - rest(near) - flags] == messages.lengths
    before, after = (
        sum(float((near[n] - m[n]).square().sum()) for n in encoded(near))
        for m in (model, received)
    )
    assert after < before


def encoded(model: Params) -> list[str]:
    return [n for n, v in model.items() if v.dtype == torch.float32 and not n.endswith(STATISTICS)]
