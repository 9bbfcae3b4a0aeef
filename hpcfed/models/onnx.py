"""Trained models in the ONNX format, for programs without torch; the metadata describe them."""

from __future__ import annotations

import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn

from hpcfed.core import rng
from hpcfed.core.errors import ConfigError, first_line
from hpcfed.core.inputs import zeros
from hpcfed.core.optional_imports import import_extra
from hpcfed.core.shapes import Shapes
from hpcfed.models import files
from hpcfed.models.trained import About, Trained

ENDING = ".onnx"
INPUT, OUTPUT = "x", "predictions"
EXAMPLES = 3  # on which the file is compared with the model
CLOSE = 1e-3  # largest difference there, relative or absolute


class Predictions(nn.Module):
    """A trained model with probabilities as its output, or the numbers that it predicts: [n, C]."""

    def __init__(self, model: Trained):
        super().__init__()
        self.trained = model

    def forward(self, x: Tensor) -> Tensor:
        model = self.trained
        return model.task.soft(model.scores(model.prepare(x)))


def encode(model: Trained) -> bytes:
    """Return the content of the file.

    The input x is [n, *shape], encoded and not normalised: float32, of images 0..1; of texts int64.
    The output is that of `Predictions`, float64. The metadata are those of a safetensors file.
    Raises ConfigError for a model that ONNX cannot hold, or whose ONNX predicts something else.
    """
    library = import_extra("onnx", "onnx", "a file of a model as ONNX")
    about, module = model.about, Predictions(model).eval()
    if isinstance(about.shape, Shapes):
        raise ConfigError("a model of several modalities has no ONNX form here; take safetensors")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.onnx.export(
                    module,
                    (zeros(about.shape, 2, about.vocabulary),),
                    str(path),
                    dynamo=False,  # the newer exporter fixes the number of a recurrent net's texts
                    input_names=[INPUT],
                    output_names=[OUTPUT],
                    dynamic_axes={INPUT: {0: "n"}, OUTPUT: {0: "n"}},
                )
            content = path.read_bytes()
            check(content, module, draw(about))
        except ConfigError:
            raise
        except Exception as error:  # torch's exporter and ONNX raise exceptions of many types
            raise ConfigError(
                f"{about.architecture} has no ONNX form: {first_line(error)}; take safetensors"
            ) from error
    stored = library.load_from_string(content)
    library.helper.set_model_props(stored, files.describe(about))
    return stored.SerializeToString()


def draw(about: About) -> Tensor:
    """Return random examples, as many as the exporter has not seen."""
    g = rng.torch_stream(0, "onnx")
    if about.vocabulary:
        return torch.randint(about.vocabulary, (EXAMPLES, *about.shape), generator=g)
    return torch.rand(EXAMPLES, *about.shape, generator=g)


def check(content: bytes, module: Predictions, x: Tensor) -> None:
    """Raise ValueError if the file predicts something else than the model."""
    runtime = import_extra("onnxruntime", "onnx", "a file of a model as ONNX")
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    [predictions] = session.run(None, {INPUT: x.numpy()})
    with torch.no_grad():
        expected = module(x).numpy()
    if not np.allclose(predictions, expected, rtol=CLOSE, atol=CLOSE):
        raise ValueError("its predictions differ from the model's")
