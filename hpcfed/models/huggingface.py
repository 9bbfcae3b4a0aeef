"""Text encoders of Hugging Face's transformers by name, such as "hf:distilbert-base-uncased".

The architecture is that of the name's configuration, and its weights are drawn. Texts keep hpcfed's
tokens and vocabulary; pretrained weights were made for other tokens, so none are read. The
configuration is that of a folder with config.json or of the package's cache. Nothing is ever
downloaded, and no code of a repository is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hpcfed.core.compat import prepare_torchvision
from hpcfed.core.errors import ConfigError, first_line
from hpcfed.core.optional_imports import import_extra
from hpcfed.models.transformer import mean

NAME = re.compile(r"[A-Za-z0-9_./\-]+")
LAYERS = 1000  # largest number of layers
SPECIAL = 8  # additional positions: some architectures number them from 2
# encoders that have read a text, with its shape and vocabulary
tried: set[tuple[str, tuple[int, ...], int]] = set()


class Encoder(nn.Module):
    """A text encoder: tokens [n, L], int64, 0 for padding -> representation [n, d], >= 0.

    The mean of the last states of tokens that are not padding, then a linear layer with ReLU.
    """

    def __init__(self, encoder: nn.Module, width: int, d: int):
        super().__init__()
        self.encoder, self.out = encoder, nn.Linear(width, d)

    def forward(self, x: Tensor) -> Tensor:
        mask = x > 0
        states = self.encoder(input_ids=x, attention_mask=mask.long()).last_hidden_state
        return self.out(mean(states, mask)).relu()


def maker(name: str) -> Callable[[tuple[int, ...], int, int], nn.Module]:
    """Return a function (shape, d, vocabulary) -> body for "hf:NAME".

    Raises ConfigError if this machine has no such configuration, if it is not that of an encoder,
    or if transformers is not installed.
    """
    model = name.partition(":")[2]
    if not NAME.fullmatch(model):
        raise ConfigError(f"models.mix: {name}: write it as hf:distilbert-base-uncased")
    prepare_torchvision()  # transformers imports it by itself
    library = import_extra("transformers", "hf", f"models.mix = ['{name}']")

    def build(shape: tuple[int, ...], d: int, vocabulary: int) -> nn.Module:
        config = configuration(library, model)
        try:
            adapt(config, shape[0], vocabulary)
            if config.num_hidden_layers > LAYERS:
                raise ValueError(f"it has {config.num_hidden_layers:,} layers")
            net = library.AutoModel.from_config(
                config, trust_remote_code=False, attn_implementation="eager"
            )
            width = config.hidden_size
            if getattr(net, "pooler", None) is not None:
                net.pooler = None  # a layer after the states, which is not used
            encoder = Encoder(net, width, d)
            if (model, shape, vocabulary) not in tried and not torch.empty(0).is_meta:
                with torch.no_grad():
                    encoder.eval()(torch.zeros(1, shape[0], dtype=torch.int64))
                tried.add((model, shape, vocabulary))
        except Exception as error:  # transformers and torch raise many kinds over configurations
            reason = first_line(error)
            raise ConfigError(
                f"models.mix: hf:{model} is not an encoder of texts: {reason}; take one as "
                f"hf:distilbert-base-uncased"
            ) from error
        return encoder.train()

    return build


def configuration(library: Any, name: str) -> Any:
    """Return the configuration of this name, from a folder or the cache.

    Raises ConfigError if there is none.
    """
    try:
        return library.AutoConfig.from_pretrained(
            name, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        if (Path(name) / "config.json").is_file():
            reason = str(error).partition("\n")[0]
            raise ConfigError(f"models.mix: hf:{name}: {reason}; take another model") from error
        code = f"from transformers import AutoConfig; AutoConfig.from_pretrained({name!r})"
        raise ConfigError(
            f"models.mix: hf:{name}: its configuration is neither in the cache nor a folder, and a "
            f'run downloads nothing; download it once, with python -c "{code}", or give a folder '
            f"that has its config.json"
        ) from error


def adapt(config: Any, length: int, vocabulary: int) -> None:
    """Adapt a configuration to texts of this length and vocabulary, with padding 0."""
    config.vocab_size, config.pad_token_id = vocabulary, 0
    for name in ("bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id"):
        if getattr(config, name, None) is not None:
            setattr(config, name, None)
    if getattr(config, "max_position_embeddings", length) < length + SPECIAL:
        config.max_position_embeddings = length + SPECIAL
