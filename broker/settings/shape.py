"""Tables against the structs that describe them: names and types, each fault with its place, in plain words."""

from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Struct

from broker.secret import HIDDEN, SecretUrl, convert_secret, masked_in
from broker.settings.lines import KeyPath
from broker.settings.values import Problem

SEEN_CHARS = 64
"""Characters of a wrong value that an error shows: enough to find it, not enough to flood a log."""


def shape_problems(struct: type[Struct], table: object, path: KeyPath) -> Iterator[Problem]:
    """Compare one table with the struct that describes it, and go down into what it holds."""
    if not isinstance(table, Mapping):
        yield Problem(path, f"saw {_shown(table)}, expected a table")
        return
    fields = {each.encode_name: each for each in msgspec.structs.fields(struct)}
    for name, value in table.items():
        if name in fields:
            yield from _value(fields[name].type, value, (*path, name))
        else:
            yield Problem((*path, name), _unknown(name, list(fields)))
    for name, each in fields.items():
        if name not in table and each.default is NODEFAULT and each.default_factory is NODEFAULT:
            yield Problem((*path, name), "missing, expected a value: it has no default")


def _value(kind: Any, value: object, path: KeyPath) -> Iterator[Problem]:
    if table := table_struct(kind):
        yield from shape_problems(table, value, path)
    elif entry := _entry_struct(kind):
        if not isinstance(value, list):
            name = ".".join(map(str, path))
            yield Problem(path, f"saw {_shown(value)}, expected an array of tables, [[{name}]]")
            return
        for index, each in enumerate(value):
            yield from shape_problems(entry, each, (*path, index))
    elif get_origin(kind) is dict and isinstance(value, Mapping):
        for name, each in value.items():
            yield from _value(get_args(kind)[1], each, (*path, name))
    else:
        yield from _leaf(kind, value, path)


def _leaf(kind: Any, value: object, path: KeyPath) -> Iterator[Problem]:
    try:
        msgspec.convert(value, kind, dec_hook=convert_secret)
        if value != value:  # not a number: TOML has it, and no range excludes it
            yield Problem(path, "saw nan, expected a number")
    except msgspec.ValidationError as error:
        yield Problem(path, f"saw {_seen(kind, value)}, expected {_expected(kind, str(error))}")


def table_struct(kind: Any) -> type[Struct] | None:
    """Return S for the types `S` and `S | None` where S is a struct; None for any other."""
    for each in (kind, *(get_args(kind) if get_origin(kind) in (Union, UnionType) else ())):
        if isinstance(each, type) and issubclass(each, Struct):
            return each
    return None


def _entry_struct(kind: Any) -> type[Struct] | None:
    """Return S for the type `tuple[S, ...]` where S is a struct."""
    if get_origin(kind) is not tuple:
        return None
    first = get_args(kind)[0]
    return first if isinstance(first, type) and issubclass(first, Struct) else None


def _expected(kind: Any, error: str) -> str:
    """Put what a type wants into words; msgspec's own where they are good ones."""
    if "length" not in error and (allowed := choices(kind)):
        return "one of " + ", ".join(f'"{each}"' for each in allowed)
    if words := _description(kind):
        return words
    wanted = error.removeprefix("Expected ").partition(" - at ")[0].partition(", got")[0]
    return wanted.replace("`", "").replace(" | null", "").replace("object", "table")


def choices(kind: Any) -> tuple[str, ...]:
    """The words that a value, or each of several, may be; () where it may be others."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    if get_origin(kind) in (Annotated, Union, UnionType, tuple):
        return next((found for arg in get_args(kind) if (found := choices(arg))), ())
    return ()


def _description(kind: Any) -> str:
    """Return the words that a type with a pattern carries, for the pattern itself helps nobody."""
    if get_origin(kind) is Annotated:
        return next((each.description for each in kind.__metadata__ if each.description), "")
    return next((found for arg in get_args(kind) if (found := _description(arg))), "")


def _unknown(name: str, known: list[str]) -> str:
    import difflib  # late: only an error asks

    near = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"saw an unknown key, expected one of {', '.join(sorted(known))}{hint}"


def _seen(kind: Any, value: object) -> str:
    """A value that is of another type; nothing of it where a secret belongs."""
    return HIDDEN if value and _is_secret(kind) else _shown(value)


def _is_secret(kind: Any) -> bool:
    return (isinstance(kind, type) and issubclass(kind, SecretUrl)) or any(map(_is_secret, get_args(kind)))


def _shown(value: object) -> str:
    text = masked_in(repr(value))
    return text if len(text) <= SEEN_CHARS else text[: SEEN_CHARS - 3] + "..."
