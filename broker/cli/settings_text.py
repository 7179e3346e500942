"""Settings as text: every value that is in force, with what it means, in the form of a configuration file."""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

import msgspec
from msgspec import NODEFAULT, Struct

from broker.settings import shown

WIDTH = 110


def meaning(struct: type[Struct], name: str) -> str:
    """What the schema says below a field: what it is, its unit, its default and why; "" where it says nothing."""
    return _documented(struct.__module__).get((struct.__name__, name), "")


@cache
def _documented(module: str) -> dict[tuple[str, str], str]:
    """(class, field) -> the string below the field: Python keeps it in the source only."""
    found: dict[tuple[str, str], str] = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.ClassDef):
            for field, text in zip(node.body, node.body[1:], strict=False):
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(field.target, ast.Name)
                    and isinstance(text, ast.Expr)
                    and isinstance(text.value, ast.Constant)
                ):
                    found[node.name, field.target.id] = " ".join(str(text.value.value).split())
    return found


def toml(value: Any) -> str:
    """One value as TOML.

    >>> toml(True), toml("a"), toml([1, 2]), toml({"a": "b"})
    ('true', '"a"', '[1, 2]', '{ a = "b" }')
    """
    if isinstance(value, dict):
        return (
            "{ "
            + ", ".join(f"{_key(name)} = {toml(each)}" for name, each in value.items() if each is not None)
            + " }"
            if value
            else "{}"
        )
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)  # for texts, numbers and booleans JSON and TOML agree


def _key(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() and name.isascii() else json.dumps(name)


def lines(settings: Struct, *, explain: bool) -> Iterator[str]:
    """The lines of a configuration file that says what ``settings`` say; ``explain`` puts its meaning above each.

    Of sections that may be given again the first is explained, or what it could be when there is none.
    """
    for section in msgspec.structs.fields(settings):
        value = getattr(settings, section.name)
        if isinstance(value, Struct):
            yield f"[{section.name}]"
            yield from _section(value, explain)
            yield ""
        elif value is None and explain:
            yield f"#[{section.name}] is not set; its defaults:"
            default = next(each for each in get_args(section.type) if issubclass(each, Struct))()
            yield from (line if line.startswith("#") else f"#{line}" for line in _section(default, explain))
            yield ""
        elif value == () and explain:
            yield f"#[[{section.name}]] may be given again, and is not set; it has:"
            yield from _possible(get_args(section.type)[0])
            yield ""
        for at, entry in enumerate(value if isinstance(value, tuple) else ()):
            yield f"[[{section.name}]]"
            yield from _section(entry, explain and not at)
            yield ""


def _explained(struct: type[Struct], name: str) -> Iterator[str]:
    yield from textwrap.wrap(meaning(struct, name), WIDTH, initial_indent="# ", subsequent_indent="# ")


def _possible(struct: type[Struct]) -> Iterator[str]:
    for field in msgspec.structs.fields(struct):
        yield from _explained(struct, field.name)
        default = default_of(field)
        said = (
            "has to be set" if field.required else "is not set" if default is None else f"= {toml(default)}"
        )
        yield f"#{field.name} {said}"


def _section(struct: Struct, explain: bool) -> Iterator[str]:
    for field in msgspec.structs.fields(struct):
        value = shown(getattr(struct, field.name), field.name)
        if explain:
            yield from _explained(type(struct), field.name)
        if value is None:
            if explain:
                yield f"#{field.name} is not set"
            continue
        note = "" if value == default_of(field) else "  # not the default"
        yield f"{field.name} = {toml(value)}{note if explain else ''}"


def default_of(field: Any) -> Any:
    """The default of a field, JSON-ready; None where it has none."""
    if field.default is not NODEFAULT:
        return msgspec.to_builtins(field.default)
    return None if field.default_factory is NODEFAULT else msgspec.to_builtins(field.default_factory())
