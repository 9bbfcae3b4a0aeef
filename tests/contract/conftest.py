"""The toy model has its name only while these tests run: other tests go over the whole registry."""

from collections.abc import Iterator

import pytest

from hpcfed.models import MODELS, Entry


@pytest.fixture(autouse=True, scope="module")
def small_model() -> Iterator[None]:
    """A model "small", with dropout and batch normalisation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            MODELS, "small", Entry("tests.contract.toy:small", "of the tests", least=8, stem=True)
        )
        yield
