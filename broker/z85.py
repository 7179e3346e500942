"""Keys of CURVE as text: Z85 (ZeroMQ RFC 32), 40 characters for 32 bytes. (pure)"""

from __future__ import annotations

from typing import Final

KEY_CHARS: Final = 40
_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGIT: Final = {character: value for value, character in enumerate(_ALPHABET)}


def decode(key: str) -> bytes:
    """The 32 bytes of a key.

    Raises:
        ValueError: it is none; the text is what was expected, and does not repeat it: it may be a secret.
    """
    if len(key) != KEY_CHARS:
        raise ValueError(f"{KEY_CHARS} characters of Z85, not {len(key)}")
    found = bytearray()
    for at in range(0, KEY_CHARS, 5):
        value = 0
        for character in key[at : at + 5]:
            digit = _DIGIT.get(character)
            if digit is None:
                raise ValueError(f"characters of Z85 only, not another one behind position {at}")
            value = value * 85 + digit
        if value > 0xFFFFFFFF:
            raise ValueError(f"Z85 of 32 bytes; five characters from position {at} are more than 32 bits")
        found += value.to_bytes(4, "big")
    return bytes(found)


def encode(key: bytes) -> str:
    """A key of 32 bytes as text."""
    found = ""
    for at in range(0, len(key), 4):
        value = int.from_bytes(key[at : at + 4], "big")
        found += "".join(_ALPHABET[value // 85**place % 85] for place in (4, 3, 2, 1, 0))
    return found


def check(key: str) -> str:
    """What is expected of a key that cannot be one; "" of one that can."""
    try:
        decode(key)
    except ValueError as error:
        return str(error)
    return ""
