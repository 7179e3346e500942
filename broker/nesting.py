"""How deep JSON from outside may be nested: one limit, whatever interpreter reads it.

Without it the limit would be the recursion limit of the Python at hand, less the stack that is in use: 997 in 3.11,
1498 in 3.12, 9999 in 3.13. So every reader of JSON that others wrote comes from ``decoder``, or calls ``check``
first. Neither looks at text that is too short to be that deep, whether or not what it opens is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, product
from typing import Any, Final, TypeAlias, TypeVar, overload

import msgspec

NESTED_MAX: Final = 512
"""Arrays and objects in each other: half of what Python 3.11, the strictest of ours, reads with an empty stack."""

_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_OTHERS: Final = bytes(set(range(256)) - set(b'"[]{}'))
_STRIDE: Final = 8
"""Brackets looked at in one step."""
_LONG: Final = 16 << 10

Text: TypeAlias = bytes | bytearray | memoryview | str
_T = TypeVar("_T")


@overload
def decoder(type_: type[_T]) -> Callable[[Text], _T]: ...
@overload
def decoder(type_: Any) -> Callable[[Text], Any]: ...
def decoder(type_: Any) -> Callable[[Text], Any]:
    """A reader of JSON of ``type_`` that others wrote; what is nested too deeply is a ``msgspec.DecodeError``."""
    read: Callable[[Any], Any] = msgspec.json.Decoder(type_).decode

    def decode(text: Text) -> Any:
        if len(text) > NESTED_MAX:
            check(text)
        return read(text)

    return decode


def check(text: Text, most: int = NESTED_MAX) -> None:
    """Refuse JSON that is nested deeper than ``most``; whether it is JSON at all is the reader's business.

    Raises:
        msgspec.DecodeError: it is. The text names the limit.
        UnicodeEncodeError: a string with half of a surrogate pair, which is no JSON.

    >>> check(b"[[1]]", most=2)
    >>> check(b"[[[]]]", most=2)
    Traceback (most recent call last):
    msgspec.DecodeError: nested deeper than 2
    """
    if len(text) <= most:
        return
    plain = text.encode() if isinstance(text, str) else bytes(text)
    if _opens(plain, most) and _deeper(plain, most):
        raise msgspec.DecodeError(f"nested deeper than {most}")


def _opens(text: bytes, most: int) -> bool:
    """Whether there are more than ``most`` opening brackets, in strings or not."""
    if len(text) < _LONG:
        return text.count(b"[") + text.count(b"{") > most
    for bracket in (b"[", b"{"):  # of which a long text has few: to find them is far faster than to count
        at = text.find(bracket)
        while at >= 0 and most >= 0:
            most -= 1
            at = text.find(bracket, at + 1)
    return most < 0


def _deeper(text: bytes, most: int) -> bool:
    brackets = _brackets(text)
    brackets += b"]" * (-len(brackets) % _STRIDE)
    level = 0
    for at in range(0, len(brackets), _STRIDE):
        highest, change = _STEPS[brackets[at : at + _STRIDE]]
        if level + highest > most:
            return True
        level += change
    return False


def _step(brackets: bytes) -> tuple[int, int]:
    """The highest level that ``brackets`` reach, and the one they end at, from level 0."""
    levels = list(accumulate(1 if each == ord("[") else -1 for each in brackets))
    return max(levels), levels[-1]


_STEPS: Final = {bytes(each): _step(bytes(each)) for each in product(b"[]", repeat=_STRIDE)}


def _brackets(text: bytes) -> bytes:
    """The brackets of ``text`` that are in no string, all square."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    text = text.translate(_SQUARE, _OTHERS).replace(b'""', b"")  # most strings hold no bracket
    return b"".join(text.split(b'"')[::2])


read_json: Final[Callable[[Text], Any]] = decoder(Any)
"""Any JSON that others wrote.

>>> read_json(b'{"a": [1]}')
{'a': [1]}
"""
