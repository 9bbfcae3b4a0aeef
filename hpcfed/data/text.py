"""Conversion of texts to tokens: words and punctuation, a vocabulary, and rows of equal length.

Tweets are prepared as by Go, Bhayani and Huang, "Twitter Sentiment Classification using Distant
Supervision", Stanford, 2009, section 2.2: one token for all user names, one for all links, and a
letter that is repeated more than twice is written twice.
Deviations: punctuation is kept, with a run of equal marks as one token.
"""

import html
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from hpcfed.core.errors import DataError
from hpcfed.data.dataset import Split, Text

PADDING, UNKNOWN = 0, 1  # numbers that stand for no word
RULES = (  # patterns and their replacements, in order
    (re.compile(r"https?://\S+|www\.\S+"), " <url> "),
    (re.compile(r"@\w+"), " <user> "),
    (re.compile(r"([^\s\d])\1{2,}"), r"\1\1"),  # sooooo, soooo: soo
)
# a word, perhaps with an apostrophe, or a mark
TOKEN = re.compile(r"<url>|<user>|\w+(?:['’]\w+)*|([^\w\s])\1*")


def tokenise(text: str) -> list[str]:
    """Return the tokens of a text, in lower case.

    For instance, "@Ann: soooo cool!!!" gives <user>, ":", "soo", "cool", "!!".
    """
    text = html.unescape(text).lower()
    for pattern, replacement in RULES:
        text = pattern.sub(replacement, text)
    return [match.group() for match in TOKEN.finditer(text)]


def numbers(texts: Iterable[list[str]], size: int) -> dict[str, int]:
    """Return the numbers, from 2 on, of the most frequent tokens: the vocabulary.

    size: of the vocabulary, including 0 (padding) and 1 (unknown).
    Equally frequent tokens are in alphabetical order, so the order of the texts has no effect.
    """
    counts = Counter(token for text in texts for token in text)
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    return codes_of(ranked[: size - 2])


def codes_of(tokens: Sequence[str]) -> dict[str, int]:
    """Return the number of each token, from 2 on."""
    return {token: i for i, token in enumerate(tokens, start=2)}


def rows(texts: Sequence[list[str]], codes: dict[str, int], length: int) -> np.ndarray:
    """Return texts as rows of `length` numbers, [n, length], int32.

    Longer texts are truncated at the end, shorter ones are padded with 0.
    """
    x = np.full((len(texts), length), PADDING, np.int32)
    for row, text in zip(x, texts, strict=True):
        tokens = [codes.get(token, UNKNOWN) for token in text[:length]]
        row[: len(tokens)] = tokens
    return x


def encode(splits: Sequence[Split], text: Text) -> tuple[list[Split], tuple[str, ...]]:
    """Return splits of texts, [n], as splits of tokens, and the tokens that are numbered from 2.

    The vocabulary is that of the first split, which is the training split.
    Raises DataError if its texts hold no word.
    """
    texts = [[tokenise(example) for example in split.x] for split in splits]
    codes = numbers(texts[0], text.vocabulary)
    if not codes:
        raise DataError("the training texts hold no word; store texts that are not empty")
    coded = [replace(s, x=rows(t, codes, text.tokens)) for s, t in zip(splits, texts, strict=True)]
    return coded, tuple(codes)


def encode_new(texts: Iterable[str], codes: dict[str, int], length: int) -> np.ndarray:
    """Return texts as rows of this length, [n, length], int32. codes: as by `codes_of`."""
    return rows([tokenise(text) for text in texts], codes, length)
