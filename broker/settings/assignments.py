"""``--set section.key=value``: settings from the command line, on top of those of a file."""

from __future__ import annotations

import contextlib
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, structs

from broker.errors import ConfigError
from broker.secret import convert_secret, masked_in, revealed
from broker.settings.shape import shape_problems, table_struct

S = TypeVar("S", bound=Struct)


def assign(settings: S, assignments: Sequence[str], rooted: Callable[[S, str], S]) -> S:
    """``settings`` with each ``section.key=value`` applied, in order; of a key that is a table itself, such as
    ``broker.attrs``, ``section.key.name=value`` sets one entry.

    A section holds single values: listeners, keys and rules are lists and belong into a file. One that is not there,
    as ``nfp`` may be, begins with its defaults. Relative paths are ``rooted`` in the folder where this was typed.

    Raises:
        ConfigError: an unknown key or a value of the wrong type; what keys say together is for the caller to check.
    """
    kinds = {each.encode_name: table_struct(each.type) for each in structs.fields(settings)}
    sections = {name: kind for name, kind in kinds.items() if kind}
    tables: dict[str, Any] = msgspec.to_builtins(settings, enc_hook=revealed)
    for assignment in assignments:
        shown = masked_in(assignment)
        path, mark, text = assignment.partition("=")
        section, dot, key = path.strip().partition(".")
        if not mark or not dot:
            raise ConfigError(f"--set: saw {shown!r}, expected section.key=value")
        if section not in sections:
            raise ConfigError(f"--set {shown}: no section {section!r}, expected one of {', '.join(sections)}")
        if tables[section] is None:
            tables[section] = msgspec.to_builtins(sections[section](), enc_hook=revealed)
        try:
            given = _checked(sections[section], key, text.strip())
        except ValueError as error:
            raise ConfigError(f"--set {shown}: {error}") from None
        for name, value in given.items():
            before = tables[section][name] if "." in key else None
            tables[section][name] = {**before, **value} if before else value
    return rooted(msgspec.convert(tables, type(settings), dec_hook=convert_secret), os.getcwd())


def _checked(section: type[Struct], key: str, text: str) -> Mapping[str, Any]:
    """The table of a file that would say so. A TOML value; what is none, or none of its type but a text that fits, is a
    text, so that a shell needs no second quotes.

    Raises:
        ValueError: what is wrong with it.
    """
    name, dot, entry = key.partition(".")
    problems: list[str] = []
    for value in (*_values(text), text):
        given = {name: {entry: value} if dot else value}
        wrong = next((each.text for each in shape_problems(section, given, ()) if each.path[0] == name), None)
        if wrong is None:
            return given
        problems.append(wrong)
    raise ValueError(problems[0])


def _values(text: str) -> Iterator[Any]:
    with contextlib.suppress(tomllib.TOMLDecodeError):
        yield tomllib.loads(f"value = {text}")["value"]
