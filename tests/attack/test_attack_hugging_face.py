"""Folders of Hugging Face that name code of their own: none of it is run, and nobody is asked."""

import json
from pathlib import Path

import pytest
import torch

from hpcfed.core.errors import ConfigError, DataError
from hpcfed.data.datasets import load
from hpcfed.models import build

EVIL = """
from pathlib import Path
Path("{mark}").touch()
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizer
class Config(PretrainedConfig):
    model_type = "evil"
class Model(PreTrainedModel):
    config_class = Config
class Tokenizer(PreTrainedTokenizer):
    pass
"""
CODE = {
    "auto_map": {
        "AutoConfig": "evil.Config",
        "AutoModel": "evil.Model",
        "AutoTokenizer": ["evil.Tokenizer", None],
    },
    "trust_remote_code": True,
    "custom_pipelines": {"text-classification": {"impl": "evil.Model"}},
}
SMALL = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8, "vocab_size": 40}
CONFIGS = {  # by what names the code
    "of a known type": {"model_type": "bert", "intermediate_size": 8, **SMALL, **CODE},
    "of a type of its own": {"model_type": "evil", **SMALL, **CODE},
    "without a type": {**SMALL, **CODE},
    "kernels": {
        "model_type": "bert",
        "intermediate_size": 8,
        **SMALL,
        "attn_implementation": "evil/kernel",
        "_attn_implementation": "evil/kernel",
        "_attn_implementation_internal": "evil/kernel",
        "_experts_implementation": "evil/kernel",
    },
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a file of code, which leaves a mark if it is run; no host may be asked."""
    pytest.importorskip("transformers", minversion="5.3")
    monkeypatch.chdir(tmp_path)
    asked = []
    monkeypatch.setattr("socket.getaddrinfo", lambda *address, **_: asked.append(address) or [])
    (tmp_path / "model").mkdir()
    for place in (tmp_path / "model", tmp_path):
        (place / "evil.py").write_text(EVIL.format(mark=tmp_path / "mark"))
    yield tmp_path / "model"
    assert not (tmp_path / "mark").exists() and not asked


def write(folder: Path, name: str, content: dict) -> None:
    (folder / name).write_text(json.dumps(content))


@pytest.mark.parametrize("case", CONFIGS)
def test_the_configuration_of_an_encoder_runs_no_code(folder, case):
    write(folder, "config.json", CONFIGS[case])
    try:
        model = build("hf:model", (8,), 3, d=4, vocabulary=30)
    except ConfigError as error:
        assert "hf:model" in str(error)
    else:
        assert type(model.body.encoder).__module__.startswith("transformers.models.bert")
        assert model(torch.ones(2, 8, dtype=torch.int64)).shape == (2, 3)


@pytest.mark.parametrize("case", CONFIGS)
def test_the_folder_of_a_dual_encoder_runs_no_code(folder, case):
    config = {**CONFIGS[case], "projection_dim": 4}
    parts = {"text_config": {**SMALL, **CODE}, "vision_config": {**SMALL, **CODE}}
    for name in ("config.json", "tokenizer_config.json", "processor_config.json"):
        write(folder, name, config | parts | {"tokenizer_class": "Tokenizer"})
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(ConfigError, match="clip:model"):
        build("clip:model", (3, 16, 16), 3)


def test_the_script_of_a_data_set_is_not_run(folder):
    pytest.importorskip("datasets", minversion="5")
    for name in ("model.py", "dataset.py"):
        (folder / name).write_text((folder / "evil.py").read_text())
    write(folder, "dataset_infos.json", {"default": {"builder_name": "model"}})
    for name in ("hf:model", f"hf:{folder}"):
        with pytest.raises(DataError, match="`datasets` cannot load it"):
            load(name, Path("."), False)
