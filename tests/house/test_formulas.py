"""Each method's docstring has its objective, its server's step and its round, and they parse."""

import re
from importlib import import_module

import pytest

from hpcfed.algorithms import ALGORITHMS
from tests.documentation import documentation_module


@pytest.fixture
def docs():
    with documentation_module("methods") as module:
        yield module


def test_every_method_has_formulas_that_parse_and_a_round_of_three_to_five_lines(docs):
    wrong = {}
    for name, entry in ALGORITHMS.items():
        equations = docs.EQUATIONS.search(import_module(entry.load().__module__).__doc__)
        if not equations:
            wrong[name] = "no Objective, Server and Round"
            continue
        numbers = re.findall(r"^(\d)\. \S.*?\.$", equations["round"], re.MULTILINE | re.DOTALL)
        if numbers != list("12345"[: len(numbers)]) or len(numbers) < 3:
            wrong[name] = f"lines of the round: {numbers}"
        for part in ("objective", "server"):
            try:
                if equations[part] != "none":
                    docs.mathml(equations[part])
            except ValueError as error:
                wrong[name] = str(error)
    assert wrong == {}


def test_a_formula_is_mathml_and_a_word_without_meaning_is_refused(docs):
    from formulas import latex

    assert latex("w <- w_(k,i) / ||a||^2") == r"w \leftarrow w _{k ,\, i} / \lVert a \rVert ^{2}"
    page = docs.mathml("sum_k alpha sqrt(b / G)")
    assert "<math" in page and "<msqrt>" in page and "&#x003B1;" in page
    assert "<msub><mi>CE</mi><mrow><mi>own</mi></mrow></msub>" in docs.mathml("CE_own")
    with pytest.raises(ValueError, match="'alhpa' is neither"):
        latex("alhpa w")
    with pytest.raises(ValueError, match="norm is not closed"):
        latex("||w")


def test_the_page_of_a_method_has_its_formulas_and_its_round_once(docs):
    page = docs.page("feddyn")
    text, _, code = page.partition("The whole method")
    assert text.count("<math") == 3 and "Objective: F_k" not in text and "Objective: F_k" in code
    assert text.count("1. The server sends its model") == 1
    assert "It does nothing." in docs.page("local")
