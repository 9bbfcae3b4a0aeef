"""Packed numbers of any width, and three encodings of positions.

k of n positions, in ascending order, as packed numbers of ceil(log2 n) bits, as a bitmap of n bits,
or as Golomb codes of their gaps. Golomb codes are those of Sattler et al., IEEE TNNLS 2020,
arXiv:1903.02891, algorithm 4: a gap is a quotient in unary and a remainder of b bits,
b = 1 + floor(log2(ln(0.618) / ln(1 - k / n))). All remainders follow all quotients.
"""

from __future__ import annotations

import math

import numpy as np

from hpcfed.core.payload import bytes_of_bits

POWERS_OF_3 = 3 ** np.arange(5)
GOLDEN = (math.sqrt(5) - 1) / 2
PACKED, BITMAP, GOLOMB = range(3)  # the first byte of encoded positions


class Reader:
    """Reads the parts of a message one after the other."""

    def __init__(self, message: bytes) -> None:
        self._rest = memoryview(message)

    def bytes(self, n: int) -> memoryview:
        """Return the next n bytes. Raises ValueError if there are fewer."""
        if n > len(self._rest):
            raise ValueError(f"a message ends {n - len(self._rest)} bytes too early")
        part, self._rest = self._rest[:n], self._rest[n:]
        return part

    def array(self, dtype: str, n: int) -> np.ndarray:
        """Return the next n values of a type."""
        return np.frombuffer(self.bytes(n * np.dtype(dtype).itemsize), dtype)

    def numbers(self, n: int, width: int) -> np.ndarray:
        """Return the next n numbers that `pack` has written."""
        return unpack(self.bytes(bytes_of_bits(n * width)), n, width)

    def peek(self) -> memoryview:
        """Return all bytes that have not been read."""
        return self._rest


def pack(numbers: np.ndarray, width: int) -> bytes:
    """Return whole numbers >= 0 of `width` bits each, without gaps between them."""
    return np.packbits(to_bits(numbers, width)).tobytes()


def to_bits(numbers: np.ndarray, width: int) -> np.ndarray:
    """Return the bits of numbers, the highest first, [n, width], uint8."""
    bits = np.empty((len(numbers), width), np.uint8)
    for j in range(width):
        bits[:, j] = numbers >> (width - 1 - j) & 1
    return bits


def from_bits(bits: np.ndarray) -> np.ndarray:
    """Return the numbers of `to_bits`, [n], int64."""
    numbers = np.zeros(len(bits), np.int64)
    for column in bits.T:
        numbers = (numbers << 1) + column
    return numbers


def unpack(data: bytes | memoryview, n: int, width: int) -> np.ndarray:
    """Return the n numbers that `pack` has written, [n], int64."""
    return from_bits(
        np.unpackbits(np.frombuffer(data, np.uint8), count=n * width).reshape(n, width)
    )


def pack_digits(digits: np.ndarray) -> bytes:
    """Return numbers 0, 1 or 2, five of them in a byte, as 3^5 = 243."""
    padded = np.zeros(len(digits) + -len(digits) % 5, np.int64)
    padded[: len(digits)] = digits
    return (padded.reshape(-1, 5) @ POWERS_OF_3).astype(np.uint8).tobytes()


def unpack_digits(reader: Reader, n: int) -> np.ndarray:
    """Return the n numbers that `pack_digits` has written, [n], int64."""
    data = reader.array("u1", bytes_of_digits(n)).astype(np.int64)
    return (data[:, None] // POWERS_OF_3 % 3).ravel()[:n]


def bytes_of_digits(n: int) -> int:
    """Return the bytes that `pack_digits` takes for n numbers."""
    return math.ceil(n / 5)


def width_of(n: int) -> int:
    """Return the bits of a number below n."""
    return max(n - 1, 0).bit_length()


def golomb_bits(share: float) -> int:
    """Return b, the bits of a remainder, for positions that are this share of all, below 1."""
    return max(0, 1 + math.floor(math.log2(math.log(GOLDEN) / math.log(1 - share))))


def pack_positions(positions: np.ndarray, n: int) -> bytes:
    """Encode positions below n, ascending, by the shortest of the three encodings.

    All of n positions, or none, need no bytes.
    """
    k = len(positions)
    if k in (0, n):
        return b""
    codes = [
        bytes([PACKED]) + pack(positions, width_of(n)),
        bytes([BITMAP]) + bitmap(positions, n),
        bytes([GOLOMB]) + golomb(positions, n),
    ]
    return min(codes, key=len)


def most_bytes(k: int, n: int) -> int:
    """Return the most bytes that k of n positions take."""
    return 0 if k in (0, n) else 1 + min(bytes_of_bits(k * width_of(n)), bytes_of_bits(n))


def bitmap(positions: np.ndarray, n: int) -> bytes:
    """Return a bit for each of n positions, 1 for these."""
    bits = np.zeros(n, bool)
    bits[positions] = True
    return np.packbits(bits).tobytes()


def golomb(positions: np.ndarray, n: int) -> bytes:
    """Return the Golomb codes of ascending positions below n."""
    k = len(positions)
    b = golomb_bits(k / n)
    gaps = np.diff(positions, prepend=-1) - 1
    ends = np.cumsum((gaps >> b) + 1) - 1  # a quotient is that many ones, and a zero
    bits = np.ones(int(ends[-1]) + 1, bool)
    bits[ends] = False
    return np.packbits(np.append(bits, to_bits(gaps, b).astype(bool))).tobytes()


def read_positions(reader: Reader, k: int, n: int) -> np.ndarray:
    """Return the k positions below n that `pack_positions` has written, [k], int64."""
    if k in (0, n):
        return np.arange(k)
    form = reader.bytes(1)[0]
    if form == PACKED:
        return reader.numbers(k, width_of(n))
    if form == BITMAP:
        bits = np.unpackbits(reader.array("u1", bytes_of_bits(n)), count=n)
        return np.flatnonzero(bits)
    b = golomb_bits(k / n)
    longest = k * (1 + b) + (n >> b)  # the quotients add up to at most n / 2^b
    bits = np.unpackbits(np.frombuffer(reader.peek()[: bytes_of_bits(longest)], np.uint8))
    ends = np.flatnonzero(bits == 0)[:k]
    start = int(ends[-1]) + 1
    remainders = from_bits(bits[start : start + k * b].reshape(k, b))
    reader.bytes(bytes_of_bits(start + k * b))
    quotients = np.diff(ends, prepend=-1) - 1
    return np.cumsum((quotients << b) + remainders + 1) - 1
