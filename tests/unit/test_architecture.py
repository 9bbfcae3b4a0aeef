"""Architectures: their names in parts, and back."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcfed.config.architectures import find
from hpcfed.core.architecture import Architecture, Variant
from hpcfed.core.errors import ConfigError
from hpcfed.core.registry import outside
from hpcfed.models.variants import name_variant

pytestmark = pytest.mark.quick
words = st.from_regex(r"[a-z][a-z0-9.-]{0,8}", fullmatch=True)
options = words | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
variants = st.builds(lambda name, more: name_variant(name, *more), words, st.lists(options))
models = st.builds(Architecture, words, st.lists(st.tuples(words, words)).map(tuple)) | st.builds(
    lambda module, name: Architecture(f"{module}:{name}"), words, words
)


@st.composite
def networks(draw) -> Architecture:
    model = draw(models)
    changed = Architecture.parse(str(model) + "".join(draw(st.lists(variants, max_size=3))))
    modalities = () if ":" in model.base else tuple(draw(st.lists(words, max_size=3)))
    width = draw(st.floats(0, 1, exclude_min=True))
    return changed.only(modalities).at(width)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(networks(), st.none() | networks())
def test_a_name_and_its_parts_are_one_another(own, proxy):
    text = str(own) + (f"+{proxy}" if proxy else "")
    architecture = Architecture.parse(text)
    assert str(architecture) == text
    assert architecture.own == own and architecture.proxy == proxy
    assert architecture.parts == ((own, proxy) if proxy else (own,))
    assert str(architecture.model) in str(architecture.full) in text.replace(f"@{own.width!r}", "")


def test_the_parts_of_a_name_by_hand():
    architecture = Architecture.parse("concat(a=gru)[a&b]~pan_add_1.0_0.15~predictor@0.5+mlp")
    assert architecture == Architecture(
        "concat",
        (("a", "gru"),),
        ("a", "b"),
        (Variant("pan", ("add", "1.0", "0.15")), Variant("predictor")),
        0.5,
        Architecture("mlp"),
    )
    assert str(architecture.model) == "concat(a=gru)[a&b]"
    assert str(architecture.full) == "concat(a=gru)[a&b]~pan_add_1.0_0.15~predictor"
    assert str(architecture.at(1.0)) == str(architecture.full)
    assert str(Architecture.parse("cnn").at(0.25)) == "cnn@0.25"


def test_a_job_names_models_and_no_changes_of_them():
    """Widths, variants and proxies have fields of their own."""
    for name in ("cnn@0.5", "cnn~predictor", "cnn+mlp"):
        with pytest.raises(ConfigError, match="name the model alone, cnn; .* models.widths"):
            find(name)
    with pytest.raises(ConfigError, match="cnn has no encoders"):
        find("cnn(a=gru)")
    with pytest.raises(ConfigError, match=r"encoder 'gur'.*'gru'"):
        find("concat(a=gur)")
    with pytest.raises(ConfigError, match="write it as concat"):
        find("concat(a=gru")
    with pytest.raises(ConfigError, match="'x' is not a width"):
        Architecture.parse("cnn@x")


def test_code_outside_hpcfed_is_seen_in_every_part_of_a_name():
    text = "mine:net~pan_add_1.0_0.15@0.5+yours:net"
    assert list(outside(text)) == ["mine:net", "yours:net"]
    assert (
        list(outside("timm:resnet18+clip:folder"))
        == []
        == list(outside("cnn("))
        == list(outside(None))
    )
