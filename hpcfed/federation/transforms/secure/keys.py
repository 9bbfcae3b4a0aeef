"""Keys of secure aggregation: key agreement, mask streams and sealed messages.

X25519 and HKDF-SHA256 agree on keys, AES-256 in counter mode makes masks of them, and AES-GCM
seals what clients send to each other through the server, so that a changed message is noticed.
All are those of the package `cryptography` (extra "secure").

Private keys come from random streams that the seed of the job determines. So every run is the same,
and whoever knows the seed knows the keys: a simulation of costs and drop-outs protects nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from hpcfed.core.optional_imports import import_extra

KEY = 32  # bytes of a private key, a public key and an agreed key
TAG = 16  # bytes that AES-GCM adds to a message
CHUNK = 1 << 15  # words of a mask stream that are made at once: 256 KiB, which stay in the cache
WORD = 8  # bytes of a word of a mask stream
BLOCK = 16  # bytes of a block of AES

Stream = tuple[bytes, int]  # key, and the sign with which its words are added: 1 or -1


class Primitives(NamedTuple):
    """The parts of `cryptography` that are used."""

    x25519: Any
    ciphers: Any
    aead: Any
    hkdf: Any
    hashes: Any
    InvalidTag: type[Exception]


@cache
def primitives() -> Primitives:
    """Return the parts of `cryptography`. Raises ConfigError if it is not installed."""

    def part(name: str) -> Any:
        return import_extra(f"cryptography.{name}", "secure", "secure aggregation")

    hazmat = "hazmat.primitives"
    return Primitives(
        part(f"{hazmat}.asymmetric.x25519"),
        part(f"{hazmat}.ciphers"),
        part(f"{hazmat}.ciphers.aead"),
        part(f"{hazmat}.kdf.hkdf"),
        part(f"{hazmat}.hashes"),
        part("exceptions").InvalidTag,
    )


def public_key(private: bytes) -> bytes:
    """Return the X25519 public key of a private one; both have KEY bytes."""
    return private_key(private).public_key().public_bytes_raw()


@lru_cache(maxsize=8)
def private_key(private: bytes) -> Any:
    """Return the object of a private key, which takes as long to make as to agree on a key."""
    return primitives().x25519.X25519PrivateKey.from_private_bytes(private)


def agree(private: bytes, public: bytes, purpose: str) -> bytes:
    """Return the key, [KEY] bytes, on which the holders of two key pairs agree for a purpose."""
    x25519, hashes = primitives().x25519, primitives().hashes
    secret = private_key(private).exchange(x25519.X25519PublicKey.from_public_bytes(public))
    derived = primitives().hkdf.HKDF(hashes.SHA256(), length=KEY, salt=None, info=purpose.encode())
    return derived.derive(secret)


def seal(key: bytes, sender: int, message: bytes) -> bytes:
    """Return a message encrypted and authenticated, TAG bytes longer.

    sender: the client that sends it. Both ends of a pair have the same key, and each seals one
    message with it, so that the sender's number is a nonce that is used once.
    """
    return primitives().aead.AESGCM(key).encrypt(nonce(sender), message, None)


def unseal(key: bytes, sender: int, sealed: bytes) -> bytes:
    """Return the message of `seal`. Raises ValueError if it was changed on its way."""
    try:
        return primitives().aead.AESGCM(key).decrypt(nonce(sender), sealed, None)
    except primitives().InvalidTag:
        raise ValueError(
            f"secure aggregation: the message of client {sender} was changed"
        ) from None


def nonce(sender: int) -> bytes:
    return sender.to_bytes(12, "little")


def encryptor(key: bytes) -> Any:
    """Return AES-256 in counter mode, from counter 0; what it makes of zeros is the mask stream."""
    ciphers = primitives().ciphers
    return ciphers.Cipher(ciphers.algorithms.AES(key), ciphers.modes.CTR(bytes(BLOCK))).encryptor()


def full_chunks(key: bytes) -> Iterator[np.ndarray]:
    """Yield the mask stream of a key without end, in chunks, [CHUNK] uint64.

    A chunk is valid until the next one.
    """
    cipher, zeros = encryptor(key), bytes(CHUNK * WORD)
    words = np.empty(CHUNK + BLOCK // WORD, np.uint64)  # a cipher wants room for one more block
    target = words.view(np.uint8)
    while True:
        cipher.update_into(zeros, target)
        yield words[:CHUNK]


def add_streams(values: np.ndarray, streams: Sequence[Stream]) -> None:
    """Add the mask streams of several keys to values modulo 2**64, in place.

    values: [m] uint64.
    Each chunk of values meets all streams before the next one, so that it stays in the cache.
    """
    zeros = bytes(CHUNK * WORD)
    words = np.empty(CHUNK + BLOCK // WORD, np.uint64)  # a cipher wants room for one more block
    target = words.view(np.uint8)
    ciphers = [(encryptor(key), np.add if sign > 0 else np.subtract) for key, sign in streams]
    for start in range(0, len(values), CHUNK):
        chunk = values[start : start + CHUNK]
        n = len(chunk)
        for cipher, add in ciphers:
            cipher.update_into(zeros if n == CHUNK else zeros[: n * WORD], target)
            add(chunk, words[:n], out=chunk)
