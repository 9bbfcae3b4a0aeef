"""Formulas of docstrings as MathML, which browsers draw without a network.

A docstring has them in plain text, "w <- w - eta sum_k p_k (w - w_k) / ||a_k||_1": Greek letters
by name, `_k` and `_(k,i)` for indices, `^2` and `^(1/2)` for powers, `||x||` for a norm, ` || `
between the sides of a divergence, `<-` for an assignment. Semicolons divide several formulas.
"""

import re

from latex2mathml.converter import convert

GREEK = {
    **{name: rf"\{name}" for name in ("alpha", "beta", "gamma", "delta", "eta", "mu")},
    **{
        name: rf"\{name}"
        for name in ("omega", "phi", "rho", "sigma", "tau", "theta", "xi", "zeta", "Sigma", "Omega")
    },
    "eps": r"\varepsilon",
    "lam": r"\lambda",
}
SIGNS = {
    "<-": r"\leftarrow",
    "->": r"\to",
    "<=": r"\le",
    ">=": r"\ge",
    "*": r"\cdot",
    "<": r"\langle",
    ">": r"\rangle",
    ",": r",\,",
    "sum": r"\sum",
    "in": r"\in",
    "grad": r"\nabla",
    "then": r"\quad\mathrm{then}\quad",
}
WORDS = {  # terms, functions and fields of several letters, which are set upright
    *("CE", "KL", "MSE", "CKA", "MMD", "SSL", "GHN", "ERA", "Step"),
    *("argmin", "argmax", "cos", "diag", "exp", "hinge", "log", "max", "mean", "min", "sharpen"),
    *("softmax", "tr", "trimmed", "dis", "imitation", "inter", "intra", "kl", "staleness"),
}
TOKEN = re.compile(
    r"(?P<space>\s+)|sqrt\((?P<root>[^()]*)\)|(?P<name>[A-Za-z]+)|(?P<number>\d+(?:\.\d+)?)"
    r"|(?P<script>[_^](?:\([^()]*(?:\([^()]*\))?[^()]*\)|[A-Za-z0-9]+))"
    r"|(?P<sides>(?<=\s)\|\|(?=\s))|(?P<norm>\|\|)|(?P<sign><-|->|<=|>=|[-+*/=(),:.<>|])"
)

LETTER = re.compile(r'<mi mathvariant="normal">(\w)</mi>')
UPRIGHT = re.compile(rf"<mrow>(?:{LETTER.pattern}){{2,}}</mrow>")


def mathml(text: str) -> str:
    """Return plain formulas as MathML in HTML. ValueError names what cannot be read."""
    elements = [convert(latex(part.strip()), display="block") for part in text.split(";")]
    # a bar as high as the letters, which a power may follow
    bars = ("<mo>&#x02016;</mo>", '<mo stretchy="false">&#x02016;</mo>')
    # a word is one identifier, upright and with its index below it
    text = UPRIGHT.sub(join_letters, "".join(elements).replace(*bars))
    return f'<div class="formula">{text}</div>'


def join_letters(match: re.Match[str]) -> str:
    """Return one identifier for a row of upright letters."""
    return f"<mi>{''.join(LETTER.findall(match[0]))}</mi>"


def latex(text: str, index: bool = False) -> str:
    """Return a plain formula in LaTeX.

    index: it is an index, whose words may be any.
    """
    parts: list[str] = []
    position = norms = 0
    while position < len(text):
        match = TOKEN.match(text, position)
        if not match:
            raise ValueError(f"formula {text!r}: cannot read {text[position:]!r}")
        position, token = match.end(), match.group()
        match match.lastgroup:
            case "name":
                spaced = token in WORDS and not index
                parts += [r"\,"] if spaced and parts and parts[-1] != "(" else []
                parts.append(word(token, text, index))
                attached = text[position : position + 1] in ("_", "^", "(", ")", "")
                parts += [r"\,"] if spaced and not attached else []
            case "root":
                parts.append(rf"\sqrt{{{latex(match['root'])}}}")
            case "script":
                inner = token[2:-1] if token[1] == "(" else token[1:]
                parts.append(f"{token[0]}{{{latex(inner, index=True)}}}")
            case "norm":
                parts.append(r"\rVert" if norms % 2 else r"\lVert")
                norms += 1
            case "sides":
                parts.append(r"\;\Vert\;")
            case "number" | "sign":
                parts.append(SIGNS.get(token, token))
    if norms % 2:
        raise ValueError(f"formula {text!r}: a norm is not closed")
    return " ".join(parts)


def word(name: str, text: str, index: bool) -> str:
    """Return one word of a formula in LaTeX: a letter, a Greek letter, a sign or a name."""
    if name in GREEK or name in SIGNS:
        return GREEK.get(name) or SIGNS[name]
    if len(name) == 1 or (index and len(name) == 2):
        return name
    if not index and name not in WORDS:
        raise ValueError(f"formula {text!r}: {name!r} is neither a letter nor a name in WORDS")
    return rf"\mathrm{{{name}}}"
