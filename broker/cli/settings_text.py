"""Settings as text: every value that is in force, with what it means, in the form of a configuration file."""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo

from broker.settings import shown
from broker.settings.shape import choices

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

    Of sections that may be given again the first is explained, or what it could be (``sample``) when there is none.
    """
    kind = type(settings)
    for section in msgspec.structs.fields(kind):
        value = getattr(settings, section.name)
        if isinstance(value, Struct):
            yield f"[{section.name}]"
            yield from _section(value, explain)
            yield ""
        elif explain and not value:
            yield from _sample_section(kind, section, section.name, _beside(kind).EXAMPLES)
        for at, entry in enumerate(value if isinstance(value, tuple) else ()):
            yield f"[[{section.name}]]"
            yield from _section(entry, explain and not at)
            yield ""


def sample(kind: type[Struct]) -> Iterator[str]:
    """The lines of a configuration file that shows every setting, none of them set. ``kind`` has all sections."""
    beside = _beside(kind)
    yield from (f"# {line}".rstrip() for line in beside.HEAD.splitlines())
    yield ""
    for section in msgspec.structs.fields(kind):
        yield from _sample_section(kind, section, section.name, beside.EXAMPLES)


def _beside(kind: type[Struct]) -> ModuleType:
    """The module ``sample`` of the package that has the schema: its words are loaded when somebody asks for them."""
    return import_module(kind.__module__.rpartition(".")[0] + ".sample")


def _sample_section(
    owner: type[Struct], section: FieldInfo, path: str, examples: Mapping[str, Any]
) -> Iterator[str]:
    """A section of ``owner`` at its defaults. One that may be left out, or given again, is commented out itself."""
    kinds = (section.type, *get_args(section.type))
    struct = next(each for each in kinds if _is_struct(each))
    is_list, is_set = get_origin(section.type) is tuple, section.type is struct
    default = "Default " + meaning(owner, section.name).partition("Default ")[2]
    about = (inspect.getdoc(struct) or "").partition("`: ")[2]
    yield from _comment(about[:1].upper() + about[1:] + ("" if is_set else f" {default}"))
    yield f"[{path}]" if is_set else f"#[[{path}]]" if is_list else f"#[{path}]"
    tables = []
    for field in msgspec.structs.fields(struct):
        if any(map(_is_struct, (field.type, *get_args(field.type)))):
            tables.append(field)  # TOML wants them behind what else the section has
            continue
        name = f"{path}.{field.name}"
        is_example = name in examples
        about = meaning(struct, field.name)
        if len(allowed := choices(field.type)) > 1:
            about += f" Allowed: {', '.join(map(toml, allowed))}."
        about += " Has to be set." if field.required else ""
        yield from _comment(about + (" (Example.)" if is_example else ""))
        yield f"#{field.name} = {toml(examples[name] if is_example else default_of(field))}"
        yield "" if is_set else "#"
    if not is_set:
        yield ""
    for field in tables:
        yield from _sample_section(struct, field, f"{path}.{field.name}", examples)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _comment(text: str) -> Iterator[str]:
    yield from textwrap.wrap(" ".join(text.split()), WIDTH, initial_indent="# ", subsequent_indent="# ")


def _section(struct: Struct, explain: bool) -> Iterator[str]:
    for field in msgspec.structs.fields(struct):
        value = shown(getattr(struct, field.name), field.name)
        if explain:
            yield from _comment(meaning(type(struct), field.name))
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
