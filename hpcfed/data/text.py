"""Texts as tokens: words and marks, a vocabulary of the most frequent ones, rows of one length.

What is done to tweets follows Go, Bhayani and Huang, "Twitter Sentiment Classification using
Distant Supervision", Stanford, 2009, section 2.2: one token for all user names, one for all links,
and a letter that is repeated more than twice is written twice. Deviations: marks are kept, runs of
them as one token.
"""

import html
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from hpcfed.core.errors import DataError
from hpcfed.data.dataset import Split, Text

PADDING, UNKNOWN = 0, 1  # numbers that are no word's
RULES = (  # what is replaced by what, one after the other
    (re.compile(r"https?://\S+|www\.\S+"), " <url> "),
    (re.compile(r"@\w+"), " <user> "),
    (re.compile(r"([^\s\d])\1{2,}"), r"\1\1"),  # sooooo, soooo: soo
)
TOKEN = re.compile(
    r"<url>|<user>|\w+(?:['’]\w+)*|([^\w\s])\1*"
)  # a word, perhaps with an apostrophe, or a mark


def tokenise(text: str) -> list[str]:
    """The tokens of a text, in lower case: "@Ann: soooo cool!!!" is <user>, ":", "soo", "cool",
    "!!".
    """
    text = html.unescape(text).lower()
    for pattern, replacement in RULES:
        text = pattern.sub(replacement, text)
    return [found.group() for found in TOKEN.finditer(text)]


def numbers(texts: Iterable[list[str]], size: int) -> dict[str, int]:
    """The numbers of the most frequent tokens, from 2 on, so that there are at most `size` with 0
    and 1.

    Equally frequent ones by the alphabet: the same texts in any order have the same vocabulary.
    """
    counts = Counter(token for text in texts for token in text)
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    return {token: i for i, token in enumerate(ranked[: size - 2], start=2)}


def rows(texts: Sequence[list[str]], known: dict[str, int], length: int) -> np.ndarray:
    """Texts as rows of `length` numbers, [n, length], int32: cut at the end, or filled up with
    0.
    """
    x = np.full((len(texts), length), PADDING, np.int32)
    for row, text in zip(x, texts, strict=True):
        found = [known.get(token, UNKNOWN) for token in text[:length]]
        row[: len(found)] = found
    return x


def encode(splits: Sequence[Split], text: Text) -> tuple[list[Split], int]:
    """Splits whose x is texts, [n], as splits whose x is tokens, and the size of the vocabulary.

    The first split is the training one: the vocabulary is that of its texts alone.  Raises
    DataError where these hold no word.
    """
    texts = [[tokenise(example) for example in split.x] for split in splits]
    known = numbers(texts[0], text.vocabulary)
    if not known:
        raise DataError("the training texts hold no word; store texts that are not empty")
    coded = [replace(s, x=rows(t, known, text.tokens)) for s, t in zip(splits, texts, strict=True)]
    return coded, len(known) + 2
