"""Payloads and arguments on the command line: what a person gives, and how what came is shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from broker.cli.exits import UsageError
from broker.cli.screen import Screen, compact
from broker.errors import ProtocolError
from broker.nesting import read_json
from broker.wire.payload import any_text, decode_json, is_json_object

SHOWN_BYTES = 64
"""How much of a payload that is neither JSON nor text is shown."""


def payload_of(word: str | None, raw: bool) -> bytes | None:
    r"""The payload that ``word`` stands for: a JSON object, ``-`` for what stdin holds, ``@PATH`` for a file.

    Args:
        word: None is no payload.
        raw: the bytes as they are, in place of JSON and its NUL.

    Raises:
        UsageError: not a JSON object, or the file cannot be read.

    >>> payload_of('{"a": 1}', raw=False)
    b'{"a": 1}\x00'
    """
    if word is None:
        return None
    data = _read(word)
    if raw:
        return data
    payload = data.strip() + b"\0"
    if not is_json_object(payload):
        shown = data[:SHOWN_BYTES].decode("utf-8", "replace")
        example = """a JSON object such as '{"name": "rank"}' (or --raw)"""
        raise UsageError(f"saw {shown!r}, expected {example}{_fault(data)}")
    return payload


def _fault(data: bytes) -> str:
    """Where ``data`` stops being JSON; "" where that is not what is wrong.

    >>> _fault(b'{"a": 1,,}'), _fault(b"[1]")
    (': line 1, column 9: Expecting property name enclosed in double quotes', '')
    """
    try:
        json.loads(data)
    except json.JSONDecodeError as error:
        return f": line {error.lineno}, column {error.colno}: {error.msg}"
    except ValueError as error:
        return f": {error}"
    return ""


def _read(word: str) -> bytes:
    if word == "-":
        return sys.stdin.buffer.read()
    if not word.startswith("@"):
        return word.encode("utf-8", "surrogateescape")
    try:
        return Path(word[1:]).read_bytes()
    except OSError as error:
        raise UsageError(f"{word[1:]}: {error.strerror}, expected a readable file") from error


def as_value(payload: bytes | None) -> Any:
    r"""A payload as a JSON value: an object, a text, ``{"hex": ...}`` for other bytes, None for none.

    >>> as_value(b'{"a":1}\0'), as_value(b"hi\0"), as_value(b"\xff\xfe"), as_value(None)
    ({'a': 1}, 'hi', {'hex': 'fffe'}, None)
    """
    if payload is None:
        return None
    try:
        return decode_json(payload)
    except ProtocolError:
        return any_text(payload) if _is_text(payload) else {"hex": payload.hex()}


def as_text(payload: bytes | None) -> str:
    """A payload in one line for people."""
    value = as_value(payload)
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if payload is not None and not _is_text(payload):
        more = f"... {len(payload)} bytes" if len(payload) > SHOWN_BYTES else ""
        return payload[:SHOWN_BYTES].hex() + more
    return compact(value)


def show(screen: Screen, payload: bytes | None, *, raw: bool) -> None:
    """Print the payload of a response: JSON as JSON, other text as it is, ``raw`` the very bytes."""
    if raw:
        screen.out.flush()
        sys.stdout.buffer.write(payload or b"")
        sys.stdout.buffer.flush()
        return
    value = as_value(payload)
    if isinstance(value, dict) or screen.as_json:
        screen.value(value)
    elif value is not None:
        screen.line(str(value))


def _is_text(payload: bytes) -> bool:
    try:
        text = payload.removesuffix(b"\0").decode()
    except UnicodeDecodeError:
        return False
    return all(char.isprintable() or char in "\n\t\r" for char in text)


def value_of(text: str) -> Any:
    """A value on the command line: JSON where it is some, else the text.

    >>> value_of("3"), value_of('{"a": [1]}'), value_of("three"), value_of('"3"')
    (3, {'a': [1]}, 'three', '3')
    """
    try:
        return read_json(text.encode("utf-8", "surrogateescape"))
    except ValueError:
        return text


def keywords(words: Iterable[str], what: str = "argument", form: str = "KEY=VALUE") -> dict[str, Any]:
    """Arguments from ``KEY=VALUE`` words and JSON objects.

    Raises:
        UsageError: neither; ``what`` begins its text, ``form`` is what it says was expected.

    >>> keywords(["n=3", "who=me", '{"deep": {"a": 1}}'])
    {'n': 3, 'who': 'me', 'deep': {'a': 1}}
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if word.lstrip().startswith("{"):
            found |= object_of(word, what)
        elif not equals or not name:
            raise UsageError(f"{what} {word[:64]!r}: expected {form} or a JSON object")
        else:
            found[name] = value_of(text)
    return found


def object_of(text: str, what: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        UsageError: it is something else; ``what`` begins its text.
    """
    value = value_of(text)
    if not isinstance(value, dict):
        raise UsageError(f"{what} {text[:64]!r}: expected a JSON object")
    return value
