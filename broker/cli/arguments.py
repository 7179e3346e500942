"""Arguments of tasks and methods as words of a command line: JSON where they are some, else texts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from broker.cli.exits import UsageError
from broker.nesting import read_json


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
